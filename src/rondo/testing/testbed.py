"""Small networks in float64 and a trainer with full-batch SGD. The laws run on them, and other tests can too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rondo.algorithm import (
    Client,
    Fit,
    FitOptions,
    Loss,
    Round,
    Trainer,
    Upload,
    Uploads,
    Weight,
    split_rows,
)
from rondo.lowrank import GrowingSum
from rondo.params import Params, Select, buffer, client_row, pick, router, stack_clients, whole


class NetworkLoss(Protocol):
    """From (client id, tensors that the network sees, base changes) to a scalar loss; no client axis. It is a forward
    pass in training, so it updates the ``buffer:`` tensors that it is given in place.

    ``rows``: the numbers of the client's rows to take, for methods that split a batch; left out, all.
    """

    def __call__(
        self,
        client: str,
        seen: Params,
        base: Mapping[str, GrowingSum],
        rows: Sequence[int] | None = None,
        /,
    ) -> Tensor: ...


@dataclass
class SgdTrainer(Trainer):
    """A trainer that takes ``steps`` full-batch gradient steps for each client, unless ``fit``
    is told otherwise. With 0, no fit takes a step, whatever it is told.

    >>> from rondo.algorithm import Round
    >>> from rondo.params import add_client_axis
    >>> from rondo.testing import SgdTrainer, TwoLayers
    >>> problem = TwoLayers.make(seed=0)  # three clients
    >>> trainer = SgdTrainer(problem.clients, Round(0, 1, seed=0, population=3), problem.loss)
    >>> fit = trainer.fit(add_client_axis(problem.params, size=3), steps=50)
    >>> bool((fit.loss < trainer.fit(add_client_axis(problem.params, size=3), steps=1).loss).all())
    True
    """

    clients: tuple[Client, ...]
    round: Round
    loss: NetworkLoss
    base: Mapping[str, GrowingSum] = field(default_factory=dict)
    steps: int = 3
    lr: float = 0.1
    weights: Mapping[str, float] = field(default_factory=dict)
    fits: list[Params] = field(default_factory=list)
    """The tensors that each call of ``fit`` returned."""

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.fit`; an epoch is one step, since the batch is all data."""
        told = next((n for n in (options.steps, options.epochs) if n is not None), self.steps)
        lr = self.lr if options.lr is None else options.lr
        count = told if self.steps > 0 else 0
        trained = {n: t.detach().clone().requires_grad_() for n, t in pick(params, options.train & ~buffer).items()}
        statistics = {n: t.detach().clone() for n, t in pick(params, buffer).items()}
        losses = torch.zeros(len(self.clients), dtype=torch.float64)
        loss = self._loss()
        for _ in range(count):
            value = options.objective({**params, **statistics, **trained}, loss)
            losses = losses + value.detach() / count
            if not trained:
                continue
            grads = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
            with torch.no_grad():
                for tensor, grad in zip(trained.values(), grads, strict=True):
                    if grad is not None:
                        tensor.sub_(lr * grad)
                for name, projected in options.project(trained).items():
                    trained[name].copy_(projected)
        new = {n: t.detach() for n, t in trained.items()} | pick(statistics, options.train)
        result = {n: new.get(n, t) for n, t in params.items()}
        self.fits.append(result)
        step_counts = torch.full((len(self.clients),), count)
        return Fit(result, step_counts, step_counts * torch.tensor([c.num_examples for c in self.clients]), losses)

    def solve(self, params: Params, *, train: Select) -> Fit:
        """See :mod:`rondo.algorithms.parts.least_squares`; without steps nothing is solved. It is a Newton step from
        zero, exact for a quadratic loss. Raises ValueError if the loss is no quadratic function of the selected
        tensors."""
        solved = [self._minimum(k, params, train) for k in range(len(self.clients if self.steps else ()))]
        result = {**params, **stack_clients(solved)}
        self.fits.append(result)
        once = torch.ones(len(self.clients), dtype=torch.long)
        return Fit(result, once, torch.tensor([c.num_examples for c in self.clients]), self._loss()(result))

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
        """See :class:`~rondo.algorithms.parts.least_squares.LeastSquares`."""
        moments = []
        for k, client in enumerate(self.clients):
            seen = client_row(params, k)
            leaves = {n: t.clone().requires_grad_() for n, t in pick(seen, of).items()}
            gradients = []
            for row in range(client.num_examples):
                loss = self.loss(client.id, {**seen, **leaves}, self.base, [row])
                gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))]))
            rows = torch.stack(gradients)
            moments.append(rows.mT @ rows / len(rows))
        return torch.stack(moments)

    def _loss(self, rows: Sequence[Sequence[int]] | None = None) -> Loss:
        """The loss on all rows, or on the given ones of each client."""

        def whole(seen: Params) -> Tensor:
            values = []
            for k, client in enumerate(self.clients):
                some = () if rows is None else (rows[k],)
                values.append(self.loss(client.id, client_row(seen, k), self.base, *some))
            return torch.stack(values)

        def parts(share: float) -> tuple[Loss, Loss]:
            every = [range(c.num_examples) for c in self.clients] if rows is None else rows
            divided = [split_rows(len(mine), share) for mine in every]
            first, second = ([[mine[i] for i in d[k]] for mine, d in zip(every, divided, strict=True)] for k in (0, 1))
            return self._loss(first), self._loss(second)

        counts = [c.num_examples for c in self.clients] if rows is None else [len(mine) for mine in rows]
        return Loss(whole, parts, torch.tensor(counts))

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`."""
        return tuple(
            Upload(c, client_row(params, k), self._weight(c) if weight is None else float(weight[k]))
            for k, c in enumerate(self.clients)
        )

    def _weight(self, client: Client) -> float:
        return self.weights.get(client.id, float(client.num_examples))


class Testbed(Protocol):
    """A network, its clients and their data."""

    @property
    def weights(self) -> Mapping[str, Weight]:
        """The frozen matrices of the adapted layers by module path."""

    @property
    def params(self) -> Params:
        """The tensors that clients train, at their start."""

    @property
    def clients(self) -> tuple[Client, ...]: ...

    @property
    def rank(self) -> int: ...

    def changes(self, seen: Params, base: Mapping[str, GrowingSum]) -> dict[str, Tensor]:
        """Everything that decides the model's output: the change of each adapted layer's weight by module path, and
        all whole tensors."""

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None, /
    ) -> Tensor:
        """A :class:`NetworkLoss`: half the squared error, summed over outputs, averaged over examples."""


Data = Mapping[str, tuple[Tensor, Tensor]]
"""Inputs (rows, 5) and targets (rows, 3) by client id."""

Layer = Callable[[Tensor], Tensor]

BIAS, MEAN, HEAD = "second.bias", "buffer:first.mean", "head:out.weight"


def _divided(flat: Tensor, like: Params) -> dict[str, Tensor]:
    """Numbers (n,) as tensors of the names and shapes of ``like``; copies."""
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {n: part.reshape(t.shape).clone() for (n, t), part in zip(like.items(), parts, strict=True)}


@dataclass(frozen=True)
class Factored:
    """A problem whose layers have adapters."""

    weights: Mapping[str, Weight]
    params: Params
    data: Data
    clients: tuple[Client, ...]
    rank: int = 2

    def delta(self, seen: Params, base: Mapping[str, GrowingSum], path: str) -> Tensor:
        """The change that the network applies to one layer's weight: base change plus scale * B A. Where a router
        weighs pairs of factors, that of each pair, (pairs, out, in)."""
        a, b = seen[f"{path}.A"], seen[f"{path}.B"]
        if f"{path}.router" in seen:
            count = len(seen[f"{path}.router"])
            a, b = torch.stack(a.chunk(count, 0)), torch.stack(b.chunk(count, 1))
        change = self.weights[path].scale * (b @ a)
        return change + base[path].factors().dense() if path in base else change

    def layer(self, seen: Params, base: Mapping[str, GrowingSum], path: str) -> Layer:
        """One layer with its change, from (rows, in) to (rows, out)."""
        whole, gates = self.weights[path].matrix() + self.delta(seen, base, path), seen.get(f"{path}.router")
        if gates is None:
            return lambda x: x @ whole.mT
        # Weights sum to 1, so each pair may stand beside the whole frozen matrix.
        return lambda x: torch.einsum("np,poi,ni->no", torch.softmax(x @ gates.mT, -1), whole, x)

    def changes(self, seen: Params, base: Mapping[str, GrowingSum]) -> dict[str, Tensor]:
        """See :meth:`Testbed.changes`."""
        return {**{path: self.delta(seen, base, path) for path in self.weights}, **pick(seen, router | whole)}


@dataclass(frozen=True)
class TwoLayers(Factored):
    """``y = H tanh(W2 tanh(W1 x))`` with adapters on both layers: W1 (7, 5), W2 (7, 7), head H (3, 7).

    Each client draws its data from its own map, so that averaging is not trivial. With whole tensors beside the
    factors, W2 has a bias (7,), and the first layer's output is centred by its mean over the batch, of which a
    statistic (7,) is kept.

    >>> from rondo.testing import TwoLayers
    >>> problem = TwoLayers.make(seed=0, rank=2)
    >>> {name: tuple(tensor.shape) for name, tensor in problem.params.items()}
    {'first.A': (2, 5), 'first.B': (7, 2), 'second.A': (2, 7), 'second.B': (7, 2), 'head:out.weight': (3, 7)}
    >>> [(client.id, client.num_examples) for client in problem.clients]
    [('client-0', 4), ('client-1', 7), ('client-2', 10)]
    """

    @staticmethod
    def make(seed: int, *, rank: int = 2, clients: int = 3, beside: bool = False) -> TwoLayers:
        """A problem from ``seed``. Clients differ in their number of examples. ``beside``: whether there are whole
        tensors beside the factors and the head."""
        g = torch.Generator().manual_seed(seed)
        shapes = {"first": ((7, 5), 1.75), "second": ((7, 7), 0.5)}
        weights, params = {}, {}
        for path, ((out, inp), scale) in shapes.items():
            matrix = _normal(g, out, inp) / inp**0.5
            weights[path] = Weight((out, inp), scale, lambda matrix=matrix: matrix)  # type: ignore[misc]
            params[f"{path}.A"] = _normal(g, rank, inp) / inp**0.5
            params[f"{path}.B"] = torch.zeros(out, rank, dtype=torch.float64)
        params[HEAD] = _normal(g, 3, 7) / 7**0.5
        members, data = _clients(g, clients)
        if beside:
            params |= {BIAS: _normal(g, 7) / 7**0.5, MEAN: torch.zeros(7, dtype=torch.float64)}
        return TwoLayers(weights, params, data, members, rank)

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None, /
    ) -> Tensor:
        """See :meth:`Testbed.loss`."""
        return _loss(self.data[client], [self.layer(seen, base, path) for path in self.weights], seen, rows)


@dataclass(frozen=True)
class WholeLayers:
    """The network of :class:`TwoLayers` without factors: W1, W2, the bias and the head are trained as they are, and
    the statistic is kept.

    >>> from rondo.testing import WholeLayers
    >>> list(WholeLayers.make(seed=0).params)
    ['first.weight', 'buffer:first.mean', 'second.weight', 'second.bias', 'head:out.weight']
    """

    params: Params
    data: Data
    clients: tuple[Client, ...]
    weights: Mapping[str, Weight] = field(default_factory=dict)
    rank: int = 0

    @staticmethod
    def make(seed: int, *, clients: int = 3) -> WholeLayers:
        """A problem from ``seed``. Clients differ in their number of examples."""
        g = torch.Generator().manual_seed(seed)
        params = {
            "first.weight": _normal(g, 7, 5) / 5**0.5,
            MEAN: torch.zeros(7, dtype=torch.float64),
            "second.weight": _normal(g, 7, 7) / 7**0.5,
            BIAS: _normal(g, 7) / 7**0.5,
            HEAD: _normal(g, 3, 7) / 7**0.5,
        }
        members, data = _clients(g, clients)
        return WholeLayers(params, data, members)

    def changes(self, seen: Params, base: Mapping[str, GrowingSum]) -> dict[str, Tensor]:
        """See :meth:`Testbed.changes`."""
        return pick(seen, whole)

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None, /
    ) -> Tensor:
        """See :meth:`Testbed.loss`."""
        layers: list[Layer] = [lambda x, w=seen[f"{n}.weight"]: x @ w.mT for n in ("first", "second")]  # type: ignore[misc]
        return _loss(self.data[client], layers, seen, rows)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _clients(generator: torch.Generator, count: int) -> tuple[tuple[Client, ...], Data]:
    members = tuple(Client(f"client-{k}", 4 + 3 * k) for k in range(count))
    data = {}
    for c in members:
        x = _normal(generator, c.num_examples, 5)
        data[c.id] = (x, x @ _normal(generator, 5, 3))
    return members, data


def _loss(data: tuple[Tensor, Tensor], layers: Sequence[Layer], seen: Params, rows: Sequence[int] | None) -> Tensor:
    """The loss of the network of two ``layers``, with the whole tensors in ``seen``, on some or all ``rows``."""
    x, y = data if rows is None else (data[0][list(rows)], data[1][list(rows)])
    x = torch.tanh(layers[0](x))
    if MEAN in seen:
        mean = x.mean(0)
        with torch.no_grad():
            seen[MEAN].lerp_(mean, 0.1)
        x = x - mean
    x = layers[1](x)
    x = torch.tanh(x + seen[BIAS] if BIAS in seen else x)
    return 0.5 * (x @ seen[HEAD].mT - y).square().sum(-1).mean()
