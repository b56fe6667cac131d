"""The one training loop: local training of one client or of a cohort, each client on its own rows.

All tensors have a leading client axis, and losses have shape (K,). A
cohort shares the work of the frozen layers. Each client has its own data order, dropout masks, gradient norm and end.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rondo.algorithm import (
    Client,
    ClientFailed,
    Fit,
    FitOptions,
    Loss,
    Objective,
    Round,
    Trainer,
    Upload,
    Uploads,
    plain,
    split_rows,
)
from rondo.config.schema import ClientsConfig, PrivacyConfig, TrainConfig
from rondo.engine.client.accumulation import Part, mean_loss, split
from rondo.engine.client.flops import Flops
from rondo.engine.client.least_squares import minimiser
from rondo.engine.client.private_step import PrivateSteps
from rondo.errors import ConfigError, StopRequested
from rondo.models.networks.network import Base, Network
from rondo.models.networks.rows import Rows, to_device
from rondo.models.shortcuts.head_inputs import HeadInputs, head_inputs
from rondo.models.shortcuts.prefix import Prefix, States
from rondo.params import Params, Select, buffer, client_row, head, pick
from rondo.tasks.task import Batch, Example, Task

_GROUPED_BATCHES = 50
"""Length grouping sorts within this many batches at a time, so batches still differ between epochs."""


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator, *, group_by_length: bool
) -> Iterator[list[Example]]:
    """One epoch of batches, in an order drawn from ``generator``. ``group_by_length`` puts rows of similar length in
    one batch, which saves padding; the order of the batches is still random."""
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
    privacy: PrivacyConfig | None = None
    """Example-level differential privacy of every fit, of a cohort of one client: what methods close over then has a
    client axis of 1, which broadcasts to rows. Its losses are not told, because they have no noise."""
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
        if self.privacy is not None and len(self.clients) > 1:
            raise ValueError("private steps are of one client at a time")
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
        private = self._private(stream)
        trained = {n: t.detach().clone().requires_grad_() for n, t in pick(params, train & ~buffer).items()}
        leaves = list(trained.values())
        # A forward pass updates statistics in place: give it copies, which count if they are to be trained.
        statistics = {n: t.detach().clone() for n, t in pick(params, buffer).items()}
        used = {**params, **statistics}
        # Without leaves a fit is forward passes, which update statistics.
        optimizer = self._optimizer(leaves, self.lr if options.lr is None else options.lr) if leaves else None
        dropout = [self.round.attempt_generator("dropout", c.id, stream) for c in self.clients]
        augmenting = [self.round.attempt_generator("augment", c.id, stream) for c in self.clients]
        device = self.network.device
        shortened = objective is plain and private is None
        kept = self._head_inputs(params, trained, steps, epochs) if shortened else None
        alive = torch.ones(len(self.clients), dtype=torch.bool, device=device)
        losses: list[Tensor] = []
        taken = torch.zeros(len(self.clients), dtype=torch.long)
        rows = torch.zeros(len(self.clients), dtype=torch.long)
        behind = torch.zeros(len(self.clients), dtype=torch.long)
        for counts, batch in self._steps(stream, steps, 1 if epochs is None else epochs, private):
            if self.stop is not None and self.stop.is_set():
                raise StopRequested
            if private is not None:
                if optimizer is not None:
                    parts = self._row_objectives(batch[0], objective, used, dropout, augmenting)
                    for name, gradient in private.gradient(trained, parts).items():
                        trained[name].grad = gradient.to(trained[name].dtype)
                    optimizer.step()
                taken += 1
                rows += private.expected  # the number drawn is a secret
                behind += private.expected
                losses.append(torch.full((1,), math.nan))
            else:
                loss, self._parted = self._loss(batch, dropout, augmenting, kept), None
                value = objective({**used, **trained}, loss)
                has_rows = torch.tensor([n > 0 for n in counts])
                taken += has_rows
                rows += torch.tensor(counts)
                behind += torch.tensor(counts if self._parted is None else self._parted)
                training = to_device(has_rows, device)
                alive = alive & (value.detach().isfinite() | ~training)
                losses.append(torch.where(training, value.detach(), math.nan))
                if optimizer is not None:
                    self._take_step(optimizer, leaves, value, alive & training)
                # Free these and the gradients before the next forward pass: small leftovers would break up the memory
                # that it takes (docs/log/decisions.md, "Page faults and freed memory").
                del loss, value
            if optimizer is not None:
                with torch.no_grad():
                    for name, tensor in options.project(trained).items():
                        trained[name].copy_(tensor)
        result = {n: t.detach() for n, t in trained.items()} | pick(statistics, train)
        final = {n: result.get(n, t) for n, t in params.items()}
        table = torch.stack(losses).cpu() if losses else torch.zeros(0, len(self.clients))
        self.losses.append(table)
        self.work.append((taken, behind))
        # A row whose loss is not finite does not count in a private step, so no loss is a failure there.
        self.find_failed(final, table if private is None else table.nan_to_num(0.0), taken)
        mean = table.nan_to_num(0.0).sum(0) / taken.clamp_min(1)
        return Fit(final, taken, rows, mean)

    def _take_step(
        self, optimizer: torch.optim.Optimizer, leaves: Sequence[Tensor], value: Tensor, stepping: Tensor
    ) -> None:
        """One step of the clients that are ``stepping``, shape (K,), down the gradient of ``value``, shape (K,)."""
        torch.where(stepping, value, 0.0).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            if self.config.max_grad_norm > 0:
                _clip(leaves, self.config.max_grad_norm)
            # Restore clients that do not step: momentum and decay would move them even without a gradient.
            # On an accelerator always keep a copy, because asking whether all step would wait for the device.
            all_step = self.network.device.type == "cpu" and bool(stepping.all())
            copies = None if all_step else [t.detach().clone() for t in leaves]
            optimizer.step()
            if copies is not None:
                for tensor, before in zip(leaves, copies, strict=True):
                    tensor.copy_(torch.where(_as_wide(stepping, tensor), tensor, before))
        optimizer.zero_grad(set_to_none=True)

    def solve(self, params: Params, *, train: Select) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.solve`. All rows of the cohort are in one call; adapter dropout is off."""
        self._must_be_open("an exact minimiser")
        self._must_have_rows()
        self.flops = None  # a least-squares solution is no pass
        batch = [list(examples) for examples in self.examples]
        rows = Rows.of(batch, self.task.lengths).to(self.network.device)
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
        """See :meth:`rondo.algorithm.Trainer.second_moment`. Every row is a client of its own in one call."""
        self._must_be_open("a moment of the rows' gradients")
        self._must_have_rows()
        self.flops = None
        batch = [[e] for examples in self.examples for e in examples]
        rows = Rows.of(batch, self.task.lengths).to(self.network.device)
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

    def _steps(
        self, stream: int, steps: int | None, epochs: int, private: PrivateSteps | None
    ) -> Iterator[tuple[tuple[int, ...], list[list[Example]]]]:
        """Batches of all clients, step by step, with each client's number of rows. A client that is done has none, as
        has a draw of ``private`` steps that is empty."""
        if private is not None:
            for drawn in private.batches(self.examples[0], steps, epochs):
                yield (len(drawn),), [drawn]
            return
        streams = [
            self._stream(examples, self.round.attempt_generator("data", client.id, stream), steps, epochs)
            for client, examples in zip(self.clients, self.examples, strict=True)
        ]
        while any(batch := [next(batches_left, []) for batches_left in streams]):
            yield tuple(map(len, batch)), batch

    def _stream(
        self, examples: Sequence[Example], generator: torch.Generator, steps: int | None, epochs: int
    ) -> Iterator[list[Example]]:
        """Batches of ``epochs`` epochs, or of ``steps`` steps over as many epochs as they take."""
        done = 0
        while (done < steps) if steps is not None else (epochs > 0):
            epochs -= 1
            for batch in batches(
                examples, self.config.batch_size, generator, group_by_length=self.config.length_grouping
            ):
                if steps is not None and done == steps:
                    return
                done += 1
                yield batch

    def _optimizer(self, tensors: list[Tensor], lr: float) -> torch.optim.Optimizer:
        config = self.config
        if config.optimizer == "adamw":
            return torch.optim.AdamW(tensors, lr=lr, weight_decay=config.weight_decay)
        return torch.optim.SGD(tensors, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay)

    def _loss(
        self,
        batch: Sequence[Sequence[Example]],
        dropout: Sequence[torch.Generator],
        augmenting: Sequence[torch.Generator],
        kept: HeadInputs | None = None,
    ) -> Loss:
        """The loss on a batch, one group of examples per client. ``kept``: from the head's inputs on."""
        passes = [self._pass(rows, dropout, augmenting, kept) for rows in split(batch, self.config.micro_batch)]

        def whole(seen: Params) -> Tensor:
            return mean_loss(passes, seen)

        def parts(share: float) -> tuple[Loss, Loss]:
            self._must_be_open("parts of a batch")
            divided = [split_rows(len(group), share) for group in batch]
            self._parted = [min(map(len, parts)) for parts in divided]
            first, second = ([[g[i] for i in d[k]] for g, d in zip(batch, divided, strict=True)] for k in (0, 1))
            return self._loss(first, dropout, augmenting, kept), self._loss(second, dropout, augmenting, kept)

        return Loss(whole, parts, to_device(torch.tensor([len(group) for group in batch]), self.network.device))

    def _private(self, stream: int) -> PrivateSteps | None:
        """The private steps of fit number ``stream`` in this round; None where steps are not private."""
        if self.privacy is None:
            return None
        if len(self.examples[0]) != self.clients[0].num_examples:
            raise ValueError("epsilon is computed from the client's number of rows, and it trains on another number")
        purpose = f"{self.round.attempt}/{stream}/{self.clients[0].id}"
        return PrivateSteps(self.privacy, self.config.batch_size, len(self.examples[0]), purpose)

    def _row_objectives(
        self,
        batch: Sequence[Example],
        objective: Objective,
        used: Params,
        dropout: Sequence[torch.Generator],
        augmenting: Sequence[torch.Generator],
    ) -> Iterator[tuple[int, Callable[[Params], Tensor]]]:
        """Parts of a client's batch: the number of rows, and the objective with each row a client of its own. A part
        has as many rows as a step without privacy has at most in one pass, whatever was drawn."""
        network = self.network
        alone = network.one_at_a_time is not None or network.minds_padding
        size = 1 if alone else min(self.config.batch_size, self.config.micro_batch or self.config.batch_size)
        for start in range(0, len(batch), size):
            part = batch[start : start + size]
            count = len(part)
            loss = self._loss([[e] for e in part], [*dropout] * count, [*augmenting] * count)
            yield count, partial(_of_rows, count, used, objective, loss)

    def _must_be_open(self, what: str) -> None:
        if self.privacy is not None:
            message = f"the method asks for {what}, to which no noise can be added: take another method"
            raise ConfigError.at("privacy.unit", message)

    def _pass(
        self,
        batch: Sequence[Sequence[Example]],
        dropout: Sequence[torch.Generator],
        augmenting: Sequence[torch.Generator],
        kept: HeadInputs | None,
    ) -> Part:
        """One forward pass over a batch or a part of it."""
        rows = Rows.of(batch, self.task.lengths).to(self.network.device)
        inputs, targets, hidden = self._to_device(batch, augmenting)
        if kept is not None:
            inputs = kept.of([e for group in batch for e in group])

        def summed(seen: Params) -> tuple[Tensor, Tensor]:
            if self.flops is not None:
                self._count(self.flops, seen, batch)
            return self._sums(self._output(seen, inputs, hidden, rows, dropout), targets, rows)

        return summed

    def _count(self, flops: Flops, seen: Params, batch: Sequence[Sequence[Example]]) -> None:
        trained = {n for n, t in seen.items() if t.requires_grad} if torch.is_grad_enabled() else ()
        for k, group in enumerate(batch):
            self._operations[k if self.privacy is None else 0] += flops.of_pass(
                trained, [self.task.lengths(e) for e in group]
            )

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


def _of_rows(count: int, used: Params, objective: Objective, loss: Loss, leaves: Params) -> Tensor:
    """``objective`` of ``count`` rows, (rows,). ``used``: tensors of one client, (1, ...), in which ``leaves`` replace
    those that are trained, (rows, ...)."""

    def wide(tensors: Params) -> dict[str, Tensor]:
        return {n: t if len(t) == count else t.expand(count, *t.shape[1:]) for n, t in tensors.items()}

    # A method may put tensors of its own into what the network sees, beside those that it is given.
    by_row = Loss(lambda seen: loss(wide(seen)), loss.parts, loss.rows)
    return objective({**wide(used), **leaves}, by_row)


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
