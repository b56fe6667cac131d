"""A site's audit: ``letters.jsonl``, a line per letter that came or left, with its content as the owner would read it.

Every line holds the SHA-256 of the line before it, so that no line can be changed, taken out or put in unnoticed, but
for the last ones. A letter is on the disk before it leaves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from rondo.engine.wire.envelope import decode_upload
from rondo.engine.wire.letters import Reply, Request
from rondo.federation.plan import Consent, Plan
from rondo.params import Params
from rondo.runs.storage import durable

FILE = "letters.jsonl"
_FIRST = "0" * 64
"""Digest before the first line."""


class Unwritten(OSError):
    """A letter cannot be put down in the audit."""


@dataclass
class Audit:
    """The audit in the file ``path``."""

    path: Path
    plan: Mapping[str, Any] | None = None
    """Content of the last plan that came."""
    _previous: str = _FIRST
    _torn: bool = False
    """Whether the last line has no end, after a crash."""
    _day: str = ""
    _today: Counter[str] = field(default_factory=Counter)
    """Letters and bytes of that day by direction, and letters that left by kind."""
    _seconds: Counter[str] = field(default_factory=Counter)
    """Seconds of training and scoring by run."""

    def __post_init__(self) -> None:
        self._day = today()
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                self._torn = not line.endswith(b"\n")
                self._previous = _digest(line)
                entry = _entry(line)
                if entry is not None:
                    self._count(entry)

    def note(
        self,
        direction: Literal["in", "out"],
        kind: str,
        letter: bytes,
        content: Mapping[str, Any],
        *,
        run: str = "",
        client: str = "",
        round: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Add a line about ``letter``, and put it on the disk. ``seconds``: time of the training or scoring behind it.
        Raises :class:`Unwritten`, and the letter must then not leave."""
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "direction": direction,
            "kind": kind,
            "run": run,
            "client": client,
            "round": round,
            "bytes": len(letter),
            "sha256": hashlib.sha256(letter).hexdigest(),
            "seconds": seconds,
            "content": content,
            "previous": self._previous,
        }
        line = json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            durable.append(self.path, b"\n" + line if self._torn else line)
        except OSError as error:
            raise Unwritten(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._torn, self._previous = False, _digest(line)
        self._count(entry)

    def left(self, kind: str = "") -> int:
        """Letters of a kind that left this site today (UTC); without a kind, all."""
        return self._of_today()[f"out {kind}".strip()]

    def bytes(self, direction: Literal["in", "out"]) -> int:
        """Bytes of the letters of today."""
        return self._of_today()[f"{direction} bytes"]

    def seconds(self, run: str) -> float:
        """Seconds of training and scoring in a run."""
        return self._seconds[run]

    def _of_today(self) -> Counter[str]:
        if (day := today()) != self._day:
            self._day, self._today = day, Counter()
        return self._today

    def _count(self, entry: Mapping[str, Any]) -> None:
        if entry["direction"] == "in" and entry["kind"] == "plan":
            self.plan = entry["content"]
        self._seconds[entry["run"]] += entry["seconds"]
        counts = self._of_today()
        if entry["time"].startswith(self._day):
            counts[entry["direction"]] += 1
            counts[f"{entry['direction']} {entry['kind']}"] += 1
            counts[f"{entry['direction']} bytes"] += entry["bytes"]


def today() -> str:
    """The day in UTC."""
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True)
class AuditLine:
    """A line of an audit. ``entry`` is None where it is not whole, ``linked`` false where it does not follow the line
    before it."""

    number: int
    entry: Mapping[str, Any] | None
    linked: bool


def lines(path: Path) -> Iterator[AuditLine]:
    """The lines of the audit in ``path``. Raises OSError."""
    previous = _FIRST
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            entry = _entry(line)
            yield AuditLine(number, entry, entry is None or entry["previous"] == previous)
            previous = _digest(line)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


def _entry(line: bytes) -> Mapping[str, Any] | None:
    """The entry of a line; None where it is not one of :meth:`Audit.note`."""
    try:
        entry = json.loads(line)
        known = {"time": str, "direction": str, "kind": str, "run": str, "bytes": int, "previous": str, "content": dict}
        whole = all(isinstance(entry[key], kind) for key, kind in known.items())
        return entry if whole and isinstance(entry["seconds"], int | float) else None
    except (ValueError, KeyError, TypeError):
        return None


# --- letters in clear ---------------------------------------------------------------------------------------------


def of_plan(plan: Plan, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """A plan in clear, with the changes since the one ``before``."""
    content = {
        "labels": plan.labels,
        "clients": plan.clients,
        "model": plan.model,
        "rondo": plan.rondo,
        "threads": plan.threads,
        "config": plan.config,
    }
    flat = json.loads(json.dumps(content))
    changes = [] if before is None else list(_changes("", {k: before.get(k) for k in flat}, flat))
    return {**flat, "changes": changes}


def of_consent(consent: Consent) -> dict[str, Any]:
    """A consent in clear, all of it."""
    content: dict[str, Any] = json.loads(consent.encode())
    return content


def of_request(request: Request) -> dict[str, Any]:
    """A request in clear: its tensors by shape and norm."""
    base = {path: [growth.start, growth.count] for path, growth in request.parcel.base.items()}
    return {
        "asked": request.asked,
        "counted": request.counted,
        "tensors": _tensors(request.parcel.params),
        "base": base,
    }


def of_reply(reply: Reply) -> dict[str, Any]:
    """A reply in clear: all of it, but of tensors the shape and the norm."""
    content: dict[str, Any] = {"loss": reply.loss, "scores": reply.scores, "reason": reply.reason}
    content |= {"detail": reply.detail, "held": reply.held}
    if reply.upload:
        received = decode_upload(reply.upload, len(reply.upload), len(reply.upload))  # this site's own
        envelope = received.envelope
        content |= {"examples": envelope.examples, "weight": envelope.weight, "tensors": _tensors(received.tensors())}
    return {key: value for key, value in content.items() if value not in (None, "")}


def _tensors(params: Params) -> dict[str, Any]:
    """Shape and norm of each tensor. Those of a server can be of any type and value."""
    return {name: [list(tensor.shape), _norm(tensor)] for name, tensor in sorted(params.items())}


def _norm(tensor: Tensor) -> float | str:
    norm = float(tensor.abs().double().norm()) if tensor.is_complex() else float(tensor.double().norm())
    return float(f"{norm:.4g}") if math.isfinite(norm) else str(norm)


def _changes(path: str, was: Any, now: Any) -> Iterator[dict[str, Any]]:
    """The values that differ, by key path."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            yield from _changes(f"{path}.{key}".strip("."), was.get(key), now.get(key))
    elif was != now:
        yield {"key": path, "was": was, "is": now}


def kind_of(reply: Reply) -> str:
    """The kind of a reply's letter. An empty one says that a client has trained, for a masked sum."""
    if reply.upload:
        return "upload"
    if reply.reason in _FAILURES:
        return "failure"
    if reply == Reply():
        return "trained"
    return "scores" if reply.scores is not None else "reason" if reply.reason else "held"


_FAILURES = ("nonfinite_loss", "nonfinite_parameters", "no_targets", "out_of_memory")
"""Reasons of a training that failed."""
