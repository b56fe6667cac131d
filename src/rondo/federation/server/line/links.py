"""The state of the server's line, in memory: nodes as Flower keeps them, letters, and the replies to them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO

from rondo.federation import flower
from rondo.federation.letter import PART

BEAT = 30.0
"""Seconds between a site's signs of life, at most; it counts as gone after twice as long."""


@dataclass
class _Post:
    """A letter on its way, and the reply to it. ``until``: when nobody waits for the reply any more, by this machine's
    monotonic clock. ``largest``: bytes of the largest reply."""

    node: int
    kind: str
    letter: bytes
    until: float
    largest: int
    reply: BytesIO = field(default_factory=BytesIO)
    parts: int = 0
    """Number of the reply's parts that are there."""
    answered: bool = False
    """Whether all of the reply is there, or as much as will be taken of it."""


class Links(flower.InMemoryLinkState):
    """Flower's state of nodes, and letters to them: what must survive a crash is in the run directory. A node is a
    site.

    ``replied``: called when a reply is complete.
    """

    def __init__(self, replied: Callable[[], None] = lambda: None) -> None:
        self._replied = replied
        super().__init__(flower.NoOpFederationManager(), flower.InMemoryObjectStore())
        self._posts: dict[str, _Post] = {}
        """By the letter's number."""
        self._unread: dict[int, dict[str, None]] = {}
        """Numbers of the letters that each node has not heard of, the oldest first."""

    def node_of(self, site: str) -> int:
        """The node of a site, by its name."""
        with self.lock:
            key = site.encode()
            node = self.node_public_key_to_node_id.get(key)
            return (
                node if node is not None else self.create_node(flower.NOOP_FLWR_AID, flower.NOOP_ACCOUNT_NAME, key, 0)
            )

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """As Flower's, but a site that died and comes back need not wait until its death is noticed."""
        self.deactivate_node(node_id)
        return super().activate_node(node_id, heartbeat_interval)

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """As Flower's, but no site can say that it is there for an hour."""
        return super().acknowledge_node_heartbeat(node_id, min(heartbeat_interval, BEAT))

    # --- letters to sites -----------------------------------------------------------------------------------------

    def post(self, node: int, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        """Leave a letter for ``node``. Returns its number, or None if the node has never been there.

        ``largest``: bytes of the largest letter in reply.
        """
        with self.lock:
            if not self.nodes[node].last_activated_at:
                return None
            number = secrets.token_hex(16)
            self._posts[number] = _Post(node, kind, letter, time.monotonic() + seconds, largest)
            self._unread.setdefault(node, {})[number] = None
        return number

    def has_letter(self, node: int) -> bool:
        """Whether a letter waits for ``node`` to fetch it."""
        return bool(self._unread.get(node))

    def next(self, node: int) -> tuple[str, str] | None:
        """Number and kind of the next letter to ``node``, each handed out once; None if there is none."""
        with self.lock:
            for number in list(self._unread.get(node, {})):
                del self._unread[node][number]
                if time.monotonic() < self._posts[number].until:
                    return number, self._posts[number].kind
                self.drop(number)
        return None

    def part(self, node: int, number: str, place: int) -> bytes | None:
        """The part at ``place`` of letter ``number``; None if ``node`` has no such letter."""
        post = self._posts.get(number)
        return None if post is None or post.node != node else post.letter[place * PART : (place + 1) * PART]

    # --- replies --------------------------------------------------------------------------------------------------

    def take(self, node: int, number: str, place: int, part: bytes) -> bool:
        """Take the part at ``place`` of the reply to letter ``number`` to ``node``. False: it is not the next one of a
        reply that is waited for, or is too much."""
        with self.lock:
            post = self._posts.get(number)
            if post is None or post.node != node or post.answered or place != post.parts:
                return False
            fits = post.reply.tell() + len(part) <= post.largest
            if fits:
                post.reply.write(part)
                post.parts += 1
            else:
                post.reply = BytesIO()
            post.answered = not fits or len(part) < PART
            if post.answered:
                self._replied()
            return fits

    def fetch(self, number: str) -> bytes | None:
        """The letter in reply to letter ``number`` once all of it is there; empty where it was too large. Both are
        dropped then."""
        with self.lock:
            post = self._posts.get(number)
            if post is None or not post.answered:
                return None
            self.drop(number)
        return post.reply.getvalue()

    def drop(self, number: str) -> None:
        """Drop letter ``number`` and the reply to it."""
        with self.lock:
            post = self._posts.pop(number, None)
            if post is not None:
                self._unread[post.node].pop(number, None)
