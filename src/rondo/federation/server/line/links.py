"""The state of the server's line: nodes and letters, as Flower's Fleet API keeps them, in memory.

Flower's stores keep the letters to sites, but not the replies: Flower lets a site announce any tree of objects, of any
size, with objects of other letters in it. Here a reply is a set of objects of its own, with a limit on their bytes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from flwr.app import Message

from rondo.federation import flower
from rondo.federation.flower import inflatable_object, message_pb2
from rondo.federation.letter import KINDS, content_of, record
from rondo.federation.signature import SKEW

BEAT = 30.0
"""Seconds between a site's signs of life, at most; it counts as gone after twice as long."""
_OVERHEAD = 2**20
"""Bytes of a reply's objects beside the letter in them."""
_PARTS = {"Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk"}
"""Flower's types of the objects in a letter."""


@dataclass
class _Post:
    """A letter on its way, and the reply to it."""

    node: int
    objects: frozenset[str]
    """Ids of the letter's objects."""
    largest: int
    """Bytes of the largest reply."""
    root: str = ""
    """Id of the reply; empty as long as there is none."""
    parts: dict[str, bytes] = field(default_factory=dict)
    """The reply's objects, empty until they are there."""
    size: int = 0
    missing: int = 0
    """The number of objects that are not there yet."""
    session: str = ""
    """The session in which the reply comes."""
    spoilt: bool = False
    """Whether the reply is no letter, or too large."""

    @property
    def answered(self) -> bool:
        """Whether all of the reply is there, or as much as will be taken of it."""
        return bool(self.root) and (self.spoilt or self.missing == 0)


class Links(flower.InMemoryLinkState):
    """Flower's state of nodes and messages, in memory: what must survive a crash is in the run directory. A node is a
    site.

    ``replied``: called when a reply is complete.
    """

    def __init__(self, replied: Callable[[], None] = lambda: None) -> None:
        self._replied = replied
        self._store = flower.InMemoryObjectStore()
        super().__init__(flower.NoOpFederationManager(), self._store)
        self._posts: dict[str, _Post] = {}
        """By the letter's number."""
        self._of_node: dict[int, dict[str, _Post]] = {}
        """The same by node."""
        self._unread: dict[int, dict[str, None]] = {}
        """Numbers of the letters that each node has not fetched, the oldest first. Flower goes through all letters to
        all nodes at each question."""
        self._sessions: dict[str, str] = {}
        """The letter's number by the session in which its reply comes."""

    def begin(self) -> int:
        """A run that lasts as long as this object. Messages belong to a run."""
        run = self.create_run(
            None, None, None, {}, flower.NOOP_FEDERATION_ID, None, flower.NOOP_FLWR_AID, flower.TaskType.SERVER_APP
        )
        task = self.run_ids[run].run.primary_task_id
        assert task is not None
        self.claim_task(task)
        self.activate_task(task)
        self.task_token_store[task].active_until = datetime.max.replace(tzinfo=UTC)
        return run

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

    def post(self, run: int, node: int, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        """Leave a letter for ``node``. Returns its number, or None if the node has never been there.

        ``largest``: bytes of the largest letter in reply.
        """
        time = seconds + SKEW  # a site reckons by its own clock whether there is time left to answer
        metadata = flower.Metadata(
            run, "", flower.SUPERLINK_NODE_ID, node, "", "", datetime.now(UTC).timestamp(), time, KINDS[kind]
        )
        with inflatable_object.no_object_id_recompute():  # an id is a digest of all that is below it
            message = flower.make_message(metadata, content=record(letter))
            number = flower.number(message)
            tree = inflatable_object.get_object_tree(message)
            objects = {name: part.deflate() for name, part in inflatable_object.get_all_nested_objects(message).items()}
        # The message comes last: a site may ask at any time, and must find all of it.
        with self._store.lock_store:
            self._store.preregister(run, tree)
        for name, part in objects.items():
            self._store.put(name, part)
        with self.lock:
            post = self._posts[number] = _Post(node, frozenset(objects), largest + _OVERHEAD)
            self._of_node.setdefault(node, {})[number] = post
            self._unread.setdefault(node, {})[number] = None
            if self.store_message_ins(flower.remove_content_from_message(message)) is None:
                self.drop(number)
                return None
        return number

    def has_letter(self, node: int) -> bool:
        """Whether a letter waits for ``node`` to fetch it."""
        return bool(self._unread.get(node))

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """As Flower's: letters to a node, each handed out once."""
        letters: list[Message] = []
        with self.lock:
            unread = self._unread.get(node_id, {})
            while unread and (limit is None or len(letters) < limit):
                number = next(iter(unread))
                del unread[number]
                self._check_stored_messages({number})  # which drops it if its time is up
                if (letter := self.message_ins_store.get(number)) is not None:
                    letter.metadata.delivered_at = datetime.now(UTC).isoformat()
                    letters.append(letter)
        return letters

    def is_for(self, node: int, name: str) -> bool:
        """Whether the object ``name`` is part of a letter to ``node``."""
        with self.lock:
            return any(name in post.objects for post in self._of_node.get(node, {}).values())

    # --- replies --------------------------------------------------------------------------------------------------

    def start_session(self, run_id: int) -> str:
        """A name for the session in which a reply may come."""
        return secrets.token_hex(16)

    def store_message_and_object_tree(
        self, message: Message, object_tree: message_pb2.ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Take the announcement of a reply. The first one is final, even if its objects never arrive."""
        number = message.metadata.reply_to_message_id
        with self.lock:
            post = self._posts.get(number)
            if post is None or self.store_message_res(message) is None or post.root:
                return False, []
            post.root = message.metadata.message_id
            post.parts = {tree.object_id: b"" for tree in inflatable_object.iterate_object_tree(object_tree)}
            post.missing = len(post.parts)
            post.spoilt = post.root != object_tree.object_id
            post.session = session_id
            self._sessions[session_id] = number
            if post.spoilt:
                self._replied()
            return True, [] if post.spoilt else list(post.parts)

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Take an object of a reply."""
        with self.lock:
            post = self._posts.get(self._sessions.get(session_id, ""))
            if post is None or post.spoilt or post.parts.get(object_id) != b"":
                return False
            post.size += len(object_content)
            if post.size > post.largest:
                post.spoilt, post.parts = True, {}
                self._replied()
                return False
            if inflatable_object.get_object_id(object_content) != object_id:
                return False
            post.parts[object_id] = object_content
            post.missing -= 1
            if post.answered:
                self._replied()
            return True

    def fetch(self, number: str) -> bytes | None:
        """The letter in reply to letter ``number`` once all of it is there; empty where the reply has none. Both are
        dropped then."""
        with self.lock:
            post = self._posts.get(number)
            if post is None or not post.answered:
                return None
            self.drop(number)
        return b"" if post.spoilt else _letter(post)

    def drop(self, number: str) -> None:
        """Drop letter ``number`` and the reply to it."""
        with self.lock:
            post = self._posts.pop(number, None)
            if post is not None:
                self._sessions.pop(post.session, None)
                self._of_node[post.node].pop(number, None)
                self._unread[post.node].pop(number, None)
            self.delete_messages({number})
            self._store.delete(number)


def _letter(post: _Post) -> bytes:
    """The letter in a reply; empty if there is none. A site may have sent anything."""
    try:
        if _unpacked(post.parts) > post.largest:
            return b""
        message = flower.inflate_object_from_contents(post.root, dict(post.parts))
        return content_of(message) if isinstance(message, Message) else b""
    except Exception:  # Flower's parsers raise what Python and protobuf do on bytes that are none of theirs
        return b""


def _unpacked(parts: Mapping[str, bytes]) -> int:
    """Bytes of all arrays in ``parts``, by id, which may name the same chunk any number of times. Raises ValueError for
    an object of another type, and whatever the parsers raise."""
    total = 0
    for part in parts.values():
        kind, children, _ = inflatable_object.get_object_head_values_from_object_content(part)
        if kind not in _PARTS:
            raise ValueError(f"a letter has no {kind}")
        if kind == "Array":
            body = json.loads(part.partition(flower.HEAD_BODY_DIVIDER)[2])
            total += sum(len(parts[children[i]]) for i in body["arraychunk_ids"])
    return total
