"""The plain loop on pictures: one process and one network, clients one after another, FedAvg."""

from __future__ import annotations

import random
import statistics
import time

from contestant import Outcome, arguments, since_start, weighted_mean
from image_workloads import IMAGE_WORKLOADS
from images import build_network, clients, count, loader, sent, torch, train


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    workload = IMAGE_WORKLOADS[args.work]
    model, datasets, sampler = build_network(workload), clients(workload, args.data), random.Random(workload.seed)
    shared = {n: t.clone() for n, t in sent(model).items()}
    outcome = Outcome(since_start(time.time()), [], [], count(model))
    for _ in range(args.rounds):
        began = time.perf_counter()
        states, losses, sizes = [], [], []
        for client in sampler.sample(range(workload.population), workload.clients):
            model.load_state_dict(shared, strict=False)
            loss, size = train(model, workload, loader(workload, datasets[client]))
            states.append({n: t.clone() for n, t in sent(model).items()})
            losses.append(loss)
            sizes.append(size)
        shared = weighted_mean(states, sizes)
        outcome.round_seconds.append(time.perf_counter() - began)
        outcome.loss.append(statistics.fmean(losses, sizes))
    outcome.print(workload)


if __name__ == "__main__":
    main()
