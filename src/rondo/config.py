"""The configuration: TOML (or a dict) to a validated, frozen :class:`RunConfig`. Imports no torch.

All faults are found at once and listed with key path, reason and fix (:class:`ConfigError`), before a model is loaded.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pydantic
from pydantic import BaseModel, ConfigDict

from rondo import algorithms
from rondo.schema import (
    BUILTIN_DATA,
    BUILTIN_MODEL,
    SERVER_OPTIONS,
    AdapterConfig,
    AdmissionConfig,
    ClientsConfig,
    DataConfig,
    FaultKind,
    FaultsConfig,
    PartitionConfig,
    RunConfig,
    ServerConfig,
    TrainConfig,
)

__all__ = [
    "BUILTIN_DATA",
    "BUILTIN_MODEL",
    "AdapterConfig",
    "AdmissionConfig",
    "ClientsConfig",
    "ConfigError",
    "DataConfig",
    "FaultsConfig",
    "PartitionConfig",
    "Problem",
    "RunConfig",
    "ServerConfig",
    "TrainConfig",
    "load",
    "missing_files",
    "partition_kind",
]


@dataclass(frozen=True)
class Problem:
    """One fault: the key path, what is wrong and how to mend it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigError(ValueError):
    """The user's input cannot be run. ``problems`` lists every fault found."""

    def __init__(self, problems: Sequence[Problem], source: str = "config") -> None:
        self.problems, self.source = tuple(problems), source
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {p}" for p in problems)]))


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    sets: Sequence[str] = (),
    *,
    check_paths: bool = True,
) -> RunConfig:
    """Read and validate a configuration; ``sets`` are ``key.path=value`` overrides (TOML values, else plain strings).

    ``check_paths=False`` does not ask whether the data are there (a finished run can be exported without them).
    Raises :class:`ConfigError` with every fault found.
    """
    if isinstance(source, RunConfig):
        name, raw = "config", source.model_dump(exclude_unset=True)
    elif isinstance(source, Mapping):
        name, raw = "config", _copied(source)
    else:
        name, raw = str(source), _read(Path(source))
    bad = [p for text in sets if (p := _override(raw, text)) is not None]
    try:
        config = RunConfig.model_validate(raw)
    except pydantic.ValidationError as error:
        found = _merged(_explain(e, raw) for e in error.errors(include_url=False))
        between = _despite(found, raw)
        raise ConfigError([*bad, *found, *_algorithm_problems(raw.get("algorithm")), *between], name) from None
    problems = [*bad, *_algorithm_problems(raw.get("algorithm")), *_cross_checks(config)]
    if check_paths:
        problems += missing_files(config)
    if problems:
        raise ConfigError(problems, name)
    return config


def _merged(problems: Iterator[Problem]) -> list[Problem]:
    """One problem a key: a value that fits none of several types is told once, with all of them."""
    by_path: dict[str, Problem] = {}
    for problem in problems:
        before = by_path.get(problem.path)
        if before is not None:
            alternatives = before.message.partition(", got ")[0]
            wanted, got, rest = problem.message.removeprefix("should be ").partition(", got ")
            problem = Problem(problem.path, f"{alternatives} or {wanted}{got}{rest}")
        by_path[problem.path] = problem
    return list(by_path.values())


def _despite(found: Sequence[Problem], raw: Mapping[str, Any]) -> list[Problem]:
    """Faults between keys that show although values are faulty: sections with a faulty value are left out, as a
    default in its place could be what is at fault."""
    faulty = {p.path.partition(".")[0] for p in found}
    try:
        rest = RunConfig.model_validate({k: v for k, v in raw.items() if k not in faulty})
    except pydantic.ValidationError:
        return []
    return [p for p in [*_cross_checks(rest), *missing_files(rest)] if p.path.partition(".")[0] in raw.keys() - faulty]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "write one with: rondo init"
        raise ConfigError([Problem(str(path), f"no such file; {hint}")], "config") from None
    except IsADirectoryError:
        raise ConfigError([Problem(str(path), "this is a folder; name a .toml file")], "config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(str(path), f"not TOML: {error}")], "config") from None
    except OSError as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {error.strerror}")], "config") from None


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in tree.items()}


def _override(raw: dict[str, Any], text: str) -> Problem | None:
    """Apply ``key.path=value`` to ``raw``; the problem, if it has not that form."""
    key, equals, value = text.partition("=")
    parts = [p.strip() for p in key.split(".")]
    if not equals or not all(parts):
        return Problem(f"--set {text}", "expected KEY.PATH=VALUE, for instance adapter.r=8")
    node = raw
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            return Problem(f"--set {text}", f"{part!r} is a value, not a section")
    try:
        node[parts[-1]] = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        node[parts[-1]] = value.strip()
    return None


def _explain(error: Any, raw: Mapping[str, Any]) -> Problem:
    """A pydantic error in our words: key path, what is wrong, how to mend it."""
    # Branches of a union add their own names to the location; keep what exists in the input.
    loc: list[str] = []
    node: Any = raw
    for part in error["loc"]:
        if isinstance(node, Mapping) and part in node:
            loc.append(str(part))
            node = node[part]
        elif isinstance(node, list) and isinstance(part, int):
            loc[-1:] = [f"{loc[-1]}[{part}]"] if loc else [f"[{part}]"]
            node = node[part] if part < len(node) else None
    path = ".".join(loc) or ".".join(str(p) for p in error["loc"])
    if error["type"] == "extra_forbidden":
        return Problem(path, _unknown_key(loc))
    wanted = (
        error["msg"]
        .replace("Input should be ", "should be ")
        .replace("a valid ", "a ")
        .replace("a integer", "an integer")
    )
    if isinstance(node, Mapping) and error["type"] not in ("model_type", "dict_type"):
        return Problem(path, wanted)
    hint = ""
    if error["type"] == "literal_error" and isinstance(node, str):
        options = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        near = difflib.get_close_matches(node, options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
    elif error["type"] == "model_type":
        wanted = f"should be a section: [{path}]"
    elif isinstance(node, str) and error["type"] in _QUOTED and _is_toml(node):
        hint = "; write it without quotes"
    return Problem(path, f"{wanted}, got {node!r}{hint}")


_QUOTED = ("int_type", "float_type", "bool_type")


def _is_toml(text: str) -> bool:
    """Whether ``text`` is a number or a boolean, as TOML or a habit from YAML writes them."""
    if text.lower() in ("true", "false", "yes", "no", "on", "off"):
        return True
    try:
        return isinstance(tomllib.loads(f"x = {text}")["x"], (int, float))
    except tomllib.TOMLDecodeError:
        return False


def _unknown_key(loc: list[str]) -> str:
    """What to say of a key that does not exist: a near match in its own section, or the section that has it."""
    section: Any = RunConfig
    for part in loc[:-1]:
        section = section.model_fields[part].annotation
    near = difflib.get_close_matches(loc[-1], section.model_fields, n=1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    homes = [
        name
        for name, f in RunConfig.model_fields.items()
        if isinstance(f.annotation, type) and issubclass(f.annotation, BaseModel)
        if loc[-1] in f.annotation.model_fields
    ]
    if homes:
        return f"unknown key here; did you mean {homes[0]}.{loc[-1]}?"
    return f"unknown key; known here: {', '.join(section.model_fields)}"


def _algorithm_problems(section: Any) -> Iterator[Problem]:
    """Faults in ``[algorithm]`` that the static table shows without importing the algorithm."""
    name = section.get("name", "rolora") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        return
    if ":" in name:
        return  # a third party's class: checked when it is imported
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
            known = f"its fields: {', '.join(entry.fields)}" if entry.fields else "it has no fields"
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


def partition_kind(config: RunConfig) -> str:
    """The kind of partition where none was named: the built-in homes are clients by nature, other rows go iid."""
    if config.partition.kind is not None:
        return config.partition.kind
    builtin = config.data.source in (None, BUILTIN_DATA) and config.data.clients_from is None
    return "natural" if builtin and config.partition.clients is None else "iid"


_NEEDS = {"dirichlet": "alpha", "shards": "shards_per_client", "classes": "classes_per_client", "natural": "column"}


def _cross_checks(config: RunConfig) -> Iterator[Problem]:
    """Faults that lie between keys."""
    part, clients, data = config.partition, config.clients, config.data
    own_data = data.source not in (None, BUILTIN_DATA) or data.clients_from is not None
    if config.train.local_epochs is not None and config.train.local_steps is not None:
        yield Problem("train.local_steps", "set local_steps or local_epochs, not both")
    if config.train.momentum and config.train.optimizer != "sgd":
        yield Problem("train.momentum", f"only sgd has momentum; optimizer is {config.train.optimizer!r}")
    if config.train.warmup_rounds >= config.rounds:
        yield Problem("train.warmup_rounds", f"must be below rounds = {config.rounds}, or nothing follows the warm-up")
    if data.source is not None and data.clients_from is not None:
        yield Problem("data.clients_from", "set data.source or data.clients_from, not both")
    kind = partition_kind(config)
    if data.clients_from is None:
        needed = _NEEDS.get(kind)
        if needed and getattr(part, needed) is None and (own_data or kind != "natural"):
            yield Problem(f"partition.{needed}", f"partition.kind = {kind!r} needs it")
        if kind != "natural" and part.clients is None:
            yield Problem("partition.clients", f"partition.kind = {kind!r} needs the number of clients")
    if part.kind == "natural" and part.clients is not None:
        yield Problem("partition.clients", "with kind = 'natural' there is one client a value of the column; remove it")
    if clients.sampling == "full" and clients.per_round is not None:
        yield Problem("clients.per_round", "sampling = 'full' takes every client; remove per_round")
    if clients.sampling in ("poisson", "weighted") and clients.per_round is None:
        yield Problem("clients.per_round", f"sampling = {clients.sampling!r} needs it")
    if part.clients is not None and clients.per_round is not None and clients.per_round > part.clients:
        yield Problem("clients.per_round", f"{clients.per_round} of {part.clients} clients: lower it to {part.clients}")
    if clients.per_round is not None and clients.min_clients > clients.per_round:
        yield Problem("clients.min_clients", f"above clients.per_round = {clients.per_round}: no round could succeed")
    if clients.over_select and clients.per_round is None:
        yield Problem("clients.over_select", "it goes beyond clients.per_round, which is not set: set both or neither")
    if config.admission.clip and config.admission.max_norm is None:
        yield Problem("admission.clip", "there is nothing to clip to: set admission.max_norm too")
    least = 2 * config.robust.byzantine + 1
    if config.robust.rule != "none" and clients.min_clients < least:
        words = f"robust.byzantine = {config.robust.byzantine} of {clients.min_clients} uploads may be half or more"
        yield Problem("clients.min_clients", f"{words}: raise it to {least} or lower robust.byzantine")
    yield from _fault_checks(config)
    yield from _rank_checks(config)
    yield from _server_checks(config)
    yield from _task_checks(config, own_data)
    if config.adapter.start_from is not None and not Path(config.adapter.start_from, "adapter_config.json").is_file():
        yield Problem("adapter.start_from", f"no adapter_config.json in {config.adapter.start_from!r}")
    if _is_path(config.model.name) and not _exists(config.model.name):
        yield Problem("model.name", f"no such folder: {config.model.name!r}")
    if config.model.name.startswith("builtin:") and config.model.name != BUILTIN_MODEL:
        yield Problem("model.name", f"unknown built-in; did you mean {BUILTIN_MODEL!r}?")
    if (data.source or "").startswith("builtin:") and data.source != BUILTIN_DATA:
        yield Problem("data.source", f"unknown built-in; did you mean {BUILTIN_DATA!r}?")
    if config.model.gguf_file and config.model.quantization:
        yield Problem("model.quantization", "a GGUF file is loaded dequantised; remove gguf_file or quantization")


def _fault_checks(config: RunConfig) -> Iterator[Problem]:
    faults = config.faults
    rates = {kind: value for kind in get_args(FaultKind) if isinstance(value := getattr(faults, kind), float) and value}
    if sum(rates.values()) > 1:
        words = (
            f"the probabilities of {', '.join(rates)} sum to {sum(rates.values()):g}: a client has one fault a round"
        )
        yield Problem("faults", f"{words}, so lower them to 1 or less in all")
    if faults.slow and config.clients.deadline is None and not config.clients.over_select:
        yield Problem("faults.slow", "slow clients are waited for: set clients.deadline or clients.over_select")


def _rank_checks(config: RunConfig) -> Iterator[Problem]:
    clients, adapter = config.clients, config.adapter
    ranks = clients.ranks
    if ranks is not None and clients.bytes_budget is not None:
        yield Problem("clients.bytes_budget", "set clients.ranks or clients.bytes_budget, not both")
    count = config.partition.clients if config.data.clients_from is None else None
    for key, value in (("ranks", ranks), ("bytes_budget", clients.bytes_budget)):
        if isinstance(value, list) and count is not None and len(value) != count:
            words = f"{len(value)} for {count} clients: give one a client, in the order of their ids"
            yield Problem(f"clients.{key}", words)
    if isinstance(ranks, dict):
        odd = [k for k in ranks if not (k.isdecimal() and k == str(int(k)) and int(k) > 0)]
        if odd:
            words = f"{odd[0]!r} is no rank: give shares of the clients by rank, for instance {{ 4 = 0.5, 8 = 0.5 }}"
            yield Problem("clients.ranks", words)
            return
        if abs(sum(ranks.values()) - 1) > 1e-6:
            yield Problem("clients.ranks", f"the shares sum to {sum(ranks.values()):.6g}: they must sum to 1")
    largest = max(map(int, ranks)) if ranks is not None else 0
    if largest > adapter.r and adapter.start_from is None and not adapter.rank_pattern:
        yield Problem("clients.ranks", f"rank {largest} is above adapter.r = {adapter.r}: lower it or raise adapter.r")


def _server_checks(config: RunConfig) -> Iterator[Problem]:
    kind = config.server.optimizer
    known = SERVER_OPTIONS[kind]
    for key in ("lr", "beta1", "beta2", "tau"):
        if key not in known and getattr(config.server, key) is not None:
            words = f"{kind!r} has no {key}; it has {', '.join(known)}" if known else "name server.optimizer too"
            yield Problem(f"server.{key}", words)


def missing_files(config: RunConfig) -> Iterator[Problem]:
    """Data that are named by a path at which there is nothing."""
    for key in ("source", "clients_from", "test_source"):
        value = getattr(config.data, key)
        if value is not None and _is_path(value) and not _exists(value):
            yield Problem(f"data.{key}", f"no such file or folder: {value!r}")
        elif key != "clients_from" and value is not None and "*" in value:
            yield Problem(
                f"data.{key}", "one file or folder is wanted here; for one file a client use data.clients_from"
            )


def _task_checks(config: RunConfig, own_data: bool) -> Iterator[Problem]:
    task = config.task
    if task.kind == "causal-lm":
        if config.model.head is not None:
            yield Problem("model.head", "a causal language model has no task head; remove it")
        if (task.text is None) == (task.prompt is None):
            yield Problem("task.text", "causal-lm needs either task.text, or task.prompt and task.response")
        if isinstance(task.text, list):
            yield Problem("task.text", "causal-lm takes one text column")
        if (task.prompt is None) != (task.response is None):
            yield Problem("task.response", "task.prompt and task.response go together")
        if task.label is not None:
            yield Problem("task.label", "causal-lm has no label column; remove it")
    else:
        for key in ("prompt", "response"):
            if getattr(task, key) is not None:
                yield Problem(f"task.{key}", "only kind = 'causal-lm' uses it")
        if own_data and task.text is None:
            yield Problem("task.text", "name the column, or the two columns, with the text")
        if own_data and task.label is None:
            yield Problem("task.label", "name the column with the label")


_DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


def _is_path(name: str) -> bool:
    """Whether ``name`` can only be meant as a path: absolute, relative with a dot, or with a data file's ending."""
    return name.startswith(("/", "./", "../", "~")) or name.endswith(_DATA_SUFFIXES)


def _exists(name: str) -> bool:
    try:
        path = Path(name).expanduser()
        return path.exists() or any(path.parent.glob(path.name))
    except (ValueError, RuntimeError, OSError):  # a pattern or a home that no system accepts
        return False
