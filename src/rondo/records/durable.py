"""Files that are complete or absent, whenever the process or the machine stops. Imports no torch.

A file is written under a temporary name, flushed to the disk and renamed. The folder is flushed too, since a power
failure could otherwise lose the new name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rondo.errors import DiskFailed

TEMPORARY = ".tmp"
"""The ending of a file or folder that is being written. If one is found later, a stopped process left it: garbage."""


BINARY = getattr(os, "O_BINARY", 0)
"""For ``os.open``: without it, Windows writes two bytes for each line end."""

_PATIENCE = 2.0
"""Seconds that a file may be open in another program on Windows, which does not replace it as long."""


class Damaged(ValueError):
    """A file is not as it was written; the message says in what way."""


def is_full(error: BaseException) -> bool:
    """Whether ``error`` says that a disk has no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write(path: Path, content: bytes) -> None:
    """Replace the file ``path`` by ``content`` in one step. Raises OSError and then changes nothing."""
    write_all(path.parent, {path.name: content})


def write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace files of one folder, given by name, each in one step; flush the folder once. Raises OSError; files
    already replaced then stay so, and the others are unchanged."""
    for name, content in contents.items():
        with _replaced(folder / name) as temporary:
            _write(temporary, content, 0)
    sync(folder)


def write_private(path: Path, content: bytes) -> None:
    """As :func:`write`. Nobody but its owner can ever read the file."""
    with _replaced(path) as temporary:
        temporary.unlink(missing_ok=True)
        create(temporary, content, 0o600)
    sync(path.parent)


def create(path: Path, content: bytes, mode: int) -> None:
    """Write the new file ``path``, which has this mode from the start, and flush it. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Within, the content of ``path`` is written under the temporary name, which then replaces it or is removed. An
    OSError names ``path``."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        yield temporary
        _replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Replace the folder ``path`` by one that ``fill`` makes and fills. If the process dies, the path has the old
    folder or the new one, or, between the two renames, nothing. A half-filled folder always has a name ending in
    ``TEMPORARY``, by which the next call finds and removes it. Raises OSError."""
    temporary = path.with_name(f"{path.name}.rondo{TEMPORARY}")  # a name that no file of the user's has
    try:
        remove(temporary)
        fill(temporary)
        mode = temporary.stat().st_mode & 0o666
        for part in (*temporary.rglob("*"), temporary):
            if part.is_file():
                part.chmod(mode)  # safetensors makes files that only their owner can read
            sync(part)
        if path.is_dir():
            shutil.rmtree(path)
        _replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
        with contextlib.suppress(OSError):
            remove(temporary)
        raise
    sync(path.parent)


def no_folder(path: Path) -> str | None:
    """The reason why ``path`` is not a folder to write into and cannot be made one; None if there is none. Nothing is
    made."""
    try:
        place = next(p for p in (path.absolute(), *path.absolute().parents) if os.path.lexists(p))
        if not place.is_dir():
            return os.strerror(errno.EEXIST if place == path.absolute() else errno.ENOTDIR)
        return None if os.access(place, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make the folder ``path``, and its parents, so that they survive a power failure. Raises OSError."""
    if not path.is_dir():
        if not path.parent.exists():
            make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def _replace(source: Path, target: Path) -> None:
    """``os.replace``, tried again on Windows as long as ``target`` is open in another program."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            os.replace(source, target)
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk. Does nothing on Windows."""
    if sys.platform == "win32":  # which cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, start: int) -> None:
    """Write ``content`` at byte ``start`` of ``path``, end the file there, and flush it. An OSError names ``path``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o666)
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        os.ftruncate(descriptor, start + len(content))
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def append(path: Path, content: bytes) -> None:
    """Add ``content`` at the end of the file ``path`` and flush it. Raises OSError and then changes nothing."""
    end = path.stat().st_size if path.exists() else 0
    try:
        _write(path, content, end)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(path, end)
        raise
    if end == 0:
        sync(path.parent)


@dataclass(frozen=True)
class Position:
    """The first part of a file: its length in bytes, and its SHA-256."""

    bytes: int
    sha256: str


class Journal:
    """A file that only grows, line by line. A :class:`Position` stored elsewhere says how much of it counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._bytes = 0

    @property
    def position(self) -> Position:
        """The current end."""
        return Position(self._bytes, self._digest.hexdigest())

    def append(self, line: bytes) -> None:
        """Add ``line`` and flush it. Raises OSError; a partly written line does not count."""
        content = line + b"\n"
        existed = self.path.exists()
        # Write at the end of the lines that count, so as to overwrite a line that failed half-way.
        _write(self.path, content, self._bytes)
        if not existed:
            sync(self.path.parent)
        self._digest.update(content)
        self._bytes += len(content)

    def whole(self) -> list[bytes]:
        """All whole lines, after which the next is written. A last one without its end was not written whole, so it
        does not count."""
        content = self.path.read_bytes() if self.path.exists() else b""
        content = content[: content.rfind(b"\n") + 1]
        self._digest, self._bytes = hashlib.sha256(content), len(content)
        return content.splitlines()

    def lines(self, position: Position) -> list[bytes]:
        """The lines up to ``position``. Raises :class:`Damaged` if their length or SHA-256 is another."""
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
        """Cut the file at ``position`` and continue from there. Raises :class:`Damaged`."""
        self.lines(position)
        if self.path.exists():
            os.truncate(self.path, position.bytes)
            self._digest = hashlib.sha256(self.path.read_bytes())
        self._bytes = position.bytes


@contextlib.contextmanager
def written(folder: Path) -> Iterator[None]:
    """Turn the error of a full or broken disk, on which ``folder`` lies, into :class:`DiskFailed`."""
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename is not None else folder
        raise DiskFailed(f"{where} cannot be written: {error.strerror or error}") from None
    except Exception as error:  # safetensors and tokenizers wrap the system's error in ones of their own
        if _OF_RUST.search(str(error)) is None:
            raise
        raise DiskFailed(f"{folder} cannot be written: {error}") from None


_OF_RUST = re.compile(r"\(os error \d+\)")
"""The ending of every error of the system, as Rust words it."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock ``folder`` and yield whether this process alone has it. The lock ends with the process, however that ends.
    Without support for such locks, the process is assumed to be alone."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
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
