"""What the papers define for one aggregation, in NumPy: written from the papers, in PEFT's letters.

Every method changes a weight W (out x in) by scale * B A. A result is the model's change of W after the round, unless
the function says another. Weights p_k are shares of rows, unless the paper has others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Draw:
    """Uploads of three clients, from a normal distribution, and what they started from."""

    a0: Array
    """A at the start, (r, in); B is zero there."""
    b0: Array
    """A reference for B, (out, r), for methods that look back at a round."""
    a: tuple[Array, ...]
    b: tuple[Array, ...]
    rows: tuple[int, ...] = (10, 20, 30)
    alpha: float = 16.0
    rank: int = 2

    @staticmethod
    def of(seed: int, out: int = 12, width: int = 10, ranks: tuple[int, ...] = (2, 2, 2)) -> Draw:
        """The draw of ``seed``. ``ranks``: of the three clients."""
        rng = np.random.default_rng(seed)
        a0, b0 = rng.standard_normal((2, width)), rng.standard_normal((out, 2))
        a = tuple(rng.standard_normal((r, width)) for r in ranks)
        return Draw(a0, b0, a, tuple(rng.standard_normal((out, r)) for r in ranks))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def p(self) -> Array:
        return np.array(self.rows) / sum(self.rows)

    @property
    def uniform(self) -> Array:
        return np.full(len(self.rows), 1 / len(self.rows))


def mean(parts: tuple[Array, ...], p: Array) -> Array:
    return sum((w * x for w, x in zip(p, parts, strict=True)), np.zeros_like(parts[0]))


def products(d: Draw) -> tuple[Array, ...]:
    return tuple(b @ a for a, b in zip(d.a, d.b, strict=True))


def leading(matrix: Array, rank: int) -> Array:
    """The best approximation of ``rank`` (Eckart-Young)."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def fedit(d: Draw) -> Array:
    """Zhang et al. 2023, FedAvg of both factors."""
    return d.scale * mean(d.b, d.p) @ mean(d.a, d.p)


def mean_of_products(d: Draw) -> Array:
    """FLoRA (Wang et al. 2024) by stacking, FedEx-LoRA (Singhal et al. 2024) by a residual in the frozen weight, and
    FedMomentum by a remainder there: all three arrive at the mean of the products, by shares of rows."""
    return d.scale * mean(products(d), d.p)


def mean_of_products_uniform(d: Draw) -> Array:
    """FedEx-LoRA as its paper writes it, with 1 / K."""
    return d.scale * mean(products(d), d.uniform)


def flexlora(d: Draw) -> Array:
    """Bai et al. 2024: the mean of the scaled products, truncated to the client's rank."""
    return leading(d.scale * mean(products(d), d.p), d.rank)


def one_factor(d: Draw) -> Array:
    """B averaged beside a common A: FFA-LoRA (Sun et al. 2024), RoLoRA's first round (Chen et al. 2025), and FedSVD
    (Lee et al. 2025), whose new pair has the same product."""
    return d.scale * mean(d.b, d.p) @ d.a0


def one_factor_uniform(d: Draw) -> Array:
    return d.scale * mean(d.b, d.uniform) @ d.a0


def fedsa(d: Draw) -> Array:
    """FedSA-LoRA (Guo et al. 2025), the first client's model: the averaged A, and the client's own B."""
    return d.scale * d.b[0] @ mean(d.a, d.p)


def hetlora(d: Draw) -> Array:
    """Cho et al. 2024: factors padded with zeros, weighted by the norms of the products."""
    norms = np.array([np.linalg.norm(x) for x in products(d)])
    return padded_mean(d, norms / norms.sum())


def padded_mean(d: Draw, p: Array) -> Array:
    rank = max(a.shape[0] for a in d.a)
    a = tuple(np.pad(x, ((0, rank - x.shape[0]), (0, 0))) for x in d.a)
    b = tuple(np.pad(x, ((0, 0), (0, rank - x.shape[1]))) for x in d.b)
    return d.scale * mean(b, p) @ mean(a, p)


def nearest_rotation(matrix: Array) -> Array:
    """The rotation R with the largest trace(R^T matrix)."""
    u, _, v = np.linalg.svd(matrix)
    return u @ np.diag([*[1.0] * (len(u) - 1), np.linalg.det(u @ v)]) @ v


def fedrot(d: Draw) -> Array:
    """FedRot-LoRA in an odd round, softness 0.5: each client turns its pair towards the last A, then FedIT."""
    turns = [nearest_rotation(0.5 * np.eye(d.rank) + 0.5 * nearest_rotation(a @ d.a0.T)) for a in d.a]
    turned = tuple(r.T @ a for r, a in zip(turns, d.a, strict=True))
    return d.scale * mean(tuple(b @ r for r, b in zip(turns, d.b, strict=True)), d.p) @ mean(turned, d.p)


def shared_by_cluster(d: Draw) -> Array:
    """FedLEASE: the factors of a cluster's expert are averaged over the cluster, here clients 0 and 1; client 2 is
    alone. The stacked experts' products."""
    half = np.array([0.5, 0.5])
    return np.concatenate([mean(d.b[:2], half) @ mean(d.a[:2], half), d.b[2] @ d.a[2]])


def fslora(d: Draw) -> Array:
    """FSLoRA (Fang et al. 2025): a client moves the ranks that it drew, here one of two."""
    return np.array([1.0, 0.0])


def averaged(d: Draw) -> Array:
    """FedAvg of one tensor, here A."""
    return mean(d.a, d.p)


def averaged_uniform(d: Draw) -> Array:
    """FedRep's Algorithm 1 (Collins et al. 2021) averages the body by 1 / (r n); SCAFFOLD (Karimireddy et al. 2020)
    averages models by 1 / |S|."""
    return mean(d.a, d.uniform)


ETA, BETA1, BETA2, TAU = 0.1, 0.9, 0.99, 1e-3


def fedadagrad(d: Draw) -> Array:
    """Reddi et al. 2021, Algorithm 2, clients of equal weight: the change of A from ``a0`` after two rounds in which
    every client uploads its own A again. Adagrad has no momentum."""
    return fedopt(d, 0.0, lambda v, square: v + square)


def fedadam(d: Draw) -> Array:
    return fedopt(d, BETA1, lambda v, square: BETA2 * v + (1 - BETA2) * square)


def fedyogi(d: Draw) -> Array:
    return fedopt(d, BETA1, lambda v, square: v - (1 - BETA2) * square * np.sign(v - square))


def fedopt(d: Draw, beta1: float, second: Callable[[Array, Array], Array]) -> Array:
    x, m, v = d.a0, np.zeros_like(d.a0), np.full_like(d.a0, TAU**2)
    for _ in range(2):
        delta = mean(d.a, d.uniform) - x
        m, v = beta1 * m + (1 - beta1) * delta, second(v, delta**2)
        x = x + ETA * m / (np.sqrt(v) + TAU)
    return x - d.a0
