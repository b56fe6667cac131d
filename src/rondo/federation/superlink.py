"""The server's end of the line to its sites: Flower's SuperLink, of which only the Fleet API is there.

Flower's own command opens another API beside it, by which anybody who reaches the port can start runs and so code, and
hands that code on to the sites. Here there is one run, and no code travels (docs/adr/0017-flower.md). A site signs
every request with its key.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NodeStatus
from flwr.supercore.error import http_error_translator
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rondo.errors import ConfigError
from rondo.federation.door import Door, Prompt
from rondo.federation.links import Links
from rondo.federation.roster import Roster

_HELD, _LOOK = 1.0, 0.03
"""Seconds that a site's question for letters is held back while there is none, and between looks. Fifty sites that
asked twenty times a second would keep a processor busy with signatures."""


class SuperLink:
    """A SuperLink on ``address``, for the sites of a roster. It serves from :meth:`start` to :meth:`stop`, in a thread.

    ``certificate``, ``key``: files in PEM; None serves without TLS.
    """

    def __init__(
        self,
        roster: Callable[[], Roster],
        address: tuple[str, int],
        *,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it logs every request
        self._roster = roster
        self._links = Links()
        stores = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, self._links.federation_manager, stores)
        factory.state_instance = self._links
        self._sites: dict[int, str] = {}
        for site in roster().sites:
            public_key = site.public_key.encode()
            self._sites[self._links.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0)] = site.name
        self._run = self._links.begin()
        self._listening = _listen(*address)
        self.port: int = self._listening.getsockname()[1]
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, middleware=self._middleware())
        app.state.linkstate_factory = factory
        app.state.enable_supernode_auth = True
        app.include_router(router)
        tls: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key} if certificate is not None else {}
        quiet: dict[str, Any] = {"log_level": "critical", "access_log": False, "server_header": False}
        config = uvicorn.Config(app, http=Prompt, ws="none", lifespan="off", **quiet, **tls)
        self._server = uvicorn.Server(config)
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

    def send(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        """Send ``letter`` of one of :data:`~rondo.federation.letter.KINDS`, to be answered within ``seconds`` by at
        most ``largest`` bytes. Returns the letter's number, or None for a site that was never there."""
        node = next(n for n, name in self._sites.items() if name == site)
        return self._links.post(self._run, node, kind, letter, seconds, largest)

    def reply(self, number: str) -> bytes | None:
        """The reply to letter ``number``, which is handed out once; None while there is none. Whatever a site sent that
        is no letter, or too large, is an empty one."""
        return self._links.fetch(number)

    def forget(self, number: str) -> None:
        """Drop letter ``number`` and every reply to it."""
        self._links.drop(number)

    def _middleware(self) -> list[Middleware]:
        return [
            Middleware(Door, roster=self._roster, names=frozenset(self._sites.values())),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=self._own),
        ]

    async def _own(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Reject a request for another site's letters, or in another site's name: the key was checked against the node
        before. Hold back a question for letters until there is one."""
        asked = request.state.protobuf_request
        reason = None
        if isinstance(asked, PullMessagesRequest):
            end = time.monotonic() + _HELD
            while not self._links.has_letter(asked.node.node_id) and time.monotonic() < end:
                await asyncio.sleep(_LOOK)
        elif isinstance(asked, PushMessagesRequest):
            senders = {m.metadata.src_node_id for m in asked.messages_list}
            if senders != {asked.node.node_id} or len(asked.messages_list) != 1 or len(asked.message_object_trees) != 1:
                reason = "not one letter in the site's own name"
        elif isinstance(asked, PullObjectRequest):
            reason = None if self._links.is_for(asked.node.node_id, asked.object_id) else "no letter to this site"
        elif isinstance(asked, ConfirmMessageReceivedRequest):
            reason = (
                None if self._links.is_for(asked.node.node_id, asked.message_object_id) else "no letter to this site"
            )
        if reason is not None:
            return JSONResponse({"detail": reason}, status_code=403)
        return await call_next(request)


def _listen(host: str, port: int) -> socket.socket:
    """A socket on ``host`` and ``port``. Raises :class:`ConfigError` if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        message = f"cannot listen on {host}:{port}: {error}; name another address"
        raise ConfigError.at("--listen", message, "rondo federate server") from None
