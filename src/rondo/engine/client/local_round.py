"""A client's part of a round: local training of one client or of a cohort, and its upload."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, ClientFailed, Round, Shared, Trainer
from rondo.config.schema import RunConfig
from rondo.engine.client.flops import Flops
from rondo.engine.client.trainer import CohortTrainer, Spend
from rondo.engine.transport import Answer
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.models.networks.network import Network
from rondo.models.shortcuts.prefix import Prefix, States
from rondo.params import Params, client_row, on_device
from rondo.tasks.task import Example, Task


def undisturbed(trainer: CohortTrainer) -> Trainer:
    return trainer


@dataclass(frozen=True)
class LocalRound:
    """Everything that a client's training needs besides its rows."""

    algorithm: Algorithm[Any]
    network: Network
    task: Task
    config: RunConfig
    kept: Mapping[str, Params]
    """Tensors that clients kept, by client id."""
    spend: Spend
    """See :class:`rondo.engine.client.trainer.CohortTrainer`."""
    prefix: Prefix | None = None
    """Layers whose output is computed once per example."""
    stop: threading.Event | None = None
    """Set to end training before its next step."""
    around: Callable[[CohortTrainer], Trainer] = undisturbed
    """Gives the algorithm a trainer around its own, as rehearsed faults do."""
    flops: Flops | None = None
    """The operations of a pass; None counts none."""
    make: Callable[..., CohortTrainer] = CohortTrainer
    """Makes the trainer of a cohort."""

    def train(
        self,
        clients: tuple[Client, ...],
        examples: tuple[Sequence[Example], ...],
        shared: tuple[Shared, ...],
        round: Round,
    ) -> list[Answer]:
        """The answers of a cohort. ``shared`` has one broadcast per client. A cohort that does not fit into memory is
        halved."""
        try:
            return self._train(clients, examples, shared, round)
        except Exception as error:
            failed = error if isinstance(error, ClientFailed) else None
            if failed is None and not is_out_of_memory(error):
                raise
            if len(clients) == 1:
                memory = ClientFailed(clients[0].id, "out_of_memory", str(error).split("\n")[0])
                return [Answer(clients[0], failure=failed or memory)]
        half = len(clients) // 2
        return [
            *self.train(clients[:half], examples[:half], shared[:half], round),
            *self.train(clients[half:], examples[half:], shared[half:], round),
        ]

    def _train(
        self,
        clients: tuple[Client, ...],
        examples: tuple[Sequence[Example], ...],
        shared: tuple[Shared, ...],
        round: Round,
    ) -> list[Answer]:
        device, algorithm = self.network.device, self.algorithm
        kept = [self.kept.get(c.id) for c in clients]
        local = [algorithm.local_init(s, c) if k is None else k for k, s, c in zip(kept, shared, clients, strict=True)]
        states = None
        if self.prefix is not None:
            per_client = [self.prefix.states(c.id, rows) for c, rows in zip(clients, examples, strict=True)]
            states = reduce(States.__or__, per_client)
        trainer = self.make(
            self.network,
            self.task,
            clients,
            examples,
            round,
            self.config.train,
            self.config.clients,
            self.network.on_device(shared[0].base),
            self.prefix,
            states,
            self.stop,
            self.flops,
            self.config.guarantee if self.config.guarantee.of_rows else None,
            self.spend,
        )
        received = replace(shared[0], params=_stacked([s.params for s in shared], device), base=trainer.base)
        uploads, after = algorithm.client_update(received, _stacked(local, device), self.around(trainer))
        by_client = {u.client.id: u for u in uploads}
        cpu = torch.device("cpu")
        answers = []
        for k, client in enumerate(clients):
            failure = trainer.failed.get(client.id)
            if failure is not None:
                answers.append(Answer(client, failure=failure))
                continue
            upload = by_client[client.id]
            upload = replace(upload, params=on_device(upload.params, cpu))
            work = tuple((int(steps[k]), int(rows[k])) for steps, rows in trainer.work)
            kept_now, flops = on_device(client_row(after, k), cpu), trainer.operations(k)
            answers.append(Answer(client, upload, kept_now, trainer.mean_loss(k), work=work, flops=flops))
        return answers


def _stacked(per_client: Sequence[Params], device: torch.device) -> dict[str, Tensor]:
    """The tensors of several clients with a client axis. A tensor that all clients share is not copied."""
    stacked = {}
    for name, first in per_client[0].items():
        if all(params[name] is first for params in per_client[1:]):
            stacked[name] = first.to(device).unsqueeze(0).expand(len(per_client), *first.shape)
        else:
            stacked[name] = torch.stack([params[name] for params in per_client]).to(device)
    return stacked
