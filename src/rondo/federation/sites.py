"""The sites of a federation as its server sees them: who is connected, who has consented, and their letters."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rondo.engine.wire import Rejected, short
from rondo.errors import StopRequested
from rondo.federation.plan import LARGEST, Consent, Plan
from rondo.runs.storage import durable

_PAUSE = 0.02
"""Seconds between looks for the answers to the end."""
_BREATH = 0.1
"""Least seconds between looks for sites: replies that come one after the other are no reason to look each time."""
_LOOK = 0.5
"""Seconds between looks for sites and stops where nothing happens."""
_DAY = 86400.0
_TIMES = 10
"""Most times that a letter is sent: one that its site dies of would kill it after every restart."""


class Line(Protocol):
    """A line to sites, such as :class:`rondo.federation.superlink.SuperLink`."""

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


@dataclass(eq=False)
class _Letter:
    """A letter to a client that is not answered yet."""

    client: str
    data: bytes
    largest: int
    """Bytes of the largest reply."""
    sent: float
    number: str = ""
    """The number that the line knows it by; empty while it waits for its site."""
    since: str = ""
    """When the site that it went to had connected."""
    times: int = 0
    """The number of times that it was sent."""


class Sites:
    """The sites at the other end of ``link``. It is a :class:`rondo.engine.network.Messenger`: clients are those of
    the sites that have consented to the plan.

    ``clients``: the site of every client of the run.
    ``deadline``: seconds that a client may take to answer; None: as long as its site is connected.
    ``patience``: seconds that a site which is not connected is waited for.
    ``told``: called with a line of text per change.
    ``record``: file for the state of each site, written at every change; None as long as there is no place for it.
    """

    record: Path | None = None

    def __init__(
        self,
        link: Line,
        clients: Mapping[str, str],
        *,
        deadline: float | None,
        patience: float,
        stop: threading.Event,
        told: Callable[[str], None],
    ) -> None:
        self._link, self._site_of, self._deadline, self._patience = link, clients, deadline, patience
        self._stop, self._told = stop, told
        self._plan: Plan | None = None
        self._offers: dict[str, tuple[str, str]] = {}
        """The number of the last letter with the plan by site, and when the site had connected."""
        self._consents: dict[str, tuple[str, Consent]] = {}
        """Each site's consent, and when the site had connected."""
        self._waiting: list[_Letter] = []
        self._states: dict[str, str] = {}
        self._since: dict[str, str] = {}
        self._lock = threading.RLock()
        self._noted = threading.Event()
        """Set when sites have been looked for."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._welcome, name="welcome", daemon=True)

    # --- the plan -------------------------------------------------------------------------------------------------

    def offer(self, plan: Plan) -> None:
        """Offer ``plan``, in place of an earlier one, to every site that is connected or connects later."""
        with self._lock:
            for number, _ in self._offers.values():
                self._link.forget(number)
            self._plan, self._offers, self._consents = plan, {}, {}
        if not self._thread.is_alive():
            self._thread.start()

    def consents(self) -> dict[str, Consent]:
        """The consents of the sites that are connected, by site."""
        present = self._link.present()
        with self._lock:
            return {
                name: consent
                for name, (since, consent) in self._consents.items()
                if name in present and present[name] == since and not consent.refused
            }

    def examples(self) -> dict[str, int]:
        """Numbers of training examples by client, of all sites that ever consented."""
        with self._lock:
            return {c: n for _, consent in self._consents.values() for c, n in consent.clients.items()}

    def wait(self, seconds: float, enough: Callable[[], bool]) -> bool:
        """Wait until ``enough``, at most ``seconds``; False after them. Raises :class:`StopRequested`."""
        end = time.monotonic() + seconds
        while not enough():
            if self._stop.is_set():
                raise StopRequested
            if time.monotonic() > end:
                return False
            self._noted.wait(_LOOK)
            self._noted.clear()
        return True

    def close(self, *, over: bool) -> None:
        """End. ``over``: the run is finished, and the connected sites are told so."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if not over:
            return
        numbers = [self._link.send(name, "end", b"", 60.0, 0) for name in self._link.present()]
        end = time.monotonic() + 5
        while (numbers := [n for n in numbers if n is not None and self._link.reply(n) is None]) and (
            time.monotonic() < end
        ):
            time.sleep(_PAUSE)

    def _welcome(self) -> None:
        heard = 0
        while not self._over.wait(_BREATH):
            heard = self._link.wait(heard, 2 * _BREATH)
            present = self._link.present()
            with self._lock:
                plan = self._plan
                assert plan is not None
                for name, connected in present.items():
                    number, since = self._offers.get(name, ("", ""))
                    if since != connected:
                        self._link.forget(number)
                        clients = tuple(c for c, site in self._site_of.items() if site == name)
                        letter = replace(plan, clients=clients).encode()
                        number = self._link.send(name, "plan", letter, _DAY, LARGEST) or ""
                        self._offers[name] = (number, connected)
                for name, (number, since) in self._offers.items():
                    answer = self._link.reply(number) if number else None
                    if answer is not None:
                        self._offers[name] = ("", since)
                        self._consents[name] = (since, self._checked(name, plan, answer))
            self._note(present)
            self._noted.set()

    def _note(self, present: Mapping[str, str]) -> None:
        """Tell of sites that went, and write the states of all if any has changed."""
        consents = self.consents()
        states = dict.fromkeys(dict.fromkeys(self._site_of.values()), "not connected")
        for name in states:
            if name in present:
                refused = self._consents[name][1].refused if name in self._consents else ""
                states[name] = "takes part" if name in consents else "refuses" if refused else "connected"
            elif self._states.get(name, "not connected") != "not connected":
                self._told(f"{name} is not connected any more")
        if self.record is not None and (states != self._states or not self.record.exists()):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            before = self._since
            self._since = {n: before[n] if states[n] == self._states.get(n) and n in before else now for n in states}
            content = {n: {"state": states[n], "since": self._since[n]} for n in states}
            with suppress(OSError):  # for people; the run does not need it
                durable.write(self.record, (json.dumps(content, indent=2) + "\n").encode())
        self._states = states

    def _checked(self, name: str, plan: Plan, answer: bytes) -> Consent:
        """The consent in ``answer``, as a refusal if it is none for ``plan``."""
        try:
            consent = Consent.decode(answer)
        except Rejected as rejection:
            consent = Consent({}, refused=f"its consent is {rejection}")
        own = {c for c, site in self._site_of.items() if site == name}
        if not consent.refused and not consent.clients.keys() <= own:
            strangers = sorted(consent.clients.keys() - own)
            consent = Consent({}, refused=f"it answers for {short(strangers)}, which are not its clients in the roster")
        if consent.refused:
            self._told(f"{name} takes no part: {consent.refused[:500]}")
        elif plan.labels is not None:
            sizes = ", ".join(f"{c} ({n} examples)" for c, n in consent.clients.items())
            self._told(f"{name} takes part: {sizes}")
        return consent

    # --- letters --------------------------------------------------------------------------------------------------

    def present(self) -> Collection[str]:
        """Ids of the clients whose sites are connected and have consented, in this connection or an earlier one: a site
        that has just come back is asked too, and gets its letter once it has consented anew."""
        connected = self._link.present()
        with self._lock:
            return {
                client
                for name, (_, consent) in self._consents.items()
                if name in connected and not consent.refused
                for client in consent.clients
            }

    def send(self, client: str, data: bytes, largest: int) -> None:
        """See :class:`rondo.engine.network.Messenger`."""
        self._waiting.append(_Letter(client, data, largest, time.monotonic()))

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`rondo.engine.network.Messenger`. A letter is sent again to a site that was started anew. Raises
        :class:`StopRequested`."""
        absent: dict[str, float] = {}
        looked, heard = 0.0, 0
        try:
            while self._waiting:
                if self._stop.is_set():
                    raise StopRequested
                unsent = any(not letter.since for letter in self._waiting)
                if time.monotonic() - looked > (_BREATH / 2 if unsent else _LOOK):
                    looked = time.monotonic()
                    self._look_after(absent)
                came = [(x, reply) for x in self._waiting if (reply := self._link.reply(x.number)) is not None]
                for letter, reply in came:
                    self._waiting.remove(letter)
                    yield letter.client, reply
                if not came:
                    heard = self._link.wait(heard, _BREATH / 2 if unsent else _LOOK)
        finally:
            for letter in self._waiting:
                self._link.forget(letter.number)
            self._waiting.clear()

    def _look_after(self, absent: dict[str, float]) -> None:
        """Send letters to sites that are there, and anew to those that came back. Give up letters that are overdue or
        whose site stays away or came back and refuses the plan. ``absent``: since when each site has been away."""
        present, consents, now = self._link.present(), self.consents(), time.monotonic()
        with self._lock:
            refusing = {n for n, (since, c) in self._consents.items() if c.refused and present.get(n) == since}
        for name in present:
            absent.pop(name, None)
        for letter in list(self._waiting):
            site = self._site_of[letter.client]
            overdue = self._deadline is not None and now - letter.sent > self._deadline
            anew = site in consents and present[site] != letter.since
            away = site not in present and now - absent.setdefault(site, now) >= self._patience
            if overdue or away or site in refusing or (anew and letter.times == _TIMES):
                self._link.forget(letter.number)
                self._waiting.remove(letter)
            elif anew:
                self._link.forget(letter.number)
                number = self._link.send(site, "round", letter.data, self._deadline or _DAY, letter.largest)
                if number is not None:
                    letter.number, letter.since, letter.times = number, present[site], letter.times + 1
