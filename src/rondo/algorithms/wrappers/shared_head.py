"""The head policy ``shared``, around a method that keeps the head with its clients by its own code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from rondo.algorithm import Client, Shared
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.params import Params, head, pick
from rondo.traits import Traits


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
