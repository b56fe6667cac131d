"""Least squares in float64: all the code that a custom task, network and method need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rondo.algorithm import Algorithm, ServerState, Traits
from rondo.models.networks.network import Network
from rondo.tasks.row_checks import RowProblem
from rondo.tasks.task import Task


@dataclass(frozen=True)
class Point:
    x: tuple[float, ...]
    y: float
    cost: int = 1


class LeastSquares(Task):
    primary, precision = "loss", torch.float64

    @classmethod
    def of(cls, config: Any, tokenizer: Any, labels: Sequence[str]) -> "LeastSquares":
        return cls()

    @classmethod
    def problem(cls, config: Any, row: Mapping[str, Any], number: int) -> RowProblem | None:
        bad = next((c for c in row if str(row[c]).strip("-.0123456789") != ""), None)
        return None if bad is None else RowProblem(number, bad, f"not a number: {row[bad]!r}")

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Point]:
        return [Point(tuple(float(v) for c, v in row.items() if c != "y"), float(row.get("y", 0))) for row in rows]

    def collate(self, examples: Sequence[Point]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x, y = (torch.tensor([getattr(e, n) for e in examples], dtype=self.precision) for n in "xy")
        return {"x": x}, {"y": y}

    def loss(self, output: Tensor, targets: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return (output - targets["y"]).square(), torch.ones_like(targets["y"])

    def tally(self) -> "Sum":
        return Sum()

    def predicted(self, output: Tensor) -> list[dict[str, Any]]:
        return [{"y": float(y)} for y in output]

    def shown(self, example: Point) -> tuple[str, str]:
        return str(example.x), str(example.y)


class Sum:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, output: Tensor, targets: Mapping[str, Tensor]) -> None:
        self.sum += float((output - targets["y"]).square().sum())
        self.count += len(output)

    def scores(self) -> dict[str, float | None]:
        return {"loss": self.sum / self.count if self.count else None}


class Line(Network):
    def __init__(self, config: Any, task: Task) -> None:
        self.module = nn.Linear(3, 1, bias=False, dtype=task.precision).requires_grad_(False)
        self.initial = {"slope": torch.zeros(3, dtype=task.precision)}

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        slope = params["slope"] + self.module.weight
        return (batch["x"] * (slope if rows is None else slope[rows.index])).sum(-1)


@dataclass(frozen=True)
class FedAvg(Algorithm[ServerState]):
    traits = Traits(exact=False)

    def init(self, params: Any, weights: Any, round: Any) -> ServerState:
        return ServerState(params)

    def client_update(self, shared: Any, local: Any, trainer: Any) -> Any:
        return trainer.upload(trainer.fit(shared.params).params), local
