"""The search of a configuration's methods, and the file with the values that it has chosen."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import tomli_w

from rondo.config import toml_file
from rondo.config.explain import explain, merged
from rondo.config.load import load, method_tables
from rondo.config.rules.methods import MAY_DIFFER, may_differ
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.study import compare
from rondo.study.compare.numbers import first_metric, higher_is_better
from rondo.study.runs import Runs, Trial, place
from rondo.study.score import Score
from rondo.study.tune.tuning import Chosen, Point, Search, Tuning, digest, merge, nested

_SOURCE = "rondo tune"
_LINEAR = "builtin:linear"


@dataclass(frozen=True)
class Asked:
    """The search that the command line asks for."""

    config: str
    """A configuration's file."""
    methods: Sequence[str]
    """Labels of its ``[methods]``, or names; empty: all labels."""
    grid: Sequence[str]
    """``KEY.PATH=VALUE,VALUE``"""
    seeds: Sequence[int]
    held_out: float | None = None
    """None: a fifth; nothing of a linear problem, whose measures are the scores."""
    trials: int | None = None


class Methods(Runs):
    """The search of the methods of a configuration, with its trials in ``folder``."""

    def __init__(self, asked: Asked, folder: Path) -> None:
        """Raises :class:`ConfigError` for every value and key that no trial can have, before the first one."""
        super().__init__(folder)
        self.content = toml_file.read(Path(asked.config), "config", "write one with: rondo init")
        if not asked.methods and not method_tables(self.content):
            message = "none is named; name some with commas between, or give the file tables [methods.NAME]"
            raise ConfigError.at("METHODS", message, _SOURCE)
        try:
            first = compare.plan(asked.methods, self.content)
        except ConfigError as error:
            problems = [Problem(p.path.replace("ALGORITHMS", "METHODS"), p.message) for p in error.problems]
            raise ConfigError(problems, _SOURCE) from None
        self.configs = {variant.method: variant.config for variant in first}
        self.is_linear = next(iter(self.configs.values())).data.source == _LINEAR
        self.tuning = self._tuning(asked)
        if problems := list(self._key_problems()) or list(dict.fromkeys(self._value_problems())):
            raise ConfigError(problems, _SOURCE)
        self.score = _score(next(iter(self.configs.values())), is_linear=self.is_linear)
        self._search = Search(self, self.tuning, self.score, self._trial)

    def missing_of_tuning(self) -> list[Trial]:
        """The trials to make next, until every method is tuned."""
        return [trial for label in self.configs for trial in self._search.missing(label)]

    def here(self) -> list[Trial]:
        """The trials so far, and those to make next."""
        return [trial for label in self.configs for trial in self._search.trials(label)]

    def chosen(self) -> dict[str, Chosen]:
        """The point of each method, with the scores of its trials. All methods must be tuned."""
        searched = digest({"config": self.content, "tuning": self.tuning.model_dump()})
        return {label: self._search.chosen(label, searched) for label in self.configs}

    def file(self, chosen: Mapping[str, Chosen]) -> str:
        """The configuration with the chosen values in the tables of the methods, and the scores of all trials above."""
        grid = "; ".join(f"{key} = {_listed(values)}" for key, values in self.tuning.grid.items())
        rows = (
            "" if self.is_linear else f" on {100 * self.tuning.held_out:g} % of each client's training rows, held out"
        )
        lines = [
            f"# Written by rondo tune. Grid: {grid}. Seeds: {_listed(self.tuning.seeds)}.",
            f"# Score: {self.score.metric}{rows}.",
        ]
        for label, of_label in chosen.items():
            lines.append(f"# {label}, {of_label.trials} trials, the best first:")
            lines += [f"#   {_shown(row.values)}: {_listed(row.scores)}" for row in of_label.tried]
        content = self._with({label: of_label.values for label, of_label in chosen.items()})
        return "\n".join([*lines, "", tomli_w.dumps(content)])

    def _with(self, points: Mapping[str, Point]) -> dict[str, Any]:
        content = copy.deepcopy(self.content)
        merge(content, {"methods": {label: nested(point) for label, point in points.items()}})
        return content

    def _trial(self, label: str, seed: int, point: Point) -> Trial:
        share = self.tuning.held_out
        config = self._config(label, {**point, "seed": seed, **({"data.validation_fraction": share} if share else {})})
        folder = place(self.folder, label, seed, config)
        return Trial(label, seed, config, folder, point, is_tuning=True, held_out=bool(share))

    def _config(self, label: str, values: Point) -> RunConfig:
        tree = self.configs[label].model_dump(exclude_unset=True)
        merge(tree, nested(values))
        return load(tree)

    def _tuning(self, asked: Asked) -> Tuning:
        share = asked.held_out if asked.held_out is not None else 0.0 if self.is_linear else 0.2
        grid = compare.varied(asked.grid, "--grid", _SOURCE)
        raw = {"grid": grid, "seeds": list(asked.seeds), "held_out": float(share), "trials": asked.trials}
        try:
            tuning = Tuning.model_validate(raw)
        except pydantic.ValidationError as error:
            problems = merged(explain(e, raw, Tuning) for e in error.errors(include_url=False))
            raise ConfigError([Problem(_option(p.path), p.message) for p in problems], _SOURCE) from None
        if (share == 0) != self.is_linear:
            message = "a linear problem has no rows to hold out: leave it out" if self.is_linear else ""
            message = message or "should be above 0: else a search would go by the test rows"
            raise ConfigError.at("--held-out", message, _SOURCE)
        if taken := {config.seed for config in self.configs.values()} & set(tuning.seeds):
            message = f"{_listed(taken)} is the seed of the runs: name seeds of which no run is made"
            raise ConfigError.at("--seeds", message, _SOURCE)
        return tuning

    def _key_problems(self) -> Iterator[Problem]:
        tables = method_tables(self.content)
        for key in self.tuning.grid:
            if key == "algorithm.name" or not may_differ(key):
                known = ", ".join(name if "." in name else f"{name}.KEY" for name in MAY_DIFFER)
                yield Problem(f"--grid {key}", f"one method alone cannot have this key; there are {known}")
            for label in self.configs:
                if tables.get(label, {}).get(key.partition(".")[0]) is False:
                    yield Problem(f"--grid {key}", f"{label} goes without this section: tune it on its own")

    def _value_problems(self) -> Iterator[Problem]:
        first = {key: values[0] for key, values in self.tuning.grid.items()}
        for label in self.configs:
            for key, values in self.tuning.grid.items():
                for value in values:
                    try:
                        self._config(label, {**first, key: value})
                    except ConfigError as error:
                        yield from (Problem(p.path, f"{label}: {p.message}") for p in error.problems)
        try:
            load(self._with(dict.fromkeys(self.configs, first)), [f"algorithm.name={next(iter(self.configs))}"])
        except ConfigError as error:
            yield from error.problems


def _score(config: RunConfig, *, is_linear: bool) -> Score:
    if is_linear:
        return Score("measures.global_loss", lower_is_better=True)
    metric = first_metric(config)
    return Score(metric, lower_is_better=not higher_is_better(config, metric))


def _option(path: str) -> str:
    """The option of the command line with the key ``path`` of a tuning."""
    name = re.split(r"[.\[]", path)[0].replace("_", "-")
    return f"--{name or 'grid'}"


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in values)


def _shown(point: Point) -> str:
    return ", ".join(f"{key} = {toml_file.inline(value)}" for key, value in point.items())
