"""The floor of a workload: the operations that a sample needs, over the rate of this machine's matrix products.

    python benchmarks/floor.py --work W --threads 2

W6 and W7 have the floor of ``image_floor.py``, W8 that of ``linear_floor.py``. For the others:

Operations that count:

- every frozen linear layer forward and, above the lowest adapted layer, backward to its input (frozen weights have no
  gradient)
- the two products of attention
- the factors

Operations that do not count, because they can be left out:

- layers below the lowest adapted one (computed once per example, not once per step)
- the lowest adapted layer's backward pass to its own input
- in a classifier of the first token, all other tokens of the last layer, except as keys and values

Elementwise work is free.

Rate: all threads multiply matrices of the workload's own shapes at the same time, with one torch thread each. float32
takes the faster of torch's and oneDNN's linear layer, bfloat16 takes torch's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from typing import Any

from contests import WORKS
from image_floor import image_floor
from image_workloads import ImageWorkload
from linear_floor import linear_floor
from linear_workload import LinearWorkload
from workloads import Workload, model_folder

ROWS = 1024
"""Rows of the matrices that are multiplied."""

TRY_SECONDS, TURNS = 0.2, 5
"""Length of a try, and tries per shape. The shapes take turns and the best time counts, so that a moment in which two
threads wait for each other, or a neighbour is busy, does not pass for the machine's rate."""


def shapes(workload: Workload) -> tuple[Counter[tuple[int, int]], float]:
    """A sample's tokens through weights of each shape (out, in), forward or backward to their input; and its other
    operations."""
    import torch
    import transformers
    from torch import nn

    config = transformers.AutoConfig.from_pretrained(model_folder(workload))
    classify = workload.kind == "sequence-classification"
    auto = transformers.AutoModelForSequenceClassification if classify else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    layers = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)
    adapted = range(len(layers)) if workload.layers is None else sorted(workload.layers)
    passes: Counter[tuple[int, int]] = Counter()
    length = workload.tokens
    other = 0.0
    for number in range(adapted[0], len(layers)):
        last = classify and number == len(layers) - 1
        for path, linear in layers[number].named_modules():
            if not isinstance(linear, nn.Linear):
                continue
            shape = (linear.out_features, linear.in_features)
            reads = path.endswith(("query", "key", "value", "q_proj", "k_proj", "v_proj"))
            tokens = 1 if last and not path.endswith(("key", "value")) else length
            # The input of the lowest adapted layer needs no gradient.
            passes[shape] += tokens * (1 if reads and number == adapted[0] else 2)
            if number in adapted and path.endswith(workload.targets):
                other += 3 * 2 * length * workload.rank * sum(shape)
        # Scores, and the values summed by them; the backward pass costs twice as much.
        other += 3 * 2 * 2 * (1 if last else length) * length * config.hidden_size
    if not classify:
        passes[config.vocab_size, config.hidden_size] += 2 * length
    return passes, other


def rate(passes: Counter[tuple[int, int]], bf16: bool, threads: int) -> float:
    """Operations per second of all threads on these weights, each as often as tokens pass it; the best of several
    tries."""
    import torch
    from torch.nn import functional

    from rondo.engine.client.cohorts import in_order
    from rondo.models.kernels.private_torch import has_onednn, onednn_linear

    dtype = torch.bfloat16 if bf16 else torch.float32
    linears: list[Any] = [functional.linear]
    if not bf16 and has_onednn():
        linears.append(lambda x, w: onednn_linear(x, w, None))

    def seconds(shape: tuple[int, int]) -> float:
        """Seconds per row. Forward and backward to the input are the same product."""
        weight, x = torch.randn(*shape).to(dtype), torch.randn(ROWS, shape[1]).to(dtype)
        best = float("inf")
        for linear in linears:
            until = time.perf_counter() + TRY_SECONDS
            while (began := time.perf_counter()) < until:
                linear(x, weight)
                best = min(best, (time.perf_counter() - began) / ROWS)
        return best

    best = dict.fromkeys(passes, float("inf"))
    with torch.no_grad():
        for shape in list(passes) * TURNS:
            best[shape] = min(best[shape], max(in_order(seconds, [shape] * threads, threads)))
    spent = sum(times * best[shape] for shape, times in passes.items())
    return threads * sum(2 * o * i * n for (o, i), n in passes.items()) / spent


def floor(workload: Workload, threads: int) -> dict[str, Any]:
    """The floor in both precisions."""
    passes, other = shapes(workload)
    operations = sum(2 * o * i * n for (o, i), n in passes.items()) + other
    result: dict[str, Any] = {"operations_per_sample": operations}
    for name, bf16 in (("fast", True), ("exact", False)):
        reached = rate(passes, bf16, threads)
        result[name] = {"gflops": reached / 1e9, "samples_per_second": reached / operations}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, default="W")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    work = WORKS[args.work]
    if isinstance(work, ImageWorkload):
        result = image_floor(work, args.threads)
    elif isinstance(work, LinearWorkload):
        result = linear_floor(work, args.threads)
    else:
        result = floor(work, args.threads)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
