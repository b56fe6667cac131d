"""Other tasks and networks than those of :mod:`own_task`: unusual ones that run, and ones that are refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from own_task import LeastSquares, Line, Point
from torch import Tensor, nn


class Shared(Line):
    """Gives every row the first client's tensors."""

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        return super().__call__({"slope": params["slope"][:1]}, base, batch)


class Bare(Line):
    """The same line, with every tensor from the clients: its module has no parameter."""

    def __init__(self, config: Any, task: Any) -> None:
        super().__init__(config, task)
        self.module = nn.Identity()

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        slope = params["slope"]
        return (batch["x"] * (slope if rows is None else slope[rows.index])).sum(-1)


class Single(Line):
    """In float32, while the task computes in float64."""

    def __init__(self, config: Any, task: Any) -> None:
        super().__init__(config, task)
        self.initial = {n: t.float() for n, t in self.initial.items()}


class Headed(Line):
    prefix = "head:"

    def __init__(self, config: Any, task: Any) -> None:
        super().__init__(config, task)
        self.initial = {f"{self.prefix}{n}": t for n, t in self.initial.items()}


class Reserved(Headed):
    prefix = "base:"


class Failing(Line):
    def __call__(self, *_: Any, **__: Any) -> Tensor:
        raise RuntimeError("shapes differ")


class Empty(LeastSquares):
    """Leaves all rows out."""

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Point]:
        return []


class Free(LeastSquares):
    """Examples without cost."""

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Point]:
        return [replace(point, cost=0) for point in super().encode(rows)]
