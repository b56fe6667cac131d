"""FedRep in a plain loop: the personal head first, then the body below it; only the body is averaged."""

from __future__ import annotations

import random
import statistics
import time

from contestant import Outcome, arguments, since_start, weighted_mean
from image_workloads import HEAD, IMAGE_WORKLOADS
from images import build_network, clients, count, loader, torch, train


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    workload = IMAGE_WORKLOADS[args.work]
    model, datasets, sampler = build_network(workload), clients(workload, args.data), random.Random(workload.seed)
    head = [p for n, p in model.named_parameters() if n.startswith(HEAD)]
    body = [p for n, p in model.named_parameters() if not n.startswith(HEAD)]

    def phase(tensors: list[torch.nn.Parameter], epochs: int, client: int) -> tuple[float, int]:
        model.requires_grad_(False)
        for p in tensors:
            p.requires_grad_(True)
        return train(model, workload, loader(workload, datasets[client]), epochs)

    def state(is_head: bool) -> dict[str, torch.Tensor]:
        return {n: t.clone() for n, t in model.state_dict().items() if n.startswith(HEAD) == is_head}

    parameters = count(model)
    shared, first_head = state(False), state(True)
    heads: dict[int, dict[str, torch.Tensor]] = {}
    outcome = Outcome(since_start(time.time()), [], [], parameters)
    for _ in range(args.rounds):
        began = time.perf_counter()
        states, losses, sizes = [], [], []
        for client in sampler.sample(range(workload.population), workload.clients):
            model.load_state_dict({**shared, **heads.get(client, first_head)})
            of_head, size = phase(head, workload.head_epochs, client)
            of_body, _ = phase(body, 1, client)
            heads[client] = state(True)
            states.append(state(False))
            losses.append((of_head * workload.head_epochs + of_body) / (workload.head_epochs + 1))
            sizes.append(size)
        shared = weighted_mean(states, sizes)
        outcome.round_seconds.append(time.perf_counter() - began)
        outcome.loss.append(statistics.fmean(losses, sizes))
    outcome.print(workload)


if __name__ == "__main__":
    main()
