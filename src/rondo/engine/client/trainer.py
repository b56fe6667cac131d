"""The one training loop: local training of one client or of a cohort, each on its own rows.

It implements :class:`rondo.algorithm.Trainer`. All tensors carry a leading client axis, losses have shape (K,). A
cohort shares the frozen layers' work; each client has its own data order, dropout masks, gradient norm and end.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Fit, Loss, Objective, Round, Upload, Uploads, plain
from rondo.config.schema import ClientsConfig, TrainConfig
from rondo.errors import StopRequested
from rondo.lowrank import LowRank
from rondo.models import attention
from rondo.models.call import Rows, to_device
from rondo.models.network import Network
from rondo.models.shortcuts.prefix import Prefix, States
from rondo.params import Params, Select, client_row, everything
from rondo.tasks.task import Batch, Example, Task

_GROUPED_BATCHES = 50
"""Length grouping sorts within this many batches at a time, so that batches still differ from epoch to epoch."""


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator, *, group_by_length: bool
) -> Iterator[list[Example]]:
    """One epoch of batches in an order drawn from ``generator``. With ``group_by_length``, rows of similar length
    come together, which saves padding; the order of the batches is random all the same."""
    order = torch.randperm(len(examples), generator=generator).tolist()
    if group_by_length:
        window = size * _GROUPED_BATCHES
        pools = [order[i : i + window] for i in range(0, len(order), window)]
        order = [i for pool in pools for i in sorted(pool, key=lambda i: examples[i].cost, reverse=True)]
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    if group_by_length:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield [examples[i] for i in group]


@dataclass
class CohortTrainer:
    """Trains ``clients`` together, each on its own ``examples``; ``base`` is the change of the frozen base so far.

    Every ``fit`` has a fresh optimizer and each client's next data stream. A client whose loss or tensors are not
    finite stops where it is and is listed in ``failed``; the others do not notice. ``upload`` leaves it out.
    """

    network: Network
    task: Task
    clients: tuple[Client, ...]
    examples: tuple[Sequence[Example], ...]
    round: Round
    train: TrainConfig
    weighting: ClientsConfig
    base: Mapping[str, tuple[LowRank, ...]]
    prefix: Prefix | None = None
    states: States | None = None
    """The states of all examples below the lowest adapted layer, with the ``prefix`` that they replace."""
    stop: threading.Event | None = None
    """Looked at before every step. Raises :class:`StopRequested` once it is set."""
    failed: dict[str, ClientFailed] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    """Losses (steps, K) of every fit; NaN where a client took no step."""
    _fits: int = 0

    @property
    def lr(self) -> float:
        """The run's learning rate in this round."""
        return self.train.rate(self.round.index, self.round.total)

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
        the lowest of them. Raises :class:`ClientFailed` where no client of the cohort is left."""
        config, stream = self.train, self._fits
        self._fits += 1
        if steps is None and epochs is None:
            steps, epochs = config.local_steps, config.local_epochs
        for client, examples in zip(self.clients, self.examples, strict=True):
            if not examples:
                raise ClientFailed(client.id, "no_targets", "the client has nothing to train on")
        trained = {n: t.detach().clone().requires_grad_() for n, t in params.items() if train(n)}
        leaves = list(trained.values())
        optimizer = self._optimizer(leaves, self.lr if lr is None else lr)
        dropout = [self.round.generator("dropout", c.id, stream) for c in self.clients]
        device = self.network.device
        alive = torch.ones(len(self.clients), dtype=torch.bool, device=device)
        losses: list[Tensor] = []
        taken = torch.zeros(len(self.clients), dtype=torch.long)
        seen = torch.zeros(len(self.clients), dtype=torch.long)
        for counts, batch in self._steps(stream, steps, 1 if epochs is None else epochs):
            if self.stop is not None and self.stop.is_set():
                raise StopRequested
            longest = padded = None
            if self.task.padded:
                longest = tuple(max((e.cost for e in one), default=0) for one in batch)
                padded = len({e.cost for one in batch for e in one}) > 1
            rows = Rows(counts, longest).to(device)
            inputs, targets, hidden = self._to_device(batch)
            loss = self._loss(inputs, targets, hidden, rows, dropout, padded)
            value = objective({**params, **trained}, loss)
            on = torch.tensor([n > 0 for n in counts])
            taken += on
            seen += torch.tensor(counts)
            there = to_device(on, device)
            alive = alive & (value.detach().isfinite() | ~there)
            stepping = alive & there
            losses.append(torch.where(there, value.detach(), math.nan))
            torch.where(stepping, value, 0.0).sum().backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                if config.max_grad_norm > 0:
                    _clip(leaves, config.max_grad_norm)
                # A client that does not step is put back: momentum and decay would move it even without a gradient.
                # An accelerator is not asked whether there is one: the answer would have to be waited for.
                every = device.type == "cpu" and bool(stepping.all())
                held = None if every else [t.detach().clone() for t in leaves]
                optimizer.step()
                if held is not None:
                    for tensor, before in zip(leaves, held, strict=True):
                        tensor.copy_(torch.where(_as_wide(stepping, tensor), tensor, before))
            # Not kept until the next forward pass, whose memory it would lie amidst
            # (docs/log/decisions.md, "Page faults and freed memory").
            optimizer.zero_grad(set_to_none=True)
            del loss, value, inputs, targets, hidden
        done = {n: trained[n].detach() if n in trained else t for n, t in params.items()}
        table = torch.stack(losses).cpu() if losses else torch.zeros(0, len(self.clients))
        self.losses.append(table)
        self._find_failed(done, table, taken)
        mean = table.nan_to_num(0.0).sum(0) / taken.clamp_min(1)
        return Fit(done, taken, seen, mean)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`; clients in ``failed`` have none."""
        uploads = []
        for k, client in enumerate(self.clients):
            if client.id in self.failed:
                continue
            value = float(client.num_examples) if self.weighting.weighting == "examples" else 1.0
            uploads.append(Upload(client, client_row(params, k), value if weight is None else float(weight[k])))
        return tuple(uploads)

    def mean_loss(self, index: int) -> float | None:
        """The mean over all steps of all fits of a client, by its place in the cohort."""
        each = [float(x) for table in self.losses for x in table[:, index] if math.isfinite(x)]
        return sum(each) / len(each) if each else None

    def _steps(
        self, stream: int, steps: int | None, epochs: int
    ) -> Iterator[tuple[tuple[int, ...], list[list[Example]]]]:
        """Batches of all clients, step by step, with the number of rows of each; a client that is done has none."""
        each = [
            self._stream(rows, self.round.generator("data", client.id, stream), steps, epochs)
            for client, rows in zip(self.clients, self.examples, strict=True)
        ]
        while any(batch := [next(one, []) for one in each]):
            yield tuple(map(len, batch)), batch

    def _stream(
        self, examples: Sequence[Example], generator: torch.Generator, steps: int | None, epochs: int
    ) -> Iterator[list[Example]]:
        """Batches of ``epochs`` epochs, or of ``steps`` steps however many epochs that takes."""
        done = 0
        while (done < steps) if steps is not None else (epochs > 0):
            epochs -= 1
            for batch in batches(
                examples, self.train.batch_size, generator, group_by_length=self.train.length_grouping
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

    def _loss(
        self,
        inputs: Batch,
        targets: Batch,
        hidden: Tensor | None,
        rows: Rows,
        dropout: Sequence[torch.Generator],
        padded: bool | None,
    ) -> Loss:
        def loss(seen: Params) -> Tensor:
            replaced = self.prefix.replaced(hidden) if self.prefix is not None else contextlib.nullcontext()
            with replaced, attention.padding(padded is not False):
                output = self.network(seen, self.base, inputs, dropout, rows)
            sums, counts = self.task.loss(output, targets)
            return rows.sum(sums) / rows.sum(counts.to(sums.dtype)).clamp_min(1)

        return loss

    def _to_device(self, batch: list[list[Example]]) -> tuple[Batch, Batch, Tensor | None]:
        examples = [e for one in batch for e in one]
        inputs, targets = self.task.collate(examples)
        device = self.network.device
        hidden = self.states.padded(examples) if self.states is not None else None
        inputs, targets = ({n: to_device(t, device) for n, t in part.items()} for part in (inputs, targets))
        return inputs, targets, None if hidden is None else to_device(hidden, device)

    def _find_failed(self, done: Params, losses: Tensor, taken: Tensor) -> None:
        """Note the clients that are not finite. Raises :class:`ClientFailed` where none is left."""
        finite = torch.ones(len(self.clients), dtype=torch.bool)
        for tensor in done.values():
            finite &= tensor.isfinite().flatten(1).all(1).cpu()
        for k, client in enumerate(self.clients):
            bad = (~losses[: int(taken[k]), k].isfinite()).nonzero().flatten().tolist()
            if bad:
                detail = f"step {bad[0]}, loss {float(losses[bad[0], k])}"
                self.failed.setdefault(client.id, ClientFailed(client.id, "nonfinite_loss", detail))
            elif not finite[k]:
                detail = f"after {int(taken[k])} steps"
                self.failed.setdefault(client.id, ClientFailed(client.id, "nonfinite_parameters", detail))
        if len(self.failed) == len(self.clients):
            raise self.failed[self.clients[0].id]


def _clip(leaves: Sequence[Tensor], limit: float) -> None:
    """Scale each client's gradient so that its norm over all tensors is at most ``limit`` (as torch does for one)."""
    grads = [t.grad for t in leaves if t.grad is not None]
    if not grads:
        return
    norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(_as_wide(factor, grad))


def _as_wide(each: Tensor, like: Tensor) -> Tensor:
    """(K,) with as many axes as ``like`` (K, ...)."""
    return each.reshape(-1, *[1] * (like.dim() - 1))
