"""Steps without privacy, of one client or of a cohort."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rondo.config.schema import TrainConfig
from rondo.engine.client.batches import stream_of
from rondo.models.networks.rows import to_device
from rondo.privacy.steps.steps import Chance, Taken, Training
from rondo.tasks.task import Example


class PlainSteps:
    """The steps of one local training of K clients. See :class:`rondo.privacy.steps.steps.Steps`.

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
