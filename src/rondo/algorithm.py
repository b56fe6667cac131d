"""The contract: a federated algorithm is one frozen dataclass, cut at the network.

Its fields are its hyperparameters. It holds no state, runs no loop and does no input or output. An algorithm that does
not override :meth:`Algorithm.aggregate` is *linear* in its uploads: the server may fold them as they arrive, add them
over a tree of workers or behind secure aggregation.

Client-side code (:meth:`Algorithm.client_update` and what it calls) sees every tensor with a leading client axis of
length K, one row per client of the cohort; K is 1 when clients are trained one at a time. Server-side tensors have no
such axis. :meth:`Algorithm.view` runs on both sides, so it keeps to ``@``, ``.mT``, elementwise operations and axes
counted from the end.
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

from rondo.lowrank import GrowingSum, LowRank
from rondo.params import (
    FactorStart,
    Layout,
    Packed,
    Params,
    Select,
    buffer,
    cast_like,
    everything,
    fresh_factors,
    nothing,
    pad_rank,
    pick,
)


@dataclass(frozen=True)
class Loss:
    """The network's loss on the current batch, given tensors as ``view`` returns them; shape (K,), one per client."""

    whole: Callable[[Params], Tensor]
    """The loss on all rows."""
    parts: Callable[[float], tuple[Loss, Loss]]
    """:meth:`split`."""
    rows: Tensor
    """The number of rows of each client in the batch, shape (K,)."""

    def __call__(self, seen: Params) -> Tensor:
        return self.whole(seen)

    def split(self, share: float = 0.5) -> tuple[Loss, Loss]:
        """The losses on ``share`` of each client's rows and on the others, divided by :func:`split_rows`."""
        return self.parts(share)

    def beside(self, others: Params) -> Loss:
        """This loss, with ``others`` in place of the tensors of their names."""

        def parts(share: float) -> tuple[Loss, Loss]:
            one, other = self.split(share)
            return one.beside(others), other.beside(others)

        return Loss(lambda seen: self({**seen, **others}), parts, self.rows)


def split_rows(count: int, share: float) -> tuple[list[int], list[int]]:
    """The numbers of the rows in both parts of ``count`` rows, the first of which has about ``share`` of them.

    The parts are interleaved, because batches may be ordered by length. Each has a row at least, so a single row is in
    both.
    """
    rows = list(range(count))
    if count < 2:
        return rows, rows
    size = min(max(int((1 - share) * count + 0.5), 1), count - 1)
    second = [row for row in rows if (row + 1) * size // count > row * size // count]
    return [row for row in rows if row not in second], second


Objective: TypeAlias = Callable[[Params, Loss], Tensor]
"""The loss that clients minimise, shape (K,), given the tensors being trained and the network's loss."""

HeadPolicy: TypeAlias = Literal["shared", "local", "frozen"]


def plain(params: Params, loss: Loss) -> Tensor:
    """The default objective: the network's loss at the trained tensors themselves."""
    return loss(params)


class ClientFailed(Exception):
    """A client cannot finish its part of the round. It uploads nothing and the round goes on.

    ``client``: the client's id.
    ``reason``: a short code (``nonfinite_loss``, ``no_targets``, ``out_of_memory``).
    ``detail``: the circumstances, in words.
    """

    def __init__(self, client: str, reason: str, detail: str) -> None:
        super().__init__(f"client {client}: {reason} ({detail})")
        self.client, self.reason, self.detail = client, reason, detail


class UnreadableUpload(ValueError):
    """:meth:`Algorithm.expand` cannot read an upload.

    ``reason``: a short code.
    ``detail``: the circumstances, in words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Client:
    """A client of the federation."""

    id: str
    num_examples: int
    """Number of training examples."""
    rank: int | None = None
    """The client's own rank where ranks differ, else None."""


@dataclass(frozen=True)
class Round:
    """One round of a run."""

    index: int
    """Number of rounds aggregated before this one."""
    total: int
    """Number of attempts in the run."""
    seed: int
    """The run's seed."""
    population: int
    """Number of clients in the population."""
    skipped: int = 0
    """Number of attempts skipped before this one. No algorithm depends on it, so a skipped attempt leaves alternation,
    periods and stages as they are."""
    init_lora_weights: FactorStart = True
    """PEFT's key of the adapters: the distribution of factors that a method draws itself."""

    @property
    def attempt(self) -> int:
        """0-based number of the attempt. Sampling, data order, dropout and faults go by it, so a new attempt is not a
        repetition of a skipped one."""
        return self.index + self.skipped

    def generator(self, *tags: str | int) -> torch.Generator:
        """A CPU generator seeded from (run seed, index, tags). Different tags give independent streams."""
        return self._generator(self.index, tags)

    def attempt_generator(self, *tags: str | int) -> torch.Generator:
        """A CPU generator seeded from (run seed, attempt, tags), for the engine's own streams."""
        return self._generator(self.attempt, tags)

    def _generator(self, number: int, tags: tuple[str | int, ...]) -> torch.Generator:
        text = "/".join(map(str, (self.seed, number, *tags)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest) & 0x7FFF_FFFF_FFFF_FFFF)

    def factors(self, shape: tuple[int, int], rank: int, *tags: str | int) -> tuple[Tensor, Tensor]:
        """A (rank, in) and B (out, rank) in float64 for a matrix of ``shape`` (out, in), drawn as PEFT starts adapters
        in this run, so their product is zero. Every method that starts factors anew draws them here."""
        return fresh_factors(shape, rank, self.init_lora_weights, self.generator(*tags))


@dataclass(frozen=True)
class Weight:
    """A frozen base matrix, read only when asked for."""

    shape: tuple[int, int]
    """(out, in)."""
    scale: float
    """The adapter's scale on this matrix."""
    matrix: Callable[[], Tensor]
    """Reads the (out, in) matrix."""


@dataclass(frozen=True)
class Shared:
    """Everything a client must know from the server."""

    params: Params
    base: Mapping[str, GrowingSum] = field(default_factory=dict)
    """Cumulative change of the frozen base by module path, in W's units. It only grows, by whole chunks. A client holds
    a sum and its number of chunks. The transport sends it the later chunks, which the client adds one by one with
    ``+``, or the new sum where that is smaller; the bits are the same."""


@dataclass(frozen=True)
class Upload:
    """One client's message to the server."""

    client: Client
    params: Params
    """Tensors without a client axis."""
    weight: float
    """The client's weight in the mean, not normalised."""


Uploads: TypeAlias = tuple[Upload, ...]


@dataclass(frozen=True)
class Mean:
    """The weighted mean of a round's uploads."""

    params: Params
    """The mean itself in float64, all tensors parts of one vector."""
    weight: float
    """Sum of the uploads' weights."""
    count: int
    """Number of uploads."""


@dataclass(frozen=True)
class Fit:
    """The result of local training of K clients."""

    params: Params
    """All tensors, with client axis K."""
    steps: Tensor
    """Steps taken per client, shape (K,)."""
    examples: Tensor
    """Examples processed per client, shape (K,)."""
    loss: Tensor
    """Mean training loss per client, shape (K,)."""


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
        stream.

        ``epochs``, ``steps`` and ``lr`` default to the run's. Raises :class:`ClientFailed`.
        """

    def solve(self, params: Params, *, train: Select) -> Fit:
        """The exact minimiser of each client's loss on all of its rows, over the selected tensors of ``params`` (client
        axis K). Of several minimisers, it is the smallest.

        The loss must be the squared error of an output that is linear in these tensors taken together (an offset is
        allowed); anything else is refused with :class:`rondo.errors.ConfigError`. Raises :class:`ClientFailed`.
        """

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        """The mean over each client's rows of g g^T, with g the gradient of one row's loss in the ``n`` numbers of the
        selected tensors, in their order: shape (K, n, n). Raises :class:`ClientFailed`."""

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """One :class:`Upload` per client. ``weight``, shape (K,), defaults to the run's weighting."""


@dataclass(frozen=True)
class ServerState:
    """The state of an algorithm whose server holds only tensors."""

    params: Params


@dataclass(frozen=True)
class BaseState:
    """The state of an algorithm whose server also changes the frozen base. Both mappings are by module path."""

    params: Params
    base: Mapping[str, GrowingSum]
    """The base's change so far, in W's units."""
    scale: Mapping[str, float]
    """The adapter's scale."""

    @staticmethod
    def start(params: Params, weights: Mapping[str, Weight]) -> BaseState:
        """``params`` and an unchanged base."""
        return BaseState(params, {}, {path: w.scale for path, w in weights.items()})

    def with_chunks(self, chunks: Mapping[str, LowRank]) -> BaseState:
        """This state with ``chunks``, in W's units, added to the base's change."""
        sums = {p: self.base[p] + c if p in self.base else GrowingSum.of(c) for p, c in chunks.items()}
        return replace(self, base={**self.base, **sums})


class HasParams(Protocol):
    @property
    def params(self) -> Params: ...


S = TypeVar("S", bound=HasParams)


def weighted_mean(uploads: Iterable[Upload]) -> Mean:
    """``sum w_k x_k / sum w_k``, accumulated in float64 in the order given, with ``_HELD`` uploads in memory at a time.

    The engine sorts uploads by client id, so the result does not depend on which client answered first. Raises
    ValueError if there are no uploads, a weight is not positive and finite, or names or shapes differ.
    """
    packed_uploads = _packed(uploads)
    held = list(itertools.islice(packed_uploads, _HELD))
    if not held:
        raise ValueError("no uploads to average")
    first, _ = held[0]
    layout, total = first.layout, torch.zeros_like(first.vector, dtype=torch.float64)
    weight_sum, count = 0.0, 0
    del first
    while held:
        _add(total, held)
        count += len(held)
        for _, weight in held:
            weight_sum += weight
        held.clear()  # free these before asking for more
        held += itertools.islice(packed_uploads, _HELD)
    return Mean(Packed(total.div_(weight_sum), layout), weight_sum, count)


_HELD = 8
"""Uploads in memory at a time: few, so that memory does not grow with the number of uploads."""
_TOGETHER = 2**19
"""Numbers added at a time: enough to outweigh the cost of a call, few enough for a processor's cache."""


def _add(total: Tensor, held: Sequence[tuple[Packed, float]]) -> None:
    """``total += weight * vector``, in place, one upload after another; each product and sum is rounded to float64."""
    scratch = torch.empty_like(total[:_TOGETHER])
    vectors = [torch.split(packed.vector, _TOGETHER) for packed, _ in held]
    for part, *addends in zip(torch.split(total, _TOGETHER), *vectors, strict=True):
        product = scratch[: len(part)]
        for (_, weight), addend in zip(held, addends, strict=True):  # every upload while ``part`` is in the cache
            part.add_(product.copy_(addend).mul_(weight))


def _packed(uploads: Iterable[Upload]) -> Iterator[tuple[Packed, float]]:
    """Each upload as one vector, in the first upload's layout, with its weight. Raises ValueError if a weight is not
    positive and finite, or an upload's names or shapes differ from the first's."""
    layout: Layout | None = None
    for upload in uploads:
        if not 0 < upload.weight < float("inf"):
            raise ValueError(f"client {upload.client.id}: weight must be positive and finite, got {upload.weight}")
        packed = _fitting(upload, layout)
        layout = packed.layout
        yield packed, upload.weight


def _fitting(upload: Upload, layout: Layout | None) -> Packed:
    """The upload's tensors packed in ``layout``, or in their own order if it is None. Raises ValueError if names or
    shapes differ."""
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
            actual = tuple(params[name].shape)
            raise ValueError(f"client {upload.client.id}: {name} is {actual}, expected {tuple(shape)}")
    return Packed.of({name: params[name] for name in names})


class Algorithm(ABC, Generic[S]):
    """A federated algorithm. Every subclass is final: a frozen dataclass whose fields are its hyperparameters."""

    exact: ClassVar[bool]
    """The aggregated model's change equals the weighted mean of the clients' changes. Without ``needs_factors`` this is
    said of whole tensors alone, because a mean of factors is not the mean of their products."""
    needs_factors: ClassVar[bool] = True
    """It is about low-rank factors. Other methods train whole tensors too, with or without factors beside them."""
    personal: ClassVar[bool] = False
    """Clients keep tensors of their own: each client has its own model, and new clients get a cold-start model."""
    keeps: ClassVar[Select] = nothing
    """Those of ``init``'s tensors that stay with their clients by the method's own code: ``local_init`` gives them to a
    new client. A head that a client then does not hold is trained and sent as any other tensor."""
    default_head: ClassVar[HeadPolicy] = "shared"
    """The policy for a task head when the user does not choose one."""
    scored_after_adapting: ClassVar[bool] = False
    """Scores are of a client's model after :meth:`adapt` (Per-FedAvg)."""
    client_ranks: ClassVar[bool] = False
    """Clients may have their own ranks (``Client.rank``), up to the run's."""
    plain_sgd: ClassVar[bool] = False
    """A client's movement must be the sum of its gradients: local training is SGD, without momentum and without a limit
    of the gradient's norm."""
    equal_weights: ClassVar[bool] = False
    """Every upload has weight 1, whatever the run's weighting, and the server accepts no other."""
    server_step: ClassVar[bool] = False
    """The method defines its server's step itself, so no server optimizer takes its place."""
    same_coordinates: ClassVar[bool] = True
    """Uploads are new values of the broadcast tensors, so the differences may be scaled or go to a server optimizer."""
    readable: ClassVar[bool] = True
    """An expanded upload, put in place of the broadcast tensors, is its client's model. If False, aggregating that
    upload alone gives the client's model."""
    least_squares: ClassVar[bool] = False
    """Clients minimise exactly (:meth:`Trainer.solve`), so the task must be one of least squares."""
    varying_shapes: ClassVar[bool] = False
    """A client's uploads may differ in shape, e.g. when they hold a choice of slots. :meth:`expand` then checks them
    and raises :class:`UnreadableUpload`."""

    @property
    def linear(self) -> bool:
        """Whether the server needs only the weighted sum of the uploads. Where clients have ranks of their own, it is
        the sum of the expanded uploads, so the server must see each one. Default: ``aggregate`` is not overridden."""
        return type(self).aggregate is Algorithm.aggregate

    @abstractmethod
    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> S:
        """The server's state before the first round.

        ``params``: A (r, in) and B (out, r) of every adapted module as PEFT initialises them, whole tensors that are
        trained, their statistics, and the head's tensors unless it is frozen.
        ``weights``: the frozen matrices by module path.

        Where clients have a byte budget, ``init`` is also called before the model is loaded, with matrices of zeros and
        no head, to learn the sizes of uploads.
        """

    def broadcast(self, state: S, client: Client, round: Round) -> Shared:
        """Everything ``client`` must know this round. The transport sends only the part that the client lacks."""
        return Shared(state.params)

    def local_init(self, shared: Shared, client: Client) -> Params:
        """A client's own tensors before its first round, or after it lost them; no client axis."""
        return {}

    @abstractmethod
    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        """Local training of the trainer's K clients (client axis on every tensor). Returns the uploads and the tensors
        that the clients keep."""

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The tensors of the trainer's K new clients, ``local`` (client axis on every tensor), fitted to their rows
        with everything shared frozen. A client without tensors of its own has nothing to fit."""
        if not local:
            return {}
        # A forward pass in training updates statistics in place: give it copies.
        statistics = {n: t.clone() for n, t in pick(shared.params, buffer).items()}
        frozen = replace(shared, params={**shared.params, **statistics})
        return trainer.fit(local, objective=lambda own, loss: loss(self.view(frozen, own))).params

    def expand(self, state: S, upload: Upload) -> Upload:
        """``upload`` in the server's coordinates, where all uploads have the same names and shapes. Default: the
        factors of a client with its own rank are padded with zeros to the server's."""
        if upload.client.rank is None:
            return upload
        return replace(upload, params=pad_rank(upload.params, state.params))

    def finish(self, state: S, mean: Mean, round: Round) -> S:
        """The next state, from the mean. Default: each mean replaces the tensor it averages."""
        new = {**state.params, **cast_like(mean.params, state.params)}
        return replace(state, params=new)  # type: ignore[type-var]

    def aggregate(self, state: S, uploads: Iterable[Upload], round: Round) -> S:
        """The next state, from individual uploads. Overriding it makes the algorithm non-linear, unless ``linear`` is
        overridden too."""
        return self.finish(state, weighted_mean(self.expand(state, u) for u in uploads), round)

    def view(self, shared: Shared, local: Params) -> Params:
        """The tensors that the network uses: A, B, head and body. Pure and differentiable."""
        return {**shared.params, **local}
