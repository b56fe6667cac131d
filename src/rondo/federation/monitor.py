"""The monitor of a party's program: ``/healthz`` and ``/metrics`` at an address that its owner chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from rondo.config.packages import missing
from rondo.errors import ConfigError

WARNED = 30
"""Days before the end of a certificate or key from which its owner is warned."""


@dataclass(frozen=True)
class Health:
    """A program's state at one time.

    ``fault``: why it does nothing useful; empty while it is well.
    ``numbers``: by name, each a gauge of Prometheus with ``rondo_`` before its name.
    """

    fault: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def monitored(address: str | None, health: Callable[[], Health]) -> Iterator[None]:
    """Within, ``address``, HOST:PORT, answers ``GET /healthz`` by 200 or 503 with a line of JSON, and ``GET /metrics``
    in the form of Prometheus. None answers nothing. Raises :class:`ConfigError`."""
    if address is None:
        yield
        return
    server = _listening(address, _app(health))
    thread = threading.Thread(target=server.serve_forever, name="monitor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def days_left(ends: Iterable[date], today: date) -> int | None:
    """The days until the first of ``ends``; None without one."""
    return min(((end - today).days for end in ends), default=None)


def ending(ends: Mapping[str, date], today: date) -> Iterator[str]:
    """A line for each of ``ends`` that is near."""
    for name, end in ends.items():
        if (days := (end - today).days) <= WARNED:
            when = f"ends in {days} day{'s' if days != 1 else ''}, on {end}" if days >= 0 else f"ended on {end}"
            yield f"{name} {when}: renew it"


def _app(health: Callable[[], Health]) -> Any:
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.core import GaugeMetricFamily
    except ModuleNotFoundError:
        raise ConfigError.at("--monitor", missing("prometheus_client")) from None

    class Collector:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            now = health()
            for name, value in {"healthy": not now.fault, **now.numbers}.items():
                yield GaugeMetricFamily(f"rondo_{name}", name.replace("_", " "), float(value))

    registry = CollectorRegistry()
    registry.register(Collector())
    metrics = make_wsgi_app(registry)

    def app(environ: Any, start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            found: Iterable[bytes] = metrics(environ, start)
            return found
        if environ["PATH_INFO"] != "/healthz":
            start("404 Not Found", [])
            return []
        now = health()
        start("503 Service Unavailable" if now.fault else "200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"healthy": not now.fault, "fault": now.fault, **now.numbers}).encode() + b"\n"]

    return app


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _listening(address: str, app: Any) -> WSGIServer:
    host, _, port = address.rpartition(":")
    try:
        if not host:  # which would be every address of the machine
            raise ValueError("it names no host")
        return make_server(host.strip("[]"), int(port), app, _Server, _Silent)
    except (OSError, OverflowError, ValueError) as error:
        message = f"cannot listen on {address!r}: {error}; give HOST:PORT, for instance 127.0.0.1:9464"
        raise ConfigError.at("--monitor", message) from None
