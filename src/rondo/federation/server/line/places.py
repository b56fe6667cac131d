"""The places at a server: one program per site.

A program keeps its site's place as long as it is heard. A second program with the same key is refused, and both ends
of both lines hear of it: a key in two places is a mistake or a theft.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rondo.federation.program import Program

SILENCE = 25.0
"""Seconds after which a program that is not heard has lost its place to whoever comes. A program asks for letters every
20 s at least, and says every 10 s that it is there while it does something else."""
_MOST_REFUSED = 100
"""Most programs whose refusals are remembered per place, so as to tell of each once."""


class PlaceTaken(Exception):
    """A site's place is taken by another program; the message is for the one that is refused."""


class Absent(Exception):
    """No program has the site's place."""


@dataclass
class _Place:
    program: str
    address: str
    since: str
    heard: float
    notice: str = ""
    """A line for the program's owner, which goes with the next answer."""
    refused: set[str] = field(default_factory=set)


class Places:
    """The program that has each site's place. ``told``: called with a line of text per program that is refused."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._places: dict[str, _Place] = {}

    def enter(self, site: str, program: Program, address: str) -> None:
        """Give ``program`` the place of its site. Raises :class:`PlaceTaken`."""
        now, place = time.monotonic(), self._places.get(site)
        if place is not None and place.program not in program.ids and now - place.heard < SILENCE:
            raise self._taken(site, place, program, address)
        self._places[site] = _Place(program.id, address, _now(), now)

    def hear(self, site: str, program: Program, address: str) -> None:
        """Note that ``program`` is there. Raises :class:`PlaceTaken`, and :class:`Absent` before it has entered."""
        place = self._places.get(site)
        if place is None:
            raise Absent
        if place.program != program.id:
            raise self._taken(site, place, program, address)
        place.heard = time.monotonic()

    def leave(self, site: str) -> None:
        """Free the place of a site."""
        self._places.pop(site, None)

    def notice(self, site: str) -> str:
        """A line for the owner of the program that has the place, which is handed out once; empty if there is none."""
        place = self._places.get(site)
        if place is None:
            return ""
        notice, place.notice = place.notice, ""
        return notice

    def _taken(self, site: str, place: _Place, program: Program, address: str) -> PlaceTaken:
        first, second = f"from {place.address} since {place.since}", f"from {address}"
        if program.id not in place.refused and len(place.refused) < _MOST_REFUSED:
            place.refused.add(program.id)
            now = _now()
            advice = "stop one of them, or if one is a stranger's, revoke the key"
            self._told(
                f"{site} is connected {first}; another program with its key, {second} at {now}, is refused: {advice}"
            )
            advice = "stop it, or if it is not yours have the key revoked"
            place.notice = f"another program with the key of {site}, {second} at {now}, was refused: {advice}"
        return PlaceTaken(
            f"{site} is connected already, {first}; this program, {second}, is refused: "
            "stop the other one, or if it is not yours have the key revoked"
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
