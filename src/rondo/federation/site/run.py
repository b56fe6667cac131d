"""A site's program: it connects to the server, answers its letters, and connects again after whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rondo.config.checks import is_path, no_seconds, nothing_at, text_form_checks
from rondo.data.files.room import Room
from rondo.data.files.tables import Rows
from rondo.data.sources import client_rows, read_rows
from rondo.errors import ConfigError, PlanRefused, Problem, StopRequested, headed
from rondo.federation.identity.certificates import read_authority
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.peers import Voice
from rondo.federation.monitor import Health, monitored
from rondo.federation.notify import notify
from rondo.federation.plan import End, NotAPlan, Plan
from rondo.federation.program import Program, only_program
from rondo.federation.site.contract import protection
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.desk import Desk, Exhausted
from rondo.federation.site.joining import Declined, Offer
from rondo.federation.site.line.connection import AGAIN, TurnedAway, Unreachable, address_of, await_server
from rondo.federation.site.line.supernode import SuperNode, TooLarge
from rondo.records import durable
from rondo.runs.assembling.device import find_device

_PAUSE, _WITHHELD = 0.05, 60.0
"""Seconds between questions for letters, which the server holds back while there is none; and between looks whether
letters may leave again."""


@dataclass(frozen=True)
class SiteSetup:
    """A site, as its owner sets it up.

    - ``server``: the server's address, HOST or HOST:PORT.
    - ``keys``: the site's folder of keys.
    - ``data``: a file with the rows of its one client, or a folder with a file for each.
    - ``folder``: what it keeps: see :mod:`rondo.federation.site.disk` and :mod:`rondo.federation.site.audit.audit`.
    - ``contract``: what its owner allows.
    - ``model``: its own copy of the base model, in place of the name in the plan.
    - ``insecure``: without TLS.
    - ``stay``: wait for further runs when one is over.
    - ``wait``: seconds to wait for a server that is not there yet.
    - ``test``: a file or folder as ``data``, with test rows on which its clients' models are scored.
    - ``monitor``: the address of its ``/healthz`` and ``/metrics``, HOST:PORT; None has none.
    """

    server: str
    keys: Path
    data: Path
    folder: Path
    contract: Contract
    device: str = "auto"
    model: str | None = None
    insecure: bool = False
    stay: bool = False
    wait: float = 0.0
    test: Path | None = None
    monitor: str | None = None

    def check(self) -> None:
        """Raise :class:`ConfigError` with all faults that show without a connection, the keys' and the rows' apart."""
        problems = []
        if (reason := no_seconds(self.wait)) is not None:
            problems.append(Problem("--wait", reason))
        if self.model is not None and is_path(self.model) and (reason := nothing_at(self.model)) is not None:
            problems.append(Problem("--model", reason))
        if (reason := durable.no_folder(self.folder)) is not None:
            problems.append(Problem("--state", f"{str(self.folder)!r} cannot be made: {reason}; name another folder"))
        try:
            find_device(self.device)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)


@headed("rondo federate client")
def take_part(
    site: SiteSetup,
    *,
    asked: Callable[[Offer], bool],
    told: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> None:
    """Take part in the server's run until it is over. ``asked``: asks the owner about a plan that was not seen before.

    Raises :class:`ConfigError` for anything that the owner must fix, and :class:`~rondo.errors.StopRequested` after
    ``stop``."""
    stop = stop or threading.Event()
    here = _Here.of(site, asked, told, stop)
    with only_program(site.folder) as program, monitored(site.monitor, here.health):
        _stay_connected(here, program, stop, stay=site.stay)


def _stay_connected(here: _Here, program: Program, stop: threading.Event, *, stay: bool) -> None:
    """Answer the server's letters, and connect again after whatever happens, until the run is over."""
    told = here.desk.told
    first, lost, turned_away, paused = True, "", "", ""
    while True:
        pause = AGAIN
        try:
            with here.node(program, stop) as node:
                if first or lost:
                    told(f"connected to {here.address} as {here.keys.site}")
                    notify("READY=1")
                first, lost, turned_away, here.fault = False, "", "", paused
                if not _answer(here, node, stop, stay=stay):
                    return
        except TurnedAway as refused:
            if first or "key" in str(refused):
                raise ConfigError.at("--keys", f"the server turns it away: {refused}") from None
            here.fault = f"the server turns it away: {refused}"
            # A server that was started anew does not know who is connected.
            if str(refused) != turned_away:
                turned_away = str(refused)
                told(f"{here.address} turns the site away ({turned_away}); trying again")
        except Unreachable as unreachable:
            if first:
                raise ConfigError.at("--server", f"{here.address} cannot be reached: {unreachable}") from None
            here.fault = f"the server cannot be reached: {unreachable}"
            if str(unreachable) != lost:
                lost = str(unreachable)
                told(f"the connection to {here.address} is lost ({lost}); trying again")
        except (Exhausted, OSError) as error:
            # Nothing leaves that is not in the audit. The server sends its letters anew once the site is back.
            here.fault = f"nothing leaves: {error}"
            if str(error) != paused:
                paused = str(error)
                told(f"nothing leaves now, and no letter is taken: {paused}; looking again every minute")
            pause = _WITHHELD
        if stop.wait(pause):
            raise StopRequested


@headed("rondo federate site show-plan")
def show_plan(
    site: SiteSetup, *, told: Callable[[str], None] = lambda line: None, stop: threading.Event | None = None
) -> Offer:
    """The plan that the server offers, beside the contract. Nothing is answered: the site is gone again, and the server
    offers the plan anew when it comes back. Raises as :func:`take_part` does, and :class:`ConfigError` for a plan that
    this site cannot read."""
    stop = stop or threading.Event()
    here = _Here.of(site, lambda offer: False, told, stop)
    try:
        with here.node(Program.fresh(), stop) as node:
            told(f"connected to {here.address} as {here.keys.site}; waiting for a plan")
            while True:
                letter = node.next()
                if letter is not None and letter.kind == "plan":
                    return here.desk.joining.offer(Plan.decode(letter.data))
                if stop.wait(_PAUSE):
                    raise StopRequested
    except TurnedAway as refused:
        raise ConfigError.at("--keys", f"the server turns it away: {refused}") from None
    except Unreachable as unreachable:
        raise ConfigError.at("--server", f"{here.address} cannot be reached: {unreachable}") from None
    except (Declined, NotAPlan, TooLarge) as error:
        raise ConfigError.at("the plan", f"is refused: {error}") from None


@dataclass
class _Here:
    """A site's program, set up. ``fault``: why no letter is answered now; empty while they are. ``used``: whether one
    was answered, so that there is an audit."""

    address: str
    keys: SiteKeys
    ca: Path | None
    desk: Desk
    fault: str = "it is not connected yet"
    used: bool = False

    @classmethod
    def of(
        cls, site: SiteSetup, asked: Callable[[Offer], bool], told: Callable[[str], None], stop: threading.Event
    ) -> _Here:
        """Raises :class:`ConfigError`, and :class:`StopRequested` while it waits for the server."""
        site.check()
        keys = SiteKeys.read(site.keys)
        room = site.contract.rows.room
        rows = _rows(site.data, keys.clients, "--data", room())
        protection.check_delta(site.contract, rows)
        tests = _rows(site.test, keys.clients, "--test", room()) if site.test is not None else {}
        host, port = address_of(site.server)
        ca = None if site.insecure else keys.ca
        await_server(host, port, ca, site.wait, told, stop)
        voice = Voice.of(keys)
        desk = Desk(rows, site.folder, site.device, site.contract, asked, told, stop, site.model, tests, voice)
        return cls(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", keys, ca, desk)

    def health(self) -> Health:
        """The state of the program for its monitor. Where the turnout is a secret no letters are told: those of all
        sites would show who was drawn."""
        numbers: dict[str, float] = {}
        if self.ca is not None:
            end = read_authority(self.ca).not_valid_after_utc.date()
            numbers["days_to_first_expiry"] = (end - datetime.now(UTC).date()).days
        if self.used and not self.desk.hides_turnout:
            audit = self.desk.audit
            numbers |= {"letters_today": audit.left(), "bytes_out_today": audit.bytes("out")}
            numbers["bytes_in_today"] = audit.bytes("in")
        refused = self.desk.refusal and f"it takes no part: {self.desk.refusal}"
        return Health(self.fault or refused, numbers)

    def node(self, program: Program, stop: threading.Event) -> SuperNode:
        """A connection to the server."""
        key, largest = self.keys.private_key, int(self.desk.contract.incoming.largest_mb * 1e6)
        return SuperNode(self.address, key, self.ca, largest, program=program, told=self.desk.told, stop=stop)


def _answer(here: _Here, node: SuperNode, stop: threading.Event, *, stay: bool) -> bool:
    """Answer letters as they come. False once a run is over and the site does not ``stay``."""
    desk = here.desk
    while True:
        try:
            letter = node.next()
        except TooLarge as large:
            node.answer(large.letter, desk.refused(large.letter.kind, str(large)))
            continue
        if letter is None:
            if stop.wait(_PAUSE):
                raise StopRequested
            continue
        node.answer(letter, desk.answer(letter.kind, letter.data))
        here.fault, here.used = "", True
        if letter.kind == "plan" and desk.refusal and not stay:
            remedy = "change the contract, or ask the server's owner for another plan, and start again"
            raise PlanRefused.at("the plan", f"is refused: {desk.refusal}; {remedy}")
        if letter.kind == "end":
            reason = End.decode(letter.data).reason
            desk.told(f"the run failed: {reason}" if reason else "the run is over")
            if not stay and reason:
                raise ConfigError.at("--server", f"its run failed for good: {reason}")
            if not stay:
                return False


def clients_in(data: Path, room: Room) -> Mapping[str, Rows]:
    """The rows of a file, or of each file in a folder. Raises :class:`ConfigError`."""
    if problems := list(text_form_checks(room.form.separator, room.form.encoding, room.form.keys)):
        raise ConfigError(problems)
    if (reason := nothing_at(str(data))) is not None:
        raise ConfigError.at("DATA", reason)
    if data.is_file():
        return {data.stem: read_rows(data, "DATA", room)}
    return client_rows(str(data), "DATA", room)


def _rows(data: Path, clients: Sequence[str], key: str, room: Room) -> Mapping[str, Rows]:
    """The rows of each client. Raises :class:`ConfigError` under ``key``."""
    if (reason := nothing_at(str(data))) is not None:
        raise ConfigError.at(key, reason)
    if len(clients) == 1 and data.is_file():
        return {clients[0]: read_rows(data, key, room)}
    if data.is_file():
        message = f"the keys are for {len(clients)} clients: name a folder with a file for each, named after its client"
        raise ConfigError.at(key, message)
    rows = client_rows(str(data), key, room)
    if missing := [client for client in clients if client not in rows]:
        message = f"{str(data)!r} has no file for {missing[0]!r}: name a file after it, for instance {missing[0]}.csv"
        raise ConfigError.at(key, message)
    return {client: rows[client] for client in clients}
