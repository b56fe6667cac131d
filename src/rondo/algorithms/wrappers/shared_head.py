"""The head policy ``shared``, around a method that keeps the head with its clients by its own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from rondo.algorithm import Client, Shared
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.params import Params, Select, head, pick


@final
@dataclass(frozen=True)
class SharedHead(Wrapper[Any]):
    """``algorithm`` whose clients hold no head, so that it trains and sends the head as any other tensor
    (:attr:`rondo.algorithm.Algorithm.keeps`). A method that keeps nothing else is no longer personal."""

    @property
    def keeps(self) -> Select:  # type: ignore[override]
        return self.algorithm.keeps & ~head

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.algorithm.personal and bool(self.keeps.roles)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(self.algorithm.local_init(shared, client), ~head)
