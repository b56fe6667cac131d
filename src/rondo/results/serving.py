"""The page of runs served while they go on: on the loopback address, to whoever has the token in its address."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rondo.errors import ConfigError
from rondo.results.page import html, state

HOST = "127.0.0.1"

_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@contextmanager
def serving(paths: Sequence[str | Path], port: int = 0) -> Iterator[str]:
    """Serve the page of the runs at ``paths`` and yield its address. ``port``: 0 takes a free one.

    Each page is made of the files as they are when it is asked for. Raises :class:`ConfigError` for a path without a
    run, for damaged files, and for a port that is taken.
    """
    html(paths)  # what cannot be shown is refused now, not in the browser
    token = secrets.token_urlsafe(24)
    try:
        server = _Server((HOST, port), _Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError.at(
            "--port", f"{port} cannot be listened on: {reason}; leave it out", "rondo report"
        ) from None
    server.paths, server.token = tuple(paths), token
    thread = threading.Thread(target=server.serve_forever, name="rondo-report", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/{token}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    paths: Sequence[str | Path] = ()
    token = ""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    server_version, sys_version = "rondo", ""

    def do_GET(self) -> None:
        """Answer with the page, or with the name of its state; with 404 to whoever lacks the token or comes by
        another host's name, as a page elsewhere would whose name leads here."""
        token, _, rest = self.path.lstrip("/").partition("/")
        port = self.server.server_address[1]
        by_name = self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")
        allowed = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not (by_name and allowed and rest in ("", "now")):
            self._answer(404, "text/plain", "not here\n")
            return
        for patience in (0.2, 0.5, None):
            try:
                now = state(self.server.paths)
                text = now if rest == "now" else html(self.server.paths, live=now)
            except (ConfigError, OSError) as error:  # a file is just being replaced, or was damaged meanwhile
                if patience is None:
                    self._answer(503, "text/plain", f"{error}\n")
                    return
                time.sleep(patience)
            else:
                self._answer(200, "text/plain" if rest == "now" else "text/html", text)
                return

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address has the token."""
