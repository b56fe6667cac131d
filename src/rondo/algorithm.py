"""The contract: a federated algorithm is one frozen dataclass, cut at the network.

Its fields are its hyperparameters. It holds no state, runs no loop, does no input or output. An algorithm that does
not override :meth:`Algorithm.aggregate` is *linear* in its uploads: the server may fold them as they come, add them
over a tree of workers or behind secure aggregation.

Client-side code (:meth:`Algorithm.client_update` and what it calls) sees every tensor with a leading client axis of
length K, one row a client of the cohort; K is 1 when clients are trained one at a time. Server-side tensors have no
such axis. :meth:`Algorithm.view` is used on both sides, so it keeps to ``@``, ``.mT`` and elementwise operations.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from rondo.lowrank import LowRank
from rondo.params import Layout, Packed, Params, Select, cast_like, everything, pad_rank

Loss: TypeAlias = Callable[[Params], Tensor]
"""Network loss on the current batch, of tensors as ``view`` returns them; shape (K,), one a client."""

Objective: TypeAlias = Callable[[Params, Loss], Tensor]
"""What clients minimise, shape (K,), given the tensors being trained and the network's loss."""

HeadPolicy: TypeAlias = Literal["shared", "local", "frozen"]


def plain(params: Params, loss: Loss) -> Tensor:
    """The default objective: the network's loss at the trained tensors themselves."""
    return loss(params)


class ClientFailed(Exception):
    """A client cannot finish its part of the round; it uploads nothing and the round goes on.

    ``reason`` is a short code (``nonfinite_loss``, ``no_targets``, ``out_of_memory``); ``detail`` says more.
    """

    def __init__(self, client: str, reason: str, detail: str) -> None:
        super().__init__(f"client {client}: {reason} ({detail})")
        self.client, self.reason, self.detail = client, reason, detail


class UnreadableUpload(ValueError):
    """:meth:`Algorithm.expand` cannot read an upload. ``reason`` is a short code; ``detail`` says more."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Client:
    """A party: its id, its number of training examples and, where ranks differ, its rank."""

    id: str
    num_examples: int
    rank: int | None = None


@dataclass(frozen=True)
class Round:
    """A round: 0-based index, number of rounds in the run, run seed, population size."""

    index: int
    total: int
    seed: int
    population: int

    def generator(self, *tags: str | int) -> torch.Generator:
        """A CPU generator seeded from (run seed, round, tags): independent streams, one a name."""
        text = "/".join(map(str, (self.seed, self.index, *tags)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest) & 0x7FFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True)
class Weight:
    """A frozen base matrix, read lazily: ``shape`` (out, in), the adapter's ``scale`` on it, and ``matrix()``."""

    shape: tuple[int, int]
    scale: float
    matrix: Callable[[], Tensor]


@dataclass(frozen=True)
class Shared:
    """What a client must know: tensors, and the cumulative low-rank change of the frozen base, in chunks."""

    params: Params
    base: Mapping[str, tuple[LowRank, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """What one client sends: tensors without a client axis, and its weight in the mean."""

    client: Client
    params: Params
    weight: float


Uploads: TypeAlias = tuple[Upload, ...]


@dataclass(frozen=True)
class Mean:
    """Weighted mean of the uploads (tensors in float64, parts of one vector), the sum of their weights, and how many
    there were."""

    params: Params
    weight: float
    count: int


@dataclass(frozen=True)
class Fit:
    """The end of local training: all tensors (client axis K), and per client, shape (K,), the number of steps,
    of examples processed, and the mean training loss."""

    params: Params
    steps: Tensor
    examples: Tensor
    loss: Tensor


class Trainer(Protocol):
    """Models, data and optimizers of K clients, lent to the algorithm for one round."""

    @property
    def clients(self) -> tuple[Client, ...]: ...

    @property
    def round(self) -> Round: ...

    @property
    def lr(self) -> float:
        """The run's learning rate in this round."""

    def fit(
        self,
        params: Params,
        *,
        train: Select = everything,
        objective: Objective = plain,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> Fit:
        """Train the selected tensors of ``params`` (client axis K) with a fresh optimizer on the clients' next data
        stream. ``epochs``, ``steps`` and ``lr`` default to the run's. Raises :class:`ClientFailed`."""

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """One :class:`Upload` a client; ``weight``, shape (K,), defaults to the run's weighting."""


@dataclass(frozen=True)
class ServerState:
    """The state of an algorithm whose server holds nothing but tensors."""

    params: Params


@dataclass(frozen=True)
class BaseState:
    """The state of an algorithm whose server also moves the frozen base: ``base`` is its change so far, in chunks, in
    W's units, and ``scale`` the adapter's scale, both by module path."""

    params: Params
    base: Mapping[str, tuple[LowRank, ...]]
    scale: Mapping[str, float]

    @staticmethod
    def start(params: Params, weights: Mapping[str, Weight]) -> BaseState:
        """``params`` and an unchanged base."""
        return BaseState(params, {}, {path: w.scale for path, w in weights.items()})

    def with_chunks(self, chunks: Mapping[str, LowRank]) -> BaseState:
        """``chunks`` appended to the base's change."""
        return replace(self, base={**self.base, **{p: (*self.base.get(p, ()), c) for p, c in chunks.items()}})


class HasParams(Protocol):
    @property
    def params(self) -> Params: ...


S = TypeVar("S", bound=HasParams)


def weighted_mean(uploads: Iterable[Upload]) -> Mean:
    """``sum w_k x_k / sum w_k``, accumulated in float64 in the order given, ``_HELD`` uploads in memory at a time.

    The engine gives uploads sorted by client id, so that the result does not depend on who answered first. Raises
    ValueError where there is nothing to average, a weight is not positive and finite, or names or shapes differ.
    """
    coming = _packed(uploads)
    held = list(itertools.islice(coming, _HELD))
    if not held:
        raise ValueError("no uploads to average")
    first, _ = held[0]
    layout, total = first.layout, torch.zeros_like(first.vector, dtype=torch.float64)
    weight, count = 0.0, 0
    del first
    while held:
        _add(total, held)
        count += len(held)
        for _, own in held:
            weight += own
        held.clear()  # before more are asked for
        held += itertools.islice(coming, _HELD)
    return Mean(Packed(total.div_(weight), layout), weight, count)


_HELD = 8
"""So few that memory does not grow with the number of uploads."""
_TOGETHER = 2**19
"""Numbers added at a time: enough to outweigh the cost of a call, few enough for a processor's cache."""


def _add(total: Tensor, held: Sequence[tuple[Packed, float]]) -> None:
    """``total += weight * vector`` for each upload in turn, in place; each product and sum is rounded to float64."""
    buffer = torch.empty_like(total[:_TOGETHER])
    pieces = [torch.split(own.vector, _TOGETHER) for own, _ in held]
    for part, *each in zip(torch.split(total, _TOGETHER), *pieces, strict=True):
        room = buffer[: len(part)]
        for (_, weight), piece in zip(held, each, strict=True):  # all of them while ``part`` is in the cache
            part.add_(room.copy_(piece).mul_(weight))


def _packed(uploads: Iterable[Upload]) -> Iterator[tuple[Packed, float]]:
    """All numbers of every upload in the order of the first, and its weight. Raises ValueError where one is not as the
    first was, or a weight is none."""
    layout: Layout | None = None
    for upload in uploads:
        if not 0 < upload.weight < float("inf"):
            raise ValueError(f"client {upload.client.id}: weight must be positive and finite, got {upload.weight}")
        own = _fitting(upload, layout)
        layout = own.layout
        yield own, upload.weight


def _fitting(upload: Upload, layout: Layout | None) -> Packed:
    params = upload.params
    if layout is None:
        return params if isinstance(params, Packed) else Packed.of(params)
    if isinstance(params, Packed) and params.layout == layout:
        return params
    names = [name for name, _ in layout]
    if params.keys() != set(names):
        differing = sorted(params.keys() ^ set(names))
        raise ValueError(f"client {upload.client.id} uploaded other tensors than the first: {differing}")
    for name, shape in layout:
        if params[name].shape != shape:
            found = tuple(params[name].shape)
            raise ValueError(f"client {upload.client.id}: {name} is {found}, expected {tuple(shape)}")
    return Packed.of({name: params[name] for name in names})


class Algorithm(ABC, Generic[S]):
    """A federated algorithm. Every subclass is final: a frozen dataclass whose fields are its hyperparameters."""

    exact: ClassVar[bool]
    """The aggregated model's change equals the weighted mean of the clients' changes."""
    personal: ClassVar[bool] = False
    """Clients keep tensors of their own, so there is one model a client and a cold-start model for new ones."""
    default_head: ClassVar[HeadPolicy] = "shared"
    """What happens to a task head when the user does not say."""
    client_ranks: ClassVar[bool] = False
    """Clients may have ranks of their own (``Client.rank``), up to the run's."""
    same_coordinates: ClassVar[bool] = True
    """Uploads are new values of the tensors that were broadcast, so that their differences to those may be scaled and
    given to a server optimizer."""
    readable: ClassVar[bool] = True
    """An upload, expanded and put in place of what was broadcast, is its client's model. Where not, aggregating it
    alone gives that model."""

    varying_shapes: ClassVar[bool] = False
    """Uploads of one client may differ in shape, as when they hold a choice of slots. Then :meth:`expand` checks them
    and raises :class:`UnreadableUpload`."""

    @property
    def linear(self) -> bool:
        """Whether the server needs only the weighted sum of the uploads (``aggregate`` is not overridden)."""
        return type(self).aggregate is Algorithm.aggregate

    @abstractmethod
    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> S:
        """The server's state before the first round.

        ``params``: A (r, in) and B (out, r) of every adapted module as PEFT initialises them, and the head's tensors
        unless it is frozen. ``weights``: the frozen matrices by module path. Where clients have a budget of bytes it is
        also asked before the model is loaded, of matrices of zeros and without a head, for the sizes of uploads.
        """

    def broadcast(self, state: S, client: Client, round: Round) -> Shared:
        """What ``client`` must know this round. Not what is sent: the transport sends what the client lacks."""
        return Shared(state.params)

    def local_init(self, shared: Shared, client: Client) -> Params:
        """What a client keeps before it has anything (or after losing it); no client axis."""
        return {}

    @abstractmethod
    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        """Local training of the trainer's K clients (client axis on every tensor): uploads and what they keep."""

    def expand(self, state: S, upload: Upload) -> Upload:
        """What an upload means in the server's coordinates, where all uploads have the same names and shapes. Default:
        the factors of a client with a rank of its own are padded with zeros to the server's."""
        if upload.client.rank is None:
            return upload
        return replace(upload, params=pad_rank(upload.params, state.params))

    def finish(self, state: S, mean: Mean, round: Round) -> S:
        """The next state, from the mean. Default: each mean replaces the tensor that it is a mean of."""
        new = {**state.params, **cast_like(mean.params, state.params)}
        return replace(state, params=new)  # type: ignore[type-var]

    def aggregate(self, state: S, uploads: Iterable[Upload], round: Round) -> S:
        """The next state, from individual uploads. Overriding it makes the algorithm non-linear."""
        return self.finish(state, weighted_mean(self.expand(state, u) for u in uploads), round)

    def view(self, shared: Shared, local: Params) -> Params:
        """What the network sees: A, B, head and body tensors. Pure and differentiable."""
        return {**shared.params, **local}
