"""An algorithm around another: what it does not change is the other's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rondo.algorithm import Algorithm, Client, HasParams, HeadPolicy, Round, Shared, Trainer, Upload, Uploads, Weight
from rondo.params import Params

W = TypeVar("W", bound=HasParams)


@dataclass(frozen=True)
class Wrapper(Algorithm[W]):
    """``algorithm``, with the properties and the behaviour that it has, on the state that it has. A final class
    overrides what it changes."""

    algorithm: Algorithm[Any]

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.algorithm.exact

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.algorithm.personal

    @property
    def default_head(self) -> HeadPolicy:  # type: ignore[override]
        return self.algorithm.default_head

    @property
    def client_ranks(self) -> bool:  # type: ignore[override]
        return self.algorithm.client_ranks

    @property
    def same_coordinates(self) -> bool:  # type: ignore[override]
        return self.algorithm.same_coordinates

    @property
    def readable(self) -> bool:  # type: ignore[override]
        return self.algorithm.readable

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> W:
        state: W = self.algorithm.init(params, weights, round)
        return state

    def broadcast(self, state: W, client: Client, round: Round) -> Shared:
        return self.algorithm.broadcast(state, client, round)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return self.algorithm.local_init(shared, client)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return self.algorithm.client_update(shared, local, trainer)

    def expand(self, state: W, upload: Upload) -> Upload:
        return self.algorithm.expand(state, upload)

    def view(self, shared: Shared, local: Params) -> Params:
        return self.algorithm.view(shared, local)
