"""An upload as bytes: a digest, then a safetensors file whose metadata name its sender.

The digest catches accidental damage only. An attacker can compute it, so nothing after it is trusted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Set
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import safetensors.torch
from pydantic import Field

from rondo.algorithm import Upload
from rondo.engine.wire.strict import PROTOCOL, Rejected, json_object, read, short
from rondo.params import Params

_KEY = "rondo"
_DIGEST = 32
_Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]


@dataclass(frozen=True)
class Envelope:
    """The sender of an upload, and what the upload claims."""

    run: str
    """The run's name."""
    round: _Whole
    client: str
    """The client's id."""
    model: str
    """SHA-256 of the base model's identity: weights, configuration and tokenizer."""
    examples: _Whole
    """Number of training examples."""
    weight: float
    """Weight in the mean."""


def encode_upload(upload: Upload, envelope: Envelope) -> bytes:
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
    return tensors + header + _DIGEST + 8


def decode_upload(data: bytes, tensors: int, header: int) -> Received:
    """The upload from :func:`encode_upload`, with at most ``tensors`` bytes of tensors and ``header`` bytes of header.
    Takes a time in proportion to the number of bytes. Raises :class:`Rejected`, and nothing else, whatever the
    bytes."""
    if len(data) > largest_upload(tensors, header):
        raise Rejected("too_large", f"{len(data)} bytes, and {tensors} bytes of tensors are expected")
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
    return json_object("unreadable", "the header", data[8 : 8 + size])


def _envelope(header: dict[str, Any]) -> Envelope:
    metadata = header.get("__metadata__")
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise Rejected("no_envelope", f"the metadata have no {_KEY!r}")
    return read(Envelope, "no_envelope", "the envelope", text.encode(errors="replace"))


@dataclass(frozen=True)
class Identity:
    """The identity of a run."""

    run: str
    """A name that no other run has."""
    model: str
    """SHA-256 of the base model's identity: weights, configuration and tokenizer."""
