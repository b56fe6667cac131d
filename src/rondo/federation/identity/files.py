"""Files of a federation, read strictly. A fault is one line: the file, the place, what is wrong and the remedy."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rondo.engine.wire import strict
from rondo.errors import ConfigError
from rondo.records import durable

_LARGEST = 2**24
"""Bytes of the largest file that is read: a roster has some 400 per site."""

_LOCK_WAIT, _LOCK_LOOK = 10.0, 0.05
"""Seconds to wait for another command to be done with a folder, and between looks."""


def content(path: Path, largest: int = _LARGEST) -> bytes:
    """The bytes of a file, ``largest`` at most. Raises :class:`ConfigError`."""
    try:
        if path.is_dir():
            raise ConfigError.at(str(path), "this is a folder; put the file of this name in its place")
        if path.exists() and not path.is_file():
            raise ConfigError.at(str(path), "a pipe or a device, not a file; put the file of this name in its place")
        if (size := path.stat().st_size) > largest:
            amount = f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"
            raise ConfigError.at(str(path), f"{amount}, too large; put the right file in its place")
        return path.read_bytes()
    except FileNotFoundError:
        message = (
            "no such file; name the folder of keys that has it (rondo federate keys make writes them; peers.json comes "
            "from rondo federate sites peers)"
        )
        raise ConfigError.at(str(path), message) from None
    except OSError as error:
        raise ConfigError.at(str(path), f"cannot be read: {error.strerror}; mend its owner or mode") from None


def private(path: Path) -> bytes:
    """The bytes of a private key's file. Raises :class:`ConfigError`, too if others than its owner may read it."""
    key = content(path)
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        remedy = f"chmod 600 {shlex.quote(str(path))}"
        raise ConfigError.at(str(path), f"a private key that others than its owner can read: {remedy}")
    return key


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises :class:`ConfigError`."""
    return parsed(path, content(path), "mend it there")


def parsed(path: Path, text: bytes, remedy: str) -> dict[str, Any]:
    """The JSON object in the ``text`` of a file. Raises :class:`ConfigError`, too if a key is there twice."""
    try:
        return strict.json_object("", "the file", text.removeprefix(BOM_UTF8))
    except strict.Rejected as rejection:
        raise ConfigError.at(str(path), f"{rejection.detail}; {remedy}") from None


def write(path: Path, text: bytes) -> None:
    """Replace the file ``path`` in one step. Raises :class:`ConfigError` if it cannot be written."""
    with writing(path):
        durable.write(path, text)


def write_private(path: Path, key: bytes) -> None:
    """Write a private key to the new file ``path`` in one step. Nobody but its owner can ever read it. Raises
    :class:`ConfigError` if it cannot be written."""
    with writing(path):
        durable.write_private(path, key)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be written into :class:`ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError.at(str(path), f"cannot be written: {error.strerror}; mend its folder") from None
    except UnicodeEncodeError:  # the system's, for a name of a file
        message = "cannot be written: the locale's encoding has no such characters; set LC_ALL=C.UTF-8"
        raise ConfigError.at(str(path), message) from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other commands from changing ``folder``, which may not be there yet if it is made in one step. Raises
    :class:`ConfigError` if another command does not end within some seconds."""
    end = time.monotonic() + _LOCK_WAIT
    while True:
        place = _existing(folder)
        with writing(folder), durable.locked(place) as is_alone:
            # Whoever had the lock before may have made the folder meanwhile, which has a lock of its own.
            if is_alone and place == _existing(folder):
                yield
                return
        if time.monotonic() > end:
            message = "is being changed by another command: wait until it is done, then try again"
            raise ConfigError.at(str(folder), message)
        time.sleep(_LOCK_LOOK)


def _existing(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that is there."""
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(p))


def checked(tree: Any, place: str, required: Mapping[str, type], optional: Mapping[str, type]) -> dict[str, Any]:
    """``tree``, an object that has every required key, perhaps optional ones and no other, each of its type. An
    optional key may be null. Raises :class:`ConfigError` at ``place``."""
    if not isinstance(tree, dict):
        raise ConfigError.at(place, f"should be an object {{...}}, got {strict.short(tree)}")
    known = {**required, **optional}
    for key, value in tree.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError.at(place, f"unknown key {quoted(key)}; {hint}")
        if type(value) is not known[key] and not (key in optional and value is None):
            raise ConfigError.at(f"{place}.{key}", f"should be {_WORDS[known[key]]}, got {strict.short(value)}")
    for key in required:
        if key not in tree:
            raise ConfigError.at(place, f"{key!r} is missing; add {_WORDS[required[key]]}")
    return tree


def texts(values: Sequence[Any], place: str) -> tuple[str, ...]:
    """The entries of a list, each a text that can be printed. Raises :class:`ConfigError` at ``place``."""
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value or not value.isprintable():
            message = f"should be a text in quotes without control characters, got {strict.short(value)}"
            raise ConfigError.at(f"{place}.{i}", message)
    if not values:
        raise ConfigError.at(place, "is empty; name at least one")
    return tuple(values)


_WORDS = {str: "a text in quotes", list: "a list [...]", bool: "true or false"}


def quoted(text: str) -> str:
    """The beginning of a text in quotes, for a message."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
