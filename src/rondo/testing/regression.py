"""A problem of least squares, for methods that minimise exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.algorithm import Client, Weight
from rondo.lowrank import GrowingSum
from rondo.params import Params, pick, whole
from rondo.testing.testbed import Data

BODY, HEAD = "plain.weight", "head:top.weight"


@dataclass(frozen=True)
class RegressionTestbed:
    """``y = (W + scale B A) x`` with factors, W (3, 5); without them ``y = H P x``, P (2, 5), head H (3, 2).

    Each client draws its data from its own map, so that averaging is not trivial.
    """

    weights: Mapping[str, Weight]
    params: Params
    data: Data
    clients: tuple[Client, ...]
    rank: int = 2

    @staticmethod
    def make(seed: int, *, factors: bool, clients: int = 3) -> RegressionTestbed:
        """A problem from ``seed``. Clients differ in their number of examples."""
        g = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        matrix = normal(3, 5)
        if factors:
            weights = {"layer": Weight((3, 5), 1.5, lambda: matrix)}
            params = {"layer.A": normal(2, 5), "layer.B": torch.zeros(3, 2, dtype=torch.float64)}
        else:
            weights, params = {}, {BODY: normal(2, 5), HEAD: normal(3, 2)}
        members = tuple(Client(f"client-{k}", 6 + 3 * k) for k in range(clients))
        inputs = {c.id: normal(c.num_examples, 5) for c in members}
        return RegressionTestbed(weights, params, {c: (x, x @ normal(5, 3)) for c, x in inputs.items()}, members)

    def delta(self, seen: Params, base: Mapping[str, GrowingSum], path: str) -> Tensor:
        """The change that the network applies to the layer's weight: base change plus scale * B A."""
        change = self.weights[path].scale * (seen[f"{path}.B"] @ seen[f"{path}.A"])
        return change + base[path].factors().dense() if path in base else change

    def changes(self, seen: Params, base: Mapping[str, GrowingSum]) -> dict[str, Tensor]:
        """See :meth:`rondo.testing.testbed.Problem.changes`."""
        return {**{path: self.delta(seen, base, path) for path in self.weights}, **pick(seen, whole)}

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None, /
    ) -> Tensor:
        """See :meth:`rondo.testing.testbed.Problem.loss`."""
        x, y = self.data[client] if rows is None else (t[list(rows)] for t in self.data[client])
        if self.weights:
            matrix = self.weights["layer"].matrix() + self.delta(seen, base, "layer")
        else:
            matrix = seen[HEAD] @ seen[BODY]
        return 0.5 * (x @ matrix.mT - y).square().sum(-1).mean()
