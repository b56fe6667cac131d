"""Letters between a server and a client of a network: a request for a round's work, and the reply to it.

A request is a digest and a safetensors file. A reply is a JSON header of known length and, where there is one, the
upload as :mod:`rondo.engine.wire.envelope` writes it. A server trusts nothing in a reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Round
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.parcel import Parcel
from rondo.engine.wire.strict import PROTOCOL, framed, is_line, is_text, only, short, unframed
from rondo.lowrank import Growth

_DIGEST = 32
LARGEST_HEADER = 2**24
"""Bytes of a header that no honest client reaches: versions of a hundred thousand tensors."""


@dataclass(frozen=True)
class Request:
    """A round's work for one client."""

    identity: Identity
    """The run and its base model."""
    round: Round
    client: Client
    parcel: Parcel
    counted: int | None = None
    """The last attempt of this client's that counted, and that the server has on its disk."""
    scores: bool = False
    """Whether scores on the client's validation rows are asked for, and no training. ``counted`` is then the last
    attempt that counted at all."""
    asked: int = 0
    """Number of clients that are asked in this round."""
    protocol: int = PROTOCOL

    def encode(self) -> bytes:
        content = serialization.pack(self)
        return hashlib.sha256(content).digest() + content

    @staticmethod
    def decode(data: bytes) -> Request:
        """The request from :meth:`encode`. Raises ValueError for any other bytes."""
        if hashlib.sha256(memoryview(data)[_DIGEST:]).digest() != data[:_DIGEST]:
            raise ValueError(f"{len(data)} bytes that do not have the digest they begin with")
        request = serialization.unpack(data[_DIGEST:], _LIKE)
        if not isinstance(request, Request):
            raise ValueError(f"not a request, but a {type(request).__name__}")
        if not _has_its_types(request):
            raise ValueError("a request with values of other types")
        return request


_LIKE = Request(Identity("", ""), Round(0, 1, 0, 0), Client("", 0), Parcel({}, {}, {"": Growth(0, 0, (), ())}))
"""One of each dataclass in a request."""


def _has_its_types(request: Request) -> bool:
    """Whether every field has its type. A packed tree can have any value anywhere."""
    identity, round, client, parcel = request.identity, request.round, request.client, request.parcel
    if not (
        isinstance(identity, Identity)
        and isinstance(round, Round)
        and isinstance(client, Client)
        and isinstance(parcel, Parcel)
        and all(
            isinstance(part, dict) for part in (parcel.versions, parcel.params, parcel.base, parcel.made, parcel.sums)
        )
    ):
        return False
    texts = (identity.run, identity.model, client.id, *parcel.versions.values(), *parcel.made.values())
    texts += tuple(parcel.sums.values())
    numbers = (round.index, round.total, round.seed, round.population, round.skipped, client.num_examples)
    return (
        all(map(is_text, texts))
        and all(type(n) is int for n in (*numbers, request.asked, request.protocol))
        and all(n is None or type(n) is int for n in (client.rank, request.counted))
        and isinstance(round.init_lora_weights, bool | str)
        and isinstance(request.scores, bool)
        and all(isinstance(tensor, Tensor) for tensor in parcel.params.values())
        and all(isinstance(growth, Growth) for growth in parcel.base.values())
    )


_Scores = Mapping[str, Mapping[str, float | None]]
_MOST = 1e100
"""Beyond any loss or score in single precision, and far from where a sum of them overflows."""
_KINDS, _NAMES = 64, 10_000
"""Most kinds of scores, and most metrics of a kind: some for each class."""
_LONGEST = 1100
"""Most characters of a metric's name: it may have that of a class."""


def _is_number(value: object) -> bool:
    """Whether ``value`` is None or a number that can be averaged; as a Python integer it may have any size."""
    return value is None or (isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= _MOST)


def _is_table(value: object, most: int, fits: Callable[[Any], bool]) -> bool:
    """Whether ``value`` has at most so many entries that all fit, each with a name that fits a table."""
    return (
        isinstance(value, dict) and len(value) <= most and all(is_line(n, _LONGEST) and fits(value[n]) for n in value)
    )


def _are_scores(value: object) -> bool:
    return value is None or _is_table(value, _KINDS, lambda metrics: _is_table(metrics, _NAMES, _is_number))


def _are_versions(value: object) -> bool:
    return value is None or (isinstance(value, dict) and all(is_text(v, _DIGEST) for v in value.values()))


@dataclass(frozen=True)
class _Header:
    """A reply without its upload. See :class:`Reply`."""

    loss: Annotated[float | None, only(_is_number, "a number below 1e100")]
    held: Annotated[Mapping[str, str] | None, only(_are_versions, "versions by name")]
    scores: Annotated[_Scores | None, only(_are_scores, "numbers by kind and metric")]
    reason: str
    detail: str


@dataclass(frozen=True)
class Reply:
    """A client's reply: an upload, the versions that it holds instead of those that the server counted on, or the
    reason why it has no upload."""

    upload: bytes = b""
    loss: float | None = None
    """Mean training loss."""
    held: Mapping[str, str] | None = None
    """Versions by tensor name, and numbers of chunks by ``base:<path>``, of a client that lacks something."""
    scores: _Scores | None = None
    """Metrics of the client's model by kind of score; empty without validation rows."""
    reason: str = ""
    """A short code, where the client failed or refused."""
    detail: str = field(default="", compare=False)
    """The circumstances, in words."""

    def encode(self) -> bytes:
        return framed(asdict(_Header(self.loss, self.held, self.scores, self.reason, self.detail)), self.upload)

    @staticmethod
    def decode(data: bytes) -> Reply:
        """The reply from :meth:`encode`, with texts cut short. Raises :class:`~rondo.engine.wire.strict.Rejected`,
        and nothing else, whatever the bytes."""
        header, upload = unframed(_Header, data, LARGEST_HEADER)
        return Reply(upload, header.loss, header.held, header.scores, header.reason, header.detail)

    def failure(self, client: str) -> ClientFailed:
        """The reason of ``client``, as the server records it."""
        known = self.reason in _REASONS
        return ClientFailed(client, self.reason if known else "failed", short(self.detail if known else self.reason))


_REASONS = (
    "nonfinite_loss",
    "nonfinite_parameters",
    "no_targets",
    "out_of_memory",
    "wrong_model",
    "wrong_protocol",
    "refused",
)
"""Codes that a client may give."""
