"""The line of a server to its sites, whatever carries the letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class SiteLine(Protocol):
    """A line to sites, such as :class:`rondo.federation.server.line.superlink.SuperLink`."""

    def present(self) -> Mapping[str, str]:
        """The connected sites by name, each with the time since when it is."""

    def send(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        """Send a letter, to be answered within ``seconds`` by at most ``largest`` bytes. Returns its number, None if it
        cannot be sent."""

    def reply(self, number: str) -> bytes | None:
        """The reply to a letter, handed out once; None while there is none."""

    def forget(self, number: str) -> None:
        """Drop a letter and the reply to it."""

    def wait(self, after: int, seconds: float) -> int:
        """Wait at most ``seconds`` until more has happened than ``after``: a reply, a site that came or went. Returns
        the number of all that has happened."""
