"""Apple's pfl-research: its simulated backend, with one process and one model for all clients."""

from __future__ import annotations

import itertools
import time
from typing import Any

from contestant import Outcome, arguments, build_model, clients, since_start, trained  # isort: skip
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
from workloads import WORKLOADS, Workload


class Trainee(torch.nn.Module):
    """The model in pfl's form, with a loss per batch. It keeps the losses, because pfl reports no training loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.losses: list[torch.Tensor] = []

    def loss(self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of a batch, in eval mode."""
        loss = self.model(input_ids=ids, attention_mask=mask, labels=labels).loss
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


def local_training(workload: Workload) -> NNTrainHyperParams:
    """pfl's settings of local training. When pfl counts steps it stops at the end of the rows, so longer training is
    counted in epochs. Raises SystemExit for a longer training of no whole number of epochs."""
    steps_per_epoch = -(-workload.samples // workload.batch)
    epochs, rest = divmod(workload.local_steps, steps_per_epoch)
    if epochs and rest:
        raise SystemExit(f"{workload.name}: {workload.local_steps} steps are no whole number of epochs, as pfl needs")
    return NNTrainHyperParams(
        local_batch_size=workload.batch,
        local_num_epochs=epochs or None,
        local_num_steps=None if epochs else rest,
        local_learning_rate=workload.lr,
        local_max_grad_norm=workload.clip,
    )


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    workload = WORKLOADS[args.work]
    trainee = Trainee(build_model(workload))
    tensors = trained(trainee)
    datasets = clients(workload, args.data)

    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW((p for p in parameters if p.requires_grad), lr=lr, weight_decay=0.0)

    def population() -> FederatedDataset:
        return FederatedDataset(
            lambda i: PyTorchDataDataset(datasets[i], user_id=str(i), shuffle=True),
            MinimizeReuseUserSampler(range(len(datasets))),
        )

    watch = Watch(trainee)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=args.rounds,
            train_cohort_size=workload.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(population(), population(), postprocessors=[WeightByDatapoints()]),
        PyTorchModel(trainee, optimizer, torch.optim.SGD(tensors, lr=1.0)),
        local_training(workload),
        callbacks=[watch],
    )
    seconds = [after - before for before, after in itertools.pairwise(watch.marks)]
    Outcome(since_start(watch.began), seconds, watch.means, sum(t.numel() for t in tensors)).print(workload)


if __name__ == "__main__":
    main()
