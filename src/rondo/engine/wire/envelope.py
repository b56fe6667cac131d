"""An upload as bytes: a digest, then a safetensors file whose metadata name its sender.

The digest catches accidental damage only. An attacker can compute it, so nothing after it is trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import asdict, dataclass, fields
from typing import Any

import safetensors.torch

from rondo.algorithm import Upload
from rondo.params import Params

PROTOCOL = 1
_KEY = "rondo"
_DIGEST = 32


class Rejected(Exception):
    """An upload that does not count. ``reason`` is a short code. ``detail`` says more, and quotes the sender's text as
    Python prints it, cut short."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Envelope:
    """The sender of an upload, and what the upload claims."""

    run: str
    """The run's name."""
    round: int
    client: str
    """The client's id."""
    model: str
    """SHA-256 of the base model's identity: weights, configuration and tokenizer."""
    examples: int
    """Number of training examples."""
    weight: float
    """Weight in the mean."""


def encode_upload(upload: Upload, envelope: Envelope) -> bytes:
    """``upload``'s tensors and ``envelope`` as bytes."""
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in upload.params.items()}
    content = safetensors.torch.save(tensors, metadata={_KEY: json.dumps({"protocol": PROTOCOL, **asdict(envelope)})})
    return hashlib.sha256(content).digest() + content


@dataclass(frozen=True)
class Received:
    """An upload of which only the header is read, so that it can be turned away at no more cost."""

    envelope: Envelope
    names: Set[str]
    """The tensors' names."""
    content: bytes
    """The safetensors file."""

    def tensors(self) -> Params:
        """The tensors, of any shapes, types and values. Raises :class:`Rejected`, and nothing else."""
        try:
            return safetensors.torch.load(self.content)
        except Exception as error:  # the parser's own errors, and torch's for what it cannot hold
            raise Rejected("unreadable", f"{type(error).__name__}: {short(str(error))}") from None


def header_limit(names: Collection[str], client: str) -> int:
    """Bytes that no honest header reaches, for tensors of these names sent by ``client``. Longer ones are rejected
    unread. An entry has some 150 bytes beside its name, and every character may be escaped, in the envelope twice."""
    return 2**14 + 12 * len(client) + sum(6 * len(name) + 256 for name in names)


def largest_upload(tensors: int, header: int) -> int:
    """Bytes of the largest upload with at most ``tensors`` bytes of tensors and ``header`` bytes of header."""
    return tensors + header + _DIGEST + 8


def decode_upload(data: bytes, tensors: int, header: int) -> Received:
    """The upload from :func:`encode_upload`, with at most ``tensors`` bytes of tensors and ``header`` bytes of header.
    Takes a time in proportion to the number of bytes. Raises :class:`Rejected`, and nothing else, whatever the
    bytes."""
    if len(data) > largest_upload(tensors, header):
        raise Rejected("too_large", f"{len(data)} bytes, where {tensors} bytes of tensors are expected")
    content = data[_DIGEST:]
    if hashlib.sha256(content).digest() != data[:_DIGEST]:
        raise Rejected("corrupt", f"{len(data)} bytes that do not have the digest they begin with")
    entries = _header(content, header)
    if len(content) > tensors + 8 + int.from_bytes(content[:8], "little"):
        raise Rejected("too_large", f"more than {tensors} bytes of tensors")
    return Received(_envelope(entries), entries.keys() - {"__metadata__"}, content)


def _header(data: bytes, limit: int) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(limit, len(data) - 8):
        raise Rejected("unreadable", f"{len(data)} bytes with a header of {size}")
    return strict_object("unreadable", "the header", data[8 : 8 + size])


def strict_object(reason: str, what: str, text: bytes) -> dict[str, Any]:
    """A JSON object without repeated keys: of two values the parser would take one, and a check the other."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            key = next(key for key, count in counts.items() if count > 1)
            raise Rejected("duplicate_key", f"{short(key)} is there {counts[key]} times in {what}")
        return content

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        content = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise Rejected(reason, f"{what} is no JSON: {short(str(error))}") from None
    if not isinstance(content, dict):
        raise Rejected(reason, f"{what} is no JSON object")
    return content


def _envelope(header: dict[str, Any]) -> Envelope:
    metadata = header.get("__metadata__")
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise Rejected("no_envelope", f"the metadata have no {_KEY!r}")
    content = strict_object("no_envelope", "the envelope", text.encode(errors="replace"))
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
    if isinstance(value, float):
        return kind == "float" and math.isfinite(value)
    return kind == "str" and isinstance(value, str)


def short(value: object) -> str:
    """Another party's value as Python prints it, so that no character acts on a terminal; cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Identity:
    """The identity of a run."""

    run: str
    """A name that no other run has."""
    model: str
    """SHA-256 of the base model's identity: weights, configuration and tokenizer."""
