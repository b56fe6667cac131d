"""pfl's simulated backend, with one process and one model for all clients, and rounds that are timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import contestant  # isort: skip  # noqa: F401  (notes the start before the large imports)
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchDataDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class Trainee(torch.nn.Module):
    """A model in pfl's form, with a loss per batch. It keeps the losses, because pfl reports no training loss."""

    def __init__(self, model: torch.nn.Module, loss_of: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss_of = model, loss_of
        self.losses: list[torch.Tensor] = []

    def loss(self, *batch: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        loss = self.loss_of(self.model, *batch)
        self.losses.append(loss.detach().clone())
        return loss

    def metrics(self, *batch: torch.Tensor) -> dict[str, Weighted]:
        """No metric: pfl always evaluates the first round, but no contestant evaluates."""
        return {"batches": Weighted(0.0, 1.0)}


class Watch(TrainingProcessCallback):
    """Notes the start of training, and the time and mean loss of every round."""

    def __init__(self, trainee: Trainee) -> None:
        self.trainee = trainee
        self.began = 0.0
        self.marks: list[float] = []
        self.means: list[float] = []

    @property
    def seconds(self) -> list[float]:
        """The length of every round."""
        return [after - before for before, after in itertools.pairwise(self.marks)]

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.began = time.time()
        self.marks.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.marks.append(time.perf_counter())
        self.means.append(float(torch.stack(self.trainee.losses).mean()))
        self.trainee.losses.clear()
        return False, Metrics()


def simulate(
    trainee: Trainee,
    datasets: Sequence[Any],
    optimizer: Callable[[Any, float], torch.optim.Optimizer],
    local: NNTrainHyperParams,
    *,
    clients: int,
    rounds: int,
) -> Watch:
    """FedAvg with ``clients`` of the data sets' owners in each round."""

    def population() -> FederatedDataset:
        return FederatedDataset(
            lambda i: PyTorchDataDataset(datasets[i], user_id=str(i), shuffle=True),
            MinimizeReuseUserSampler(range(len(datasets))),
        )

    watch = Watch(trainee)
    tensors = [p for p in trainee.parameters() if p.requires_grad]
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(population(), population(), postprocessors=[WeightByDatapoints()]),
        PyTorchModel(trainee, optimizer, torch.optim.SGD(tensors, lr=1.0)),
        local,
        callbacks=[watch],
    )
    return watch
