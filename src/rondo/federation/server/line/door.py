"""The door of the server's port: what is checked of a request before anything of its body is in memory.

Flower reads and parses a body first and looks at the signature then, so a peer without a key could exhaust the memory
of the server. Here a request is answered by its headers alone until its key is known to be in the roster.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import HTTPException
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from rondo.federation.flower import fleet_pb2, heartbeat_pb2, message_pb2
from rondo.federation.identity.roster import Enrolled, Roster
from rondo.federation.letter import PART
from rondo.federation.program import Program
from rondo.federation.server.line.callers import PROMPT, Caller
from rondo.federation.signature import SKEW, SignedClaim

_SMALL = 2**14
ROUTES: Mapping[str, tuple[type[Message], int]] = {
    "/v1/fleet/activate-node": (fleet_pb2.ActivateNodeRequest, _SMALL),
    "/v1/fleet/deactivate-node": (fleet_pb2.DeactivateNodeRequest, _SMALL),
    "/v1/fleet/send-node-heartbeat": (heartbeat_pb2.SendNodeHeartbeatRequest, _SMALL),
    "/v1/fleet/pull-messages": (fleet_pb2.PullMessagesRequest, _SMALL),
    "/v1/fleet/push-object": (message_pb2.PushObjectRequest, _SMALL + PART),
    "/v1/fleet/pull-object": (message_pb2.PullObjectRequest, _SMALL),
}
"""Type and bytes of the largest body at every route that a site uses. Nothing else is served: neither code nor other
runs."""
_MOST_KNOWN = 4096


class Turned(HTTPException):
    """A request that is turned away, with a status of HTTP and the reason."""


@dataclass(frozen=True)
class Asked:
    """A request of a site, signed by it. ``address``: where it comes from."""

    site: str
    public_key: bytes
    program: Program
    address: str
    body: bytes
    request: Request
    """Its headers, and at its end the message that the connection is gone."""


class Door:
    """Lets requests of the roster's sites pass to what is ``within``, which answers them."""

    def __init__(self, within: Callable[[Asked], Awaitable[Response]], roster: Callable[[], Roster]) -> None:
        self._within, self._roster = within, roster
        self._known_of: Roster | None = None
        self._known: dict[bytes, tuple[Enrolled, ec.EllipticCurvePublicKey]] = {}
        """Keys of ``_known_of`` that have been here: to parse one takes as long as to check a signature."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            asked = await self._admitted(request)
        except Turned as turned:
            # The rest of the body is not waited for.
            refusal = JSONResponse({"detail": turned.detail}, turned.status_code, {"connection": "close"})
            await refusal(scope, receive, send)
            return
        response = await self._within(asked)
        await response(scope, receive, send)

    def valid(self, public_key: bytes) -> bool:
        """Whether a key (PEM) is in the roster now and counts."""
        known = self._site_of(public_key)
        return known is not None and known[0].valid(datetime.now(UTC).date())

    async def _admitted(self, request: Request) -> Asked:
        """The request of a site, with its body. Raises :class:`Turned`."""
        if request.scope["type"] != "http" or request.method != "POST" or request.scope["path"] not in ROUTES:
            raise Turned(404, "Not Found")
        try:
            claim = SignedClaim.of(request.headers)
        except ValueError:
            raise Turned(401, "the request is not signed") from None
        site = self._signer(claim, request)
        caller: Caller = request.scope["state"]["caller"]
        caller.prove(site.name)
        _, largest = ROUTES[request.scope["path"]]
        body = await _body(request, largest)
        if hashlib.sha256(body).hexdigest() != claim.digest:
            raise Turned(401, "the body is not the one that was signed")
        return Asked(site.name, claim.public_key, claim.program, caller.address, body, request)

    def _signer(self, claim: SignedClaim, request: Request) -> Enrolled:
        """The site that signed a request. Raises :class:`Turned` for a key that is not, or no longer, in the roster."""
        known = self._site_of(claim.public_key)
        if known is None:
            raise Turned(403, "this key is not in the server's roster")
        site, key = known
        # The path as it was sent: two ways to write one are two texts to sign.
        if not claim.signed_by(key, request.method, request.scope["raw_path"].decode()):
            raise Turned(401, "the request is not signed")
        if (apart := abs(claim.age())) > SKEW:
            raise Turned(401, f"the clocks of site and server differ by {apart:.0f} s: set the wrong one")
        if site.revoked:
            raise Turned(403, f"the key of {site.name} is revoked")
        if not site.valid(datetime.now(UTC).date()):
            raise Turned(403, f"the key of {site.name} expired on {site.expires}")
        return site

    def _site_of(self, public_key: bytes) -> tuple[Enrolled, ec.EllipticCurvePublicKey] | None:
        roster = self._roster()
        if roster is not self._known_of:
            self._known_of, self._known = roster, {}
        if public_key not in self._known:
            site = roster.site_of(public_key)
            if site is None:
                return None
            if len(self._known) >= _MOST_KNOWN:  # one key can be written in many ways
                self._known.clear()
            self._known[public_key] = site, site.key
        return self._known[public_key]


async def _body(request: Request, largest: int) -> bytes:
    """The body of a request. Raises :class:`Turned`, at the latest after ``largest`` bytes."""
    said = request.headers.get("content-length", "0")
    if not said.isdecimal() or len(said) > 12 or int(said) > largest:
        raise Turned(413, f"a body of {said[:20]} bytes, and {largest} are allowed")
    body = bytearray()
    while True:
        try:
            event = await asyncio.wait_for(request.receive(), PROMPT)
        except TimeoutError:
            raise Turned(408, f"nothing came for {PROMPT:g} s") from None
        if event["type"] == "http.disconnect":
            raise Turned(400, "the connection is closed")
        body += event.get("body", b"")
        if len(body) > largest:
            raise Turned(413, f"a body of more than {largest} bytes")
        if not event.get("more_body", False):
            return bytes(body)
