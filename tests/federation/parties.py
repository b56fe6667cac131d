"""A whole federation in one process, over TLS on this machine: a server and its sites, each in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import rondo
from rondo.engine.transport import Observer
from rondo.errors import StopRequested
from rondo.federation.identity import keys
from rondo.federation.server import sites as server_sites
from rondo.federation.server.listening import Listening
from rondo.federation.server.run import resume, serve
from rondo.federation.site import joining
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.run import SiteSetup, take_part
from rondo.runs.assembling.assemble import assemble
from small_runs import reviews, settings, write_rows


def until(true: Callable[[], object]) -> None:
    """Wait for half a minute at most."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


Sites = Mapping[str, Sequence[str]]
SITES: Sites = {"north": ("ann",), "south": ("bob", "cid")}
ROWS = {"ann": reviews(20), "bob": reviews(14, seed=1), "cid": reviews(26, seed=2)}
TEST = reviews(12, seed=3)
OPEN = Contract.model_validate(
    {
        "rows": {
            "inputs": [
                *("text", "first", "second", "context", "question", "image", "tokens", "prompt"),
                *("asked", "found", "not"),
            ],
            "labels": [
                *("label", "who", "answers", "score", "tags", "labels", "joined", "neg", "plot", "pos"),
                *("chosen", "rejected", "like"),
            ],
        },
        "training": {
            "tensors": "whole",
            "least_rows": 1,
            "least_steps": 1,
            "least_clients": 1,
            "least_sites": 2,
            "repeats": True,
        },
        "outgoing": {"least_rows_scored": 1},
    }
)
"""A contract that allows nearly all."""


def write_sites(folder: Path, sites: Sites = SITES, rows: Mapping[str, Any] = ROWS) -> None:
    """Keys in ``keys``, rows of each site in its folder below ``data``, those of all in ``data/all``, and an open
    contract."""
    (folder / "site.toml").write_text(tomli_w.dumps(OPEN.model_dump(exclude_none=True)))
    keys.make(["localhost"], list(sites), folder / "keys", days=10, clients=sites)
    for site, clients in sites.items():
        for client in clients:
            write_rows(folder / "data" / site / f"{client}.csv", rows[client])
            write_rows(folder / "data" / "all" / f"{client}.csv", rows[client])
    write_rows(folder / "data" / "test.csv", TEST)


LABELS = {"labels": ["neg", "pos"]}
"""A section ``task`` for sites that keep their class names to themselves."""


def configuration(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run over the sites of :func:`write_sites`, one client at a time. A section in ``changes`` replaces ours."""
    sections: dict[str, Any] = {
        "data": {"test_source": str(folder / "data" / "test.csv")},
        "partition": {"kind": None, "clients": None},
        "simulation": {"cohort": 1},
    }
    return settings(folder / "bert", **{**sections, **changes})


def write_configuration(folder: Path, **changes: Any) -> dict[str, Any]:
    """The run of :func:`configuration`, which is written into ``config.toml`` without empty sections."""
    config = {name: section for name, section in configuration(folder, **changes).items() if section != {}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    return config


_one_at_a_time = threading.Lock()


def _assembled(*args: Any, **options: Any) -> Any:
    """Random weights come from torch's own generator, of which a process has one."""
    with _one_at_a_time:
        return assemble(*args, **options)


@dataclass
class Parties:
    """The federation of :func:`write_sites` in ``folder``."""

    folder: Path
    sites: Sites = field(default_factory=lambda: SITES)
    state: Path | None = None
    """Where sites keep their state; left out, in ``folder``."""
    port: int = 0
    told: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Of every :class:`SiteSetup`."""
    running: dict[str, tuple[threading.Thread, threading.Event]] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)

    def run(
        self, config: dict[str, Any], run_dir: Path, observer: Observer | None = None, **listening: Any
    ) -> rondo.RunResult:
        """Serve ``config``; the sites start as soon as the server listens, and end with it."""

        def served(told: Any, way: Listening) -> rondo.RunResult:
            return serve(config, way, run_dir=run_dir, device="cpu", observer=observer, told=told)

        return self._serve(served, **listening)

    def resume(
        self, run_dir: Path, observer: Observer | None = None, *, roster_changed: bool = False, **listening: Any
    ) -> rondo.RunResult:
        """Serve the run again, with the sites that are there, or those that are started now."""

        def served(told: Any, way: Listening) -> rondo.RunResult:
            return resume(run_dir, way, roster_changed=roster_changed, observer=observer, told=told)

        return self._serve(served, **listening)

    def _serve(
        self, served: Any, *, keep: bool = False, answered: Sequence[str] = (), **listening: Any
    ) -> rondo.RunResult:
        """``keep``: sites go on if the server fails.

        ``answered``: the server waits until these sites have answered, and for no other, instead of some seconds."""
        ways = Listening(self.folder / "keys" / "server", "127.0.0.1", self.port, wait=60.0, patience=1.0)
        way = replace(ways, **listening)

        def told(line: str) -> None:
            self.told.append(line)
            if line.startswith("listening on "):
                self.port = int(line.split(":")[1].split()[0])
                for site in self.sites:
                    if site not in self.running:
                        self.start(site)

        wait = server_sites.Sites.wait

        def wait_for_answers(sites: server_sites.Sites, seconds: float, enough: Callable[[], bool]) -> bool:
            def over() -> bool:
                states = sites.states()
                return enough() or all(states[name][0] in ("takes part", "refuses") for name in answered)

            wait(sites, seconds, over)
            return enough()

        try:
            with pytest.MonkeyPatch.context() as patch:
                if answered:
                    patch.setattr(server_sites.Sites, "wait", wait_for_answers)
                result: rondo.RunResult = served(told, way)
            for site in list(self.running):
                self.join(site)
            return result
        except BaseException:
            print("\n".join(self.told))
            for site in list(self.running) if not keep else ():
                self.stop(site)
            raise

    def start(self, site: str, **options: Any) -> None:
        """Start ``site``."""
        stop = threading.Event()
        folder = self.folder
        state = self.state or folder
        model = {"model": str(folder / "bert")} if (folder / "bert").exists() else {}
        setting = {"device": "cpu", "contract": OPEN, **model, **self.options, **options}
        server, own = f"localhost:{self.port}", folder / "keys" / site
        program = SiteSetup(server, own, folder / "data" / site, state / f"at-{site}", **setting)

        def work() -> None:
            try:
                joining.assemble = _assembled
                take_part(program, asked=lambda offer: True, told=self.told.append, stop=stop)
            except StopRequested:
                pass
            except BaseException as error:
                self.errors[site] = error

        thread = threading.Thread(target=work, name=site, daemon=True)
        self.running[site] = (thread, stop)
        thread.start()

    def stop(self, site: str) -> None:
        """Stop ``site`` and wait for it."""
        self.running[site][1].set()
        self.join(site)

    def until(self, text: str, seconds: float = 60.0) -> None:
        """Wait until a line that begins with ``text`` was told."""
        end = time.monotonic() + seconds
        while not any(line.startswith(text) for line in list(self.told)):
            assert time.monotonic() < end, f"no {text!r}: {self.told}"
            time.sleep(0.01)

    def join(self, site: str) -> None:
        """Wait until ``site`` is over."""
        thread, _ = self.running.pop(site)
        thread.join(timeout=60)
        assert not thread.is_alive(), f"{site} does not end"
