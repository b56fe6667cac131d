"""The runs of a comparison: methods by label, each with its own values, and with every value of what is varied. Imports
no torch."""

from __future__ import annotations

import difflib
import itertools
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rondo import algorithms as table
from rondo.config import toml_file
from rondo.config.load import Source, listed, load, method_tables
from rondo.config.rules.methods import MAY_DIFFER, may_differ
from rondo.config.schema import RunConfig
from rondo.data.demo import STARTER
from rondo.errors import ConfigError, Problem
from rondo.study.runs import file_name

Vary: TypeAlias = Mapping[str, Sequence[Any]]
"""The values of each key that is varied."""


@dataclass(frozen=True)
class Variant:
    """One configuration of a comparison, with one seed."""

    label: str
    """The method's label, with the values of what is varied: ``"fedloru tau=10"``."""
    method: str
    """The method's label."""
    config: RunConfig
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of the keys that are varied, without those that the method lacks."""

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"{file_name(self.label)}-seed-{self.config.seed}"

    @property
    def data_keys(self) -> str:
        """The keys that decide the rows and who holds them: runs that are equal here are dealt the same."""
        return self.config.model_dump_json(include={"seed", "data", "task", "problem", "partition"})


def plan(
    names: Sequence[str] = (),
    config: Source | None = None,
    *,
    sets: Sequence[str] = (),
    vary: Vary | None = None,
    seeds: Sequence[int] = (),
) -> list[Variant]:
    """Every run, method by method. Raises :class:`ConfigError` with every fault found.

    The arguments are those of :func:`rondo.compare`.
    """
    source, vary = STARTER if config is None else config, vary or {}
    names, sets, tables = listed(names, "algorithms"), listed(sets, "sets"), method_tables(source)
    names = names or list(tables)
    problems = [*_name_problems(names, tables), *_seed_problems(seeds), *_set_problems(names, sets, seeds)]
    problems += _vary_problems(vary, sets)
    shared = [text for text in sets if not any(text.startswith(f"{name}.") for name in names)]
    variants, fields = [], set[str]()
    for name in names:
        own_sets = [text.removeprefix(f"{name}.") for text in sets if text.startswith(f"{name}.")]
        absent = tuple(f"{section}." for section, values in tables.get(name, {}).items() if values is False)
        of_name = [text for text in shared if not text.startswith(absent)]
        of_name += [*own_sets, f"algorithm.name={name}"]
        try:
            axes = {key: vary[key] for key in vary if not key.startswith(absent) and _takes(load(source, of_name), key)}
            fields |= axes.keys()
            for values in (dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())):
                loaded = load(source, [*of_name, *(f"{key}={toml_file.inline(v)}" for key, v in values.items())])
                variants.append(Variant(" ".join([name, *_shown(values)]), name, loaded, values))
        except ConfigError as error:
            keys = {text.partition("=")[0].strip() for text in own_sets}
            problems += [_told(p, p.path in keys) for p in error.problems if p.path != "algorithm.name"]
    if not problems:
        problems += [Problem(f"--vary {key}", "none of the methods has this field") for key in vary.keys() - fields]
    if problems:
        # Each algorithm reports the faults that concern all, so drop duplicates.
        raise ConfigError(list(dict.fromkeys(problems)), "rondo compare")
    return [
        Variant(v.label, v.method, v.config.model_copy(update={"seed": seed}), v.values)
        for v in variants
        for seed in seeds or (v.config.seed,)
    ]


def varied(texts: Sequence[str], option: str = "--vary", source: str = "rondo compare") -> dict[str, list[Any]]:
    """The values of each key in ``KEY.PATH=VALUE,VALUE``, which are TOML, else plain strings. ``option`` of ``source``
    has them. Raises :class:`ConfigError` for another form."""
    vary: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigError.at(f"{option} {text}", "expected KEY.PATH=VALUE,VALUE", source)
        if key.strip() in vary:
            raise ConfigError.at(f"{option} {text}", f"{key.strip()} is given twice; give all values at once", source)
        try:
            vary[key.strip()] = tomllib.loads(f"x = [{values}]")["x"]
        except (tomllib.TOMLDecodeError, RecursionError):
            vary[key.strip()] = [toml_file.parsed(value.strip()) for value in values.split(",")]
    return vary


def references(variants: Sequence[Variant], against: str | None = None) -> dict[str, str]:
    """The label that each other label is compared to. ``against``: a label; or a method, of which each is compared to
    the label with the same varied values; by default the first. Raises :class:`ConfigError` for another name."""
    first = {variant.label: variant for variant in reversed(variants)}
    labels = list(dict.fromkeys(variant.label for variant in variants))
    methods = list(dict.fromkeys(variant.method for variant in variants))
    against = against or (methods if len(methods) > 1 else labels)[0]
    if against in labels:
        return {label: against for label in labels if label != against}
    if against not in methods:
        near = difflib.get_close_matches(against, {*methods, *labels}, 3) or methods
        message = f"{against!r} is not compared; name one of those that are, such as {', '.join(near)}"
        raise ConfigError.at("--against", message, "rondo compare")
    found = {}
    for label in labels:
        values = first[label].values
        alike = [
            name
            for name in labels
            if first[name].method == against and all(values.get(k) == x for k, x in first[name].values.items())
        ]
        if first[label].method != against and alike:
            found[label] = alike[0]
    return found


def _takes(config: RunConfig, key: str) -> bool:
    """Whether the method of ``config`` has the key ``key``: all have all, but for fields of ``[algorithm]``."""
    section, _, name = key.partition(".")
    return section != "algorithm" or ":" in config.algorithm.name or name in table.entry(config.algorithm.name).fields


def _shown(values: Mapping[str, Any]) -> Iterator[str]:
    """``tau=10``: each key by its last part, or whole where two have the same."""
    short = [key.rpartition(".")[2] for key in values]
    for (key, value), name in zip(values.items(), short, strict=True):
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        yield f"{key if short.count(name) > 1 else name}={text}"


def _name_problems(names: Sequence[str], in_file: Collection[str]) -> Iterator[Problem]:
    if not names:
        message = "none is named; name some with commas between, or give --all, or the file tables [methods.NAME]"
        yield Problem("ALGORITHMS", message)
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield Problem("ALGORITHMS", f"{name!r} is named twice")
        if ":" not in name and name not in in_file:  # a third party's class is checked when it is imported
            try:
                table.entry(name)
            except table.UnknownAlgorithm as error:
                yield Problem("ALGORITHMS", str(error))


def _seed_problems(seeds: Sequence[int]) -> Iterator[Problem]:
    for seed in dict.fromkeys(seeds):
        if not 0 <= seed < 2**63:
            yield Problem("--seeds", f"{seed} is out of range; seeds are from 0 to 2^63 - 1")
        if seeds.count(seed) > 1:
            yield Problem("--seeds", f"{seed} is named twice")


def _set_problems(names: Sequence[str], sets: Sequence[str], seeds: Sequence[int]) -> Iterator[Problem]:
    for text in sets:
        key = text.partition("=")[0].strip()
        if key == "algorithm.name":
            yield Problem(f"--set {text}", "the algorithms are named by the list; remove it")
        if key == "seed" and seeds:
            yield Problem(f"--set {text}", "the seeds are named by --seeds; remove one of the two")
        for name in (name for name in names if key.startswith(f"{name}.")):
            of_one = key.removeprefix(f"{name}.")
            if not may_differ(of_one) and of_one not in MAY_DIFFER:
                allowed = ", ".join(f"{name}.{place}" for place in MAY_DIFFER)
                section = of_one.partition(".")[0]
                message = (
                    f"{section!r} is the same for all in a comparison; for one algorithm alone there are: {allowed}"
                )
                yield Problem(f"--set {text}", message)


def _vary_problems(vary: Vary, sets: Sequence[str]) -> Iterator[Problem]:
    for key, values in vary.items():
        if key in ("algorithm.name", "seed"):
            other = "by the list of algorithms" if key == "algorithm.name" else "by --seeds"
            yield Problem(f"--vary {key}", f"it is varied {other}; remove it")
        if key.startswith("methods."):
            yield Problem(
                f"--vary {key}", "name the key as a run has it, such as algorithm.tau: methods without it run once"
            )
        if isinstance(values, str) or len(values) == 0:
            yield Problem(f"--vary {key}", f"{values!r} is no list of values")
        elif len({json.dumps(value, default=repr) for value in values}) < len(values):
            yield Problem(f"--vary {key}", "a value is named twice")
        if any(text.partition("=")[0].strip() == key for text in sets):
            yield Problem(f"--vary {key}", "it is set too; remove one of the two")


def _told(problem: Problem, set_for_one: bool) -> Problem:
    """``problem``; if it lies in the algorithm fields set for all, with a hint how to set one for one algorithm."""
    if set_for_one or not problem.path.startswith("algorithm."):
        return problem
    return Problem(problem.path, f"{problem.message} (for one algorithm alone: --set NAME.{problem.path}=VALUE)")
