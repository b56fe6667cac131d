"""The server's side of Flower's Fleet API, as far as a site uses it: its routes, behind the door.

Flower's own routers pass a request through four layers and two threads, at several milliseconds each; here one table
leads to the answers. A site asks for letters, and its question is held until there is one, so an idle site costs
a request every 20 s.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from google.protobuf.message import DecodeError, Message
from starlette.requests import Request
from starlette.responses import Response

from rondo.federation.flower import (
    PROTOBUF_MEDIA_TYPE,
    VersionDependency,
    fleet_pb2,
    heartbeat_pb2,
    http_error_translator,
    message_pb2,
)
from rondo.federation.letter import KINDS
from rondo.federation.server.line.door import ROUTES, Asked, Turned
from rondo.federation.server.line.links import Links
from rondo.federation.signature import notice_header

HELD = 20.0
"""Seconds that a question for letters is held while there is none: less than the 30 s after which a site gives up."""


class Fleet:
    """Answers the requests of sites, in the loop of the server.

    ``told``: called with a line of text per second program of a site.
    ``changed``: called when a site came or went.
    """

    def __init__(self, links: Links, told: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._links, self._changed = links, changed
        self.places = Places(told)
        self._held: dict[str, asyncio.Future[bool]] = {}
        """The question that is held, by site. It ends with whether it is still to be answered by a letter."""
        self._version = VersionDependency(component_name="SuperLink", connection_name="site <-> server")
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self, site: str, letter: bool = True) -> None:
        """Answer the question that is held for ``site``, since there is a letter, or so that the site hears at the door
        that its key is no longer valid. Called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._release, site, letter)

    async def answer(self, asked: Asked) -> Response:
        """The answer to a request, or an error in Flower's form."""
        self._loop = asyncio.get_running_loop()

        async def answered(_: Request) -> Response:
            message = await self._answer(asked)
            return Response(message.SerializeToString(), media_type=PROTOBUF_MEDIA_TYPE)

        response = await http_error_translator(asked.request, answered)
        if notice := self.places.notice(asked.site) if response.status_code == 200 else "":
            response.headers.update(notice_header(notice))
        return response

    async def _answer(self, asked: Asked) -> Message:
        if asked.request.headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF_MEDIA_TYPE:
            raise Turned(415, f"not {PROTOBUF_MEDIA_TYPE}")
        try:
            request = ROUTES[asked.request.scope["path"]][0].FromString(asked.body)
        except DecodeError:
            raise Turned(400, "no message of this route") from None
        if isinstance(request, fleet_pb2.ActivateNodeRequest):
            return self._activate(asked, request)
        named = request.node_id if isinstance(request, fleet_pb2.DeactivateNodeRequest) else request.node.node_id
        if named != number_of(asked.site):
            raise Turned(401, "not the node of this site")
        self._hear(asked)
        if isinstance(request, fleet_pb2.DeactivateNodeRequest):
            return self._deactivate(asked.site)
        if isinstance(request, fleet_pb2.PullMessagesRequest):
            return await self._pull(asked)
        return self._other(asked.site, request)

    def _hear(self, asked: Asked) -> None:
        """Note that a site's program is there. Raises :class:`Turned` where the site's place is not its own."""
        try:
            self.places.hear(asked)
        except Absent:
            raise Turned(401, "this program has not connected") from None
        except PlaceTaken as taken:
            self._release(asked.site, False)  # the first one hears of it at once
            raise Turned(409, str(taken)) from None

    def _activate(self, asked: Asked, request: fleet_pb2.ActivateNodeRequest) -> Message:
        self._version(asked.request)
        if request.public_key != asked.public_key:
            raise Turned(401, "not the key that signed the request")
        self._release(asked.site, False)  # whoever holds a question hears of it at once
        try:
            self.places.enter(asked)
        except PlaceTaken as taken:
            raise Turned(409, str(taken)) from None
        self._changed()
        return fleet_pb2.ActivateNodeResponse(node_id=number_of(asked.site))

    def _deactivate(self, site: str) -> Message:
        self.places.leave(site)
        self._release(site, False)
        self._changed()
        return fleet_pb2.DeactivateNodeResponse()

    async def _pull(self, asked: Asked) -> Message:
        if not self._links.has_letter(asked.site) and not await self._hold(asked):
            return fleet_pb2.PullMessagesResponse()
        self._hear(asked)
        if (found := self._links.next(asked.site)) is None:
            return fleet_pb2.PullMessagesResponse()
        about = message_pb2.Metadata(message_id=found[0], message_type=KINDS[found[1]])
        return fleet_pb2.PullMessagesResponse(messages_list=[message_pb2.Message(metadata=about)])

    async def _hold(self, asked: Asked) -> bool:
        """Wait for a letter to the site. False: there is none, or this question is not to be answered by it, since the
        asker is gone or has asked anew."""
        self._release(asked.site, False)
        held = self._held[asked.site] = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(asked.request.receive())
        try:
            ended, _ = await asyncio.wait({held, gone}, timeout=HELD, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                self._hear(asked)
            return held.done() and held.result() and not gone.done()
        finally:
            gone.cancel()
            if self._held.get(asked.site) is held:
                del self._held[asked.site]

    def _release(self, site: str, letter: bool) -> None:
        held = self._held.pop(site, None)
        if held is not None and not held.done():
            held.set_result(letter)

    def _other(self, site: str, request: Message) -> Message:
        """Raise :class:`Turned` for a part that no letter can have."""
        if not isinstance(request, message_pb2.PullObjectRequest | message_pb2.PushObjectRequest):
            return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)
        if _PART_ID.fullmatch(request.object_id) is None:
            raise Turned(400, "not a part of a letter")
        number, _, place = request.object_id.partition("/")
        if isinstance(request, message_pb2.PushObjectRequest):
            taken = self._links.take(site, number, int(place), request.object_content)
            return message_pb2.PushObjectResponse(stored=taken)
        part = self._links.part(site, number, int(place))
        found = part is not None
        return message_pb2.PullObjectResponse(object_found=found, object_available=found, object_content=part or b"")


def number_of(site: str) -> int:
    """The number by which Flower's messages name a site: a hash of its name."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:7])


_PART_ID = re.compile("[0-9a-f]{32}/[0-9]{1,9}")
"""The name of a part: its letter's number, and its place in the letter or in the reply."""

SILENCE, GONE = 25.0, 60.0
"""Seconds after which a program that is not heard has lost its place to whoever comes, and after which its site counts
as gone. A program asks for letters every 20 s at least, and says every 10 s that it is there while it does something
else."""
_MOST_REFUSED = 100
"""Most programs whose refusals are remembered per place, so as to tell of each once."""
_MOMENT = "%Y-%m-%d %H:%M:%S UTC"


class PlaceTaken(Exception):
    """A site's place is taken by another program; the message is for the one that is refused."""


class Absent(Exception):
    """No program has the site's place."""


@dataclass
class _Place:
    """``key``: that of the request. ``since``: when the program came, or was heard again after it had been gone."""

    program: str
    key: bytes
    address: str
    since: datetime
    heard: float
    notice: str = ""
    """A line for the program's owner, which goes with the next answer."""
    refused: set[str] = field(default_factory=set)


class Places:
    """The program that has each site's place, as long as it is heard. A second one with the same key is refused,
    and both ends of both lines hear of it: a key in two places is a mistake or a theft. No program says how long it
    counts as heard.

    ``told``: called with a line of text per program that is refused.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._places: dict[str, _Place] = {}

    def present(self) -> dict[str, tuple[str, bytes]]:
        """The sites that are there, each with the time since when it is, and its key. Called from any thread."""
        now, places = time.monotonic(), self._places.copy()
        return {name: (p.since.isoformat(), p.key) for name, p in places.items() if now - p.heard < GONE}

    def enter(self, asked: Asked) -> None:
        """Give a program the place of its site. Raises :class:`PlaceTaken`."""
        now, place = time.monotonic(), self._places.get(asked.site)
        if place is not None and place.program not in asked.program.ids and now - place.heard < SILENCE:
            raise self._taken(place, asked)
        key, address = asked.public_key, asked.address
        self._places[asked.site] = _Place(asked.program.id, key, address, datetime.now(UTC), now)

    def hear(self, asked: Asked) -> None:
        """Note that a program is there. Raises :class:`PlaceTaken`, and :class:`Absent` before it has entered."""
        now, place = time.monotonic(), self._places.get(asked.site)
        if place is None:
            raise Absent
        if place.program != asked.program.id:
            raise self._taken(place, asked)
        if now - place.heard >= GONE:
            place.since = datetime.now(UTC)
        place.heard = now

    def leave(self, site: str) -> None:
        """Free the place of a site."""
        self._places.pop(site, None)

    def notice(self, site: str) -> str:
        """A line for the owner of the program that has the place, which is handed out once; empty if there is none."""
        place = self._places.get(site)
        if place is None:
            return ""
        notice, place.notice = place.notice, ""
        return notice

    def _taken(self, place: _Place, asked: Asked) -> PlaceTaken:
        site, program = asked.site, asked.program
        first, second = f"from {place.address} since {place.since:{_MOMENT}}", f"from {asked.address}"
        if program.id not in place.refused and len(place.refused) < _MOST_REFUSED:
            place.refused.add(program.id)
            now = f"{datetime.now(UTC):{_MOMENT}}"
            advice = "stop one of them, or if one is a stranger's, revoke the key"
            self._told(
                f"{site} is connected {first}; another program with its key, {second} at {now}, is refused: {advice}"
            )
            advice = "stop it, or if it is not yours have the key revoked"
            place.notice = f"another program with the key of {site}, {second} at {now}, was refused: {advice}"
        return PlaceTaken(
            f"{site} is connected already, {first}; this program, {second}, is refused: "
            "stop the other one, or if it is not yours have the key revoked"
        )
