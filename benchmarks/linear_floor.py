"""The floor of RoLoRA's linear problem: the operations of a row, over this machine's rate on such products.

Half of the rounds minimise B: z = X a, then Y^T z and z^T z. The others step along A: z = X a, the residual Y - z b^T,
its product with b, and X^T times that. All clients are in one batched product, since a client's own are too small to
fill a call.
"""

from __future__ import annotations

import time
from typing import Any

from linear_workload import LinearWorkload

TRY_SECONDS = 2.0


def linear_floor(workload: LinearWorkload, threads: int) -> dict[str, Any]:
    """The floor in float64."""
    import torch

    torch.set_num_threads(threads)
    d = workload.inputs
    minimise, step = 2 * d + 2 * d + 2, 2 * d + 2 * d + 2 * d + 2 * d
    operations = (minimise + step) / 2
    x = torch.randn(workload.clients, workload.samples, d, dtype=torch.float64)
    y, a, b = torch.randn_like(x), torch.randn(workload.clients, d, 1, dtype=torch.float64), torch.randn(d, 1).double()
    best = float("inf")
    until = time.perf_counter() + TRY_SECONDS
    while (began := time.perf_counter()) < until:
        z = x @ a
        _ = y.mT @ z, z.mT @ z
        z = x @ a
        _ = x.mT @ (torch.baddbmm(y, z, b.mT.expand(workload.clients, 1, d), alpha=-1) @ b)
        best = min(best, (time.perf_counter() - began) / 2)
    rows = workload.samples_per_round
    return {
        "operations_per_sample": operations,
        "exact": {"gflops": operations * rows / best / 1e9, "samples_per_second": rows / best},
    }
