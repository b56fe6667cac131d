"""A SuperLink on this machine with two sites, and somebody who sends it whatever he likes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE as PROTOBUF
from google.protobuf.message import Message as Protobuf

from rondo.federation.identity import keys
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.roster import Roster
from rondo.federation.letter import PART
from rondo.federation.program import Program
from rondo.federation.server.line import fleet
from rondo.federation.server.line.superlink import SuperLink
from rondo.federation.signature import sign


@dataclass
class Line:
    """A SuperLink that serves, and the folder of its keys."""

    folder: Path
    link: SuperLink
    roster: list[Roster]
    """The roster in force is its only entry."""
    told: list[str]
    programs: dict[str, Program] = field(default_factory=dict)
    """The program that speaks for each site."""

    def site(self, name: str, program: Program | None = None) -> Intruder:
        """Somebody with the key of a site; by default in one program per site."""
        keys = SiteKeys.read(self.folder / name)
        program = program or self.programs.setdefault(name, Program.fresh())
        return Intruder(self.link.port, keys.private_key, keys.ca, program)

    def stranger(self) -> Intruder:
        """Somebody with a key of his own."""
        return Intruder(self.link.port, ec.generate_private_key(ec.SECP384R1()), self.folder / "server" / "ca.crt")


@contextmanager
def line(folder: Path, held: float = 1.0) -> Iterator[Line]:
    """A line with the keys of ``folder``, which are made where they are missing. ``held``: seconds that a question for
    letters is held."""
    if not folder.exists():
        keys.make(["localhost", "127.0.0.1"], ["north", "south"], folder, days=10, clients={})
    server = keys.ServerKeys.read(folder / "server")
    rosters, told = [server.roster], []
    tls = {"certificate": server.certificate, "key": server.key}
    link = SuperLink(lambda: rosters[0], ("127.0.0.1", 0), **tls, told=told.append)
    link.start()
    before, fleet.HELD = fleet.HELD, held
    try:
        yield Line(folder, link, rosters, told)
    finally:
        fleet.HELD = before
        link.stop()


@dataclass
class Intruder:
    """Requests of the Fleet API, each signed by ``key``."""

    port: int
    key: ec.EllipticCurvePrivateKey
    ca: Path
    program: Program = field(default_factory=Program.fresh)
    node: Node = field(default_factory=Node)

    def __post_init__(self) -> None:
        context = ssl.create_default_context(cafile=str(self.ca))
        self.http = httpx.Client(base_url=f"https://localhost:{self.port}", verify=context, timeout=20)

    def signed(
        self, route: str = "pull-messages", body: bytes = b"", moment: datetime | None = None, method: str = "POST"
    ) -> dict[str, str]:
        """The headers that vouch for a request."""
        moment = datetime.now(UTC) if moment is None else moment
        path = route if route.startswith("/") else f"/v1/fleet/{route}"
        return sign(self.key, method, path, body, self.program, moment)

    def post(self, route: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> httpx.Response:
        """The answer to ``body``, a message or bytes, at a route of the Fleet API."""
        content = body.SerializeToString() if isinstance(body, Protobuf) else body
        signed = self.signed(route, content) if headers is None else headers
        return self.http.post(f"/v1/fleet/{route}", content=content, headers={"content-type": PROTOBUF, **signed})

    def connect(self) -> httpx.Response:
        """Connect as a site does."""
        public = public_key_to_bytes(self.key.public_key())
        answer = self.post("activate-node", fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=30.0))
        if answer.status_code == 200:
            self.node = Node(node_id=fleet_pb2.ActivateNodeResponse.FromString(answer.content).node_id)
        return answer

    def pull(self) -> str | None:
        """The number of the next letter."""
        answer = self.post("pull-messages", fleet_pb2.PullMessagesRequest(node=self.node))
        pulled = fleet_pb2.PullMessagesResponse.FromString(answer.content)
        return pulled.messages_list[0].metadata.message_id if pulled.messages_list else None

    def get(self, number: str, place: int = 0) -> bytes | None:
        """A part of a letter; None where there is none for this site."""
        asked = message_pb2.PullObjectRequest(node=self.node, object_id=f"{number}/{place}")
        found = message_pb2.PullObjectResponse.FromString(self.post("pull-object", asked).content)
        return found.object_content if found.object_found else None

    def put(self, number: str, place: int, content: bytes) -> bool:
        """Send a part of the reply to a letter. Returns whether it was taken."""
        asked = message_pb2.PushObjectRequest(node=self.node, object_id=f"{number}/{place}", object_content=content)
        answer = self.post("push-object", asked)
        return answer.status_code == 200 and message_pb2.PushObjectResponse.FromString(answer.content).stored

    def reply(self, number: str, content: bytes) -> bool:
        """Answer a letter. Returns whether all of it was taken."""
        places = range(len(content) // PART + 1)
        return all(self.put(number, i, content[i * PART : (i + 1) * PART]) for i in places)
