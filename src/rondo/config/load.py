"""Loads a configuration from TOML or a dict into a validated, frozen :class:`RunConfig`. Imports no torch.

A :class:`ConfigError` lists all faults at once, with key path, reason and fix, before a model is loaded.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic import ConfigDict

from rondo import algorithms
from rondo.config import toml_file
from rondo.config.checks import is_path, missing_files, missing_packages
from rondo.config.explain import explain, merged, unknown
from rondo.config.inputs import AT_SITES, GIVEN
from rondo.config.rules.keys import cross_checks
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    sets: Sequence[str] = (),
    *,
    check_paths: bool = True,
) -> RunConfig:
    """Read and validate a configuration.

    ``sets``: ``key.path=value`` overrides; values are TOML, else plain strings. Without value, the key is unset.
    ``check_paths``: False does not check that the data and the built-in packages exist, since a finished run can be
    exported without the data.

    Raises :class:`ConfigError` with every fault found.
    """
    if isinstance(source, RunConfig):
        name, raw = "config", source.model_dump(exclude_unset=True)
    elif isinstance(source, Mapping):
        name, raw = "config", _copied(source)
    else:
        name, raw = str(source), toml_file.read(Path(source), "config", "write one with: rondo init")
    set_problems = [p for text in listed(sets, "sets") if (p := _override(raw, text)) is not None]
    try:
        config = RunConfig.model_validate(raw)
    except pydantic.ValidationError as error:
        value_problems = merged(explain(e, raw) for e in error.errors(include_url=False))
        cross_problems = _despite(value_problems, raw)
        raise ConfigError(
            [*set_problems, *value_problems, *_algorithm_problems(raw.get("algorithm")), *cross_problems], name
        ) from None
    problems = [*set_problems, *_algorithm_problems(raw.get("algorithm")), *cross_checks(config)]
    if check_paths:
        problems += [*missing_files(config), *missing_packages(config)]
    if problems:
        raise ConfigError(problems, name)
    return config


def listed(values: Sequence[str], argument: str) -> list[str]:
    """The list ``values``. Raises :class:`ConfigError` if it is a single text, whose characters would be taken."""
    if isinstance(values, str):
        raise ConfigError.at(argument, f"{values!r} is a single text; give a list, such as [{values!r}]")
    return list(values)


def located(config: RunConfig) -> RunConfig:
    """The configuration with an absolute path for each file and folder, so that it holds in any working directory."""

    def absolute(path: str) -> str:
        return os.path.abspath(os.path.expanduser(path))

    def existing(name: str | None) -> str | None:
        """Names on a hub, and of things that are built in or given in Python, are no paths."""
        return absolute(name) if name is not None and Path(name).expanduser().exists() else name

    data, adapter = config.data, config.adapter
    pattern = None if data.clients_from in (None, GIVEN, AT_SITES) else absolute(str(data.clients_from))
    sources: dict[str, Any] = {"source": existing(data.source), "test_source": existing(data.test_source)}
    sources["more_tests"] = {n: absolute(v) if is_path(v) else v for n, v in data.more_tests.items()}
    start = {"adapter": adapter.model_copy(update={"start_from": existing(adapter.start_from)})}
    return config.model_copy(
        update={
            "data": data.model_copy(update={**sources, "clients_from": pattern or data.clients_from}),
            **(start if adapter.start_from is not None else {}),  # a section that is not there stays away
            "model": config.model.model_copy(update={"name": existing(config.model.name)}),
            "task": config.task.model_copy(update={"chat_template": existing(config.task.chat_template)}),
        }
    )


def _despite(problems: Sequence[Problem], raw: Mapping[str, Any]) -> list[Problem]:
    """Faults between keys, found despite faulty values. Sections with a faulty value are left out, since a default in
    its place could cause a fault of its own."""
    faulty = {p.path.partition(".")[0] for p in problems}
    try:
        rest = RunConfig.model_validate({k: v for k, v in raw.items() if k not in faulty})
    except pydantic.ValidationError:
        return []
    return [p for p in [*cross_checks(rest), *missing_files(rest)] if p.path.partition(".")[0] in raw.keys() - faulty]


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in tree.items()}


def _override(raw: dict[str, Any], text: str) -> Problem | None:
    """Apply ``key.path=value`` to ``raw``; without value, unset the key. Returns a problem if ``text`` does not have
    that form, or unsets a key that does not exist."""
    key, equals, value = text.partition("=")
    parts = [p.strip() for p in key.split(".")]
    if not equals or not all(parts):
        return Problem(f"--set {text}", "expected KEY.PATH=VALUE, for instance adapter.r=8")
    node = raw
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            return Problem(f"--set {text}", f"{part!r} is a value, not a section; give the key's whole path")
    if not value.strip():
        node.pop(parts[-1], None)
        return unknown(parts)
    try:
        node[parts[-1]] = tomllib.loads(f"x = {value}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        node[parts[-1]] = value.strip()
    return None


def _algorithm_problems(section: Any) -> Iterator[Problem]:
    """Yield the faults of ``[algorithm]`` that the static table shows without importing the algorithm."""
    name = section.get("name", "rolora") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        return
    if ":" in name:
        return  # a user's own class, checked when it is imported
    try:
        entry = algorithms.entry(name)
    except algorithms.UnknownAlgorithm as error:
        yield Problem("algorithm.name", str(error))
        return
    for key, value in section.items():
        if key == "name":
            continue
        if key not in entry.fields:
            near = difflib.get_close_matches(key, entry.fields, n=1)
            known = f"its fields: {', '.join(entry.fields)}" if entry.fields else "it has no fields, remove it"
            hint = f"did you mean {near[0]!r}?" if near else known
            yield Problem(f"algorithm.{key}", f"{name} has no such field; {hint}")
            continue
        try:
            pydantic.TypeAdapter(
                entry.fields[key], config=ConfigDict(strict=True, allow_inf_nan=False)
            ).validate_python(value)
        except pydantic.ValidationError as error:
            wanted = error.errors()[0]["msg"].replace("Input should be", "should be")
            yield Problem(f"algorithm.{key}", f"{wanted}, got {value!r}")
