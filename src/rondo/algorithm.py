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

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from torch import Tensor

from rondo.lowrank import GrowingSum, LowRank
from rondo.messages import (
    Client,
    ClientFailed,
    Mean,
    Round,
    Shared,
    UnreadableUpload,
    Upload,
    Uploads,
    Weight,
    weighted_mean,
)
from rondo.params import Params, Select, buffer, cast_like, everything, pad_rank, pick
from rondo.traits import HeadPolicy, Traits

__all__ = [
    "Algorithm",
    "BaseState",
    "Client",
    "ClientFailed",
    "Fit",
    "FitOptions",
    "HasParams",
    "HeadPolicy",
    "Loss",
    "Mean",
    "Objective",
    "Projection",
    "Round",
    "ServerState",
    "Shared",
    "Trainer",
    "Traits",
    "UnreadableUpload",
    "Upload",
    "Uploads",
    "Weight",
    "plain",
    "split_rows",
    "unbounded",
    "weighted_mean",
]


@dataclass(frozen=True)
class Loss:
    """The network's loss on the current batch, given tensors as ``view`` returns them; shape (K,), one per client.

    >>> from rondo.algorithm import Round
    >>> from rondo.params import add_client_axis, sq_norm
    >>> from rondo.testing import SgdTrainer, TwoLayers
    >>> problem = TwoLayers.make(seed=0)  # three clients
    >>> trainer = SgdTrainer(problem.clients, Round(0, 1, seed=0, population=3), problem.loss)
    >>> def decayed(params, loss):  # an objective: the network's loss at these tensors, and a penalty, shape (K,)
    ...     return loss(params) + 0.01 * sq_norm(params)
    >>> trainer.fit(add_client_axis(problem.params, size=3), objective=decayed).loss.shape
    torch.Size([3])
    """

    whole: Callable[[Params], Tensor]
    """The loss on all rows."""
    split: Callable[[float], tuple[Loss, Loss]]
    """The losses on a share of each client's rows and on the others, divided by :func:`split_rows`."""
    rows: Tensor
    """The number of rows of each client in the batch, shape (K,)."""

    def __call__(self, seen: Params) -> Tensor:
        return self.whole(seen)

    def beside(self, others: Params) -> Loss:
        """This loss, with ``others`` in place of the tensors of their names."""

        def split(share: float) -> tuple[Loss, Loss]:
            one, other = self.split(share)
            return one.beside(others), other.beside(others)

        return Loss(lambda seen: self({**seen, **others}), split, self.rows)


def split_rows(count: int, share: float) -> tuple[list[int], list[int]]:
    """The numbers of the rows in both parts of ``count`` rows, the first of which has about ``share`` of them.

    The parts are interleaved, because batches may be ordered by length. Each has a row at least, so a single row is in
    both.

    >>> from rondo.algorithm import split_rows
    >>> split_rows(5, 0.5)
    ([0, 2], [1, 3, 4])
    """
    rows = list(range(count))
    if count < 2:
        return rows, rows
    size = min(max(int((1 - share) * count + 0.5), 1), count - 1)
    second = [row for row in rows if (row + 1) * size // count > row * size // count]
    return [row for row in rows if row not in second], second


Objective: TypeAlias = Callable[[Params, Loss], Tensor]
"""The loss that clients minimise, shape (K,), given the tensors being trained and the network's loss."""

Projection: TypeAlias = Callable[[Params], Params]
"""From all trained tensors to those that a constraint moves, moved. Tensors that obey it already stay as they are."""


def plain(params: Params, loss: Loss) -> Tensor:
    """The default objective: the network's loss at the trained tensors themselves.

    >>> import torch
    >>> from rondo.algorithm import plain
    >>> plain({"query.A": torch.ones(1, 2, 5)}, lambda params: params["query.A"].mean((1, 2)))
    tensor([1.])
    """
    return loss(params)


def unbounded(params: Params) -> Params:
    """The default projection: no trained tensor is constrained.

    >>> import torch
    >>> from rondo.algorithm import unbounded
    >>> unbounded({"query.A": torch.ones(1, 2, 5)})
    {}
    """
    return {}


@dataclass(frozen=True)
class Fit:
    """The result of local training of K clients.

    >>> from rondo.algorithm import Round
    >>> from rondo.params import add_client_axis
    >>> from rondo.testing import SgdTrainer, TwoLayers
    >>> problem = TwoLayers.make(seed=0)  # three clients
    >>> trainer = SgdTrainer(problem.clients, Round(0, 1, seed=0, population=3), problem.loss)
    >>> fit = trainer.fit(add_client_axis(problem.params, size=3), steps=2)
    >>> fit.steps, fit.loss.shape
    (tensor([2, 2, 2]), torch.Size([3]))
    """

    params: Params
    """All tensors, with client axis K."""
    steps: Tensor
    """Steps taken per client, shape (K,)."""
    examples: Tensor
    """Examples processed per client, shape (K,)."""
    loss: Tensor
    """Mean training loss per client, shape (K,)."""


@dataclass(frozen=True)
class FitOptions:
    """The options of one :meth:`Trainer.fit`, for a trainer to carry out.

    >>> from rondo.algorithm import FitOptions, plain, unbounded
    >>> from rondo.params import up
    >>> options = FitOptions(train=up, objective=plain, epochs=None, steps=5, lr=None, project=unbounded)
    >>> options.steps
    5
    """

    train: Select
    """The tensors that are trained."""
    objective: Objective
    epochs: int | None
    """Epochs of each client's rows; with neither ``epochs`` nor ``steps``, the run's local training."""
    steps: int | None
    lr: float | None
    """The learning rate; None is the run's in this round."""
    project: Projection
    """Applied after every step, as the limits of APFL's share: in the objective, the gradient beyond one would be 0."""


class Trainer(ABC):
    """Models, data and optimizers of K clients, lent to the algorithm for one round.

    >>> from rondo.algorithm import Round
    >>> from rondo.params import add_client_axis, pick, up
    >>> from rondo.testing import SgdTrainer, TwoLayers
    >>> problem = TwoLayers.make(seed=0)  # three clients
    >>> trainer = SgdTrainer(problem.clients, Round(0, 1, seed=0, population=3), problem.loss)
    >>> fit = trainer.fit(add_client_axis(problem.params, size=3), train=up)  # B of every layer
    >>> uploads = trainer.upload(pick(fit.params, up))
    >>> [(upload.client.id, upload.weight) for upload in uploads]
    [('client-0', 4.0), ('client-1', 7.0), ('client-2', 10.0)]
    """

    clients: tuple[Client, ...]
    round: Round
    lr: float
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
        project: Projection = unbounded,
    ) -> Fit:
        """Train the selected tensors of ``params`` (client axis K) with a fresh optimizer on the clients' next data
        stream.

        ``epochs``, ``steps`` and ``lr`` default to the run's. ``project`` is applied after every step. Raises
        :class:`ClientFailed`.
        """
        return self.fit_with(params, FitOptions(train, objective, epochs, steps, lr, project))

    @abstractmethod
    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        """:meth:`fit`, for whoever writes a trainer."""

    @abstractmethod
    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """One :class:`Upload` per client. ``weight``, shape (K,), defaults to the run's weighting."""


@dataclass(frozen=True)
class ServerState:
    """The state of an algorithm whose server holds only tensors.

    >>> import torch
    >>> from rondo.algorithm import ServerState
    >>> ServerState({"query.B": torch.zeros(7, 2)}).params["query.B"].shape
    torch.Size([7, 2])
    """

    params: Params


@dataclass(frozen=True)
class BaseState:
    """The state of an algorithm whose server also changes the frozen base. Both mappings are by module path.

    >>> import torch
    >>> from rondo.algorithm import BaseState, Weight
    >>> from rondo.lowrank import LowRank
    >>> state = BaseState.start({}, {"query": Weight((7, 5), 2.0, lambda: torch.ones(7, 5))})
    >>> grown = state.with_chunks({"query": LowRank(torch.ones(7, 1), torch.ones(1, 5))})
    >>> grown.base["query"].count, state.base
    (1, {})
    """

    params: Params
    base: Mapping[str, GrowingSum]
    """The base's change so far, in W's units."""
    scale: Mapping[str, float]
    """The adapter's scale."""

    @staticmethod
    def start(params: Params, weights: Mapping[str, Weight]) -> BaseState:
        """``params`` and an unchanged base."""
        return BaseState(params, {}, {path: w.scale for path, w in weights.items()})

    def with_chunks(self, chunks: Mapping[str, LowRank]) -> Self:
        """This state with ``chunks``, in W's units, added to the base's change."""
        sums = {p: self.base[p] + c if p in self.base else GrowingSum.of(c) for p, c in chunks.items()}
        return replace(self, base={**self.base, **sums})


class HasParams(Protocol):
    """The state of a method: any frozen dataclass with ``params``.

    >>> from rondo.algorithm import HasParams, ServerState
    >>> state: HasParams = ServerState({})
    """

    @property
    def params(self) -> Params: ...


S = TypeVar("S", bound=HasParams)


class Algorithm(ABC, Generic[S]):
    """A federated algorithm. Every subclass is final: a frozen dataclass whose fields are its hyperparameters.

    >>> from dataclasses import dataclass
    >>> from typing import final
    >>> from rondo.algorithm import Algorithm, ServerState, Traits
    >>> from rondo.params import pick, up
    >>> @final
    ... @dataclass(frozen=True)
    ... class OnlyB(Algorithm[ServerState]):
    ...     traits = Traits(exact=True)  # A is the same at all clients, so the mean of B A is (mean of B) A
    ...     def client_update(self, shared, local, trainer):
    ...         fit = trainer.fit(shared.params, train=up)
    ...         return trainer.upload(pick(fit.params, up)), local
    >>> OnlyB().linear
    True
    >>> from rondo.testing import check_algorithm
    >>> {result.outcome for result in check_algorithm(OnlyB(), seeds=[0])} - {"not applicable"}
    {'passed'}
    """

    traits: ClassVar[Traits]
    """The algorithm's properties. Declare them in the class: ``traits = Traits(exact=False)``."""

    @property
    def linear(self) -> bool:
        """Whether the server needs only the weighted sum of the uploads, expanded where ranks differ. Default:
        ``aggregate`` is not overridden."""
        return type(self).aggregate is Algorithm.aggregate

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> S:
        """The server's state before the first round. Default: ``params`` alone, for an ``Algorithm[ServerState]``.

        ``params``: A (r, in) and B (out, r) of every adapted module as PEFT initialises them, whole tensors that are
        trained, their statistics, and the head's tensors unless it is frozen.
        ``weights``: the frozen matrices by module path.

        Where clients have a byte budget, ``init`` is also called before the model is loaded, with matrices of zeros and
        no head, to learn the sizes of uploads.
        """
        return cast(S, ServerState(params))

    @property
    def by_total(self) -> str | None:
        """The field with which a round depends on :attr:`Round.total`, so that the run cannot get more rounds after it
        has begun. Default: None, no round does."""
        return None

    def starting(self, state: S, round: Round) -> Collection[str] | None:
        """The ids of the clients that start in ``round``. Default: None, the run's sampling draws them."""
        return None

    def broadcast(self, state: S, client: Client, round: Round) -> Shared:
        """Everything ``client`` must know this round; what it has is not sent. Default: all that the state shares."""
        return Shared(state.params, state.base) if isinstance(state, BaseState) else Shared(state.params)

    def local_init(self, shared: Shared, client: Client) -> Params:
        """A client's own tensors before its first round, or after it lost them; no client axis."""
        return {}

    @abstractmethod
    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        """Local training of the trainer's K clients (client axis on every tensor). Returns the uploads and the tensors
        that the clients keep."""

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The tensors ``local`` (client axis) of the trainer's K new clients, fitted to their rows, all else frozen."""
        if not local:
            return {}
        # A forward pass in training updates statistics in place: give it copies.
        statistics = {n: t.clone() for n, t in pick(shared.params, buffer).items()}
        frozen = replace(shared, params={**shared.params, **statistics})
        return trainer.fit(local, objective=lambda p, loss: loss(self.view(frozen, p))).params

    def expand(self, state: S, upload: Upload) -> Upload:
        """``upload`` in the server's coordinates, in which all have the same names and shapes. Default: factors of a
        client with its own rank are padded with zeros."""
        if upload.client.rank is None:
            return upload
        return replace(upload, params=pad_rank(upload.params, state.params))

    def weight_of(self, state: S, upload: Upload) -> float:
        """The weight of ``upload`` by its tensors, for a method that weighs uploads so (:attr:`Traits.weighting`)."""
        raise NotImplementedError

    def finish(self, state: S, mean: Mean, round: Round) -> S:
        """The next state, from the mean. Default: each mean replaces the tensor it averages."""
        new = {**state.params, **cast_like(mean.params, state.params)}
        return replace(state, params=new)  # type: ignore[type-var]

    def aggregate(self, state: S, uploads: Iterable[Upload], round: Round) -> S:
        """The next state, from single uploads. Overriding it, and not ``linear``, makes the algorithm non-linear."""
        return self.finish(state, weighted_mean(self.expand(state, u) for u in uploads), round)

    def measures(self, state: S) -> Mapping[str, float]:
        """Numbers that the server alone knows of the last aggregation, by name, for the record. Default: none."""
        return {}

    def view(self, shared: Shared, local: Params) -> Params:
        """The tensors that the network uses: A, B, head and body. Pure and differentiable."""
        return {**shared.params, **local}
