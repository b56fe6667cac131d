"""Files that are there whole or not at all, whenever the process or the machine stops. Imports no torch.

A file is written beside its place, flushed to the disk and renamed, and the folder is flushed as well: without that the
new name itself may be lost with the power.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TEMPORARY = ".tmp"
"""The ending of a file that is being written. One that is found later is of a process that stopped: garbage."""


class Damaged(ValueError):
    """A file is not as it was written; the message says how it shows."""


def write(path: Path, content: bytes) -> None:
    """Put ``content`` in the place of ``path`` in one step. Raises OSError, having changed nothing."""
    write_all(path.parent, {path.name: content})


def write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Files of one folder by name, each put in its place in one step, and the folder flushed once. Raises OSError; what
    was in place before that stays."""
    for name, content in contents.items():
        temporary = folder / (name + TEMPORARY)
        try:
            _write(temporary, content, 0)
            os.replace(temporary, folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    sync(folder)


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Put a folder that ``fill`` fills in the place of ``path``. A process that stops leaves the old folder, the new
    one, or for a moment none; half of one only beside it, under a name ending in ``TEMPORARY``. Raises OSError."""
    temporary = path.with_name(path.name + TEMPORARY)
    if temporary.is_dir():
        shutil.rmtree(temporary)
    fill(temporary)
    for part in (*temporary.rglob("*"), temporary):
        sync(part)
    if path.is_dir():
        shutil.rmtree(path)
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """``path`` as a folder, there for good. Its parent must exist."""
    if not path.is_dir():
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk."""
    if sys.platform == "win32":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, start: int) -> None:
    """``content`` from byte ``start`` of ``path`` on, where the file then ends; flushed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.ftruncate(descriptor, start + len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Position:
    """The start of a file, up to some point: its length in bytes and its SHA-256."""

    bytes: int
    sha256: str


class Journal:
    """A file that only grows, line by line; a :class:`Position` in it is noted elsewhere when what it says counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._bytes = 0

    @property
    def position(self) -> Position:
        """The end, so far."""
        return Position(self._bytes, self._digest.hexdigest())

    def append(self, line: bytes) -> None:
        """Add ``line`` and flush it. Raises OSError; what of the line was written by then does not count."""
        content = line + b"\n"
        existed = self.path.exists()
        # Not at the end of the file but of what counts: a line that failed half-way is written over.
        _write(self.path, content, self._bytes)
        if not existed:
            sync(self.path.parent)
        self._digest.update(content)
        self._bytes += len(content)

    def lines(self, position: Position) -> list[bytes]:
        """The lines up to ``position``. Raises :class:`Damaged` where they are not those that it is the position of."""
        try:
            content = self.path.read_bytes()[: position.bytes]
        except FileNotFoundError:
            content = b""
        if len(content) < position.bytes:
            raise Damaged(f"{self.path.name} has {len(content)} bytes, {position.bytes} were written")
        if hashlib.sha256(content).hexdigest() != position.sha256:
            raise Damaged(f"{self.path.name} is not as it was written (SHA-256)")
        return content.splitlines()

    def go_on(self, position: Position) -> None:
        """Cut the file at ``position`` and go on there. Raises :class:`Damaged`."""
        self.lines(position)
        if self.path.exists():
            os.truncate(self.path, position.bytes)
            self._digest = hashlib.sha256(self.path.read_bytes())
        self._bytes = position.bytes


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Inside, whether this process alone has ``folder``. The lock ends with the process, however it ends. Where the
    system has no such locks it is taken to be alone."""
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            yield True
            return
        yield True
    finally:
        os.close(descriptor)
