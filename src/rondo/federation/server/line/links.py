"""Letters of the server's line, in memory, and the replies to them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO

from rondo.federation.letter import PART


@dataclass
class _Post:
    """A letter on its way, and the reply to it. ``until``: when nobody waits for the reply any more, by this machine's
    monotonic clock. ``largest``: bytes of the largest reply."""

    site: str
    kind: str
    letter: bytes
    until: float
    largest: int
    reply: BytesIO = field(default_factory=BytesIO)
    parts: int = 0
    """Number of the reply's parts that are there."""
    answered: bool = False
    """Whether all of the reply is there, or as much as will be taken of it."""


class Links:
    """Letters to sites, and the replies to them: what must survive a crash is in the run directory.

    ``replied``: called when a reply is complete.
    """

    def __init__(self, replied: Callable[[], None] = lambda: None) -> None:
        self._replied, self._lock = replied, threading.RLock()
        self._posts: dict[str, _Post] = {}
        """By the letter's number."""
        self._unread: dict[str, dict[str, None]] = {}
        """Numbers of the letters that each site has not heard of, the oldest first."""

    def post(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str:
        """Leave a letter for ``site``, and return its number. ``largest``: bytes of the largest letter in reply."""
        number = secrets.token_hex(16)
        with self._lock:
            self._posts[number] = _Post(site, kind, letter, time.monotonic() + seconds, largest)
            self._unread.setdefault(site, {})[number] = None
        return number

    def has_letter(self, site: str) -> bool:
        """Whether a letter waits for ``site`` to fetch it."""
        return bool(self._unread.get(site))

    def next(self, site: str) -> tuple[str, str] | None:
        """Number and kind of the next letter to ``site``, each handed out once; None if there is none."""
        with self._lock:
            for number in list(self._unread.get(site, {})):
                del self._unread[site][number]
                if time.monotonic() < self._posts[number].until:
                    return number, self._posts[number].kind
                self.drop(number)
        return None

    def part(self, site: str, number: str, place: int) -> bytes | None:
        """The part at ``place`` of letter ``number``; None if ``site`` has no such letter."""
        post = self._posts.get(number)
        return None if post is None or post.site != site else post.letter[place * PART : (place + 1) * PART]

    # --- replies --------------------------------------------------------------------------------------------------

    def take(self, site: str, number: str, place: int, part: bytes) -> bool:
        """Take the part at ``place`` of the reply to letter ``number`` to ``site``. False: it is not the next one of a
        reply that is waited for, or is too much."""
        with self._lock:
            post = self._posts.get(number)
            if post is None or post.site != site or post.answered or place != post.parts:
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
        with self._lock:
            post = self._posts.get(number)
            if post is None or not post.answered:
                return None
            self.drop(number)
        return post.reply.getvalue()

    def drop(self, number: str) -> None:
        """Drop letter ``number`` and the reply to it."""
        with self._lock:
            post = self._posts.pop(number, None)
            if post is not None:
                self._unread[post.site].pop(number, None)
