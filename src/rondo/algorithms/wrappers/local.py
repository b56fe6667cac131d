"""Tensors that stay with their client, around any algorithm: a local head, local statistics, or both; and the head
shared, around a method that keeps it with its clients by its own code.

Each client keeps tensors of its own, trains them in every ``fit`` beside whatever the algorithm trains, and never
uploads them. New clients start from the common initial ones. The wrapped algorithm never sees them. A second ``fit``
from the same tensors starts from the same kept ones, so a probing epoch (LoRA-A2) is undone for a head as it is for the
factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor

from rondo.algorithm import (
    Client,
    Fit,
    FitOptions,
    Loss,
    Mean,
    Round,
    Shared,
    Trainer,
    Upload,
    Uploads,
    Weight,
    plain,
    unbounded,
)
from rondo.algorithms.parts.least_squares import least_squares
from rondo.algorithms.wrappers.wrapper import InnerState, StateWrapper, Wrapper
from rondo.params import Params, Select, head, pick
from rondo.traits import Traits


@dataclass(frozen=True)
class LocalState(InnerState):
    """The wrapped algorithm's state, and the tensors that new clients start from."""

    start: Params

    @property
    def params(self) -> Params:
        return {**self.inner.params, **self.start}


@final
@dataclass(frozen=True)
class Local(StateWrapper[LocalState]):
    """``algorithm`` with tensors that stay with their clients. Aggregation is the wrapped algorithm's, and so are
    linearity and exactness.

    ``stays``: these tensors.
    """

    stays: Select = head

    @property
    def linear(self) -> bool:
        return self.algorithm.linear

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        inner = self.algorithm.traits
        return replace(inner, personal=True, keeps=inner.keeps | self.stays)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> LocalState:
        return LocalState(self.algorithm.init(pick(params, ~self.stays), weights, round), pick(params, self.stays))

    def broadcast(self, state: LocalState, client: Client, round: Round) -> Shared:
        inner = self.algorithm.broadcast(state.inner, client, round)
        return replace(inner, params={**inner.params, **state.start})

    def local_init(self, shared: Shared, client: Client) -> Params:
        return {**self.algorithm.local_init(self._without(shared), client), **pick(shared.params, self.stays)}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        beside = _Beside(trainer, self.stays, pick(local, self.stays))
        uploads, kept = self.algorithm.client_update(self._without(shared), pick(local, ~self.stays), beside)
        return uploads, {**kept, **beside.kept}

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """As the wrapped algorithm does, with the kept tensors beside. Where it has nothing to fit, they are fitted
        alone."""
        beside = _Beside(trainer, self.stays, pick(local, self.stays))
        inner = self.algorithm.adapt(self._without(shared), pick(local, ~self.stays), beside)
        if beside.fits == 0:
            return {**inner, **super(Wrapper, self).adapt(shared, beside.kept, trainer)}
        return {**inner, **beside.kept}

    def finish(self, state: LocalState, mean: Mean, round: Round) -> LocalState:
        return replace(state, inner=self.algorithm.finish(state.inner, mean, round))

    def aggregate(self, state: LocalState, uploads: Iterable[Upload], round: Round) -> LocalState:
        return replace(state, inner=self.algorithm.aggregate(state.inner, uploads, round))

    def view(self, shared: Shared, local: Params) -> Params:
        seen = self.algorithm.view(self._without(shared), pick(local, ~self.stays))
        return {**seen, **pick(local, self.stays)}

    def _without(self, shared: Shared) -> Shared:
        return replace(shared, params=pick(shared.params, ~self.stays))


class _Beside(Trainer):
    """A trainer that trains the tensors that stay with the clients beside those it is asked to train.

    - ``kept``: these tensors, after the last fit.
    - ``fits``: the number of fits.
    """

    def __init__(self, trainer: Trainer, stays: Select, kept: dict[str, Tensor]) -> None:
        self._trainer, self._stays, self.kept = trainer, stays, kept
        self.clients, self.round, self.lr = trainer.clients, trainer.round, trainer.lr
        self.fits = 0
        self._given: Params = {}
        self._start = kept

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        stays = self._stays

        def with_kept(trained: Params, loss: Loss) -> Tensor:
            return options.objective(pick(trained, ~stays), loss.beside(pick(trained, stays)))

        def project(trained: Params) -> Params:
            return options.project(pick(trained, ~stays))

        if not _same(params, self._given):
            self._given, self._start = params, self.kept
        self.fits += 1
        beside = replace(options, train=options.train | stays)
        if options.objective is not plain:  # a trainer may know it by its name
            beside = replace(beside, objective=with_kept)
        if options.project is not unbounded:
            beside = replace(beside, project=project)
        fit = self._trainer.fit_with({**params, **self._start}, beside)
        self.kept = pick(fit.params, stays)
        return replace(fit, params=pick(fit.params, ~stays))

    def solve(self, params: Params, *, train: Select) -> Fit:
        """Solve with the tensors that stay as they are: the output is seldom linear in both."""
        fit = least_squares(self._trainer).solve({**params, **self.kept}, train=train & ~self._stays)
        return replace(fit, params=pick(fit.params, ~self._stays))

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        return least_squares(self._trainer).second_moment({**params, **self.kept}, of=of & ~self._stays)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        return self._trainer.upload(params, weight)


def _same(params: Params, others: Params) -> bool:
    """Whether both hold the same tensors, not merely equal ones."""
    return params.keys() == others.keys() and all(t is others[n] for n, t in params.items())


@final
@dataclass(frozen=True)
class SharedHead(Wrapper[Any]):
    """``algorithm`` whose clients hold no head, so that it trains and sends the head as any other tensor
    (:attr:`rondo.traits.Traits.keeps`). A method that keeps nothing else is no longer personal."""

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        inner = self.algorithm.traits
        keeps = inner.keeps & ~head
        return replace(inner, keeps=keeps, personal=inner.personal and bool(keeps.roles))

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(self.algorithm.local_init(shared, client), ~head)
