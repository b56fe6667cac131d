"""Apple's pfl-research on adapters, on its simulated backend."""

from __future__ import annotations

from typing import Any

from adapters import build_model, clients, trained
from contestant import Outcome, arguments, since_start
from pfl_rounds import NNTrainHyperParams, Trainee, simulate, torch
from workloads import WORKLOADS, Workload


def loss_of(model: Any, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of a batch, in eval mode."""
    loss: torch.Tensor = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    return loss


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
    trainee = Trainee(build_model(workload), loss_of)
    count = sum(t.numel() for t in trained(trainee))

    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW((p for p in parameters if p.requires_grad), lr=lr, weight_decay=0.0)

    watch = simulate(
        trainee,
        clients(workload, args.data),
        optimizer,
        local_training(workload),
        clients=workload.clients,
        rounds=args.rounds,
    )
    Outcome(since_start(watch.began), watch.seconds, watch.means, count).print(workload)


if __name__ == "__main__":
    main()
