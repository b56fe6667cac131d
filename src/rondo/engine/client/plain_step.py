"""Steps without privacy, of one client or of a cohort: their batches, drawn from a stream of the run's seed, the loss
in parts of a batch, and the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rondo.config.schema import TrainConfig
from rondo.data.units import Units
from rondo.models.networks.rows import to_device
from rondo.params import Params
from rondo.privacy.steps import Chance, Taken, Training
from rondo.tasks.task import Example

Part: TypeAlias = Callable[[Params], tuple[Tensor, Tensor]]
"""The sum of the losses of some rows and the number of their targets, both of shape (K,), given the network's
tensors."""


def split(batch: Sequence[Sequence[Example]], size: int | None) -> list[list[Sequence[Example]]]:
    """A batch, one group of examples per client, in parts of at most ``size`` examples of each; None keeps it whole."""
    longest = max(map(len, batch))
    step = longest if size is None else size
    return [[group[start : start + step] for group in batch] for start in range(0, longest, step)]


def mean_loss(parts: Sequence[Part], seen: Params) -> Tensor:
    """Each client's mean loss over the targets of all parts, shape (K,). With several parts it is differentiable once.

    ``seen``: the network's tensors, with a client axis.
    """
    names = [n for n, t in seen.items() if t.requires_grad]
    if len(parts) > 1 and names and torch.is_grad_enabled():
        losses: Tensor = _Accumulated.apply(parts, seen, names, *(seen[n] for n in names))  # type: ignore[no-untyped-call]
        return losses
    sums, counts = _added(part(seen) for part in parts)
    return sums / counts


def _added(pairs: Any) -> tuple[Tensor, Tensor]:
    sums, counts = zip(*pairs, strict=True)
    return sum(sums[1:], sums[0]), sum(counts[1:], counts[0]).clamp_min(1)


class _Accumulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Sequence[Part], seen: Params, names: Sequence[str], *tensors: Tensor) -> Tensor:
        totals = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in tensors]

        def differentiated(part: Part) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in tensors]
                sums, counts = part({**seen, **dict(zip(names, leaves, strict=True))})
                total_loss = sums.sum()
            if sums.requires_grad:
                # A client's sum depends on the client's own tensors only, so one pass gives every client its gradient.
                grads = torch.autograd.grad(total_loss, leaves, allow_unused=True)
                for total, grad in zip(totals, grads, strict=True):
                    if grad is not None:
                        total += grad
            return sums.detach(), counts

        sums, counts = _added(map(differentiated, parts))
        ctx.save_for_backward(counts, *totals)
        return sums / counts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        counts, *totals = ctx.saved_tensors
        share = grad / counts
        return None, None, None, *(t * share.to(t.dtype).reshape(-1, *[1] * (t.dim() - 1)) for t in totals)


_GROUPED_BATCHES = 50
"""Length grouping sorts within this many batches at a time, so batches still differ between epochs."""


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator, *, group_by_length: bool, least: int = 1
) -> Iterator[list[Example]]:
    """One epoch of batches, in an order drawn from ``generator``. ``group_by_length`` puts rows of similar length in
    one batch, which saves padding; the order of the batches is still random. A last, smaller batch of fewer than
    ``least`` examples joins those before it."""
    order = torch.randperm(len(examples), generator=generator).tolist()
    if group_by_length:
        window = size * _GROUPED_BATCHES
        pools = [order[i : i + window] for i in range(0, len(order), window)]
        order = [i for pool in pools for i in sorted(pool, key=lambda i: examples[i].cost, reverse=True)]
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    while len(groups) > 1 and len(groups[-1]) != size and len(groups[-1]) < least:
        rest = groups.pop()
        groups[-1] = groups[-1] + rest
    if group_by_length:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield [examples[i] for i in group]


def stream_of(
    examples: Sequence[Example], generator: torch.Generator, config: TrainConfig, steps: int | None, epochs: int
) -> Iterator[list[Example]]:
    """Batches of ``epochs`` epochs, or of ``steps`` steps over as many epochs as they take; more of them where examples
    come in blocks."""
    units = Units.of(examples)
    if len(units) < len(examples):
        yield from _of_blocks(examples, units, generator, config, steps, epochs)
        return
    done = 0
    while (done < steps) if steps is not None else (epochs > 0):
        epochs -= 1
        for batch in batches(examples, config.batch_size, generator, group_by_length=config.length_grouping):
            if steps is not None and done == steps:
                return
            done += 1
            yield batch


def _of_blocks(
    examples: Sequence[Example],
    blocks: Sequence[Sequence[int]],
    generator: torch.Generator,
    config: TrainConfig,
    steps: int | None,
    epochs: int,
) -> Iterator[list[Example]]:
    """As :func:`stream_of`. A pass over a part of the examples is one over whole blocks, which are drawn, and no step
    is of fewer examples than the smallest block has, except where all are. So what is behind several trainings differs
    by blocks. ``blocks``: the places of each one's examples."""
    size, least = config.batch_size, min(map(len, blocks))
    left = steps if steps is not None else epochs * math.ceil(len(examples) / size)
    while left > 0:
        places = [i for block in _drawn(blocks, left * size, generator) for i in block]
        seen = examples if len(places) == len(examples) else [examples[i] for i in sorted(places)]
        yield from batches(seen, size, generator, group_by_length=config.length_grouping, least=least)
        left -= math.ceil(len(seen) / size)


def _drawn(blocks: Sequence[Sequence[int]], count: int, generator: torch.Generator) -> Iterator[Sequence[int]]:
    """Blocks of at least ``count`` examples together, drawn at random; all where these are no more."""
    if sum(map(len, blocks)) <= count:
        yield from blocks
        return
    for number in torch.randperm(len(blocks), generator=generator).tolist():
        if count <= 0:
            return
        count -= len(blocks[number])
        yield blocks[number]


class PlainSteps:
    """The steps of one local training of K clients. See :class:`rondo.privacy.steps.Steps`.

    ``rows``: each client's examples.
    ``generators``: each client's stream of data.
    ``chances``: each client's other random numbers.
    ``parted``: gives the rows of the smaller part of each client's batch, where the objective has split it; else None.
    """

    def __init__(
        self,
        training: Training,
        config: TrainConfig,
        rows: Sequence[Sequence[Example]],
        generators: Sequence[torch.Generator],
        chances: Sequence[Chance],
        device: torch.device,
        parted: Callable[[], Sequence[int] | None],
    ) -> None:
        self._training, self._config, self._device, self._parted = training, config, device, parted
        self._rows, self._generators, self._chances = rows, generators, chances
        self._alive = torch.ones(len(rows), dtype=torch.bool, device=device)

    def batches(self, steps: int | None, epochs: int) -> Iterator[list[list[Example]]]:
        """Batches of all clients, step by step. A client that is done has no rows."""
        streams = [
            stream_of(examples, generator, self._config, steps, epochs)
            for examples, generator in zip(self._rows, self._generators, strict=True)
        ]
        while any(batch := [next(left, []) for left in streams]):
            yield batch

    def take(self, batch: Sequence[Sequence[Example]]) -> Taken:
        """One step of the clients with rows in ``batch``. A client whose loss is not finite takes no further one."""
        training = self._training
        value = training.objective({**training.used, **training.trained}, training.loss(batch, self._chances))
        rows, parted = torch.tensor([len(group) for group in batch]), self._parted()
        has_rows = rows > 0
        training_now = to_device(has_rows, self._device)
        self._alive = self._alive & (value.detach().isfinite() | ~training_now)
        losses = torch.where(training_now, value.detach(), math.nan)
        if training.optimizer is not None:
            self._step(training.optimizer, value, self._alive & training_now)
        # The loss and its gradients go here, before the next forward pass: small leftovers would break up the memory
        # that it takes (docs/dev/log/decisions.md, "Page faults and freed memory").
        return Taken(has_rows.long(), rows, rows if parted is None else torch.tensor(parted), losses)

    def _step(self, optimizer: torch.optim.Optimizer, value: Tensor, stepping: Tensor) -> None:
        """One step of the clients that are ``stepping``, shape (K,), down the gradient of ``value``, shape (K,)."""
        leaves = list(self._training.trained.values())
        torch.where(stepping, value, 0.0).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            if self._config.max_grad_norm > 0:
                _clip(leaves, self._config.max_grad_norm)
            # Restore clients that do not step: momentum and decay would move them even without a gradient.
            # On an accelerator always keep a copy, because asking whether all step would wait for the device.
            all_step = self._device.type == "cpu" and bool(stepping.all())
            copies = None if all_step else [t.detach().clone() for t in leaves]
            optimizer.step()
            if copies is not None:
                for tensor, before in zip(leaves, copies, strict=True):
                    tensor.copy_(torch.where(_as_wide(stepping, tensor), tensor, before))
        optimizer.zero_grad(set_to_none=True)


def _clip(leaves: Sequence[Tensor], limit: float) -> None:
    """Scale each client's gradient to a norm over all tensors of at most ``limit``, as torch does for one model."""
    grads = [t.grad for t in leaves if t.grad is not None]
    if not grads:
        return
    norm = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in grads]).norm(dim=0)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(_as_wide(factor, grad))


def _as_wide(values: Tensor, like: Tensor) -> Tensor:
    """``values`` (K,) with as many axes as ``like`` (K, ...)."""
    return values.reshape(-1, *[1] * (like.dim() - 1))
