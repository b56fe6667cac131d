"""A whole federation in one process, over TLS on this machine: a server and its sites, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import rondo
from rondo.errors import StopRequested
from rondo.federation import keys
from rondo.federation.server import Listening, resume, serve
from rondo.federation.site import Site, take_part
from rondo.runs.progress import Quiet
from small_runs import reviews, write_rows

Sites = Mapping[str, Sequence[str]]
SITES: Sites = {"north": ("ann",), "south": ("bob", "cid")}
ROWS = {"ann": reviews(20), "bob": reviews(14, seed=1), "cid": reviews(26, seed=2)}
TEST = reviews(12, seed=3)


def write_sites(folder: Path, sites: Sites = SITES, rows: Mapping[str, Any] = ROWS) -> None:
    """Keys in ``keys``, rows of each site in its folder below ``data``, those of all in ``data/all``."""
    keys.make(["localhost"], list(sites), folder / "keys", days=10, clients=sites)
    for site, clients in sites.items():
        for client in clients:
            write_rows(folder / "data" / site / f"{client}.csv", rows[client])
            write_rows(folder / "data" / "all" / f"{client}.csv", rows[client])
    write_rows(folder / "data" / "test.csv", TEST)


@dataclass
class Parties:
    """The federation of :func:`write_sites` in ``folder``."""

    folder: Path
    sites: Sites = field(default_factory=lambda: SITES)
    told: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Of every :class:`Site`."""
    running: dict[str, tuple[threading.Thread, threading.Event]] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)

    def run(self, config: dict[str, Any], name: str = "run", **listening: Any) -> rondo.RunResult:
        """Serve ``config``; the sites start as soon as the server listens, and are over with it."""
        return self._serve(
            lambda told, way: serve(config, way, run_dir=self.folder / name, device="cpu", told=told), **listening
        )

    def resume(self, name: str = "run", **listening: Any) -> rondo.RunResult:
        """Serve the run again, with the sites that are there or are started now."""
        return self._serve(lambda told, way: resume(self.folder / name, way, told=told), **listening)

    def _serve(self, served: Any, **listening: Any) -> rondo.RunResult:
        way = replace(Listening(self.folder / "keys" / "server", "127.0.0.1", 0, wait=60.0, patience=1.0), **listening)

        def told(line: str) -> None:
            self.told.append(line)
            if line.startswith("listening on "):
                port = int(line.split(":")[1].split()[0])
                for site in self.sites:
                    self.start(site, port)

        try:
            result: rondo.RunResult = served(told, way)
            for site in list(self.running):
                self.join(site)
            return result
        finally:
            for site in list(self.running):
                self.stop(site)

    def start(self, site: str, port: int, **options: Any) -> None:
        """Start ``site``."""
        stop = threading.Event()
        folder = self.folder
        setting = {"device": "cpu", **self.options, **options}
        program = Site(
            f"localhost:{port}", folder / "keys" / site, folder / "data" / site, folder / f"at-{site}", **setting
        )

        def work() -> None:
            try:
                take_part(program, told=self.told.append, stop=stop)
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

    def join(self, site: str) -> None:
        """Wait until ``site`` is over."""
        thread, _ = self.running.pop(site)
        thread.join(timeout=60)
        assert not thread.is_alive(), f"{site} does not end"
