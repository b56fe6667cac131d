"""The page of runs, from their directories. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rondo.errors import ConfigError
from rondo.records import durable
from rondo.records.read import claims, folders, read, stopped
from rondo.report.page.document import MARK, page


def html(paths: Sequence[str | Path], *, title: str | None = None, against: str | None = None) -> str:
    """The page of the runs at ``paths``: run directories, or folders of some. ``title``, ``against``: of
    :func:`rondo.report.page.document.page`.

    Raises :class:`ConfigError` for a path without a run, and for a file that is not as a run writes it.
    """
    found = folders(paths)
    runs = [read(path, label) for path, label in found]
    return page(runs, claims([path for path, _ in found]), stopped(paths), title=title, against=against)


def write(paths: Sequence[str | Path], out: str | Path, *, title: str | None = None, against: str | None = None) -> int:
    """Write the page to the file ``out``; return its bytes. An earlier page there is replaced, and no other file.

    Raises :class:`ConfigError` as :func:`html` does, and where the file cannot be written.
    """
    out = Path(out)
    if out.is_dir() or (out.exists() and not _is_page(out)):
        message = f"{str(out)!r} is there and is no page of runs; name another file"
        raise ConfigError.at("--out", message, "rondo report")
    content = html(paths, title=title, against=against).encode()
    try:
        durable.write(out, content)
    except OSError as error:
        message = f"{str(out)!r} cannot be written: {error.strerror}; name another file"
        raise ConfigError.at("--out", message, "rondo report") from None
    return len(content)


def _is_page(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return MARK.encode() in stream.read(4096)
    except OSError:
        return False
