"""The steps of a local training, plain or private, and the private ones of one client: example-level differential
privacy (DP-SGD, Abadi et al. 2016).

A unit is a row, or all rows of a person; the sum of its rows' gradients is clipped. Every row is a client of its own:
client code is batch-transparent, so an algorithm's objective gives one loss per row unchanged, and one backward pass
gives one gradient per row. Terms of the objective that depend on parameters only are in each row's gradient and are
clipped with it.

The clip bounds what one row more adds to a sum only if it changes no other row's gradient. So the dropout masks and the
augmentation of a row come from a seed of its own, whatever stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from rondo.algorithm import Loss, Objective
from rondo.data.units import Units
from rondo.params import Params
from rondo.privacy.guarantee import Guarantee
from rondo.privacy.mechanism.draws import Draws
from rondo.privacy.mechanism.noise import SecretStream
from rondo.tasks.task import Example

B = TypeVar("B")


@dataclass(frozen=True)
class Chance:
    """The random numbers of one client in a pass."""

    dropout: torch.Generator
    augmenting: torch.Generator


@dataclass(frozen=True)
class Training:
    """The tensors of one local training of K clients, and the loss that moves them."""

    trained: Params
    """Leaf tensors, (K, ...)."""
    used: Params
    """All tensors, (K, ...), among them the trained ones as they were before the first step."""
    objective: Objective
    optimizer: torch.optim.Optimizer | None
    """The optimizer of ``trained``; None if nothing is trained: a step is then a forward pass."""
    loss: Callable[[Sequence[Sequence[Example]], Sequence[Chance]], Loss]
    """The loss on a batch, one group of examples per client, with each client's random numbers."""


@dataclass(frozen=True)
class Taken:
    """One step of K clients; all of shape (K,)."""

    steps: Tensor
    """1 for a client that took the step, else 0."""
    rows: Tensor
    behind: Tensor
    """The rows behind the gradient."""
    loss: Tensor
    """The loss before the step; NaN where it is not told or no step was taken."""


class Steps(Protocol[B]):
    """The steps of one local training. ``B``: what one of them is taken on."""

    def batches(self, steps: int | None, epochs: int) -> Iterator[B]:
        """Each step's batch: ``steps`` of them, or those of ``epochs`` epochs."""

    def take(self, batch: B) -> Taken:
        """Take one step on ``batch``."""


@dataclass(frozen=True)
class Drawn:
    """A row that a step has drawn."""

    unit: int
    """The place of its unit among the units drawn."""
    row: Example
    seed: int
    """The seed of its random numbers in this step."""

    @property
    def chance(self) -> Chance:
        generator = torch.Generator().manual_seed(self.seed)
        return Chance(generator, generator)


@dataclass(frozen=True)
class Part:
    """Some rows of a step, which go through the network together."""

    unit: Tensor
    """The unit of each row, by its place among the units drawn, (rows,), ascending."""
    objective: Callable[[Params], Tensor]
    """As in :func:`row_gradients`."""
    goes_on: bool = False
    """Whether the last unit has more rows, in the next part."""


class PrivateSteps:
    """The draws of units and the noise of one local training of one client. See
    :class:`rondo.privacy.steps.Steps`.

    ``promise``: with ``clip``, ``noise`` and ``delta`` set.
    ``size``: expected rows of a step, of the client's ``rows``; at most all of them.
    ``at_once``: most rows of a pass.
    ``purpose``: one per client, attempt and local training, where a debug seed is set.
    ``spend``: called with the number of steps before the first one.
    ``digest``: of a row, by which a debug seed seeds its random numbers.
    """

    def __init__(
        self,
        training: Training,
        promise: Guarantee,
        size: int,
        rows: Sequence[Example],
        at_once: int,
        purpose: str,
        spend: Callable[[Draws, int], None],
        digest: Callable[[Example], str],
    ) -> None:
        assert isinstance(promise.clip, float)
        assert promise.noise is not None
        self._training, self._rows, self._at_once = training, rows, at_once
        self._units, self._spend = Units.of(rows), spend
        self.clip, self.deviation = promise.clip, promise.noise * promise.clip
        self.draws = Draws(size, Units.rows_of(rows))
        self._chance = SecretStream(promise.debug_seed, f"{purpose}/rows")
        self._noise = SecretStream(promise.debug_seed, f"{purpose}/noise")
        self._debug_seed, self._purpose, self._digest = promise.debug_seed, purpose, digest

    def batches(self, steps: int | None, epochs: int) -> Iterator[list[Drawn]]:
        """Poisson draws of units, of which any may be empty. Their number tells nothing of what was drawn."""
        count = self.draws.steps(steps, epochs)
        self._spend(self.draws, count)
        for step in range(count):
            drawn = self._chance.chosen(len(self._units), self.draws.probability)
            rows = [(k, self._rows[i]) for k, unit in enumerate(drawn) for i in self._units[unit]]
            yield [Drawn(k, row, self._seed(step, row)) for k, row in rows]

    def _seed(self, step: int, row: Example) -> int:
        """Secret bits of a row's own; with a debug seed those of the row itself, and not of its place."""
        purpose = "" if self._debug_seed is None else f"{self._purpose}/{step}/{self._digest(row)}"
        return int(SecretStream(self._debug_seed, purpose).words(1)[0])

    def take(self, batch: Sequence[Drawn]) -> Taken:
        """One step. Its loss and the number of rows drawn are secrets, so the expected number is told."""
        training = self._training
        if training.optimizer is not None:
            for name, gradient in self.gradient(training.trained, self._parts(batch)).items():
                training.trained[name].grad = gradient.to(training.trained[name].dtype)
            training.optimizer.step()
        expected = torch.tensor([self.draws.expected])
        return Taken(torch.ones(1, dtype=torch.long), expected, expected, torch.full((1,), math.nan))

    def gradient(self, trained: Params, parts: Iterable[Part]) -> dict[str, Tensor]:
        """The clipped and noised gradient of a step by tensor, float64, (1, ...); noise alone without parts.

        ``trained``: (1, ...).

        The gradients of one part are in memory at a time, and that of a unit whose rows are in several.
        """
        sums = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in trained.items()}
        begun: dict[str, Tensor] = {}
        for part in parts:
            gradients = row_gradients(trained, torch.zeros_like(part.unit), part.objective)
            gradients = _of_units(gradients, part.unit, begun)
            begun = {n: g[-1:] for n, g in gradients.items()} if part.goes_on else {}
            whole = {n: g[:-1] for n, g in gradients.items()} if part.goes_on else gradients
            count = len(next(iter(whole.values())))
            owner = torch.zeros(count, dtype=torch.long)
            for name, total in clipped_sums(whole, owner, 1, self.clip).items():
                sums[name] += total
        return add_noise(sums, self.deviation, [self._noise], torch.tensor([self.draws.expected]))

    def _parts(self, batch: Sequence[Drawn]) -> Iterator[Part]:
        """The parts of a batch, in which each row is a client of its own."""
        training = self._training
        for start in range(0, len(batch), self._at_once):
            part, after = batch[start : start + self._at_once], batch[start + self._at_once :]
            loss = training.loss([[drawn.row] for drawn in part], [drawn.chance for drawn in part])
            objective = partial(_of_rows, len(part), training.used, training.objective, loss)
            goes_on = bool(after) and after[0].unit == part[-1].unit
            yield Part(torch.tensor([drawn.unit for drawn in part]), objective, goes_on)


def _of_units(gradients: dict[str, Tensor], unit: Tensor, begun: Params) -> dict[str, Tensor]:
    """The gradient of each unit, (units, ...): the sum over its rows, and, for the first, what has ``begun`` in the
    part before."""
    place = torch.cat([unit.new_zeros(1), (unit.diff() != 0).long()]).cumsum(0)
    if len(place) == int(place[-1]) + 1 and not begun:
        return gradients
    summed = {}
    for name, gradient in gradients.items():
        total = gradient.new_zeros((int(place[-1]) + 1, *gradient.shape[1:]), dtype=torch.float64)
        total.index_add_(0, place.to(gradient.device), gradient.double())
        if begun:
            total[0] += begun[name][0]
        summed[name] = total
    return summed


def row_gradients(trained: Params, owner: Tensor, objective: Callable[[Params], Tensor]) -> dict[str, Tensor]:
    """Gradient of each row's objective by tensor, (rows, ...).

    ``trained``: tensors with the client axis, (K, ...).
    ``owner``: the client of each row, (rows,).
    ``objective``: losses (rows,) of tensors (rows, ...), one set of tensors per row.
    """
    leaves = {n: t.detach()[owner.to(t.device)].requires_grad_() for n, t in trained.items()}
    value = objective(leaves)
    grads = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def clipped_sums(gradients: Params, owner: Tensor, clients: int, clip: float) -> dict[str, Tensor]:
    """Sum over each client's units of their gradients, each scaled to an L2 norm of at most ``clip`` over all tensors:
    float64, (K, ...).

    ``gradients``: by tensor, (units, ...).
    ``owner``: the client of each unit, (units,).

    Units whose norm is not finite count as zero: one bad unit must neither stop the step nor pass the clip.
    """
    norm = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64) for g in gradients.values()])
    norm = torch.linalg.vector_norm(norm, dim=0)
    scale = torch.where(norm > clip, clip / norm, torch.ones_like(norm))
    sums = {}
    for name, gradient in gradients.items():
        shape = (-1,) + (1,) * (gradient.dim() - 1)
        kept = torch.where(norm.isfinite().reshape(shape), gradient.double() * scale.reshape(shape), 0.0)
        sums[name] = kept.new_zeros((clients, *kept.shape[1:])).index_add_(0, owner.to(kept.device), kept)
    return sums


def add_noise(sums: Params, deviation: float, streams: Sequence[SecretStream], expected: Tensor) -> dict[str, Tensor]:
    """``(sums + N(0, deviation^2)) / expected``, float64, (K, ...). A client without rows gets its noise too.

    ``deviation``: noise multiplier times clip.
    ``streams``: each client's own, K of them.
    ``expected``: expected number of rows per step, (K,), known beforehand: the drawn number is a secret.
    """
    result = {}
    for name, total in sums.items():
        noise = torch.stack([s.normal(total[0].numel()) for s in streams]).reshape(total.shape).to(total.device)
        result[name] = (total + deviation * noise) / expected.to(total).reshape((-1,) + (1,) * (total.dim() - 1))
    return result


def _of_rows(count: int, used: Params, objective: Objective, loss: Loss, leaves: Params) -> Tensor:
    """``objective`` of ``count`` rows, (rows,). ``used``: tensors of one client, (1, ...), in which ``leaves`` replace
    those that are trained, (rows, ...)."""

    def wide(tensors: Params) -> dict[str, Tensor]:
        return {n: t if len(t) == count else t.expand(count, *t.shape[1:]) for n, t in tensors.items()}

    # A method may put tensors of its own into what the network sees, beside those that it is given.
    by_row = Loss(lambda seen: loss(wide(seen)), loss.split, loss.rows)
    return objective({**wide(used), **leaves}, by_row)
