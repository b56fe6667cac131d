"""A site's audit: ``letters.jsonl``, a line per letter that came or left, with its content as the owner would read it.

Every line holds the SHA-256 of the line before it, so that no line can be changed, taken out or put in unnoticed. That
of the last one is in :mod:`~rondo.federation.site.audit.state`, beside what counts against limits. A letter is in both,
on the disk, before it leaves or is used. After a rotation the same chain goes on in ``letters.2.jsonl``.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

from torch import Tensor

from rondo.engine.wire.envelope import decode_upload
from rondo.engine.wire.letters import Reply, Request
from rondo.errors import ConfigError
from rondo.federation.plan import Consent, Plan
from rondo.federation.site.audit.state import FIRST, LOST, STATE, AuditState
from rondo.params import Params
from rondo.records import durable
from rondo.records.durable import Damaged

FILE, CONSENTED = "letters.jsonl", "consented"
"""The audit's first file, and the file of a site's folder that is there once a consent has left."""


class Unwritten(OSError):
    """A letter cannot be put down in the audit."""


@dataclass
class Audit:
    """The audit whose first file is ``path``. Raises :class:`Unwritten` where its files cannot be read or written."""

    path: Path
    _state: AuditState = field(default_factory=AuditState)
    _goes_on: bool = True
    """Whether the file that is written now ends with the line that the state knows of."""

    def __post_init__(self) -> None:
        try:
            known = AuditState.read(self.path.parent)
        except Damaged:
            known = None
        if known is not None:
            self._state = known
            self._goes_on = self._take_up()
        elif _parts(self.path) or (self.path.parent / CONSENTED).exists():
            self._rebuild()

    @property
    def plan(self) -> Mapping[str, Any] | None:
        """Content of the last plan that came."""
        return self._state.plan

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
            "previous": self._state.head,
        }
        line = json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n"
        with _writing(self._file):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            durable.append(self._file, b"\n" + line if _is_torn(self._file) else line)
            self._count(line, entry, _size(self._file))
        self._goes_on = True
        self._keep(replace(self._state, missing=""))

    def missing(self) -> str | None:
        """The reason why all limits of today count as used up: lines that the site has written are not there, and were
        found to be missing today. None if nothing is missing, or for longer than today."""
        if self._goes_on and _size(self._file) == self._state.size:
            return None
        if not self._state.missing:
            self._keep(replace(self._state, missing=today()))
        if self._state.missing != today():
            return None
        what = f"{self._file} does not end with the last letter (it was rotated by another program, cut or lost)"
        if self._state.size < 0:
            what = f"{self.path.with_name(STATE)} is lost, so what left before is not known"
        back = f"rondo federate site log {self.path.parent} --rotate"
        return f"{what}: today's limits count as used up. Bring it back and start again, or go on without: {back}"

    def rotate(self) -> Path:
        """Close the file that is written now, which is returned, and go on in another. Raises :class:`ConfigError`."""
        closed, following = self._file, _file(self.path, self._state.part + 1)
        if self._state.size == 0:
            raise ConfigError.at("STATE", f"{closed.name} has no letter yet: there is nothing to rotate")
        if os.path.lexists(following):
            raise ConfigError.at("STATE", f"{following.name} is there, and no audit has begun it: move it away")
        self._keep(self._state.rotated())
        self._goes_on = True
        return closed

    @property
    def _file(self) -> Path:
        return _file(self.path, self._state.part)

    def _take_up(self) -> bool:
        """Count the lines that the state does not know of, after a crash. False where the file does not go on from it:
        lines were cut off, or it is another file."""
        if not 0 <= self._state.size <= _size(self._file):
            return False
        with _writing(self._file), _opened(self._file) as lines:
            before = (self._state.closed or (FIRST,))[-1]
            if (_last_before(lines, self._state.size) if self._state.size else before) != self._state.head:
                return False
            for line in lines:
                entry = _entry(line)
                if entry is not None and entry["previous"] != self._state.head:
                    return False
                self._count(line, entry, lines.tell())
        return True

    def _rebuild(self) -> None:
        """Count the lines that are there. Which ones are not is not known."""
        parts = _parts(self.path)
        last = max(parts, default=1)
        self._state, self._goes_on = AuditState(part=last, closed=("",) * (last - 1)), False
        for _, file in sorted(parts.items()):
            _size(file)
            with _writing(file), _opened(file) as lines:
                for line in lines:
                    self._count(line, _entry(line), 0)
        self._state = replace(self._state, size=-1, head=LOST)

    def _count(self, line: bytes, entry: Mapping[str, Any] | None, size: int) -> None:
        self._state = self._state.after(_digest(line), size, entry, today())

    def _keep(self, state: AuditState) -> None:
        self._state = state
        with _writing(self.path.with_name(STATE)):
            state.write(self.path.parent)

    def left(self, kind: str = "") -> int:
        """Letters of a kind that left this site today (UTC); without a kind, all."""
        return self._of_today(f"out {kind}".strip())

    def bytes(self, direction: Literal["in", "out"]) -> int:
        """Bytes of the letters of today."""
        return self._of_today(f"{direction} bytes")

    def seconds(self, run: str) -> float:
        """Seconds of training and scoring in a run."""
        return self._state.seconds.get(run, 0.0)

    def _of_today(self, what: str) -> int:
        return self._state.on(today()).today.get(what, 0)


def today() -> str:
    """The day in UTC."""
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True)
class AuditLine:
    """A line of an audit. ``entry`` is None where it is not whole, ``linked`` false where it does not follow the line
    before it. ``number`` is 0 for what is ``said`` about the ``file`` as a whole."""

    number: int
    entry: Mapping[str, Any] | None
    linked: bool
    file: str = FILE
    said: str = ""


def lines(path: Path) -> Iterator[AuditLine]:
    """The lines of the audit whose first file is ``path``, over all its files. Raises OSError."""
    try:
        state = AuditState.read(path.parent)
    except Damaged:
        state = None
    if state is None:
        last = max(_parts(path), default=1)
        state = AuditState(part=last, size=-1, head=LOST, closed=("",) * (last - 1))
    previous = FIRST
    for part, end in enumerate((*state.closed, state.head), 1):
        file, is_last = _file(path, part), part == state.part
        reached = previous == end
        if file.is_file():
            for line, digest in _linked(file, previous):
                yield line
                previous = digest
                reached = previous == end or (is_last and reached)  # it can have grown since
        if file.is_file() and end and not reached:
            yield AuditLine(0, None, False, file.name, "does not end with the line that the site wrote last")
        elif not file.is_file() and not (is_last and state.size == 0):
            yield AuditLine(0, None, not is_last, file.name, "is not here: its letters are not in this account")
        previous = end or previous


def _linked(file: Path, previous: str) -> Iterator[tuple[AuditLine, str]]:
    """The lines of ``file``, which follow a line with the digest ``previous``, each with its digest."""
    with _opened(file) as content:
        for number, line in enumerate(content, 1):
            entry = _entry(line)
            yield AuditLine(number, entry, entry is None or entry["previous"] == previous, file.name), _digest(line)
            previous = _digest(line)


def _file(path: Path, part: int) -> Path:
    """The file number ``part`` of the audit whose first is ``path``."""
    return path if part == 1 else path.with_name(f"{path.stem}.{part}{path.suffix}")


def _parts(path: Path) -> dict[int, Path]:
    """The files of an audit that are there, by number."""
    found = {1: path} if os.path.lexists(path) else {}
    for file in path.parent.glob(f"{path.stem}.*{path.suffix}"):
        number = file.name.removeprefix(path.stem).removesuffix(path.suffix)
        if re.fullmatch(r"\.[1-9][0-9]{0,8}", number):
            found[int(number[1:])] = file
    return found


def _size(file: Path) -> int:
    """The bytes of ``file``; 0 if it is not there. Raises :class:`Unwritten`."""
    with _writing(file):
        if not os.path.lexists(file):
            return 0
        if not file.is_file():
            raise Unwritten(f"{file} is not a file: move it away")
        return file.stat().st_size


def _is_torn(file: Path) -> bool:
    """Whether the last line of ``file`` has no end, after a crash."""
    if _size(file) == 0:
        return False
    with file.open("rb") as content:
        content.seek(-1, os.SEEK_END)
        return content.read() != b"\n"


_PIECE = 2**16


def _last_before(lines: BinaryIO, end: int) -> str | None:
    """The digest of the line that ends at ``end``, where ``lines`` is then; None without one. The lines before it are
    not read: a file has hundreds of megabytes after some months."""
    line, start = b"", end
    while start > 0 and b"\n" not in line[:-1]:
        start = max(0, start - _PIECE)
        lines.seek(start)
        line = lines.read(min(end, start + _PIECE) - start) + line
    lines.seek(end)
    return _digest(line[:-1].rpartition(b"\n")[2]) if line.endswith(b"\n") else None


def _opened(file: Path) -> BinaryIO:
    """``file`` to be read: empty if it is not there."""
    return file.open("rb") if file.exists() else io.BytesIO()


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be read or written into :class:`Unwritten`."""
    try:
        yield
    except Unwritten:
        raise
    except OSError as error:
        raise Unwritten(f"{file} cannot be written: {error.strerror or error}") from None


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
    flat = json.loads(plan.encode())
    del flat["run"], flat["protocol"]
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
