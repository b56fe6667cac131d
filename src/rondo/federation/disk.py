"""A site's disk: what each of its clients must still have after a restart, and a log of every letter."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from rondo.engine import serialization
from rondo.engine.client.holdings import Holdings
from rondo.engine.client.party import Party
from rondo.params import Params
from rondo.runs.storage import durable

_DIGEST = 32


@dataclass(frozen=True)
class _Saved:
    """A party's state. ``attempt`` and ``trained`` are its ``pending``; -1 if it has none."""

    client: str
    kept: dict[str, Params]
    holdings: Holdings
    attempt: int
    trained: Params


_LIKE = _Saved("", {}, Holdings(), -1, {})


@dataclass(frozen=True)
class Disk:
    """The folder ``path`` of a site. ``run``: the run's name."""

    path: Path
    run: str

    def load(self, party: Party) -> str | None:
        """Give ``party`` the state that it was saved with. Returns a sentence if the state is there and damaged; the
        client then starts anew, and the server sends it what it lacks."""
        try:
            data = self._file(party).read_bytes()
        except FileNotFoundError:
            return None
        try:
            if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
                raise ValueError("its digest differs")
            saved = serialization.unpack(data[_DIGEST:], _LIKE)
            if saved.client != party.id:
                raise ValueError(f"it is of {saved.client!r}")
        except ValueError as error:
            return f"{self._file(party)} is damaged ({error}): what {party.id} kept for itself is lost"
        party.kept.update(saved.kept)
        party.holdings = saved.holdings
        party.pending = (saved.attempt, saved.trained) if saved.attempt >= 0 else None
        return None

    def save(self, party: Party) -> None:
        """Save ``party`` in one step. Raises OSError and then changes nothing."""
        attempt, trained = party.pending or (-1, {})
        own = {name: kept for name, kept in party.kept.items() if name == party.id}
        content = serialization.pack(_Saved(party.id, own, party.holdings, attempt, trained))
        file = self._file(party)
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write(file, hashlib.sha256(content).digest() + content)

    def _file(self, party: Party) -> Path:
        run = hashlib.sha256(self.run.encode()).hexdigest()[:16]
        return self.path / run / f"{quote(party.id, safe='')}.safetensors"


@dataclass
class Log:
    """``letters.jsonl``: a line for every letter that came or went, with its digest."""

    path: Path
    _day: str = ""
    _left: Counter[str] = field(default_factory=Counter)
    """Letters that left on that day, by kind."""

    def __post_init__(self) -> None:
        self._day = _now().date().isoformat()
        with suppress(FileNotFoundError):
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            self._left.update(kind for line in lines if (kind := _kind_that_left(line, self._day)) is not None)

    def note(self, direction: str, kind: str, letter: bytes, client: str = "", round: int | None = None) -> None:
        """Add a line. ``direction``: "in" or "out"."""
        now = _now()
        entry = {
            "time": now.isoformat(timespec="seconds"),
            "direction": direction,
            "kind": kind,
            "client": client,
            "round": round,
            "bytes": len(letter),
            "sha256": hashlib.sha256(letter).hexdigest(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        if direction == "out":
            self.left_today(kind)
            self._left[kind] += 1

    def left_today(self, kind: str) -> int:
        """Letters of a kind that left this site today (UTC)."""
        if (day := _now().date().isoformat()) != self._day:
            self._day, self._left = day, Counter()
        return self._left[kind]


def _kind_that_left(line: str, day: str) -> str | None:
    try:
        entry = json.loads(line)
        left = entry["direction"] == "out" and entry["time"].startswith(day)
        return str(entry["kind"]) if left else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _now() -> datetime:
    return datetime.now(UTC)
