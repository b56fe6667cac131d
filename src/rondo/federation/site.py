"""A site's program: it connects to the server, answers its letters, and connects again after whatever happens."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rondo.config.checks import is_path
from rondo.data.room import Room
from rondo.data.sources import client_rows, read_rows
from rondo.data.tables import Rows
from rondo.errors import ConfigError, Problem, StopRequested, headed
from rondo.federation.desk import Desk
from rondo.federation.keys import SiteKeys
from rondo.federation.letter import content_of, kind_of
from rondo.federation.limits import Limits
from rondo.federation.listening import PORT, no_seconds
from rondo.federation.program import Program, only_program
from rondo.federation.supernode import Refused, SuperNode, Unreachable
from rondo.runs.assemble import find_device
from rondo.runs.storage import durable

_TIMEOUT = 4.0
"""Seconds in which a server must accept a first connection."""
_PAUSE, _AGAIN = 0.05, 2.0
"""Seconds between questions for letters, which the server holds back while there is none, and between attempts to
connect."""


@dataclass(frozen=True)
class Site:
    """A site, as its owner sets it up.

    - ``server``: the server's address, HOST or HOST:PORT.
    - ``keys``: the site's folder of keys.
    - ``data``: a file with the rows of its one client, or a folder with a file for each.
    - ``folder``: what it keeps: see :mod:`rondo.federation.disk`.
    - ``model``: its own copy of the base model, in place of the name in the plan.
    - ``memory_mb``: memory for training, in MiB.
    - ``insecure``: without TLS.
    - ``stay``: wait for further runs when one is over.
    - ``wait``: seconds to wait for a server that is not there yet.
    """

    server: str
    keys: Path
    data: Path
    folder: Path
    device: str = "auto"
    model: str | None = None
    memory_mb: int | None = None
    limits: Limits = field(default_factory=Limits)
    insecure: bool = False
    stay: bool = False
    wait: float = 0.0
    allow_code: bool = False

    def check(self) -> None:
        """Raise :class:`ConfigError` with all faults that show without a connection, the keys' and the rows' apart."""
        problems = list(self.limits.problems())
        if (reason := no_seconds(self.wait)) is not None:
            problems.append(Problem("--wait", reason))
        if self.memory_mb is not None and self.memory_mb < 1:
            problems.append(Problem("--memory-mb", f"should be 1 or more, got {self.memory_mb}"))
        if self.model is not None and is_path(self.model) and not Path(self.model).expanduser().exists():
            problems.append(Problem("--model", f"no such file or folder: {self.model!r}; mend the path"))
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
    site: Site, *, told: Callable[[str], None] = lambda line: None, stop: threading.Event | None = None
) -> None:
    """Take part in the server's run until it is over. Raises :class:`ConfigError` for anything that the owner must fix,
    and :class:`~rondo.errors.StopRequested` after ``stop``."""
    stop = stop or threading.Event()
    site.check()
    keys = SiteKeys.read(site.keys)
    rows = _rows(site.data, keys.clients)
    host, port = _address(site.server)
    ca = None if site.insecure else keys.ca
    _await(host, port, ca, site.wait, told, stop)
    with only_program(site.folder) as program:
        _take_part(site, keys, rows, (host, port), program, told, stop)


def _take_part(
    site: Site,
    keys: SiteKeys,
    rows: Mapping[str, Rows],
    server: tuple[str, int],
    program: Program,
    told: Callable[[str], None],
    stop: threading.Event,
) -> None:
    (host, port), ca = server, None if site.insecure else keys.ca
    desk = Desk(rows, site.folder, site.device, site.limits, told, stop, site.model, site.memory_mb, site.allow_code)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lost = first = True
    turned_away = ""
    while True:
        try:
            with SuperNode(address, keys.private_key, ca, program, told, stop) as node:
                if lost:
                    told(f"connected to {address} as {keys.site}")
                lost = first = False
                turned_away = ""
                if not _answer(desk, node, stop, stay=site.stay):
                    return
        except Refused as refused:
            if first or "key" in str(refused):
                raise ConfigError.at("--keys", f"the server turns it away: {refused}") from None
            # A server that was started anew does not know who is connected.
            if str(refused) != turned_away:
                turned_away = str(refused)
                told(f"{address} turns the site away ({turned_away}); trying again")
        except Unreachable as unreachable:
            if first:
                raise ConfigError.at("--server", f"{address} cannot be reached: {unreachable}") from None
            if not lost:
                told(f"the connection to {address} is lost ({unreachable}); trying again")
            lost = True
        if stop.wait(_AGAIN):
            raise StopRequested


def _answer(desk: Desk, node: SuperNode, stop: threading.Event, *, stay: bool) -> bool:
    """Answer letters as they come. False once a run is over and the site does not ``stay``."""
    while True:
        message = node.next()
        if message is None:
            if stop.wait(_PAUSE):
                raise StopRequested
            continue
        kind = kind_of(message)
        node.answer(message, desk.answer(kind, content_of(message)))
        if kind == "end":
            desk.told("the run is over")
            if not stay:
                return False


def _rows(data: Path, clients: Sequence[str]) -> Mapping[str, Rows]:
    """The rows of each client. Raises :class:`ConfigError`."""
    if not data.exists():
        raise ConfigError.at("--data", f"no such file or folder: {str(data)!r}; mend the path")
    if len(clients) == 1 and data.is_file():
        return {clients[0]: read_rows(data, "--data", Room())}
    if data.is_file():
        message = f"the keys are for {len(clients)} clients: name a folder with a file for each, named after its client"
        raise ConfigError.at("--data", message)
    rows = client_rows(str(data), "--data", Room())
    if missing := [client for client in clients if client not in rows]:
        message = f"{str(data)!r} has no file for {missing[0]!r}: name a file after it, for instance {missing[0]}.csv"
        raise ConfigError.at("--data", message)
    return {client: rows[client] for client in clients}


def _address(server: str) -> tuple[str, int]:
    """Host and port. Raises :class:`ConfigError`."""
    host, colon, port = server.rpartition(":") if server.count(":") == 1 or "]" in server else (server, "", "")
    if not colon:
        host, port = server, str(PORT)
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError.at("--server", f"{server!r} is no address: give HOST or HOST:PORT")
    return host, int(port)


def _await(
    host: str, port: int, ca: Path | None, seconds: float, told: Callable[[str], None], stop: threading.Event
) -> None:
    """Wait at most ``seconds`` until something answers at this address. Raises :class:`ConfigError` with the reason if
    nothing does, or it is not the server that ``ca`` vouches for; and :class:`StopRequested`."""
    end, waits = time.monotonic() + seconds, False
    while True:
        try:
            return _reach(host, port, ca)
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= end:
                reason = getattr(error, "strerror", None) or str(error)
                message = f"{host}:{port} cannot be reached: {reason}; mend the address, or wait for it by --wait"
                raise ConfigError.at("--server", message) from None
        if not waits:
            told(f"waiting for {host}:{port}")
        waits = True
        if stop.wait(_AGAIN):
            raise StopRequested


def _reach(host: str, port: int, ca: Path | None) -> None:
    """Raise :class:`ConfigError` with the reason if the server is not the one that ``ca`` vouches for, and OSError or
    UnicodeError if there is none."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT) as plain:
            if ca is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_verify_locations(ca)
                with context.wrap_socket(plain, server_hostname=host):
                    pass
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {host}:{port} is not accepted: {error.verify_message}"
        raise ConfigError.at("--server", f"{message}; ask the server's owner for the right ca.crt and host") from None
    except ssl.SSLError as error:
        message = f"{host}:{port} does not speak TLS ({error.reason}): it is another server, or one with --insecure"
        raise ConfigError.at("--server", message) from None
