"""Apple's pfl-research on pictures, on its simulated backend. Statistics of batch normalisation are no parameters to
it: they move on in its one model, from client to client."""

from __future__ import annotations

from typing import Any

from contestant import Outcome, arguments, since_start
from image_workloads import IMAGE_WORKLOADS
from images import build_network, clients, count
from pfl_rounds import NNTrainHyperParams, Trainee, simulate, torch


def loss_of(model: torch.nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of a batch."""
    return torch.nn.functional.cross_entropy(model(pictures), labels)


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    workload = IMAGE_WORKLOADS[args.work]
    trainee = Trainee(build_network(workload), loss_of)

    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD((p for p in parameters if p.requires_grad), lr=lr, momentum=workload.momentum)

    local = NNTrainHyperParams(
        local_batch_size=workload.batch,
        local_num_epochs=1,
        local_learning_rate=workload.lr,
        local_max_grad_norm=None,
    )
    watch = simulate(
        trainee, clients(workload, args.data), optimizer, local, clients=workload.clients, rounds=args.rounds
    )
    Outcome(since_start(watch.began), watch.seconds, watch.means, count(trainee)).print(workload)


if __name__ == "__main__":
    main()
