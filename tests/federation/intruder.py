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
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE as PROTOBUF
from google.protobuf.message import Message as Protobuf

from rondo.federation.identity import keys
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.roster import Roster
from rondo.federation.letter import record
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

    def pull(self) -> Message | None:
        """The next message, without its content."""
        answer = self.post("pull-messages", fleet_pb2.PullMessagesRequest(node=self.node))
        pulled = fleet_pb2.PullMessagesResponse.FromString(answer.content)
        return message_from_proto(pulled.messages_list[0]) if pulled.messages_list else None

    def push(self, message: Message, tree: Any = None, number: str | None = None) -> httpx.Response:
        """Announce a reply: ``message`` without its content, by default with its own tree and number."""
        message.metadata.__dict__["_message_id"] = message.object_id if number is None else number
        return self.post(
            "push-messages",
            fleet_pb2.PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message) if tree is None else tree],
            ),
        )

    def put(self, session: str, run: int, name: str, content: bytes) -> bool:
        """Send an object that was announced. Returns whether it was taken."""
        asked = message_pb2.PushObjectRequest(
            node=self.node, run_id=run, object_id=name, object_content=content, session_id=session
        )
        answer = self.post("push-object", asked)
        return answer.status_code == 200 and message_pb2.PushObjectResponse.FromString(answer.content).stored

    def reply(self, to: Message, content: bytes | RecordDict) -> httpx.Response:
        """Answer a message by a letter, or by content of another form."""
        message = Message(record(content) if isinstance(content, bytes) else content, reply_to=to)
        answer = self.push(message)
        pushed = fleet_pb2.PushMessagesResponse.FromString(answer.content)
        for name, part in get_all_nested_objects(message).items():
            self.put(pushed.session_id, to.metadata.run_id, name, part.deflate())
        return answer
