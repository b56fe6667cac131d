"""A federation without a network: a server's line whose sites are desks in this process, which can be killed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from parties import OPEN

from rondo.data.files.room import Room
from rondo.data.sources import read_rows
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.peers import Voice
from rondo.federation.server import run as server_run
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.desk import Desk

SITES = {"north": ("ann",), "south": ("bob",), "west": ("cid",)}


class Killed(BaseException):
    """A program ended here, whatever it was doing."""


def desk_of(folder: Path, state: Path, site: str, told: Callable[[str], None], contract: Contract = OPEN) -> Desk:
    """The desk of a site with the keys and rows of :func:`parties.write_sites` in ``folder``."""
    keys = SiteKeys.read(folder / "keys" / site)
    rows = {c: read_rows(folder / "data" / site / f"{c}.csv", "--data", Room()) for c in keys.clients}
    options = (lambda offer: True, told, threading.Event(), str(folder / "bert"))
    return Desk(rows, state / f"at-{site}", "cpu", contract, *options, voice=Voice.of(keys))


@dataclass
class DeskLine:
    """See :class:`rondo.federation.server.line.site_line.SiteLine`.

    ``watch``: called with a site, the kind of a letter and ``"before"`` or ``"after"`` the site's answer; it may raise
    :class:`Killed` for the server, or call :meth:`kill` for the site.
    """

    folder: Path
    state: Path
    watch: Callable[[str, str, str], None] = lambda site, kind, moment: None
    told: list[str] = field(default_factory=list)
    spoil: Callable[[str, str, bytes], bytes] = lambda site, kind, answer: answer
    """Gives what arrives of a site's answer to a letter of a kind."""
    heard: list[tuple[str, str, bytes, bytes]] = field(default_factory=list)
    """Every letter to a site: site, kind, letter and answer."""
    port: int = 0
    _desks: dict[str, Desk] = field(default_factory=dict)
    _since: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITES, 0))
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _replies: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def present(self) -> Mapping[str, str]:
        return {site: str(since) for site, since in self._since.items()}

    def send(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        with self._lock:
            number = str(next(self._numbers))
            self.watch(site, kind, "before")
            if site in self._since:
                since = self._since[site]
                answer = self._answer(site, kind, letter)
                self.heard.append((site, kind, letter, answer or b""))
                self.watch(site, kind, "after")
                if answer is not None and self._since.get(site) == since:  # a dead site's answer is lost
                    assert len(answer) <= largest or kind == "plan"
                    self._replies[number] = self.spoil(site, kind, answer)
            return number

    def reply(self, number: str) -> bytes | None:
        return self._replies.pop(number, None)

    def forget(self, number: str) -> None:
        self._replies.pop(number, None)

    def wait(self, after: int, seconds: float) -> int:
        threading.Event().wait(0.005)
        return after

    def kill(self, site: str, *, returns: bool) -> None:
        """End the program of ``site``; the next one has its disk."""
        self._desks.pop(site, None)
        self._since.pop(site)
        if returns:
            self.start(site)

    def start(self, site: str) -> None:
        """Start the program of ``site``."""
        self._since[site] = next(self._numbers)

    def _answer(self, site: str, kind: str, letter: bytes) -> bytes | None:
        if site not in self._desks:
            self._desks[site] = desk_of(self.folder, self.state, site, self.told.append)
        try:
            return self._desks[site].answer(kind, letter)
        except Killed:
            return None

    @contextmanager
    def served(self) -> Iterator[None]:
        """Within, servers listen on this line."""

        @contextmanager
        def link(*_: Any) -> Iterator[DeskLine]:
            yield self

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_run, "link", link)
            yield
