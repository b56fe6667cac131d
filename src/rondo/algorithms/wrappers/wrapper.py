"""An algorithm around another: a wrapper overrides a part and passes everything else through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rondo.algorithm import (
    Algorithm,
    Client,
    HasParams,
    Mean,
    Round,
    Shared,
    Trainer,
    Upload,
    Uploads,
    Weight,
)
from rondo.params import Params
from rondo.traits import Traits

W = TypeVar("W", bound=HasParams)


@dataclass(frozen=True)
class Wrapper(Algorithm[W]):
    """``algorithm`` with all its traits and methods, on its own state. A final class overrides the parts it changes.

    Around a linear algorithm the wrapper is linear, and its own ``expand`` and ``finish`` are used. Around a non-linear
    one, ``aggregate`` is the wrapped algorithm's, which calls neither; a wrapper that changes one of the two must then
    override ``aggregate`` too. Overriding ``aggregate`` makes the wrapper non-linear, unless ``linear`` is overridden
    as well.
    """

    algorithm: Algorithm[Any]

    @property
    def linear(self) -> bool:
        return self.algorithm.linear and type(self).aggregate is Wrapper.aggregate

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return self.algorithm.traits

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> W:
        state: W = self.algorithm.init(params, weights, round)
        return state

    def inner(self, state: W) -> Any:
        """The wrapped algorithm's state. Default: the wrapper's own."""
        return state

    def broadcast(self, state: W, client: Client, round: Round) -> Shared:
        return self.algorithm.broadcast(self.inner(state), client, round)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return self.algorithm.local_init(shared, client)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return self.algorithm.client_update(shared, local, trainer)

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        return self.algorithm.adapt(shared, local, trainer)

    def expand(self, state: W, upload: Upload) -> Upload:
        return self.algorithm.expand(self.inner(state), upload)

    def weight_of(self, state: W, upload: Upload) -> float:
        return self.algorithm.weight_of(self.inner(state), upload)

    def finish(self, state: W, mean: Mean, round: Round) -> W:
        new: W = self.algorithm.finish(state, mean, round)
        return new

    def aggregate(self, state: W, uploads: Iterable[Upload], round: Round) -> W:
        if self.algorithm.linear:  # calls this class's own expand and finish
            return super().aggregate(state, uploads, round)
        new: W = self.algorithm.aggregate(state, uploads, round)
        return new

    def measures(self, state: W) -> Mapping[str, float]:
        return self.algorithm.measures(self.inner(state))

    def view(self, shared: Shared, local: Params) -> Params:
        return self.algorithm.view(shared, local)


@dataclass(frozen=True)
class InnerState:
    """The wrapped algorithm's state, in a wrapper's own."""

    inner: Any

    @property
    def params(self) -> Params:
        params: Params = self.inner.params
        return params


V = TypeVar("V", bound=InnerState)


@dataclass(frozen=True)
class StateWrapper(Wrapper[V]):
    """A wrapper with a state of its own around the wrapped algorithm's."""

    def inner(self, state: V) -> Any:
        return state.inner
