"""The sites of a federation as its server sees them: who is connected, who has consented, and their letters."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from rondo import __version__
from rondo.engine.wire.strict import Rejected, short
from rondo.errors import Problem, StopRequested, first_of
from rondo.federation.environment import Environment
from rondo.federation.plan import LARGEST, Consent, End, Plan
from rondo.federation.server.line.site_line import SiteLine
from rondo.federation.server.standing import SHOWN, Standings, State, missing

_PAUSE = 0.02
"""Seconds between looks for the answers to the end."""
_BREATH = 0.1
"""Least seconds between looks for sites: replies that come one after the other are no reason to look each time."""
_LOOK = 0.5
"""Seconds between looks for sites and stops where nothing happens."""
_MINUTE, _DAY = 60.0, 86400.0
_TIMES = 10
"""Most times that a letter is sent: one that its site dies of would kill it after every restart."""


@dataclass(eq=False)
class _Letter:
    """A letter that is not answered yet. ``name``: its client, or its site where it is to none of its clients."""

    name: str
    site: str
    kind: str
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
    """The sites at the other end of ``link``. It is a :class:`rondo.engine.remote.Messenger`: clients are those of
    the sites that have consented to the plan.

    ``clients``: the site of every client of the run. It may change until the run begins.
    ``deadline``: seconds that a client may take to answer; None: as long as its site is connected.
    ``patience``: seconds that a site which is not connected is waited for.
    ``most``: the largest number of examples that a client may claim; None: any.
    ``told``: called with a line of text per change.
    ``opening``: gives the sites that can open a masked sum, of least numbers of sites by site; None without masks.
    ``computes``: called with a site that takes part and where it computes. Returns a line to tell, if any.
    """

    def __init__(
        self,
        link: SiteLine,
        clients: Mapping[str, str],
        *,
        deadline: float | None,
        patience: float,
        stop: threading.Event,
        told: Callable[[str], None],
        most: int | None = None,
        opening: Callable[[Mapping[str, int]], Collection[str]] | None = None,
        computes: Callable[[str, Environment], str | None] = lambda site, environment: None,
    ) -> None:
        self._link, self._site_of, self._deadline, self._patience = link, clients, deadline, patience
        self._stop, self.tell, self._most, self._opening, self._computes = stop, told, most, opening, computes
        self.standings = Standings()
        self._plan: Plan | None = None
        self._offers: dict[str, tuple[str, str]] = {}
        """The number of the last letter with the plan by site, and when the site had connected."""
        self._consents: dict[str, tuple[str, Consent]] = {}
        """Each site's consent, and when the site had connected."""
        self.counts: dict[str, int] = {}
        """Numbers of training examples by client, of all sites that ever consented."""
        self._waiting: list[_Letter] = []
        self._drawn, self._least = frozenset[str](), 0
        """The clients of the round, and how many of them it needs."""
        self._waits = -math.inf
        """When it was last told that a round waits for clients."""
        self._newcomers: set[str] = set()
        """Connected sites without a client in the run."""
        self._lock = threading.RLock()
        self._noted = threading.Event()
        """Set when sites have been looked for."""
        self._over = threading.Event()
        self._failed: Exception | None = None
        """The error that ended the thread."""
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
            return dict(self.counts)

    def wait(self, seconds: float, enough: Callable[[], bool]) -> bool:
        """Wait until ``enough``, at most ``seconds``; False after them. Raises :class:`StopRequested`."""
        end = time.monotonic() + seconds
        while not enough():
            self._go_on()
            if time.monotonic() > end:
                return False
            self._noted.wait(_LOOK)
            self._noted.clear()
        return True

    def states(self) -> dict[str, tuple[State, str]]:
        """The state of each site, and the reason of one that refuses."""
        present, consents = self._link.present(), self.consents()
        states: dict[str, tuple[State, str]] = {}
        with self._lock:
            for name in dict.fromkeys(self._site_of.values()):
                since, consent = self._consents.get(name, ("", None))
                if consent is not None and consent.refused and present.get(name, since) == since:
                    states[name] = ("refuses", consent.refused)  # after which it may have gone
                elif name not in present:
                    states[name] = ("not connected", "")
                elif name in consents:
                    states[name] = ("takes part", "")
                else:
                    states[name] = ("connected", "")
        return states

    def missing(self) -> dict[str, Problem]:
        """Every site with clients that do not take part: the site with these clients, and its state."""
        present = self.present()
        return missing({c: site for c, site in self._site_of.items() if c not in present}, self.states())

    def absence(self) -> str:
        """The first of the missing sites in a line."""
        return first_of([f"{problem.path} {problem.message}" for problem in self.missing().values()], SHOWN)

    def close(self, end: End | None) -> None:
        """End. ``end``: the run is over for good, and the connected sites are told so. None: it will go on, and they
        wait for it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if end is None:
            return
        letter, here = end.encode(), set(self._site_of.values()) & self._link.present().keys()
        numbers = [self._link.send(name, "end", letter, 60.0, 0) for name in sorted(here)]
        until = time.monotonic() + 5
        while (numbers := [n for n in numbers if n is not None and self._link.reply(n) is None]) and (
            time.monotonic() < until
        ):
            time.sleep(_PAUSE)

    def _go_on(self) -> None:
        """Raise :class:`StopRequested` once the run is to stop, and the error after which no site is welcomed."""
        if self._failed is not None:
            raise self._failed
        if self._stop.is_set():
            raise StopRequested

    def _welcome(self) -> None:
        try:
            self._welcome_all()
        except Exception as error:  # a server that welcomes nobody would wait for ever
            self._failed = error
            self._noted.set()

    def _welcome_all(self) -> None:
        heard = 0
        while not self._over.wait(_BREATH):
            heard = self._link.wait(heard, 2 * _BREATH)
            present = self._link.present()
            with self._lock:
                plan = self._plan
                assert plan is not None
                of_run = set(self._site_of.values())
                for name, connected in present.items():
                    number, since = self._offers.get(name, ("", ""))
                    if name not in of_run:
                        self._newcomer(name)
                    elif since != connected:
                        clients = tuple(c for c, site in self._site_of.items() if site == name)
                        self._link.forget(number)
                        letter = replace(plan, clients=clients).encode()
                        number = self._link.send(name, "plan", letter, _DAY, LARGEST) or ""
                        self._offers[name] = (number, connected)
                for name, (number, since) in self._offers.items():
                    answer = self._link.reply(number) if number else None
                    if answer is not None:
                        self._offers[name] = ("", since)
                        self._consents[name] = (since, self._checked(name, plan, answer))
            self._note()
            self._noted.set()

    def _newcomer(self, name: str) -> None:
        """Tell, once, of a site that came into the roster after the run had begun."""
        if name not in self._newcomers:
            self._newcomers.add(name)
            later = "it takes part from the next run on, or after rondo resume --roster-changed"
            self.tell(f"{name} is in the roster since the run began: {later}")

    def _note(self) -> None:
        """Note the states of all sites, and tell of those that went."""
        for name in self.standings.see(self.states()):
            self.tell(f"{name} is not connected any more")

    def _checked(self, name: str, plan: Plan, answer: bytes) -> Consent:
        """The consent in ``answer``, as a refusal if it is none for ``plan``."""
        try:
            consent = Consent.decode(answer)
        except Rejected as rejection:
            versions = f"; this side has Rondo {__version__!r}" if rejection.reason == "wrong_protocol" else ""
            consent = Consent({}, refused=f"its consent is {rejection}{versions}")
        if not consent.refused and (fault := self._fault(name, plan, consent)) is not None:
            consent = Consent({}, refused=fault)
        if consent.refused:
            consent = replace(consent, refused=consent.refused[:500])
            self.tell(f"{name} takes no part: {consent.refused}")
        elif plan.labels is not None:
            for client, count in consent.clients.items():
                if self.counts.get(client, count) != count:
                    before = self.counts[client]
                    self.tell(f"{name}: {client!r} has {count} examples from now on, and had {before}")
            self.counts |= consent.clients
            sizes = ", ".join(f"{c} ({n} examples)" for c, n in consent.clients.items())
            self.tell(f"{name} takes part: {sizes}")
            if (line := self._computes(name, consent.environment)) is not None:
                self.tell(line)
        return consent

    def _fault(self, name: str, plan: Plan, consent: Consent) -> str | None:
        """The reason why ``consent`` cannot be one of the site ``name``; None if there is none."""
        expected = {c for c, site in self._site_of.items() if site == name}
        if strangers := sorted(consent.clients.keys() - expected):
            return f"it answers for {short(strangers)}, which are not its clients in the roster"
        if consent.fewest > (known := len(set(self._site_of.values()))):
            asks = f"its contract asks for {consent.fewest} sites that open a sum (training.least_sites)"
            return f"{asks}, and the roster has {known} sites"
        for client, count in consent.clients.items():
            if plan.labels is not None and self._most is not None and count > self._most:
                return f"it claims {count} examples for {client!r}, and admission.max_examples is {self._most}"
        return None

    # --- letters --------------------------------------------------------------------------------------------------

    def present(self) -> dict[str, int]:
        """See :class:`rondo.engine.remote.Messenger`. The sites have consented, in this connection or an earlier one: a
        site that has just come back is asked too, and gets its letter once it has consented anew."""
        connected = self._link.present()
        with self._lock:
            return {
                client: count
                for name, (_, consent) in self._consents.items()
                if name in connected and not consent.refused
                for client, count in consent.clients.items()
            }

    def gather(self, drawn: Collection[str], least: int) -> None:
        """See :class:`rondo.engine.remote.Messenger`. The ``drawn`` have ``patience`` seconds. Raises
        :class:`StopRequested`."""
        self.wait(math.inf, lambda: not self._too_few(self.present(), least))
        self._drawn, self._least = frozenset(drawn), min(least, len(drawn))
        self.wait(self._patience, lambda: len(self.able(self._drawn.intersection(self.present()))) >= self._least)

    def able(self, clients: Collection[str]) -> Collection[str]:
        """Those of ``clients`` whose sites can open a masked sum; all if none is masked. All, too, if every other site
        refuses: to wait for it would be in vain."""
        away = any(state in ("not connected", "connected") for state, _ in self.states().values())
        if self._opening is None or not away:
            return clients
        sites = self._opening(self.fewest({self._site_of[c] for c in clients}))
        return [c for c in clients if self._site_of[c] in sites]

    def _too_few(self, clients: Collection[str], least: int) -> bool:
        """Whether ``clients`` are too few for a round, which then waits and says so once a minute."""
        count, few, now = len(clients), len(self.able(clients)) < least, time.monotonic()
        if few and now - self._waits >= _MINUTE:
            needed = f"and a round needs {least}" if count < least else "at too few sites for a masked sum"
            self.tell(f"{count} of {len(self._site_of)} clients take part, {needed}: waiting, {self.absence()}")
            self._waits = now
        elif not few and self._waits > -math.inf:
            self.tell("enough clients take part: going on")
            self._waits = -math.inf
        return few

    def send(self, client: str, data: bytes, largest: int) -> None:
        """See :class:`rondo.engine.remote.Messenger`."""
        self._waiting.append(_Letter(client, self._site_of[client], "round", data, largest, time.monotonic()))

    def ask(self, site: str, kind: str, data: bytes, largest: int) -> None:
        """Send a letter to ``site`` itself, whose reply has at most ``largest`` bytes. :meth:`replies` gives it by the
        site's name."""
        self._waiting.append(_Letter(site, site, kind, data, largest, time.monotonic()))

    def site_of(self, client: str) -> str:
        """The site of a client."""
        return self._site_of[client]

    def fewest(self, sites: Collection[str]) -> dict[str, int]:
        """:attr:`~rondo.federation.plan.Consent.fewest` of each of ``sites``."""
        with self._lock:
            return {s: self._consents[s][1].fewest if s in self._consents else 0 for s in sites}

    @property
    def plan_digest(self) -> str:
        """:attr:`~rondo.federation.plan.Plan.digest` of the plan that is offered."""
        assert self._plan is not None
        return self._plan.digest

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`rondo.engine.remote.Messenger`. A letter is sent again to a site that was started anew. Raises
        :class:`StopRequested`."""
        absent: dict[str, float] = {}
        looked, heard = 0.0, 0
        try:
            while self._waiting:
                self._go_on()
                unsent = any(not letter.since for letter in self._waiting)
                if time.monotonic() - looked > (_BREATH / 2 if unsent else _LOOK):
                    looked = time.monotonic()
                    self._look_after(absent)
                came = [(x, reply) for x in self._waiting if (reply := self._link.reply(x.number)) is not None]
                for letter, reply in came:
                    self._waiting.remove(letter)
                    yield letter.name, reply
                if not came:
                    heard = self._link.wait(heard, _BREATH / 2 if unsent else _LOOK)
        finally:
            for letter in self._waiting:
                self._link.forget(letter.number)
            self._waiting.clear()

    def _look_after(self, absent: dict[str, float]) -> None:
        """Send letters to sites that are there, and anew to those that came back. Give up letters that are overdue or
        whose site came back and refuses the plan, or stays away, unless the round then has too few clients.
        ``absent``: since when each site has been away."""
        present, consents, now = self._link.present(), self.consents(), time.monotonic()
        with self._lock:
            refusing = {n for n, (since, c) in self._consents.items() if c.refused and present.get(n) == since}
        for name in consents:  # a site that cannot answer, with a full disk for instance, comes back again and again
            absent.pop(name, None)
        open_at = {letter.site for letter in self._waiting}
        there = [c for c in self._drawn if self._site_of[c] in present or self._site_of[c] not in open_at]
        few = self._too_few(there, self._least)
        for letter in list(self._waiting):
            site = letter.site
            overdue = self._deadline is not None and now - letter.sent > self._deadline
            anew = site in consents and present[site] != letter.since
            away = site not in present and now - absent.setdefault(site, now) >= self._patience and not few
            if overdue or away or site in refusing or (anew and letter.times == _TIMES):
                self._link.forget(letter.number)
                self._waiting.remove(letter)
            elif anew:
                self._link.forget(letter.number)
                number = self._link.send(site, letter.kind, letter.data, self._deadline or _DAY, letter.largest)
                if number is not None:
                    letter.number, letter.since, letter.times = number, present[site], letter.times + 1
