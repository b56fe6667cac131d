"""RoLoRA's Algorithm 2 by hand in NumPy, clients one after another."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import contestant  # isort: skip  # noqa: F401  (notes the start before the large imports)
import numpy as np
from contestant import Outcome, arguments, since_start
from linear_workload import LINEAR_WORKLOADS
from numpy.typing import NDArray

Array = NDArray[np.float64]


@functools.cache
def problem(file: Path) -> tuple[Array, Array, Array]:
    """Inputs and outputs of all clients (clients, rows, numbers) and the start of a, read once per process."""
    with np.load(file) as arrays:
        return arrays["x"], arrays["y"], arrays["start"][0]


def best_up(x: Array, y: Array, a: Array) -> Array:
    """The b that minimises a client's loss |y - (x a) b^T|^2."""
    z = x @ a
    best: Array = y.T @ z / (z @ z)
    return best


def stepped_down(x: Array, y: Array, a: Array, b: Array, lr: float) -> Array:
    """a after a gradient step of a client's loss, the mean squared error of its rows."""
    stepped: Array = a + lr * 2 / len(x) * x.T @ ((y - np.outer(x @ a, b)) @ b)
    return stepped


def loss_of(x: Array, y: Array, a: Array, b: Array) -> float:
    """A client's loss: the squared error, summed over outputs, the mean over rows."""
    return float(((y - np.outer(x @ a, b)) ** 2).sum() / len(x))


def main() -> None:
    args = arguments(__doc__).parse_args()
    workload = LINEAR_WORKLOADS[args.work]
    xs, ys, a = problem(args.data)
    b = np.zeros(ys.shape[2])
    outcome = Outcome(since_start(time.time()), [], [], len(a) + len(b))
    for index in range(args.rounds):
        began = time.perf_counter()
        if index % 2 == 0:
            ups = [best_up(x, y, a) for x, y in zip(xs, ys, strict=True)]
            outcome.loss.append(float(np.mean([loss_of(x, y, a, up) for x, y, up in zip(xs, ys, ups, strict=True)])))
            b = np.mean(ups, axis=0)
        else:
            outcome.loss.append(float(np.mean([loss_of(x, y, a, b) for x, y in zip(xs, ys, strict=True)])))
            a = np.mean([stepped_down(x, y, a, b, workload.lr) for x, y in zip(xs, ys, strict=True)], axis=0)
            a /= np.linalg.norm(a)
        outcome.round_seconds.append(time.perf_counter() - began)
    outcome.print(workload)


if __name__ == "__main__":
    main()
