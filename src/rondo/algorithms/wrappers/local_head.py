"""The head policy ``local``: any algorithm with a head that stays with its client.

Each client keeps its own head, trains it in every ``fit`` beside whatever the algorithm trains, and never uploads it.
New clients start from the common initial head. The wrapped algorithm never sees a head. A second ``fit`` from the same
tensors starts from the same head, so a probing epoch (LoRA-A2) is undone for the head as it is for the factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from torch import Tensor

from rondo.algorithm import Client, Fit, Loss, Mean, Objective, Round, Shared, Trainer, Upload, Uploads, Weight, plain
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.params import Params, Select, everything, head, pick


@dataclass(frozen=True)
class LocalHeadState:
    """The wrapped algorithm's state and the head that new clients start from."""

    inner: Any
    head: Params

    @property
    def params(self) -> Params:
        return {**self.inner.params, **self.head}


@final
@dataclass(frozen=True)
class LocalHead(Wrapper[LocalHeadState]):
    """``algorithm`` with a personal head. Aggregation is the wrapped algorithm's, and so are linearity and
    exactness."""

    personal: ClassVar[bool] = True

    @property
    def linear(self) -> bool:
        return self.algorithm.linear

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> LocalHeadState:
        return LocalHeadState(self.algorithm.init(pick(params, ~head), weights, round), pick(params, head))

    def broadcast(self, state: LocalHeadState, client: Client, round: Round) -> Shared:
        inner = self.algorithm.broadcast(state.inner, client, round)
        return replace(inner, params={**inner.params, **state.head})

    def local_init(self, shared: Shared, client: Client) -> Params:
        return {**self.algorithm.local_init(_headless(shared), client), **pick(shared.params, head)}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        beside = _HeadBeside(trainer, pick(local, head))
        uploads, kept = self.algorithm.client_update(_headless(shared), pick(local, ~head), beside)
        return uploads, {**kept, **beside.head}

    def expand(self, state: LocalHeadState, upload: Upload) -> Upload:
        return self.algorithm.expand(state.inner, upload)

    def finish(self, state: LocalHeadState, mean: Mean, round: Round) -> LocalHeadState:
        return replace(state, inner=self.algorithm.finish(state.inner, mean, round))

    def aggregate(self, state: LocalHeadState, uploads: Iterable[Upload], round: Round) -> LocalHeadState:
        return replace(state, inner=self.algorithm.aggregate(state.inner, uploads, round))

    def view(self, shared: Shared, local: Params) -> Params:
        return {**self.algorithm.view(_headless(shared), pick(local, ~head)), **pick(local, head)}


def _headless(shared: Shared) -> Shared:
    return replace(shared, params=pick(shared.params, ~head))


class _HeadBeside:
    """A trainer that trains the clients' heads beside the tensors it is asked to train, and keeps the heads in
    ``head``."""

    def __init__(self, trainer: Trainer, head: dict[str, Tensor]) -> None:
        self._trainer, self.head = trainer, head
        self._given: Params = {}
        self._start = head

    @property
    def clients(self) -> tuple[Client, ...]:
        return self._trainer.clients

    @property
    def round(self) -> Round:
        return self._trainer.round

    @property
    def lr(self) -> float:
        return self._trainer.lr

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
        def with_head(trained: Params, loss: Loss) -> Tensor:
            return objective(pick(trained, ~head), loss.beside(pick(trained, head)))

        if not _same(params, self._given):
            self._given, self._start = params, self.head
        both = {**params, **self._start}
        fit = self._trainer.fit(both, train=train | head, objective=with_head, epochs=epochs, steps=steps, lr=lr)
        self.head = pick(fit.params, head)
        return replace(fit, params=pick(fit.params, ~head))

    def solve(self, params: Params, *, train: Select) -> Fit:
        """Solve with the heads as they are: the output is seldom linear in both."""
        fit = self._trainer.solve({**params, **self.head}, train=train & ~head)
        return replace(fit, params=pick(fit.params, ~head))

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        return self._trainer.second_moment({**params, **self.head}, of=of & ~head)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        return self._trainer.upload(params, weight)


def _same(params: Params, others: Params) -> bool:
    """Whether both hold the same tensors, not merely equal ones."""
    return params.keys() == others.keys() and all(t is others[n] for n, t in params.items())
