"""Memory, disk, folders and the encoding of texts."""

from __future__ import annotations

import locale
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rondo.doctor import limits
from rondo.doctor.finding import Finding, Mark

_MEMORY = (1 << 30, 3 << 30)
"""Bytes of free memory below which the demo does not fit, and below which little else does."""
_DISK = (200 << 20, 4 << 30)
"""Bytes of free disk below which a run cannot be written, and below which a language model does not fit."""


def memory() -> Iterator[Finding]:
    """Memory that is free for this process."""
    sizes = limits.memory()
    if sizes is None:
        yield Finding("memory", "ok", "this system does not tell")
    else:
        total, free = sizes
        yield Finding("memory", _mark(free, _MEMORY), f"{_gib(free)} free of {_gib(total)}")


def disk() -> Iterator[Finding]:
    """Folders that are written: the one that runs are made in, that of models from the hub, and that of drafts."""
    yield _folder("working folder", Path.cwd(), "runs are written here unless --run-dir names another place")
    yield _folder("model cache", hub_cache(), "set HF_HOME to a folder that can be written")
    try:
        yield _folder("temporary folder", Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written")
    except OSError:  # it tries to write there, and in three other places
        yield Finding("temporary folder", "fault", "none can be written", "set TMPDIR to a folder that can be written")


def hub_cache() -> Path:
    """The folder of the hub's models. Raises nothing where the home folder is unknown."""
    try:
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)
    except ImportError:
        return Path(os.path.expanduser("~/.cache/huggingface/hub"))


def encoding() -> Iterator[Finding]:
    """The encodings of the terminal, of file names and of other programs' texts. Rondo's own files are UTF-8."""
    found = {
        "terminal": sys.stdout.encoding or "none",
        "file names": sys.getfilesystemencoding(),
        "locale": locale.getencoding(),
    }
    others = {of: name for of, name in found.items() if name.lower().replace("-", "") not in ("utf8", "cp65001")}
    if not others:
        yield Finding("encoding", "ok", "UTF-8")
        return
    listed = ", ".join(f"{of}: {name}" for of, name in others.items())
    yield Finding("encoding", "note", listed, "set PYTHONUTF8=1, else names may be shown as escapes")


def _folder(name: str, folder: Path, remedy: str) -> Finding:
    there = next((place for place in (folder, *folder.parents) if place.is_dir()), None)
    if there is None or not os.access(there, os.W_OK | os.X_OK):
        return Finding(name, "note", "cannot be written", remedy, str(folder))
    free = shutil.disk_usage(there).free
    return Finding(name, _mark(free, _DISK), f"{_gib(free)} free", own=str(folder))


def _mark(free: int, bounds: tuple[int, int]) -> Mark:
    return "fault" if free < bounds[0] else "note" if free < bounds[1] else "ok"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
