"""The server's end of the line to its sites: Flower's SuperLink, of which only the Fleet API is there.

Flower's own command opens another API beside it, by which anybody who reaches the port can start runs and so code, and
hands that code on to the sites. Here there is one run, and no code travels (docs/adr/0017-flower.md). A site signs
every request with its key.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.app import Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.date import now
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from rondo.errors import ConfigError
from rondo.federation.letter import KINDS, content_of, record
from rondo.federation.roster import Roster

_PUBLIC_KEY = "flwr-public-key"
_OVERHEAD = 2**20
"""Bytes of a request beside the letter in it."""


class SuperLink:
    """A SuperLink on ``address``, for the sites of a roster. It serves from :meth:`start` to :meth:`stop`, in a thread.

    ``largest``: bytes of the largest letter that a site may send.
    ``certificate``, ``key``: files in PEM; None serves without TLS.
    """

    def __init__(
        self,
        roster: Callable[[], Roster],
        address: tuple[str, int],
        *,
        largest: int,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it logs every request
        self._roster = roster
        stores = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        self._links = _Links(NoOpFederationManager(), stores.store())
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, self._links.federation_manager, stores)
        factory.state_instance = self._links
        self._sites: dict[int, str] = {}
        for site in roster().sites:
            public_key = site.public_key.encode()
            self._sites[self._links.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0)] = site.name
        self._run = self._links.begin()
        self._listening = _listen(*address)
        self.port: int = self._listening.getsockname()[1]
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, middleware=self._middleware(largest))
        app.state.linkstate_factory = factory
        app.state.enable_supernode_auth = True
        app.include_router(router)
        tls: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key} if certificate is not None else {}
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, **tls))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listening],), name="superlink", daemon=True
        )

    def start(self) -> None:
        """Serve. Raises :class:`ConfigError` where certificate or key cannot be used."""
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise ConfigError.at("--keys", "the certificate cannot be used: make another one", "rondo federate")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop serving. Letters that are on their way are lost."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._listening.close()

    def present(self) -> dict[str, str]:
        """The connected sites by name, each with the time since when it is: another one after every restart."""
        valid = {site.name for site in self._roster().valid(datetime.now(UTC).date())}
        online = self._links.get_node_info(node_ids=list(self._sites), statuses=[NodeStatus.ONLINE])
        names = {self._sites[node.node_id]: node.last_activated_at or "" for node in online}
        return {name: since for name, since in names.items() if name in valid}

    def send(self, site: str, kind: str, letter: bytes, seconds: float) -> str | None:
        """Send ``letter`` of one of :data:`~rondo.federation.letter.KINDS`, to be answered within ``seconds``. Returns
        the letter's number, or None for a site that was never there."""
        node = next(n for n, name in self._sites.items() if name == site)
        return self._links.post(self._run, node, kind, record(letter), seconds)

    def reply(self, number: str) -> bytes | None:
        """The reply to letter ``number``, which is handed out once; None while there is none. Whatever a site sent that
        is no letter is an empty one."""
        message = self._links.fetch(number)
        return None if message is None else content_of(message)

    def forget(self, number: str) -> None:
        """Drop letter ``number`` and every reply to it."""
        self._links.drop(number)

    def _middleware(self, largest: int) -> list[Middleware]:
        return [
            Middleware(_Bounded, largest=largest + _OVERHEAD),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=self._admit),
        ]

    async def _admit(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Turn away whose key is not (or no longer) in the roster, and who sends in another one's name. The signature
        was checked before."""
        asked = getattr(request.state, "protobuf_request", None)
        if asked is None:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        reason = self._turned_away(request)
        if reason is None and isinstance(asked, PushMessagesRequest):
            senders = {m.metadata.src_node_id for m in asked.messages_list}
            if senders != {asked.node.node_id} or len(asked.messages_list) != 1:
                reason = "a letter in another site's name"
        if reason is not None:
            return JSONResponse({"detail": reason}, status_code=403)
        return await call_next(request)

    def _turned_away(self, request: Request) -> str | None:
        site = self._roster().site_of(b64decode(request.headers[_PUBLIC_KEY]))
        if site is None or site.name not in self._sites.values():
            return "this key is not in the server's roster"
        if site.revoked:
            return f"the key of {site.name} is revoked"
        if site.expires is not None and site.expires < datetime.now(UTC).date():
            return f"the key of {site.name} expired on {site.expires}"
        return None


class _Links(InMemoryLinkState):
    """Flower's state of nodes and messages, in memory: what must survive a crash is in the run directory."""

    def begin(self) -> int:
        """A run that lasts as long as this object. Messages belong to a run."""
        run = self.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        task = self.run_ids[run].run.primary_task_id
        assert task is not None
        self.claim_task(task)
        self.activate_task(task)
        self.task_token_store[task].active_until = datetime.max.replace(tzinfo=UTC)
        return run

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """As Flower's, but a site that died and comes back need not wait until its death is noticed."""
        self.deactivate_node(node_id)
        return super().activate_node(node_id, heartbeat_interval)

    def post(self, run: int, node: int, kind: str, content: RecordDict, seconds: float) -> str | None:
        """Leave a message for ``node``. Returns its number, or None if the node has never been there."""
        metadata = Metadata(run, "", SUPERLINK_NODE_ID, node, "", "", now().timestamp(), seconds, KINDS[kind])
        message = make_message(metadata, content=content)
        number = message.object_id
        metadata.__dict__["_message_id"] = number
        objects = get_all_nested_objects(message)
        session = self.start_session(run)
        stored, _ = self.store_message_and_object_tree(
            remove_content_from_message(message), get_object_tree(message), session
        )
        if not stored:
            return None
        for name, part in objects.items():
            self.store_object(run, session, name, part.deflate())
        return number

    def fetch(self, number: str) -> Message | None:
        """The reply to message ``number`` once all of it is there. Both are dropped then."""
        with self.lock:
            reply = self.message_ins_id_to_message_res_id.get(number)
            if reply is None:
                return None
            parts = {t.object_id: b"" for t in iterate_object_tree(self.object_store.get_object_tree(reply))}
            for name in parts:
                part = self.object_store.get(name)
                if not part:
                    return None
                parts[name] = part
            self.drop(number)
        try:
            message = inflate_object_from_contents(reply, parts)
        except Exception:  # bytes of a site may be anything
            return make_message(Metadata(0, "", 0, 0, "", "", 0.0, 1.0, ""), content=RecordDict())
        assert isinstance(message, Message)
        return message

    def drop(self, number: str) -> None:
        """Drop message ``number`` and the reply to it."""
        with self.lock:
            reply = self.message_ins_id_to_message_res_id.get(number)
            self.delete_messages({number})
            self.object_store.delete(number)
            if reply is not None:
                self.object_store.delete(reply)


class _Bounded:
    """Turns away requests of more than ``largest`` bytes before they are in memory."""

    def __init__(self, app: ASGIApp, largest: int) -> None:
        self.app, self.largest = app, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if not said.isdigit() or int(said) > self.largest:
            await JSONResponse({"detail": "too large"}, status_code=413)(scope, receive, send)
            return
        size = 0

        async def counted() -> Event:
            nonlocal size
            event = await receive()
            size += len(event.get("body", b""))
            return event if size <= self.largest else {"type": "http.disconnect"}

        await self.app(scope, counted, send)


def _listen(host: str, port: int) -> socket.socket:
    """A socket on ``host`` and ``port``. Raises :class:`ConfigError` if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        message = f"cannot listen on {host}:{port}: {error}; name another address"
        raise ConfigError.at("--listen", message, "rondo federate server") from None
