"""A site's contract: what its owner allows to be read, trained and sent. No server can exceed it.

The owner writes it as ``site.toml`` (``rondo federate site init``). :mod:`rondo.federation.site.contract.terms` holds a
plan against it, term by term, and :mod:`rondo.federation.site.desk` every letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from rondo import algorithms
from rondo.config import toml_file
from rondo.config.checks import text_form_checks
from rondo.config.explain import explain, merged
from rondo.config.inputs import Name
from rondo.config.section import Fraction, Positive, Section
from rondo.data.files.room import Room, TextForm
from rondo.errors import ConfigError, Problem, UnknownAlgorithm

_Amount = Annotated[float, Field(gt=0)]


class RowsTerms(Section):
    """The rows: columns that a run may read, and labels that may leave."""

    inputs: list[str] = Field(default_factory=list)
    """Columns that a run may read as its input: texts, prompts, pictures, numbers. All other columns stay unread."""
    labels: list[str] = Field(default_factory=list)
    """Columns that a run may learn to predict: labels, answers, responses, targets."""
    label_names: Annotated[list[str], Field(min_length=1)] | None = None
    """The class names that may leave, and that a run must have among its classes. Left out, those of a label column
    leave, if there are ``most_labels`` at most."""
    most_labels: Positive = 20
    """Most distinct values of a label column. A column with more, or with nearly one per row, has no classes, and is
    refused."""
    separator: str | None = None
    """Character between the columns of CSV and TSV files, such as ``";"``, which Excel writes in German. Left out, a
    comma or a tab, by the file's ending."""
    encoding: str = "utf-8"
    """Encoding of text files (CSV, TSV, JSON), such as ``"cp1252"``, which Excel writes in Western Europe."""
    max_read_mb: Positive = 2048
    """Most memory for rows, in MiB. Parquet files count with 128 bytes per value and their texts uncompressed."""
    largest_held_back: Fraction = 0.5
    """Largest share of the rows that a run may hold back for scores."""
    largest_left_out: Fraction = 0.1
    """Largest share of the rows that a run may leave out as bad (``data.bad_rows = "drop"``). The rows that such a run
    keeps are the server's choice."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that runs may read or learn to predict."""
        return (*self.inputs, *self.labels)

    def room(self) -> Room:
        """The memory for the rows of a file or a folder, and the form of text files."""
        return Room(self.max_read_mb, "rows.max_read_mb", TextForm(self.separator, self.encoding, "rows."))


class TrainingTerms(Section):
    """The training: methods, tensors, and the rows and steps behind an upload. Few rows or steps behind an upload tell
    what the rows are."""

    methods: Annotated[list[str], Field(min_length=1)] | None = None
    """Methods to take part in (``rondo list``); left out, any."""
    tensors: Literal["factors", "factors+head", "whole"] = "factors+head"
    """Tensors that may leave. ``"whole"``: layers of the model and changes of full rank too."""
    embeddings: list[str] = Field(default_factory=list)
    """Module paths of embeddings, and of the layer that gives tokens, that may leave. Their changed rows are the tokens
    of this site's rows, so they must be named."""
    largest_rank: Positive = 256
    """Largest rank of a layer's factors."""
    least_rows: Positive = 8
    """Least rows of a client behind an upload."""
    least_steps: Positive = 8
    """Least steps of each training behind an upload; a pass over all of a client's rows will do in their place."""
    repeats: bool = False
    """Whether runs may come near each other's rows and work: the plan's seed then says which rows are held back, and a
    seed may have several configurations. The difference of two uploads can then be a single row. Otherwise rows are
    trained on and held back in blocks of ``least_rows``, and a seed is for one configuration."""
    least_clients: Positive = 2
    """Fewest clients that a round must ask. The server says how many it asks, and the site believes it."""
    least_sites: Annotated[int, Field(ge=2)] | None = None
    """Fewest sites that open a masked sum, whose signatures the site checks. The server chooses them: with all of them
    but one working for it, it could learn this site's part; with one fewer it cannot. Left out, two thirds of the sites
    that this one knows, itself included, and three where there are three."""
    minutes_per_round: _Amount = 60.0
    """Most minutes of training and scoring per letter."""
    minutes_per_run: _Amount = 1440.0
    """Most minutes of training and scoring in a run, of all clients of this site together."""
    memory_mb: Positive | None = None
    """Memory for the activations of a training step, in MiB. A plan whose steps take more is refused. Left out, no
    plan is."""
    fetch_models: bool = False
    """Whether a base model that the plan names is looked up on a hub. Otherwise it is built in, or this site's own copy
    (``--model``)."""
    allow_code: bool = False
    """Whether a run may use code of one's own (``package.module:Class``). Code never travels: it is imported from this
    site's disk."""


class PrivacyTerms(Section):
    """The protections that a run must have, and the epsilon that runs may spend on the rows, whose noise this site adds
    itself. The account of it is in this site's folder, over all runs, and no server can change it."""

    require: list[Literal["example-dp", "client-dp", "secure-aggregation"]] = Field(default_factory=list)
    """Protections that a plan must have: noise of this site in each step, its noise in the masked upload, masks
    (``docs/privacy.md``)."""
    max_epsilon: _Amount | None = None
    """Largest epsilon of all private runs on the same rows, or persons; a plan without noise of this site is then
    refused. Left out, it is counted and not limited."""
    least_colluding: Annotated[int, Field(ge=0)] = 1
    """Fewest sites that a plan with noise in masked uploads must count as colluding with the server
    (``privacy.colluding``)."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta of that epsilon; below 1 over the number of rows, or persons."""
    persons: Name | None = None
    """Column that says whose a row is: a private run must protect persons (``privacy.group``), and not single rows.
    It is read for that, and for nothing else."""


class OutgoingTerms(Section):
    """Letters that leave, of every kind. At a limit per day (UTC) nothing leaves any more, until the next day."""

    losses: bool = True
    """Whether mean training losses leave."""
    scores: bool = True
    """Whether scores on held-back rows leave."""
    decimals: Annotated[int, Field(ge=0, le=15)] | None = None
    """Decimals of losses and scores; left out, all."""
    least_rows_scored: Positive = 5
    """Least rows behind a loss or a score, and of each class, label or kind of entity behind a mean over these."""
    uploads_per_day: Annotated[int, Field(ge=0)] = 1000
    """Most uploads, of all clients of this site together, and as many letters with scores."""
    letters_per_day: Positive = 10_000
    """Most letters of any kind: consents, refusals, uploads, scores."""
    largest_mb: _Amount = 500.0
    """Largest letter, in MB."""
    mb_per_day: _Amount = 10_000.0
    """Most MB in all."""


class IncomingTerms(Section):
    """Letters that come in. What is beyond a limit is neither unpacked nor kept."""

    largest_mb: _Amount = 500.0
    """Largest letter, in MB."""
    mb_per_day: _Amount = 20_000.0
    """Most MB in all."""


class Contract(Section):
    """The contract of a site. A key that is left out has the default that is written here."""

    rows: RowsTerms = Field(default_factory=RowsTerms)
    training: TrainingTerms = Field(default_factory=TrainingTerms)
    privacy: PrivacyTerms = Field(default_factory=PrivacyTerms)
    outgoing: OutgoingTerms = Field(default_factory=OutgoingTerms)
    incoming: IncomingTerms = Field(default_factory=IncomingTerms)

    @property
    def columns(self) -> frozenset[str]:
        """All columns that stay read: those of runs, and the one that says whose a row is."""
        persons = self.privacy.persons
        return frozenset((*self.rows.columns, *([persons] if persons else ())))

    @classmethod
    def read(cls, path: Path) -> Contract:
        """The contract in a file. Raises :class:`ConfigError` with every fault."""
        raw = toml_file.read(path, "the contract", "write one with: rondo federate site init DATA")
        try:
            contract = cls.model_validate(raw)
        except pydantic.ValidationError as error:
            problems = merged(explain(e, raw, cls) for e in error.errors(include_url=False))
            raise ConfigError(problems, str(path)) from None
        if problems := contract._faults():
            raise ConfigError(problems, str(path))
        return contract

    def _faults(self) -> list[Problem]:
        """Faults beyond the types of the keys."""
        problems = list(text_form_checks(self.rows.separator, self.rows.encoding, "rows."))
        if not self.rows.inputs:
            problems.append(
                Problem("rows.inputs", "names no column, so nothing can be read: name those that runs may read")
            )
        for name in self.training.methods or ():
            try:
                if ":" not in name:  # code of one's own is loaded once a run asks for it, if at all
                    algorithms.entry(name)
            except UnknownAlgorithm as error:
                problems.append(Problem("training.methods", str(error)))
        if both := [c for c in self.rows.labels if c in self.rows.inputs]:
            message = f"{both[0]!r} is one of rows.inputs too, so it would be read in order to predict it: name it once"
            problems.append(Problem("rows.labels", message))
        return problems


@dataclass(frozen=True)
class Term:
    """One thing that a plan asks."""

    subject: str
    asked: str
    """The plan's wish. It may be told to the server, so no row is in it and no number of rows."""
    allowed: str
    """The contract's word on it."""
    kept: bool = True
    """Whether the wish is within the contract."""
    own: str = ""
    """Figures about it that the site's owner alone is told."""

    @property
    def reason(self) -> str:
        """The reason to refuse it."""
        return f"{self.subject}: {self.asked}, and its owner allows {self.allowed}"
