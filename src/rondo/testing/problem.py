"""A small network in float64 and a trainer with full-batch SGD. The laws run on them, and other tests can too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.algorithm import Client, Fit, Objective, Round, Upload, Uploads, Weight, plain
from rondo.lowrank import GrowingSum
from rondo.params import Params, Select, client_row, everything, pick, stack_clients

NetworkLoss = Callable[..., Tensor]
"""From (client id, tensors that the network sees, base changes) to a scalar loss; no client axis. A fourth argument may
name some of the client's rows, by number; only :meth:`SgdTrainer.second_moment` gives it."""


@dataclass
class SgdTrainer:
    """A :class:`rondo.algorithm.Trainer` that takes ``steps`` full-batch gradient steps for each client."""

    clients: tuple[Client, ...]
    round: Round
    loss: NetworkLoss
    base: Mapping[str, GrowingSum] = field(default_factory=dict)
    steps: int = 3
    lr: float = 0.1
    weights: Mapping[str, float] = field(default_factory=dict)
    fits: list[Params] = field(default_factory=list)
    """The tensors that each call of ``fit`` returned."""

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
        """See :meth:`rondo.algorithm.Trainer.fit`; an epoch is one step, since the batch is all data."""
        count = steps if steps is not None else epochs if epochs is not None else self.steps
        trained = {n: t.detach().clone().requires_grad_() for n, t in params.items() if train(n)}
        losses = torch.zeros(len(self.clients), dtype=torch.float64)
        for _ in range(count):
            value = objective({**params, **trained}, self._network)
            grads = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
            losses = losses + value.detach() / count
            with torch.no_grad():
                for tensor, grad in zip(trained.values(), grads, strict=True):
                    if grad is not None:
                        tensor.sub_((self.lr if lr is None else lr) * grad)
        result = {n: trained[n].detach() if n in trained else t for n, t in params.items()}
        self.fits.append(result)
        step_counts = torch.full((len(self.clients),), count)
        return Fit(result, step_counts, step_counts * torch.tensor([c.num_examples for c in self.clients]), losses)

    def solve(self, params: Params, *, train: Select) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.solve`; without steps nothing is solved. It is a Newton step from zero,
        exact for a quadratic loss. Raises ValueError if the loss is no quadratic function of the selected tensors."""
        solved = [self._minimum(k, params, train) for k in range(len(self.clients if self.steps else ()))]
        result = {**params, **stack_clients(solved)}
        self.fits.append(result)
        once = torch.ones(len(self.clients), dtype=torch.long)
        return Fit(result, once, torch.tensor([c.num_examples for c in self.clients]), self._network(result))

    def _minimum(self, k: int, params: Params, train: Select) -> Params:
        """The selected tensors of client ``k`` at the minimum of its loss."""
        seen = client_row(params, k)
        start = pick(seen, train)

        def slope(flat: Tensor) -> Tensor:
            leaves = {n: t.requires_grad_() for n, t in _divided(flat, start).items()}
            loss = self.loss(self.clients[k].id, {**seen, **leaves}, self.base)
            return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])

        zero = torch.zeros(sum(t.numel() for t in start.values()), dtype=torch.float64)
        at_zero = slope(zero)
        curvature = torch.stack([slope(unit) - at_zero for unit in torch.eye(len(zero), dtype=torch.float64)], 1)
        probe = torch.arange(1.0, len(zero) + 1, dtype=torch.float64).cos()
        if not torch.allclose(slope(probe), at_zero + curvature @ probe):
            raise ValueError(f"the loss is not quadratic in {', '.join(start)}")
        return _divided(-torch.linalg.pinv(curvature, hermitian=True) @ at_zero, start)

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        """See :meth:`rondo.algorithm.Trainer.second_moment`."""
        moments = []
        for k, client in enumerate(self.clients):
            seen = client_row(params, k)
            leaves = {n: t.clone().requires_grad_() for n, t in pick(seen, of).items()}
            each = []
            for row in range(client.num_examples):
                loss = self.loss(client.id, {**seen, **leaves}, self.base, [row])
                each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))]))
            rows = torch.stack(each)
            moments.append(rows.mT @ rows / len(rows))
        return torch.stack(moments)

    def _network(self, seen: Params) -> Tensor:
        rows = [self.loss(c.id, client_row(seen, k), self.base) for k, c in enumerate(self.clients)]
        return torch.stack(rows)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`."""
        return tuple(
            Upload(c, client_row(params, k), self._weight(c) if weight is None else float(weight[k]))
            for k, c in enumerate(self.clients)
        )

    def _weight(self, client: Client) -> float:
        return self.weights.get(client.id, float(client.num_examples))


def _divided(flat: Tensor, like: Params) -> dict[str, Tensor]:
    """Numbers (n,) as tensors of the names and shapes of ``like``; copies."""
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {n: part.reshape(t.shape).clone() for (n, t), part in zip(like.items(), parts, strict=True)}


@dataclass(frozen=True)
class LinearProblem:
    """``y = H tanh(W2 tanh(W1 x))`` with adapters on both layers: W1 (7, 5), W2 (7, 7), head H (3, 7).

    Each client draws its data from its own map, so that averaging is not trivial.
    """

    weights: Mapping[str, Weight]
    params: Params
    data: Mapping[str, tuple[Tensor, Tensor]]
    clients: tuple[Client, ...]
    rank: int

    @staticmethod
    def make(seed: int, *, rank: int = 2, clients: int = 3) -> LinearProblem:
        """A problem from ``seed``. Clients differ in their number of examples."""
        g = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        shapes = {"first": ((7, 5), 1.75), "second": ((7, 7), 0.5)}
        weights, params = {}, {}
        for path, ((out, inp), scale) in shapes.items():
            matrix = normal(out, inp) / inp**0.5
            weights[path] = Weight((out, inp), scale, lambda matrix=matrix: matrix)  # type: ignore[misc]
            params[f"{path}.A"] = normal(rank, inp) / inp**0.5
            params[f"{path}.B"] = torch.zeros(out, rank, dtype=torch.float64)
        params["head:out.weight"] = normal(3, 7) / 7**0.5
        members = tuple(Client(f"client-{k}", 4 + 3 * k) for k in range(clients))
        data = {}
        for c in members:
            x = normal(c.num_examples, 5)
            data[c.id] = (x, x @ normal(5, 3))
        return LinearProblem(weights, params, data, members, rank)

    def delta(self, seen: Params, base: Mapping[str, GrowingSum], path: str) -> Tensor:
        """The change that the network applies to one layer's weight: base change plus scale * B A."""
        change = self.weights[path].scale * (seen[f"{path}.B"] @ seen[f"{path}.A"])
        return change + base[path].factors().dense() if path in base else change

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None
    ) -> Tensor:
        """Half the squared error of one client, summed over outputs, averaged over examples; a :data:`NetworkLoss`."""
        x, y = self.data[client]
        if rows is not None:
            x, y = x[rows], y[rows]
        for path, weight in self.weights.items():
            x = torch.tanh(x @ (weight.matrix() + self.delta(seen, base, path)).T)
        return 0.5 * (x @ seen["head:out.weight"].T - y).square().sum(-1).mean()
