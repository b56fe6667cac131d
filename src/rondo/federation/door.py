"""The door of the server's port: what is checked of a request before anything of its body is in memory.

Flower reads and parses a body first and looks at the signature then, so a peer without a key could exhaust the memory
of the server. Here a request is answered by its headers alone until its key is known to be in the roster.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import h11
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rondo.federation.roster import Roster

PROMPT = 20.0
"""Seconds in which a connection must have begun a request, and in which each part of its body must come."""
_SMALL, _TREE, _OBJECT = 2**14, 2**20, 2**20 + FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
ROUTES = {
    "/v1/fleet/activate-node": _SMALL,
    "/v1/fleet/deactivate-node": _SMALL,
    "/v1/fleet/send-node-heartbeat": _SMALL,
    "/v1/fleet/pull-messages": _SMALL,
    "/v1/fleet/push-messages": _TREE,
    "/v1/fleet/push-object": _OBJECT,
    "/v1/fleet/pull-object": _SMALL,
    "/v1/fleet/confirm-message-received": _SMALL,
}
"""Bytes of the largest body at every route that a site uses. Nothing else is served: neither code nor other runs."""


class Turned(Exception):
    """A request that is turned away, with a status of HTTP and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Door:
    """Lets requests of the roster's sites pass to ``app``. ``names``: the sites that were there at its start."""

    def __init__(self, app: ASGIApp, roster: Callable[[], Roster], names: frozenset[str]) -> None:
        self._app, self._roster, self._names = app, roster, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in ROUTES:
                raise Turned(404, "Not Found")
            headers = Headers(scope=scope)
            self._admit(_signer(headers))
            body = await _body(headers, receive, ROUTES[scope["path"]])
        except Turned as turned:
            # The rest of the body is not waited for.
            response = JSONResponse({"detail": str(turned)}, turned.status, {"connection": "close"})
            await response(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _admit(self, public_key: bytes) -> None:
        """Raise :class:`Turned` for a key that is not, or no longer, in the roster."""
        site = self._roster().site_of(public_key)
        if site is None or site.name not in self._names:
            raise Turned(403, "this key is not in the server's roster")
        if site.revoked:
            raise Turned(403, f"the key of {site.name} is revoked")
        if not site.valid(datetime.now(UTC).date()):
            raise Turned(403, f"the key of {site.name} expired on {site.expires}")


def _signer(headers: Headers) -> bytes:
    """The public key that signed the time of a request, in PEM. Raises :class:`Turned`."""
    try:
        public_key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        moment = headers[TIMESTAMP_HEADER]
        age = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
        key = bytes_to_public_key(public_key)
        signed = isinstance(key, ec.EllipticCurvePublicKey) and verify_signature(key, moment.encode(), signature)
    except (KeyError, ValueError, TypeError, binascii.Error):
        signed = False
    if not signed:
        raise Turned(401, "the request is not signed")
    if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        raise Turned(401, f"the clocks of site and server differ by {abs(age):.0f} s: set the wrong one")
    return public_key


async def _body(headers: Headers, receive: Receive, largest: int) -> bytes:
    """The body of a request. Raises :class:`Turned`, at the latest after ``largest`` bytes."""
    said = headers.get("content-length", "0")
    if not said.isdecimal() or len(said) > 12 or int(said) > largest:
        raise Turned(413, f"a body of {said[:20]} bytes, where {largest} are allowed")
    body = bytearray()
    while True:
        try:
            event = await asyncio.wait_for(receive(), PROMPT)
        except TimeoutError:
            raise Turned(408, f"nothing came for {PROMPT:g} s") from None
        if event["type"] == "http.disconnect":
            raise Turned(400, "the connection is closed")
        body += event.get("body", b"")
        if len(body) > largest:
            raise Turned(413, f"a body of more than {largest} bytes")
        if not event.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """``receive`` of a request whose body has been read."""
    read = False

    async def again() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class Prompt(H11Protocol):
    """HTTP in which the headers of a request must come within :data:`PROMPT`: of the first one since the connection was
    made, of any other since its first byte."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # the headers are there
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(PROMPT, self.transport.abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None
