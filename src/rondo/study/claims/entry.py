"""An entry: a claim of a paper, the runs that decide it, and what would count, in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, model_validator

from rondo.config import toml_file
from rondo.config.explain import explain, merged
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.config.section import Positive, Section
from rondo.errors import ConfigError, headed
from rondo.study.claims.product import spread
from rondo.study.score import Score
from rondo.study.tune.tuning import Seeds, Tuning, digest, merge, nested

_Arms = Annotated[list[str], Field(min_length=1)]
_Untested = Annotated[str, Field(pattern=r"^(|(budget|condition|setting): .+)$")]
"""The part of the claim's budget, condition or setting that these runs lack; empty if it is tested as stated."""


class Sides(Section):
    """Arms whose scores are added, and arms whose scores are taken off."""

    plus: _Arms
    """Arms that the claim expects above."""
    minus: _Arms
    """Arms that it expects below."""

    @property
    def arms(self) -> list[str]:
        """The arms that it names, each once."""
        return list(dict.fromkeys([*self.plus, *self.minus]))


class Contrast(Sides):
    """One claim as a difference: the sum of the scores of ``plus`` less that of ``minus``, by seed."""

    claim: str
    """The claim in one sentence."""
    target: float | None = None
    """A value of the metric. The claim is then on the decimal logarithm of the bytes per client, up and down, at the
    first value that reaches it, from above if lower is better. A run that never does counts with all its bytes, less
    than it would need: a verdict to which that may have helped is "open"."""
    paper: Annotated[float, Field(gt=0)] | None = None
    """The paper's difference, in the unit of the metric, with a target as a logarithm; left out where it prints no
    number."""
    source: str
    """The place in the paper, and the numbers of the difference."""
    rounds_alone: str = ""
    """Why the claim says nothing at equal bytes; empty where it does."""
    untested: _Untested = ""
    one_rate: bool = False
    """Whether it is on arms at one rate, as on two forms of one method. A verdict at each one's own rate is then open
    without one at a common rate, and where the two differ."""
    common: Sides | None = None
    """The same at a common rate."""


class Bound(Section):
    """One claim as a number: a bound that every run of an arm keeps, or that the mean of its runs keeps."""

    claim: str
    """The claim in one sentence."""
    arm: str
    less: str | None = None
    """An arm whose score is taken off, seed by seed. The bound is then on the difference, or on the ratio if scores are
    logarithms."""
    at_least: float | None = None
    """The least score, in the unit of the metric, whatever ``log10`` says."""
    at_most: float | None = None
    """The largest score, likewise."""
    factor: Annotated[float, Field(gt=0)] | None = None
    """In place of these: each value of a run is at most this many times the one before, from the value before the first
    round on. Values below 1e-12 are rounding, and nothing is asked of what follows them."""
    of: Literal["runs", "mean"] = "runs"
    """``"runs"``: every run keeps the bound. ``"mean"``: their mean does."""
    region: str = ""
    """The region where a theorem does hold, if a run inside its stated conditions breaks it."""
    source: str
    """The place in the paper, and the numbers of the bound."""
    untested: _Untested = ""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        limits = [limit for limit in (self.at_least, self.at_most) if limit is not None]
        if (self.factor is None) == (not limits):
            raise ValueError("a bound has at_least, at_most or both, or it has a factor")
        if limits != sorted(limits):
            raise ValueError("at_least is above at_most")
        if self.factor is not None and (self.of == "mean" or self.less is not None):
            raise ValueError("a factor is one of every run of an arm: leave out of and less")
        return self

    @property
    def arms(self) -> list[str]:
        """The arms that it names."""
        return [self.arm] if self.less is None else [self.arm, self.less]


class Precondition(Section):
    """A condition that claims presuppose, measured in the same runs. Without it they are not tested as stated."""

    says: str
    """It in one sentence."""
    claims: list[str] = Field(default_factory=list)
    """The claims that presuppose it; empty: all of the entry."""
    plus: list[str] = Field(default_factory=list)
    """Arms whose scores are added."""
    minus: list[str] = Field(default_factory=list)
    """Arms whose scores are taken off."""
    at_least: float | None = None
    """The least mean of that difference, in the unit of the score."""
    flat: list[str] = Field(default_factory=list)
    """In place of these: arms whose curves are flat at the end."""
    at_most: Annotated[float, Field(gt=0)] | None = None
    """The largest change of their mean from one tenth of the rounds to the last."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.at_least is not None, self.at_most is not None) != (bool(self.plus), bool(self.flat)):
            raise ValueError("at_least goes with plus, and at_most with flat")
        if bool(self.plus) == bool(self.flat):
            raise ValueError("a precondition has plus and at_least, or it has flat and at_most")
        return self

    @property
    def arms(self) -> list[str]:
        """The arms that it names."""
        return [*self.plus, *self.minus, *self.flat]

    def is_met(self, here: float | None) -> bool:
        """Whether ``here``, the mean difference or the largest change, is enough; one that nothing tells is not."""
        if here is None:
            return False
        return (self.at_least is None or here >= self.at_least) and (self.at_most is None or here <= self.at_most)


class EntryTuning(Tuning):
    """The tuning of an entry."""

    metric: str = ""
    """Path of the trials' score, where it is not that of the runs: a claim on the alignment of updates is not to be had
    by rates that are chosen for it, so there the accuracy chooses."""
    lower_is_better: bool = False
    """Whether the lowest such score is looked for; for a metric of its own only."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The tables that a trial lays over its arm's: other rows than the runs', for example."""

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Self:
        if self.lower_is_better and not self.metric:
            raise ValueError("lower_is_better is of the tuning's own metric: name one, or leave it out")
        taken = [*self.grid, "seed", *(["data.validation_fraction"] if self.held_out else [])]
        if named := [key for key in taken if _value(nested(self.config), key) is not None]:
            raise ValueError(f"config names {', '.join(named)}, which the grid, the seeds or held_out give a trial")
        return self


class Entry(Section):
    """A claim of a paper."""

    paper: str
    """The paper's short name."""
    item: str
    """Table, figure or theorem."""
    title: str
    """The claim in a few words."""
    differs: str
    """How the setting differs from the paper's, and why the claim can live in it."""
    changed: str = ""
    """The changes made after a run had been seen, and which run; empty where all was written before."""
    remarks: str = ""
    """Facts of the runs beside their verdicts, written after them: floors, confounds, conditions that are not met."""
    metric: str
    """Path of the score in a round's record, such as "global.accuracy", "personal.accuracy",
    "measures.principal_angle" or "diagnostics.drift_A". "own.loss" is that of the clients' models on their own rows,
    for methods with personal models and without; of the fine-tuned ones where an arm has
    ``evaluation.fine_tune_epochs``."""
    every: Positive = 1
    """Rounds of one iteration of the paper: only the last of each has a value."""
    take: Literal["last", "smallest"] = "last"
    """The score of a run: the mean of its last values, or the smallest of all."""
    last: Positive = 1
    """The number of last values whose mean is the score."""
    log10: bool = False
    """Whether the score is the metric's logarithm."""
    lower_is_better: bool = False
    """Whether a tuning looks for the lowest score, and a target is reached from above."""
    seeds: Seeds
    files: dict[str, str] = Field(default_factory=dict)
    """Files of the data, and where to have them; none for built-in ones."""
    seconds: Annotated[float, Field(gt=0)]
    """Seconds of one run on one core, for a budget before there is a measured one."""
    config: dict[str, Any]
    """The configuration that all arms share."""
    arms: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """The tables that each arm lays over it, by name."""
    contrasts: list[Contrast] = Field(default_factory=list)
    bounds: list[Bound] = Field(default_factory=list)
    preconditions: list[Precondition] = Field(default_factory=list)
    tuning: EntryTuning | None = None

    @model_validator(mode="after")
    def _arms_are_there(self) -> Self:
        if not self.claims:
            raise ValueError("an entry has contrasts, bounds or both")
        named = {arm for named in (*self.claims, *self.commons, *self.preconditions) for arm in named.arms}
        if unknown := named - self.arms.keys():
            raise ValueError(f"claims name arms that are not there: {', '.join(sorted(unknown))}")
        unknown_claims = {one for p in self.preconditions for one in p.claims} - {claim.claim for claim in self.claims}
        if unknown_claims:
            raise ValueError(f"preconditions name claims that are not there: {', '.join(sorted(unknown_claims))}")
        if not self.metric.startswith("measures.") and any(bound.factor is not None for bound in self.bounds):
            raise ValueError("a factor is for a metric of measures, whose value before the first round is known")
        if self.tuning is not None and set(self.tuning.seeds) & set(self.seeds):
            raise ValueError("the seeds of the tuning must be others than those of the runs")
        of_rows = not self.score_of_trials.metric.startswith(("measures.", "diagnostics."))
        if self.tuning is not None and self.tuning.held_out and not of_rows:
            raise ValueError("measures and diagnostics are not of rows: give the tuning held_out = 0")
        return self

    @property
    def claims(self) -> list[Contrast | Bound]:
        """All claims, in the order of a page."""
        return [*self.contrasts, *self.bounds]

    @property
    def commons(self) -> list[Contrast]:
        """The contrasts that have a common rate, at it."""
        return [
            one.model_copy(update={"plus": one.common.plus, "minus": one.common.minus, "common": None})
            for one in self.contrasts
            if one.common is not None
        ]

    @property
    def hours(self) -> float:
        """Hours of all runs and of the first trials of their search, one after the other."""
        tried = 0 if self.tuning is None else self.tuning.trials or self.tuning.size
        return self.seconds * (len(self.searched) * tried + len(self.arms) * len(self.seeds)) / 3600

    @property
    def searched(self) -> list[str]:
        """The arms whose values are searched: without those that have a value of every key of the grid."""
        return [arm for arm in self.arms if None in self.given(arm).values()]

    def given(self, arm: str) -> dict[str, Any]:
        """The values in ``arm``'s own table of the grid's keys, by key path; None of a key that it has not."""
        keys = [] if self.tuning is None else list(self.tuning.grid)
        return {key: _value(self.arms[arm], key) for key in keys}

    @property
    def score(self) -> Score:
        """The score of a run."""
        return Score(self.metric, self.last, self.log10, self.lower_is_better, self.every, self.take)

    @property
    def score_of_trials(self) -> Score:
        """The score of a trial."""
        if self.tuning is None or not self.tuning.metric:
            return self.score
        return Score(self.tuning.metric, self.last, False, self.tuning.lower_is_better, self.every)

    def digest(self, arm: str) -> str:
        """The digest of the search of an arm: its grid and seeds, the score, and the configuration."""
        tree, grid = self.tree(arm), dict[str, Any]()
        if self.tuning is not None:
            merge(tree, self.tuning.config)
            grid = {key: getattr(self.tuning, key) for key in Tuning.model_fields}
        return digest({"tuning": grid, "score": vars(self.score_of_trials), "config": tree})

    def tree(self, arm: str) -> dict[str, Any]:
        """The keys that the runs of ``arm`` share, but for tuned ones."""
        tree: dict[str, Any] = {}
        for part in (self.config, self.arms[arm]):
            merge(tree, part)
        return tree

    def run(
        self, arm: str, seed: int, data: Path, more: Mapping[str, Any] = MappingProxyType({}), *, check: bool = True
    ) -> RunConfig:
        """The configuration of a run.

        ``data``: the folder of the files.
        ``more``: values by key path, over the arm's.
        ``check``: whether the files must be there.

        Raises :class:`ConfigError`.
        """
        tree = self.tree(arm)
        merge(tree, {**nested(more), "seed": seed})
        rows = tree.get("data")
        if isinstance(rows, dict):
            given = {key: rows[key] for key in ("source", "test_source") if isinstance(rows.get(key), str)}
            rows |= {key: str(data / file) for key, file in given.items() if file in self.files}
        with headed(f"arm {arm}"):
            return load(tree, check_paths=check)


def _value(tree: Any, path: str) -> Any:
    """The value of ``tree`` at the key path ``path``; None if it has none."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree


@cache
def _shipped() -> Mapping[str, dict[str, Any]]:
    """The keys of each entry that comes with Rondo, by name. A file has one entry, or a table of entries, each of which
    is laid over the file's other keys."""
    found: dict[str, dict[str, Any]] = {}
    for file in (files("rondo.study.claims") / "entries").iterdir():
        if file.name.endswith(".toml"):
            shared = tomllib.loads(file.read_text(encoding="utf-8"))
            parts = shared.pop("entries", {file.name.removesuffix(".toml"): {}})
            for name, part in parts.items():
                merge(found.setdefault(name, deepcopy(shared)), part)
    return found


def names() -> list[str]:
    """The entries that come with Rondo."""
    return sorted(_shipped())


def read(name: str) -> Entry:
    """The entry ``name``, or that of a file of the user's own. Raises :class:`ConfigError`."""
    if name.endswith(".toml"):
        return parsed(
            toml_file.read(Path(name), "entry", "rondo reproduce list shows those that come with Rondo"), name
        )
    return parsed(raw(name), name)


def raw(name: str) -> dict[str, Any]:
    """The keys of the entry ``name`` that comes with Rondo. Raises :class:`ConfigError`."""
    if name not in names():
        raise ConfigError.at("NAME", f"there is no entry {name!r}; rondo reproduce list shows them all")
    return deepcopy(_shipped()[name])


def parsed(keys: dict[str, Any], name: str) -> Entry:
    """The entry with these keys. Raises :class:`ConfigError`, headed by ``name``."""
    keys = spread(keys, name)
    try:
        return Entry.model_validate(keys)
    except pydantic.ValidationError as error:
        problems = merged(explain(e, keys, Entry) for e in error.errors(include_url=False))
        raise ConfigError(problems, name) from None
