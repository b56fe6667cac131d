"""A site's contract: what its owner allows to be read, trained and sent. No server can exceed it.

The owner writes it as ``site.toml`` (``rondo federate site init``). :mod:`rondo.federation.site.terms` holds a plan
against it, :mod:`rondo.federation.site.desk` every letter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from rondo import algorithms
from rondo.config import toml_file
from rondo.config.explain import explain, merged
from rondo.config.section import Fraction, Positive, Section
from rondo.errors import ConfigError, Problem, UnknownAlgorithm

FILE = Path("site.toml")
"""The contract's usual place."""

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
    largest_held_back: Fraction = 0.5
    """Largest share of the rows that a run may hold back for scores."""
    largest_left_out: Fraction = 0.1
    """Largest share of the rows that a run may leave out as bad (``data.bad_rows = "drop"``). The rows that such a run
    keeps are the server's choice."""


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
    least_clients: Positive = 2
    """Fewest clients that a round must ask. The server says how many it asks, and the site believes it."""
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


class OutgoingTerms(Section):
    """Letters that leave, of every kind. At a limit per day (UTC) nothing leaves any more, until the next day."""

    losses: bool = True
    """Whether mean training losses leave."""
    scores: bool = True
    """Whether scores on held-back rows leave."""
    decimals: Annotated[int, Field(ge=0, le=15)] | None = None
    """Decimals of losses and scores; left out, all."""
    least_rows_scored: Positive = 5
    """Least rows behind a loss or a score."""
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
    outgoing: OutgoingTerms = Field(default_factory=OutgoingTerms)
    incoming: IncomingTerms = Field(default_factory=IncomingTerms)

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
        problems = []
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
