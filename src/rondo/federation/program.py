"""The program of a site: one run of ``rondo federate client``, and its place in the site's folder.

A site's key says which site speaks, not which program. Two programs with one key would take each other's letters, so
each has a random id, which travels signed. A program names its predecessors too: it may take their place at the server
at once, since the folder's lock says that they are over.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rondo.errors import ConfigError
from rondo.records import durable

FILE = "program"
"""The file of a site's folder with the ids of its last programs, the newest first."""
_MOST = 6
"""Most ids that travel: a program may die several times before it has reached the server."""
_IDS = re.compile(rf"[0-9a-f]{{32}}(,[0-9a-f]{{32}}){{0,{_MOST - 1}}}")


@dataclass(frozen=True)
class Program:
    """A program by its ids: its own, then those of the programs before it, the last one first."""

    ids: tuple[str, ...]

    @property
    def id(self) -> str:
        """The program's own id."""
        return self.ids[0]

    @classmethod
    def fresh(cls, before: tuple[str, ...] = ()) -> Self:
        """A new program, after those with the ids ``before``."""
        return cls((secrets.token_hex(16), *before)[:_MOST])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The program that :meth:`__str__` has written. Raises ValueError for any other text."""
        if _IDS.fullmatch(text) is None:
            raise ValueError("no ids of programs")
        return cls(tuple(text.split(",")))

    def __str__(self) -> str:
        return ",".join(self.ids)


@contextmanager
def only_program(folder: Path) -> Iterator[Program]:
    """A new program, which alone uses a site's ``folder``. Its id is on the disk before it is known to anybody. Raises
    :class:`ConfigError` while another program uses the folder, and where the folder cannot be written."""
    try:
        durable.make_folder(folder)
        with durable.locked(folder) as alone:
            if not alone:
                message = f"{str(folder)!r} is in use by another program of this site: stop it, or name another folder"
                raise ConfigError.at("--state", message)
            program = Program.fresh(_before(folder))
            durable.write(folder / FILE, str(program).encode())
            yield program
    except OSError as error:
        message = f"{str(folder)!r} cannot be written: {error.strerror or error}; name another folder"
        raise ConfigError.at("--state", message) from None


def _before(folder: Path) -> tuple[str, ...]:
    with suppress(OSError, ValueError):  # without them, the server waits until it misses the last program
        return Program.parse((folder / FILE).read_text(encoding="utf-8")).ids
    return ()
