"""FedLoRU's Proposition 3.1 and Theorems 3.2 and 3.3 on the random matrices that they are about.

    python benchmarks/fedloru_spectra.py [--size 1000] [--draws 10] [--out benchmarks/results/fedloru-spectra.json]

A Hessian is H = H_true + s X, of size R: H_true has few eigenvalues theta that are not zero, X is symmetric with normal
entries of variance 1 / R (sigma = 1), and s is the smaller the more rows the Hessian is of. Nothing is trained: NumPy
draws H and takes its eigenvalues.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

SPIKES = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0)
"""Eigenvalues of H_true for the proposition, each alone, at s = 1."""
THETA = np.array([4.0, 3.0, 2.0, 1.5, -2.5])
"""Eigenvalues of H_true for the theorems."""
SERVER, CLIENT = 0.3, 0.6
"""s of a server and of a client with fewer rows."""
Array = np.ndarray[Any, np.dtype[np.float64]]


def noise(size: int, rng: np.random.Generator) -> Array:
    """X, (R, R)."""
    x = rng.standard_normal((size, size))
    upper = np.triu(x) + np.triu(x, 1).T
    return upper / np.sqrt(size)


def hessian(theta: Array, s: float, size: int, rng: np.random.Generator) -> Array:
    """H, (R, R), in the eigenvectors of H_true."""
    h = s * noise(size, rng)
    h[np.arange(len(theta)), np.arange(len(theta))] += theta
    return h


def limit(theta: Array, s: float) -> Array:
    """g^-1 of the proposition: the limits that it prints for eigenvalues outside of the bulk."""
    return theta + s**2 / theta


def proposition(theta: float, size: int, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """The largest eigenvalue, beside the proposition's limit and that of Baik, Ben Arous and Peche, who have no
    eigenvalue outside of the bulk for theta <= s."""
    tops = [float(np.linalg.eigvalsh(hessian(np.array([theta]), 1.0, size, rng))[-1]) for _ in range(draws)]
    printed = float(limit(np.array(theta), 1.0))
    return {
        "theta": theta,
        "printed": printed if printed > 2 else 2.0,
        "with theta > s": printed if theta > 1 else 2.0,
        "measured": statistics.fmean(tops),
        "deviation": statistics.stdev(tops),
    }


def stable_ranks(size: int, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """Stable ranks of a client's and a server's Hessian, beside the estimate (36) with the eigenvalues of H_true alone,
    the same with the R - p - q others at the edge of the bulk, and the theorem's lower bound (4) without B_N."""
    measured: dict[float, list[float]] = {s: [] for s in (SERVER, CLIENT)}
    for _ in range(draws):
        for s, ranks in measured.items():
            h = hessian(THETA, s, size, rng)
            ranks.append(float((h**2).sum() / np.abs(np.linalg.eigvalsh(h)).max() ** 2))
    largest = {s: float(limit(THETA[0], s)) ** 2 for s in measured}
    estimates = {s: float((limit(THETA, s) ** 2).sum()) / largest[s] for s in measured}
    edges = {s: estimates[s] + (size - len(THETA)) * 4 * s**2 / largest[s] for s in measured}
    weight = (CLIENT**2 - SERVER**2) / (largest[CLIENT] * largest[SERVER])
    bound = weight * float((8 * CLIENT * SERVER * np.abs(THETA[0] / THETA - THETA / THETA[0])).sum())
    return {
        "size": size,
        "client": statistics.fmean(measured[CLIENT]),
        "server": statistics.fmean(measured[SERVER]),
        "client, by (36)": estimates[CLIENT],
        "server, by (36)": estimates[SERVER],
        "client, with the bulk at its edge": edges[CLIENT],
        "server, with the bulk at its edge": edges[SERVER],
        "difference": statistics.fmean(measured[CLIENT]) - statistics.fmean(measured[SERVER]),
        "difference, by (36)": estimates[CLIENT] - estimates[SERVER],
        "least difference, by (4)": bound,
    }


def alignments(size: int, draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The cosine between two clients' gradients as far as the first r eigenvectors of their Hessians hold them, beside
    the theorem's limit. The true gradient has a unit part along each eigenvector of H_true and as much elsewhere."""
    gradient = np.concatenate([np.ones(len(THETA)), rng.standard_normal(size - len(THETA))])
    gradient[len(THETA) :] *= np.sqrt(len(THETA)) / np.linalg.norm(gradient[len(THETA) :])
    ranks = range(1, len(THETA) + 4)
    cosines: dict[int, list[float]] = {r: [] for r in ranks}
    for _ in range(draws):
        clients = []
        for _ in range(2):
            values, vectors = np.linalg.eigh(hessian(THETA, CLIENT, size, rng))
            clients.append(vectors[:, np.argsort(-np.abs(values))])
        for r in ranks:
            one, other = (v[:, :r] @ (v[:, :r].T @ gradient) for v in clients)
            cosines[r].append(float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)))
    order = THETA[np.argsort(-np.abs(THETA))]
    phi2 = 1 - CLIENT**2 / order**2  # equation (5); a directional derivative is phi times the true one
    rows = []
    for r in ranks:
        k = min(r, len(order))
        printed = float((phi2[:k] ** 2).sum() / phi2[:k].sum())
        rows.append({"r": r, "printed": printed, "measured": statistics.fmean(cosines[r])})
        rows[-1]["deviation"] = statistics.stdev(cosines[r])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fedloru-spectra.json")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    results = {
        "proposition 3.1": [proposition(theta, args.size, args.draws, rng) for theta in SPIKES],
        "theorem 3.2": [stable_ranks(size, args.draws, rng) for size in (args.size // 4, args.size // 2, args.size)],
        "theorem 3.3": alignments(args.size, args.draws, rng),
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name, rows in results.items():
        print(f"\n{name}")
        for row in rows:
            print("  " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
