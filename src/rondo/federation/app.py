"""A run as a Flower app, for an existing Flower federation.

``flwr run`` hands the app to a SuperLink, which starts a ServerApp, and at each SuperNode a ClientApp for each message.
That federation then decides which code runs where and who takes part: a node's claim to be a client is believed.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rondo import __version__
from rondo.config import packages
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.data.files.room import Room
from rondo.data.files.tables import Rows
from rondo.data.sources import client_rows, read_rows
from rondo.engine.wire.strict import Rejected
from rondo.errors import ConfigError, Problem
from rondo.federation.letter import KINDS, content_of, kind_of, record
from rondo.federation.plan import LARGEST, Consent, End
from rondo.federation.server.gathering import started
from rondo.federation.server.remote_run import (
    ROWS_AT_SITES,
    at_sites,
    check,
    plan_of,
    ranks_of,
    ready,
    with_clients,
    without_rows,
)
from rondo.federation.server.saved_sum import SavedSum
from rondo.federation.server.sites import Sites
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.desk import Desk, Exhausted
from rondo.records import durable
from rondo.runs import launch
from rondo.runs.loop import Onlooker
from rondo.runs.watching.progress import Lines

_EVERY = 0.5
"""Seconds between questions to the SuperLink."""

client = ClientApp()


def write(folder: Path, config: str, nodes: int) -> None:
    """Write a Flower app that runs the configuration file ``config`` at ``nodes`` SuperNodes. Raises
    :class:`ConfigError`."""
    _check(load(config, ROWS_AT_SITES, check_paths=False))
    if folder.exists():
        raise ConfigError.at(str(folder), "already exists; name another folder")
    project = _PROJECT.format(version=__version__, flwr=packages.REQUIREMENTS["flwr"], nodes=nodes)
    try:
        durable.make_folder(folder)
        durable.write_all(
            folder,
            {
                "config.toml": Path(config).read_bytes(),
                "rondo_app.py": _MODULE.encode(),
                "pyproject.toml": project.encode(),
            },
        )
    except OSError as error:
        raise ConfigError.at(str(folder), f"cannot be written: {error.strerror}; name another folder") from None


_MODULE = '''"""Rondo's Flower app. Rondo must be installed at the SuperLink and at every SuperNode, in one version."""

from pathlib import Path

from rondo.federation import app

server = app.server(Path(__file__).with_name("config.toml"))
client = app.client
'''

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "rondo-run"
version = "1.0.0"
description = "A run of Rondo: federated low-rank fine-tuning"
license = "Apache-2.0"
# Rondo {version} is installed by hand, from its wheel: it is on no registry yet, where others could take its name.
dependencies = ["{flwr}"]

[tool.flwr.app]
publisher = "rondo"

[tool.flwr.app.components]
serverapp = "rondo_app:server"
clientapp = "rondo_app:client"

[tool.flwr.app.config]
nodes = {nodes}         # SuperNodes to wait for before the first round
wait = 600.0      # seconds to wait for them
patience = 60.0   # seconds to wait for a SuperNode that is gone
run-dir = ""      # at the SuperLink; empty: rondo-runs/ID in the home folder
device = "auto"
"""


def server(config: Path) -> ServerApp:
    """The app at the SuperLink, for a run of the configuration file ``config``."""
    app = ServerApp()
    app.main()(partial(_serve, config))
    return app


def _serve(config: Path, grid: Grid, context: Context) -> None:
    options, began = context.run_config, time.perf_counter()
    line, stop = _GridLine(grid), threading.Event()
    wait, told = float(options["wait"]), print
    settings = without_rows(load(config, ROWS_AT_SITES, check_paths=False))
    _check(settings)
    run = secrets.token_hex(8)
    clients = _clients(line, int(options["nodes"]), wait, plan_of(settings, run, None, "").encode())
    told(f"{len(clients)} clients at {len(set(clients.values()))} nodes")
    device = str(options["device"])
    assembly = ready(settings, device, clients)
    patience, deadline, most = float(options["patience"]), settings.clients.deadline, settings.admission.max_examples
    sites = Sites(line, clients, deadline=deadline, patience=patience, stop=stop, told=told, most=most)
    try:
        assembly = started(settings, device, assembly, sites, run, clients, wait, told)
        ranks = ranks_of(assembly, clients)
        assembly = at_sites(with_clients(assembly, clients, sites.examples, ranks), sites, SavedSum(run))
        onlooker = Onlooker(Lines(sys.stdout, settings.rounds, set()), stop, began)
        run_dir = str(options["run-dir"]) or Path.home() / "rondo-runs" / run
        told(f"result: {launch.start(assembly, run_dir, onlooker).run_dir / 'adapter'}")
    finally:
        sites.close(End())


def _check(config: RunConfig) -> None:
    """Raise :class:`ConfigError` for what ``config`` has that only a simulation, or a federation with keys, has."""
    check(config)
    why = "a SuperNode runs the code that its SuperLink sends, so no mask hides anything: rondo federate server"
    config.guarantee.must_not_mask(why)


@client.query("plan")
@client.query("end")
@client.train()
def _answer(message: Message, context: Context) -> Message:
    letter = content_of(message)
    try:
        answer = _desk(context.node_config).answer(kind_of(message.metadata.message_type), letter)
    except ConfigError as error:
        print(error)
        answer = Consent({}, refused="its desk cannot be set up; its owner sees why").encode()
    except (Exhausted, OSError) as error:
        print(error)
        answer = Consent({}, refused="it cannot answer now; its owner sees why").encode()
    return Message(record(answer), reply_to=message)


def _desk(node: Mapping[str, Any]) -> Desk:
    """The desk of a SuperNode, which Flower starts anew for every message. Raises :class:`ConfigError`."""
    known = {"data", "test", "state", "contract", "client", "model", "device"}
    options = {key.removeprefix("rondo-"): value for key, value in node.items() if key.startswith("rondo-")}
    problems = [Problem(f"--node-config rondo-{key}", "unknown; remove it") for key in options.keys() - known]
    for key in ("data", "state", "contract"):
        if not options.get(key):
            problems.append(Problem(f"--node-config rondo-{key}", "missing: set it where flower-supernode is started"))
    if problems:
        raise ConfigError(problems, "flower-supernode")
    contract = Contract.read(Path(str(options["contract"])))
    device, model = str(options.get("device", "auto")), options.get("model")
    name, test = options.get("client"), options.get("test")
    rows = _rows(Path(str(options["data"])), name, "rondo-data", contract.rows.room())
    tests = _rows(Path(str(test)), name or next(iter(rows)), "rondo-test", contract.rows.room()) if test else {}
    state, stop = Path(str(options["state"])), threading.Event()
    # Nobody is asked: whoever starts the SuperNode names the contract.
    return Desk(rows, state, device, contract, lambda offer: True, print, stop, model, tests)


def _rows(data: Path, name: str | None, option: str, room: Room) -> Mapping[str, Rows]:
    """The rows of each client of a node: of a file, whose client has its name unless ``name`` is given, or of a folder
    with a file for each. Raises :class:`ConfigError`."""
    key = f"--node-config {option}"
    if data.is_dir():
        return client_rows(str(data), key, room)
    return {name or data.stem: read_rows(data, key, room)}


def _clients(line: _GridLine, nodes: int, seconds: float, plan: bytes) -> dict[str, str]:
    """The node of every client, asked of the first ``nodes`` nodes. Raises :class:`ConfigError`."""
    end, asked, clients = time.monotonic() + seconds, dict[str, str](), dict[str, str]()
    answered: set[str] = set()
    while len(answered) < nodes:
        if time.monotonic() > end:
            message = f"after {seconds:g} s {len(answered)} of {nodes} nodes have answered: wait longer"
            raise ConfigError.at("wait", message)
        for name in line.present():
            if name not in asked:
                asked[name] = line.send(name, "plan", plan, seconds, LARGEST) or ""
            reply = line.reply(asked[name]) if name not in answered else None
            if reply is not None:
                answered.add(name)
                for client_id in _consent(name, reply).clients:
                    if clients.setdefault(client_id, name) != name:
                        message = f"two nodes have a client {client_id!r}: name one otherwise (rondo-client)"
                        raise ConfigError.at("--node-config", message, "flower-supernode")
        time.sleep(_EVERY)
    return clients


def _consent(name: str, reply: bytes) -> Consent:
    try:
        consent = Consent.decode(reply)
    except Rejected as rejection:
        consent = Consent({}, refused=str(rejection))
    if consent.refused:
        print(f"{name} takes no part: {consent.refused[:500]}")
    return consent


class _GridLine:
    """A :class:`rondo.federation.server.line.site_line.SiteLine` over Flower's Grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._open, self._came, self._asked = grid, set[str](), dict[str, bytes](), 0.0
        self._lock = threading.Lock()

    def present(self) -> dict[str, str]:
        return {f"node-{number}": str(number) for number in self._grid.get_node_ids()}

    def send(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        node = int(site.removeprefix("node-"))
        message = Message(record(letter), dst_node_id=node, message_type=KINDS[kind], ttl=seconds)
        number = next(iter(self._grid.push_messages([message])), None)
        with self._lock:
            self._open |= {number} if number else set()
        return number or None

    def reply(self, number: str) -> bytes | None:
        with self._lock:
            if time.monotonic() - self._asked > _EVERY and self._open:
                for message in self._grid.pull_messages(list(self._open)):
                    self._came[message.metadata.reply_to_message_id] = content_of(message)
                self._open -= self._came.keys()
                self._asked = time.monotonic()
            return self._came.pop(number, None)

    def forget(self, number: str) -> None:
        with self._lock:
            self._open.discard(number)
            self._came.pop(number, None)

    def wait(self, after: int, seconds: float) -> int:
        time.sleep(min(seconds, _EVERY))  # the Grid has to be asked
        return after
