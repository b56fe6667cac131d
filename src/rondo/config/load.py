"""Loads a configuration from TOML or a dict into a validated, frozen :class:`RunConfig`. Imports no torch.

A :class:`ConfigError` lists all faults at once, with key path, reason and fix, before a model is loaded.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pydantic
from pydantic import ConfigDict

from rondo import algorithms
from rondo.config import toml_file
from rondo.config.checks import is_path, missing_files, missing_packages
from rondo.config.explain import explain, merged, several, unknown
from rondo.config.inputs import AT_SITES, GIVEN
from rondo.config.rules import methods
from rondo.config.rules.keys import cross_checks
from rondo.config.rules.privacy import missing_accountant, privacy_checks, with_private_defaults
from rondo.config.schema import AlgorithmConfig, RunConfig
from rondo.errors import ConfigError, Problem

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | RunConfig
"""A configuration: the path of a TOML file, its content, or a loaded one."""


def load(source: Source, sets: Sequence[str] = (), *, check_paths: bool = True) -> RunConfig:
    """Read and validate a configuration.

    ``sets``: ``key.path=value`` overrides; values are TOML, else plain strings. Without value, the key is unset. Where
    ``algorithm.name`` is a label of ``[methods]``, the values of its table come before them, in place of the file's.
    ``check_paths``: False does not check that the data and the built-in packages exist, since a finished run can be
    exported without the data.

    Raises :class:`ConfigError` with every fault found, those of the other methods' tables too.

    >>> from rondo import config
    >>> cfg = config.load({"algorithm": {"name": "rolora"}}, ["adapter.r=4", "train.lr=1e-3"])
    >>> cfg.adapter.r, cfg.train.lr, cfg.rounds
    (4, 0.001, 20)
    """
    name, raw = _read(source)
    asked = _copied(raw)
    problems = [p for text in listed(sets, "sets") if (p := _override(asked, text)) is not None]
    tables, misplaced = methods.tables(asked)
    label = _algorithm_name(asked)
    chosen = methods.laid_over(raw, tables, label) if label in tables else _copied(raw)
    for text in sets:
        _override(chosen, text)
    chosen.pop("methods", None)
    if label in tables:
        chosen["algorithm"]["name"] = methods.method(tables, label)
    config, faults = _checked(chosen, check_paths)
    problems += [
        *misplaced,
        *(methods.placed(faults, tables, label, not_its_own=faults) if label in tables else faults),
    ]
    for other in (other for other in tables if other != label):
        of_other = _checked(methods.laid_over(raw, tables, other), check_paths)[1]
        if of_other and sets:
            # They are for the method that is chosen: they can mend another's table, and are no fault of it.
            known = {fault.path for fault in of_other}
            shared = _with_shared(methods.laid_over(raw, tables, other), sets)
            of_other = [fault for fault in _checked(shared, check_paths)[1] if fault.path in known]
        problems += methods.placed(of_other, tables, other, not_its_own=faults)
    if problems or config is None:
        raise ConfigError(list(dict.fromkeys(problems)), name)
    return config


def method_tables(source: Source) -> methods.Tables:
    """The tables ``[methods.LABEL]`` of a configuration by label, in their order, without faulty keys. Raises
    :class:`ConfigError` where it cannot be read."""
    return methods.tables(_read(source)[1])[0]


def _read(source: Source) -> tuple[str, dict[str, Any]]:
    """The name of a configuration, and its keys as a tree that may be changed."""
    if isinstance(source, RunConfig):
        return "config", source.model_dump(exclude_unset=True)
    if isinstance(source, Mapping):
        return "config", _copied(source)
    return str(source), toml_file.read(Path(source), "config", "write one with: rondo init")


def _checked(raw: dict[str, Any], check_paths: bool) -> tuple[RunConfig | None, list[Problem]]:
    """The configuration ``raw``, or None where a value is faulty; and its faults."""
    algorithm_problems = list(_algorithm_problems(raw.get("algorithm")))
    try:
        config = RunConfig.model_validate(raw)
    except pydantic.ValidationError as error:
        value_problems = merged(explain(e, raw) for e in error.errors(include_url=False))
        return None, [*value_problems, *algorithm_problems, *_despite(value_problems, raw)]
    config = with_private_defaults(config)
    problems = [*algorithm_problems, *cross_checks(config), *privacy_checks(config)]
    if check_paths:
        problems += [*missing_files(config), *missing_accountant(config), *missing_packages(config)]
    return config, problems


def _algorithm_name(raw: Mapping[str, Any]) -> str:
    """The name in ``[algorithm]``; empty where it is no text."""
    section = raw.get("algorithm", {})
    name = section.get("name", AlgorithmConfig().name) if isinstance(section, Mapping) else None
    return name if isinstance(name, str) else ""


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
            "model": config.model.model_copy(
                update={k: existing(getattr(config.model, k)) for k in ("name", "vectors")}
            ),
            "task": config.task.model_copy(update={"chat_template": existing(config.task.chat_template)}),
        }
    )


def _despite(problems: Sequence[Problem], raw: Mapping[str, Any]) -> list[Problem]:
    """Faults between keys, found despite faulty values. Sections with a faulty value are left out, since a default in
    its place could cause a fault of its own."""
    faulty = {p.path.partition(".")[0] for p in problems}
    try:
        rest = with_private_defaults(RunConfig.model_validate({k: v for k, v in raw.items() if k not in faulty}))
    except pydantic.ValidationError:
        return []
    found = [*cross_checks(rest), *privacy_checks(rest), *missing_files(rest)]
    return [p for p in found if p.path.partition(".")[0] in raw.keys() - faulty]


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in tree.items()}


def _with_shared(raw: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """``raw`` with the values of ``sets``, but for those of a method alone."""
    for text in sets:
        if text.partition(".")[0].strip() not in ("algorithm", "methods"):
            _override(raw, text)
    return raw


def _override(raw: dict[str, Any], text: str) -> Problem | None:
    """Apply ``key.path=value`` to ``raw``; without value, unset the key. Returns a problem if ``text`` does not have
    that form, or unsets a key that does not exist."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
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
    node[parts[-1]] = toml_file.parsed(value.strip())
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
            yield Problem(f"algorithm.{key}", f"{wanted}, got {value!r}{several(f'algorithm.{key}', value)}")
