"""Training of one client outside of rounds: a newcomer's own tensors, or a model fine-tuned to one client's rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rondo.algorithm import Algorithm, Client, Round, Shared
from rondo.config.schema import ClientsConfig, TrainConfig
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.networks.network import Base, Network
from rondo.params import Params, Select, add_client_axis, client_row, on_device
from rondo.tasks.task import Example, Task


@dataclass(frozen=True)
class Fitting:
    """Trains models of ``algorithm`` as clients train them, without a server."""

    algorithm: Algorithm[Any]
    network: Network
    task: Task
    config: TrainConfig
    clients: ClientsConfig
    stop: threading.Event | None = None
    """Set to end training before its next step."""

    def adapted(
        self, shared: Shared, local: Params, client: Client, examples: Sequence[Example], round: Round
    ) -> Params:
        """``client``'s own tensors after :meth:`rondo.algorithm.Algorithm.adapt` on ``examples``. ``local`` are those
        it begins with. Raises :class:`rondo.algorithm.ClientFailed`."""
        trainer = self._trainer(client, examples, shared.base, round)
        received = replace(shared, params=self._batched(shared.params), base=trainer.base)
        return self._single(self.algorithm.adapt(received, self._batched(local), trainer))

    def tuned(
        self,
        seen: Params,
        base: Base,
        client: Client,
        examples: Sequence[Example],
        round: Round,
        *,
        train: Select,
        epochs: int | None = None,
    ) -> Params:
        """The model ``seen`` after training on ``examples``. Tensors that ``train`` does not select stay. ``epochs``
        defaults to the run's. Raises :class:`rondo.algorithm.ClientFailed`."""
        trainer = self._trainer(client, examples, base, round)
        return self._single(trainer.fit(self._batched(seen), train=train, epochs=epochs).params)

    def _trainer(self, client: Client, examples: Sequence[Example], base: Base, round: Round) -> CohortTrainer:
        changes = self.network.on_device(base)
        rows = tuple(examples)  # some sequences make a new object on every access
        return CohortTrainer(
            self.network, self.task, (client,), (rows,), round, self.config, self.clients, changes, stop=self.stop
        )

    def _batched(self, params: Params) -> Params:
        return add_client_axis(on_device(params, self.network.device))

    def _single(self, params: Params) -> Params:
        return on_device(client_row(params, 0), torch.device("cpu"))
