"""The one training loop: local training of one client or of a cohort, each client on its own rows.

All tensors have a leading client axis, and losses have shape (K,). A
cohort shares the work of the frozen layers. Each client has its own data order, dropout masks, gradient norm and end.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rondo.algorithm import (
    Client,
    ClientFailed,
    Fit,
    FitOptions,
    Loss,
    Round,
    Trainer,
    Upload,
    Uploads,
    plain,
    split_rows,
)
from rondo.config.schema import ClientsConfig, TrainConfig
from rondo.data.units import Units
from rondo.engine.client.flops import Flops
from rondo.engine.client.least_squares import minimiser
from rondo.engine.client.optimizer import optimizer
from rondo.engine.client.plain_step import Part, PlainSteps, mean_loss, split
from rondo.errors import StopRequested
from rondo.models.networks.network import Base, Network
from rondo.models.networks.rows import Rows, to_device
from rondo.models.shortcuts.head_inputs import HeadInputs, head_inputs
from rondo.models.shortcuts.prefix import Prefix, States
from rondo.params import Params, Role, Select, buffer, client_row, head, pick, up
from rondo.privacy.guarantee import Guarantee
from rondo.privacy.mechanism.draws import Draws
from rondo.privacy.steps import Chance, PrivateSteps, Steps, Training
from rondo.tasks.task import Batch, Example, Task

Spend: TypeAlias = Callable[[Client, Draws, int], None]
"""Counts private steps of a client before they are taken."""

_ups = up | Select(frozenset({Role.PERSONAL_UP}))
"""B of every pair of factors."""


@dataclass
class CohortTrainer(Trainer):
    """Trains ``clients`` together, each on its own ``examples``.

    Every ``fit`` has a fresh optimizer and each client's next data stream. A client whose loss or tensors are not
    finite stops training and is listed in ``failed``; the other clients are not affected. ``upload`` leaves it out.
    """

    network: Network
    task: Task
    clients: tuple[Client, ...]
    examples: tuple[Sequence[Example], ...]
    round: Round
    config: TrainConfig
    weighting: ClientsConfig
    base: Base
    """The change of the frozen base so far."""
    prefix: Prefix | None = None
    states: States | None = None
    """States of all examples below the lowest adapted layer, given with the ``prefix`` that they replace."""
    stop: threading.Event | None = None
    """Checked before every step. Once it is set, ``fit`` raises :class:`StopRequested`."""
    flops: Flops | None = None
    """The operations of a pass; None counts none."""
    promise: Guarantee | None = None
    """Example-level differential privacy of every fit, of a cohort of one client: what methods close over then has a
    client axis of 1, which broadcasts to rows. Its losses are not told, because they have no noise."""
    spend: Spend = lambda client, draws, steps: None
    """Called before the private steps of a fit with their number. Raises :class:`ClientFailed` where they may not be
    taken."""
    failed: dict[str, ClientFailed] = field(default_factory=dict)
    """Failures by client id."""
    losses: list[Tensor] = field(default_factory=list)
    """Losses of every fit, shape (steps, K); NaN where a client took no step."""
    work: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Numbers of steps, and of rows behind their gradients, in every fit, both of shape (K,)."""
    _parted: Sequence[int] | None = None
    """Rows of the smaller part of each client's batch, where the objective has split it."""
    _fits: int = 0
    _operations: list[int] = field(default_factory=list)
    """Operations of all passes so far, by client."""

    def __post_init__(self) -> None:
        self._operations = [0] * len(self.clients)
        if self.promise is not None and len(self.clients) > 1:
            raise ValueError("private steps are of one client at a time")
        if self.promise is not None:
            self.flops = None  # the number of rows drawn is a secret, and operations would tell it
        self.lr = self.config.rate(self.round.index, self.round.total)

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.fit`. Only the selected tensors get gradients, and no gradient is computed
        below the lowest of them. Raises :class:`ClientFailed` where a client has no examples or every client of the
        cohort has failed."""
        config, stream = self.config, self._fits
        train, objective, epochs, steps = options.train, options.objective, options.epochs, options.steps
        self._fits += 1
        if steps is None and epochs is None:
            steps, epochs = config.local_steps, config.local_epochs
        self._must_have_rows()
        trained = {n: t.detach().clone().requires_grad_() for n, t in pick(params, train & ~buffer).items()}
        # A forward pass updates statistics in place: give it copies, which count if they are to be trained.
        statistics = {n: t.detach().clone() for n, t in pick(params, buffer).items()}
        shortened = objective is plain and self.promise is None
        kept = self._head_inputs(params, trained, steps, epochs) if shortened else None
        kind = self._kind(stream, trained, {**params, **statistics}, options, kept)
        losses: list[Tensor] = []
        taken, rows, behind = (torch.zeros(len(self.clients), dtype=torch.long) for _ in range(3))
        for batch in kind.batches(steps, 1 if epochs is None else epochs):
            if self.stop is not None and self.stop.is_set():
                raise StopRequested
            step = kind.take(batch)
            taken += step.steps
            rows += step.rows
            behind += step.behind
            losses.append(step.loss)
            if trained:
                with torch.no_grad():
                    for name, tensor in options.project(trained).items():
                        trained[name].copy_(tensor)
        result = {n: t.detach() for n, t in trained.items()} | pick(statistics, train)
        final = {n: result.get(n, t) for n, t in params.items()}
        table = torch.stack(losses).cpu() if losses else torch.zeros(0, len(self.clients))
        self.losses.append(table)
        self.work.append((taken, behind))
        # A row whose loss is not finite does not count in a private step, so no loss is a failure there.
        self.find_failed(final, table if self.promise is None else table.nan_to_num(0.0), taken)
        mean = table.nan_to_num(0.0).sum(0) / taken.clamp_min(1)
        return Fit(final, taken, rows, mean)

    def _kind(
        self, stream: int, trained: Params, used: Params, options: FitOptions, kept: HeadInputs | None
    ) -> Steps[Any]:
        """The steps of fit number ``stream`` in this round. ``kept``: see :meth:`_loss`."""
        config, clients, attempt = self.config, self.clients, self.round.attempt_generator
        lr = self.lr if options.lr is None else options.lr
        # Without tensors to train a fit is forward passes, which update statistics.
        stepping = optimizer(config, trained, lr, is_up=_ups) if trained else None

        def loss(batch: Sequence[Sequence[Example]], chances: Sequence[Chance]) -> Loss:
            self._parted = None
            return self._loss(batch, chances, kept)

        training = Training(trained, used, options.objective, stepping, loss)
        if self.promise is None:
            streams = [attempt("data", c.id, stream) for c in clients]
            chances = [Chance(attempt("dropout", c.id, stream), attempt("augment", c.id, stream)) for c in clients]
            device = self.network.device
            return PlainSteps(training, config, self.examples, streams, chances, device, lambda: self._parted)
        (client,), (rows,) = clients, self.examples
        if Units.rows_of(rows) != client.num_examples:
            raise ValueError("epsilon is computed from the client's number of rows, and it trains on another number")
        alone = self.network.one_at_a_time is not None or self.network.minds_padding is not False
        # A pass has as many rows as one without privacy has at most, whatever was drawn.
        at_once = 1 if alone else min(config.batch_size, config.micro_batch or config.batch_size)
        purpose = f"{self.round.attempt}/{stream}/{client.id}"
        return PrivateSteps(
            training,
            self.promise,
            config.batch_size,
            rows,
            at_once,
            purpose,
            partial(self.spend, client),
            lambda row: self.task.digest([row]),
        )

    def solve(self, params: Params, *, train: Select) -> Fit:
        """See :mod:`rondo.algorithms.parts.least_squares`. All rows are in one call, without dropout."""
        self._must_be_open("an exact minimiser")
        self._must_have_rows()
        self.flops = None  # a least-squares solution is no pass
        batch = [list(examples) for examples in self.examples]
        rows = Rows.of(batch, self.task).to(self.network.device)
        inputs, targets, hidden = self._to_device(batch, None)
        with torch.no_grad():
            output = partial(self._output, inputs=inputs, hidden=hidden, rows=rows)
            final = {**params, **minimiser(self.task, output, params, tuple(pick(params, train)), targets, rows)}
            loss = mean_loss([lambda seen: self._sums(output(seen), targets, rows)], final)
        once = torch.ones(len(self.clients), dtype=torch.long)
        self.losses.append(loss[None].cpu())
        self.work.append((once, torch.tensor(rows.counts)))
        self.find_failed(final, self.losses[-1], once)
        return Fit(final, once, torch.tensor(rows.counts), loss.cpu())

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        """See :mod:`rondo.algorithms.parts.least_squares`. Every row is a client of its own in one call."""
        self._must_be_open("a moment of the rows' gradients")
        self._must_have_rows()
        self.flops = None
        batch = [[e] for examples in self.examples for e in examples]
        rows = Rows.of(batch, self.task).to(self.network.device)
        inputs, targets, hidden = self._to_device(batch, None)
        owner = torch.arange(len(self.clients)).repeat_interleave(torch.tensor([len(e) for e in self.examples]))
        per_row = {n: t[owner.to(t.device)] for n, t in params.items()}
        leaves = {n: t.clone().requires_grad_() for n, t in pick(per_row, of & ~buffer).items()}
        sums, _ = self.task.loss(self._output({**per_row, **leaves}, inputs, hidden, rows), targets)
        grads = torch.autograd.grad(sums.sum(), list(leaves.values()), materialize_grads=True)
        flat = torch.cat([g.flatten(1) for g in grads], 1)
        parts = torch.split(flat, [len(e) for e in self.examples])
        return torch.stack([g.mT @ g / len(g) for g in parts])

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`. Clients in ``failed`` upload nothing."""
        uploads = []
        for k, client in enumerate(self.clients):
            if client.id in self.failed:
                continue
            default = float(client.num_examples) if self.weighting.weighting == "examples" else 1.0
            uploads.append(Upload(client, client_row(params, k), default if weight is None else float(weight[k])))
        return tuple(uploads)

    def mean_loss(self, index: int) -> float | None:
        """Mean loss over all steps of all fits of the client at place ``index`` in the cohort; None without a step."""
        losses = [float(x) for table in self.losses for x in table[:, index] if math.isfinite(x)]
        return sum(losses) / len(losses) if losses else None

    def operations(self, index: int) -> int | None:
        """Operations of the training so far of the client at place ``index`` in the cohort; None if not counted."""
        return None if self.flops is None else self._operations[index]

    def _loss(
        self, batch: Sequence[Sequence[Example]], chances: Sequence[Chance], kept: HeadInputs | None = None
    ) -> Loss:
        """The loss on a batch, one group of examples per client. ``kept``: from the head's inputs on."""
        passes = [self._pass(rows, chances, kept) for rows in split(batch, self.config.micro_batch)]

        def whole(seen: Params) -> Tensor:
            return mean_loss(passes, seen)

        def parts(share: float) -> tuple[Loss, Loss]:
            self._must_be_open("parts of a batch")
            divided = [split_rows(len(group), share) for group in batch]
            self._parted = [min(map(len, parts)) for parts in divided]
            first, second = ([[g[i] for i in d[k]] for g, d in zip(batch, divided, strict=True)] for k in (0, 1))
            return self._loss(first, chances, kept), self._loss(second, chances, kept)

        return Loss(whole, parts, to_device(torch.tensor([len(group) for group in batch]), self.network.device))

    def _must_be_open(self, what: str) -> None:
        if self.promise is not None:
            raise self.promise.no_noise_for(what)

    def _pass(self, batch: Sequence[Sequence[Example]], chances: Sequence[Chance], kept: HeadInputs | None) -> Part:
        """One forward pass over a batch or a part of it."""
        batch = [self.task.trained(group) for group in batch]
        rows = Rows.of(batch, self.task).to(self.network.device)
        rows = replace(rows, apart=self.promise is not None)
        inputs, targets, hidden = self._to_device(batch, [c.augmenting for c in chances])
        if kept is not None:
            inputs = kept.of([e for group in batch for e in group])

        def summed(seen: Params) -> tuple[Tensor, Tensor]:
            if self.flops is not None:
                self._count(self.flops, seen, batch)
            output = self._output(seen, inputs, hidden, rows, [c.dropout for c in chances])
            return self._sums(output, targets, rows)

        return summed

    def _count(self, flops: Flops, seen: Params, batch: Sequence[Sequence[Example]]) -> None:
        trained = {n for n, t in seen.items() if t.requires_grad} if torch.is_grad_enabled() else ()
        for k, group in enumerate(batch):
            lengths = [self.task.lengths(part) for e in group for part in self.task.sequences(e)]
            self._operations[k] += flops.of_pass(trained, lengths)

    def _output(
        self,
        seen: Params,
        inputs: Batch,
        hidden: Tensor | None,
        rows: Rows,
        dropout: Sequence[torch.Generator] | None = None,
    ) -> Tensor:
        replaced = self.prefix.replaced(hidden) if self.prefix is not None else contextlib.nullcontext()
        with replaced:
            return self.network(seen, self.base, inputs, dropout, rows)

    def _sums(self, output: Tensor, targets: Batch, rows: Rows) -> tuple[Tensor, Tensor]:
        """Each client's sum of losses and number of targets, both of shape (K,)."""
        sums, counts = self.task.loss(output, targets)
        return rows.sum(sums), rows.sum(counts.to(sums.dtype))

    def _head_inputs(self, params: Params, trained: Params, steps: int | None, epochs: int | None) -> HeadInputs | None:
        """The head's inputs of all examples, if a fit trains the head alone and sees examples more than once. An
        objective other than the plain loss could ask for the loss of another body."""
        network = self.network
        if network.head_layer is None or len(self.clients) > 1:
            return None
        (examples,), size = self.examples, self.config.batch_size
        again = steps > -(-len(examples) // size) if steps is not None else epochs is not None and epochs > 1
        if not again or not trained or not all(map(head, trained)):
            return None
        return head_inputs(network, self.task, params, self.base, examples, size)

    def _must_have_rows(self) -> None:
        for client, examples in zip(self.clients, self.examples, strict=True):
            if not examples:
                raise ClientFailed(client.id, "no_targets", "the client has nothing to train on")

    def _to_device(
        self, batch: Sequence[Sequence[Example]], augmenting: Sequence[torch.Generator] | None
    ) -> tuple[Batch, Batch, Tensor | None]:
        """Inputs, targets and hidden states of a batch; ``augmenting`` has a generator per client, None augments
        nothing."""
        examples = [e for group in batch for e in group]
        inputs, targets = self.task.collate(examples)
        if augmenting is not None:
            inputs = self.task.augment(inputs, [len(group) for group in batch], augmenting)
        device = self.network.device
        hidden = self.states.padded(examples) if self.states is not None else None
        inputs, targets = ({n: to_device(t, device) for n, t in part.items()} for part in (inputs, targets))
        return inputs, targets, None if hidden is None else to_device(hidden, device)

    def find_failed(self, final: Params, losses: Tensor, taken: Tensor) -> None:
        """Note the clients whose loss or tensors are not finite. Raises :class:`ClientFailed` where none is left."""
        finite = torch.ones(len(self.clients), dtype=torch.bool)
        for tensor in final.values():
            finite &= tensor.isfinite().reshape(len(finite), -1).all(1).cpu()
        for k, client in enumerate(self.clients):
            bad_steps = (~losses[: int(taken[k]), k].isfinite()).nonzero().flatten().tolist()
            if bad_steps:
                detail = f"step {bad_steps[0]}, loss {float(losses[bad_steps[0], k])}"
                self.failed.setdefault(client.id, ClientFailed(client.id, "nonfinite_loss", detail))
            elif not finite[k]:
                detail = f"after {int(taken[k])} steps"
                self.failed.setdefault(client.id, ClientFailed(client.id, "nonfinite_parameters", detail))
        if len(self.failed) == len(self.clients):
            raise self.failed[self.clients[0].id]
