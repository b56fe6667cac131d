"""A small run of an algorithm, client by client, for the laws to inspect, and a task of least squares for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Shared, Upload, Weight
from rondo.engine.wire.serialization import canonical
from rondo.lowrank import GrowingSum
from rondo.params import Params, add_client_axis, client_row, stack_clients
from rondo.testing.testbed import Factored, SgdTrainer, Testbed, TwoLayers, WholeLayers

ROUNDS = 8
"""Rounds of a run that a law may look at: enough to see alternation, periods and stages."""


class LawBroken(AssertionError):
    """An algorithm breaks a law."""


class NotApplicable(Exception):
    """The law does not concern this algorithm; the message says why."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise LawBroken(message)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one client's part of a round."""

    upload: Upload
    local: Params
    before: Mapping[str, Tensor]
    """The change of every layer, and all whole tensors, in the model that the client received."""
    after: Mapping[str, Tensor]
    """The same in the model after training."""


def problems(algorithm: Algorithm[Any], seed: int) -> tuple[Testbed, ...]:
    """The problems from ``seed`` that ``algorithm`` must master: factors, at odd seeds beside whole tensors, and whole
    tensors alone unless it needs factors. A method that minimises exactly has one problem of least squares."""
    if algorithm.traits.least_squares:
        return (RegressionTestbed.make(seed, factors=algorithm.traits.needs_factors),)
    factors = TwoLayers.make(seed, beside=seed % 2 == 1)
    return (factors,) if algorithm.traits.needs_factors else (WholeLayers.make(seed), factors)


class Run:
    """One algorithm on one problem, one client at a time: the pieces of a round, which laws combine.

    ``problem``: the problem, in place of :class:`TwoLayers` from ``seed``.
    """

    def __init__(self, algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None, *, steps: int = 3) -> None:
        self.algorithm, self.steps = algorithm, steps
        self.skipped = 0
        """Attempts skipped so far."""
        self.problem: Any = TwoLayers.make(seed) if problem is None else problem
        self.clients = self.problem.clients
        # Tensors are laid out as a run keeps them, since the last bit of a product can depend on that.
        self.state = canonical(algorithm.init(self.problem.params, self.problem.weights, self.round(0)))
        self.locals: dict[str, Params] = {}

    def round(self, index: int) -> Round:
        return Round(index, ROUNDS, 0, len(self.clients), self.skipped)

    def shared(self, client: Client, index: int) -> Shared:
        return self.algorithm.broadcast(self.state, client, self.round(index))

    def local(self, client: Client, shared: Shared) -> Params:
        kept = self.locals.get(client.id)
        return self.algorithm.local_init(shared, client) if kept is None else kept

    def changes(self, shared: Shared, local: Params) -> dict[str, Tensor]:
        """The change of every layer's weight, and all whole tensors, as the network applies them."""
        changes: dict[str, Tensor] = self.problem.changes(self.algorithm.view(shared, local), shared.base)
        return changes

    def model(self, client: Client, index: int) -> dict[str, Tensor]:
        """:meth:`changes` of the model that ``client`` would use in round ``index``."""
        shared = self.shared(client, index)
        return self.changes(shared, self.local(client, shared))

    def train(self, clients: Sequence[Client], index: int) -> list[Outcome]:
        """Train ``clients`` as one cohort (their broadcasts have the same shapes) and store nothing."""
        broadcasts = [self.shared(c, index) for c in clients]
        locals_before = [self.local(c, s) for c, s in zip(clients, broadcasts, strict=True)]
        trainer = SgdTrainer(tuple(clients), self.round(index), self.problem.loss, broadcasts[0].base, self.steps)
        # A single client gets views of its own tensors, so the laws notice if it writes into them.
        stack = (lambda rows: add_client_axis(rows[0])) if len(clients) == 1 else stack_clients
        batched = replace(broadcasts[0], params=stack([s.params for s in broadcasts]))
        uploads, kept = self.algorithm.client_update(batched, stack(locals_before), trainer)
        require(len(uploads) == len(clients), f"{len(clients)} clients gave {len(uploads)} uploads")
        outcomes = []
        for k, upload in enumerate(uploads):
            new_local = client_row(kept, k)
            trained = client_row(trainer.fits[-1], k) if trainer.fits else broadcasts[k].params
            after = self.changes(replace(broadcasts[k], params={**broadcasts[k].params, **trained}), new_local)
            outcomes.append(Outcome(upload, new_local, self.changes(broadcasts[k], locals_before[k]), after))
        return outcomes

    def step(self, index: int, clients: Sequence[Client] | None = None) -> list[Outcome]:
        """Run a whole round, one client at a time."""
        outcomes = [self.train([c], index)[0] for c in (self.clients if clients is None else clients)]
        self.finish(outcomes, index)
        return outcomes

    def finish(self, outcomes: Sequence[Outcome], index: int) -> None:
        """Aggregate a round, and store what its clients keep."""
        self.locals = self.locals | {o.upload.client.id: canonical(o.local) for o in outcomes}
        self.state = canonical(self.algorithm.aggregate(self.state, [o.upload for o in outcomes], self.round(index)))

    def gap(self, one: Any, other: Any, index: int) -> float:
        """The largest difference between the models of two states, over all clients."""
        current, gaps = self.state, []
        for client in self.clients:
            models = []
            for self.state in (one, other):
                models.append(self.model(client, index))
            gaps.append(largest_gap(*models))
        self.state = current
        return max(gaps)


def largest_gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    require(a.keys() == b.keys(), f"names differ: {sorted(a.keys() ^ b.keys())}")
    # Count a NaN difference as infinite, since max() would drop it.
    gaps = (float((a[n] - b[n]).abs().nan_to_num(nan=math.inf).max()) for n in a if a[n].numel() > 0)
    return max(gaps, default=0.0)


BODY, HEAD = "plain.weight", "head:top.weight"


@dataclass(frozen=True)
class RegressionTestbed(Factored):
    """``y = (W + scale B A) x`` with factors, W (3, 5); without them ``y = H P x``, P (2, 5), head H (3, 2).

    Each client draws its data from its own map, so that averaging is not trivial.
    """

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

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None, /
    ) -> Tensor:
        """See :meth:`rondo.testing.testbed.Testbed.loss`."""
        x, y = self.data[client] if rows is None else (t[list(rows)] for t in self.data[client])
        if self.weights:
            matrix = self.weights["layer"].matrix() + self.delta(seen, base, "layer")
        else:
            matrix = seen[HEAD] @ seen[BODY]
        return 0.5 * (x @ matrix.mT - y).square().sum(-1).mean()
