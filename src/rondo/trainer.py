"""The one training loop: local training of one client on its own rows.

It implements :class:`rondo.algorithm.Trainer`. All tensors carry a leading client axis (of length 1 here), losses have
shape (K,), so that a cohort can take the same path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Fit, Loss, Objective, Round, Upload, Uploads, plain
from rondo.config import ClientsConfig, TrainConfig
from rondo.lowrank import LowRank
from rondo.model import Batch, Network
from rondo.params import Params, Select, client_row, everything
from rondo.tasks import Example, Task

_GROUPED_BATCHES = 50
"""Length grouping sorts within this many batches at a time, so that batches still differ from epoch to epoch."""


def learning_rate(config: TrainConfig, round: Round) -> float:
    """The rate of a round: a linear warm-up, then constant, or linear or cosine decay towards zero after the last."""
    if round.index < config.warmup_rounds:
        return config.lr * (round.index + 1) / (config.warmup_rounds + 1)
    done = (round.index - config.warmup_rounds) / (round.total - config.warmup_rounds)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[config.schedule]
    return config.lr * factor


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator, *, group_by_length: bool
) -> Iterator[list[Example]]:
    """One epoch of batches in an order drawn from ``generator``. With ``group_by_length``, rows of similar length
    come together, which saves padding; the order of the batches is random all the same."""
    order = torch.randperm(len(examples), generator=generator).tolist()
    if group_by_length:
        window = size * _GROUPED_BATCHES
        pools = [order[i : i + window] for i in range(0, len(order), window)]
        order = [i for pool in pools for i in sorted(pool, key=lambda i: examples[i].length, reverse=True)]
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    if group_by_length:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield [examples[i] for i in group]


@dataclass
class LocalTrainer:
    """Trains ``client`` on ``examples`` in ``round``; ``base`` is the change of the frozen base so far.

    Every ``fit`` has a fresh optimizer and the client's next data stream.
    """

    network: Network
    task: Task
    client: Client
    examples: Sequence[Example]
    round: Round
    train: TrainConfig
    weighting: ClientsConfig
    base: Mapping[str, tuple[LowRank, ...]]
    losses: list[float] = field(default_factory=list)
    """The loss of every step of every fit, for the record."""
    _fits: int = 0

    @property
    def clients(self) -> tuple[Client, ...]:
        return (self.client,)

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
        """See :meth:`rondo.algorithm.Trainer.fit`. Only the selected tensors get gradients, and none is computed below
        the lowest of them. Raises :class:`ClientFailed` at a loss that is not finite."""
        config, stream = self.train, self._fits
        self._fits += 1
        if steps is None and epochs is None:
            steps, epochs = config.local_steps, config.local_epochs
        if not self.examples:
            raise ClientFailed(self.client.id, "no_targets", "the client has nothing to train on")
        data = self.round.generator("data", self.client.id, stream)
        dropout = [self.round.generator("dropout", self.client.id, stream)]
        trained = {n: t.detach().clone().requires_grad_() for n, t in params.items() if train(n)}
        optimizer = self._optimizer(list(trained.values()), learning_rate(config, self.round) if lr is None else lr)
        losses: list[Tensor] = []
        seen = 0
        for batch in self._stream(data, steps, 1 if epochs is None else epochs):
            inputs, targets = self._to_device(self.task.collate(batch))
            loss = self._loss(inputs, targets, dropout)
            value = objective({**params, **trained}, loss)
            if not bool(torch.isfinite(value).all()):
                raise ClientFailed(self.client.id, "nonfinite_loss", f"step {len(losses)}, loss {value.item()}")
            optimizer.zero_grad(set_to_none=True)
            value.sum().backward()  # type: ignore[no-untyped-call]
            if config.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(list(trained.values()), config.max_grad_norm)
            optimizer.step()
            losses.append(value.detach())
            seen += len(batch)
        self.losses += [float(x) for x in losses]
        mean = torch.stack(losses).mean(0) if losses else torch.zeros(1)
        done = {n: trained[n].detach() if n in trained else t for n, t in params.items()}
        if not all(bool(t.isfinite().all()) for t in done.values()):
            raise ClientFailed(self.client.id, "nonfinite_parameters", f"after {len(losses)} steps")
        return Fit(done, torch.tensor([len(losses)]), torch.tensor([seen]), mean)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`."""
        if weight is not None:
            value = float(weight[0])
        else:
            value = float(self.client.num_examples) if self.weighting.weighting == "examples" else 1.0
        return (Upload(self.client, client_row(params, 0), value),)

    def _stream(self, generator: torch.Generator, steps: int | None, epochs: int) -> Iterator[list[Example]]:
        """Batches of ``epochs`` epochs, or of ``steps`` steps however many epochs that takes."""
        done = 0
        while (done < steps) if steps is not None else (epochs > 0):
            epochs -= 1
            for batch in batches(
                self.examples, self.train.batch_size, generator, group_by_length=self.train.length_grouping
            ):
                if steps is not None and done == steps:
                    return
                done += 1
                yield batch

    def _optimizer(self, tensors: list[Tensor], lr: float) -> torch.optim.Optimizer:
        config = self.train
        if config.optimizer == "adamw":
            return torch.optim.AdamW(tensors, lr=lr, weight_decay=config.weight_decay)
        return torch.optim.SGD(tensors, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay)

    def _loss(self, inputs: Batch, targets: Batch, dropout: Sequence[torch.Generator]) -> Loss:
        def loss(seen: Params) -> Tensor:
            with autocast(self.network.device, self.train.precision):
                logits = self.network(seen, self.base, inputs, dropout).logits
            return self.task.loss(logits, targets, 1)

        return loss

    def _to_device(self, both: tuple[Batch, Batch]) -> tuple[Batch, Batch]:
        inputs, targets = ({n: t.to(self.network.device) for n, t in part.items()} for part in both)
        return inputs, targets


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """bfloat16 matrix products where ``precision`` is bf16, else nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
