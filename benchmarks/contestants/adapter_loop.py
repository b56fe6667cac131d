"""The plain loop: one process and one model, clients one after another in PyTorch, transformers and PEFT."""

from __future__ import annotations

import time

from adapters import adapter_state, build_model, clients, train, trained
from contestant import Outcome, arguments, since_start, weighted_mean
from workloads import WORKLOADS


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--compile", action="store_true", help="by torch.compile, which needs a C++ compiler")
    args = parser.parse_args()

    import torch
    from peft import set_peft_model_state_dict

    torch.set_num_threads(args.threads)
    workload = WORKLOADS[args.work]
    model = build_model(workload)
    if args.compile:
        model.compile()
    datasets = clients(workload, args.data)
    shared = {n: t.clone() for n, t in adapter_state(model).items()}
    outcome = Outcome(since_start(time.time()), [], [], sum(p.numel() for p in trained(model)))
    for _ in range(args.rounds):
        began = time.perf_counter()
        states, losses = [], []
        for dataset in datasets:
            set_peft_model_state_dict(model, shared)
            losses.append(train(model, workload, dataset))
            states.append({n: t.detach().clone() for n, t in adapter_state(model).items()})
        sizes = [len(d) for d in datasets]
        shared = weighted_mean(states, sizes)
        outcome.round_seconds.append(time.perf_counter() - began)
        outcome.loss.append(sum(x * n for x, n in zip(losses, sizes, strict=True)) / sum(sizes))
    outcome.print(workload)


if __name__ == "__main__":
    main()
