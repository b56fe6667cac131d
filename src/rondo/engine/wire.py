"""An upload as bytes: a digest, then a safetensors file whose metadata say whose it is.

The digest is against accidents alone: whoever means harm makes a right one, so what follows it is believed in nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import safetensors.torch

from rondo.algorithm import Upload
from rondo.params import Params

PROTOCOL = 1
HEADER_BYTES = 2**20
"""Of the largest header, the names and shapes of all tensors, that is read."""

_KEY = "rondo"
_DIGEST = 32


class Rejected(Exception):
    """An upload that does not count. ``reason`` is a short code; ``detail`` says more, and quotes what the sender wrote
    as Python prints it, cut short."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Envelope:
    """Whose upload it is: of which client, in which round of which run, trained from which base model (its SHA-256) on
    how many examples, and its weight in the mean."""

    run: str
    round: int
    client: str
    model: str
    examples: int
    weight: float


def encode_upload(upload: Upload, envelope: Envelope) -> bytes:
    """``upload``'s tensors and ``envelope``."""
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in upload.params.items()}
    content = safetensors.torch.save(tensors, metadata={_KEY: json.dumps({"protocol": PROTOCOL, **asdict(envelope)})})
    return hashlib.sha256(content).digest() + content


def decode_upload(data: bytes, limit: int) -> tuple[Envelope, Params]:
    """What :func:`encode_upload` was given, of at most ``limit`` bytes of tensors. The tensors are of any names, shapes
    and types, and may hold anything. Raises :class:`Rejected`, and nothing else, for bytes of any kind."""
    if len(data) > limit + HEADER_BYTES + _DIGEST + 8:
        raise Rejected("too_large", f"{len(data)} bytes, where {limit} bytes of tensors are expected")
    content = data[_DIGEST:]
    if hashlib.sha256(content).digest() != data[:_DIGEST]:
        raise Rejected("corrupt", f"{len(data)} bytes that do not have the digest they begin with")
    header = _header(content)
    if len(content) > limit + 8 + int.from_bytes(content[:8], "little"):
        raise Rejected("too_large", f"more than {limit} bytes of tensors")
    envelope = _envelope(header)
    try:
        return envelope, safetensors.torch.load(content)
    except Exception as error:  # the parser's own errors, and torch's for what it cannot hold
        raise Rejected("unreadable", f"{type(error).__name__}: {short(str(error))}") from None


def _header(data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(HEADER_BYTES, len(data) - 8):
        raise Rejected("unreadable", f"{len(data)} bytes with a header of {size}")
    return _object("unreadable", "the header", data[8 : 8 + size])


def _object(reason: str, what: str, text: bytes) -> dict[str, Any]:
    """A JSON object in which no key is there twice: of two the parser would take one, and a check the other."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(k for i, (k, _) in enumerate(pairs) if any(k == other for other, _ in pairs[:i]))
            raise Rejected("duplicate_key", f"{short(twice)} is there twice in {what}")
        return found

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise Rejected(reason, f"{what} is no JSON: {short(str(error))}") from None
    if not isinstance(found, dict):
        raise Rejected(reason, f"{what} is no JSON object")
    return found


def _envelope(header: dict[str, Any]) -> Envelope:
    metadata = header.get("__metadata__")
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise Rejected("no_envelope", f"the metadata have no {_KEY!r}")
    content = _object("no_envelope", "the envelope", text.encode(errors="replace"))
    names = {f.name: str(f.type) for f in fields(Envelope)}
    if content.keys() != {"protocol", *names}:
        raise Rejected("no_envelope", f"the envelope's keys are not protocol, {', '.join(names)}")
    protocol = content.pop("protocol")
    if protocol is True or protocol != PROTOCOL:
        raise Rejected("wrong_protocol", f"{short(protocol)}, where {PROTOCOL} is spoken")
    for key, kind in names.items():
        if not _is(kind, content[key]):
            raise Rejected("no_envelope", f"{key} is {short(content[key])}, not {kind}")
    return Envelope(**{**content, "weight": float(content["weight"])})


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return kind in ("int", "float") and abs(value) < 2**63
    return kind == "float" and math.isfinite(value) if isinstance(value, float) else kind == "str"


def short(value: object) -> str:
    """What somebody else wrote, as Python prints it, so that no character of it acts on a terminal; cut short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Identity:
    """Of a run: a name that no other has, and the SHA-256 of its base model."""

    run: str
    model: str
