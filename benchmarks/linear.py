"""RoLoRA's statements about its linear model, measured: lemma 4.3, lemma A3.16 and proposition 4.6.

    python benchmarks/linear.py [--draws 1000] [--out benchmarks/results/linear.json] [--set KEY=VALUE ...]

The first two run `benchmarks/runs/rolora-linear.toml` and `rolora-linear-hetero.toml` and compare the angle distance
with the lemma's factor in every iteration. The third runs a round of `ffa-linear` for each of many seeds, so that the
inputs, the truth and the start are drawn anew, and compares the mean loss with (1 + c) |b*|^2 delta_0^2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import rondo
from rondo.config import load
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.private import rehearsal
from rondo.tasks.numbers.linear_problem import LinearProblem

RUNS = Path(__file__).parent / "runs"
SIZES = ((2, 5), (5, 10), (20, 4))
"""Clients and rows of each client in the draws of proposition 4.6."""


def lemma(name: str, factor: float, *sets: str) -> dict[str, Any]:
    """The iterations of a run beside a lemma's factor, which should bound the contraction of each. An iteration is a
    round of B and a round of A."""
    with tempfile.TemporaryDirectory() as folder:
        result = rondo.run(RUNS / f"{name}.toml", sets=sets, run_dir=Path(folder) / "run", device="cpu")
        before = result.summary["measures"]["before"]["angle_distance"]
        after = [record["measures"]["angle_distance"] for record in result.history]
        final = load_file(Path(folder) / "run" / "adapter" / "tensors.safetensors")
    config = load(RUNS / f"{name}.toml", sets)
    problem = LinearProblem.draw(config.problem, config.seed)
    off = final["linear.B"] @ final["linear.A"] - problem.slopes.mean(0).mT
    points = [before, *after[1::2]]
    contractions = [later / earlier for earlier, later in itertools.pairwise(points)]
    return {
        "run": " ".join((name, *sets)),
        "factor of the lemma": factor,
        "largest contraction": max(contractions),
        "iterations above the factor": sum(c > factor for c in contractions),
        "contractions": contractions,
        "last angle distance": points[-1],
        "distance of b a^T from the mean of the truth": float(off.norm()),
    }


def proposition(clients: int, rows: int, draws: int) -> dict[str, Any]:
    """The mean loss of FFA-LoRA over many draws, beside the proposition's."""
    sets = [f"problem.clients={clients}", f"problem.rows={rows}"]
    losses, moved = [], 0.0
    for seed in range(draws):
        config = load(RUNS / "ffa-linear.toml", [*sets, f"seed={seed}"])
        assembly = assemble(config, "cpu")
        federation = assembly.federation(assembly.start(), {}, rehearsal(assembly.config, assembly.population.clients))
        federation.server.run_round(0)
        model = partial(federation.scorer.newcomer, federation.server.state, federation.server.round(1))
        measures = assembly.task.measures(model, {})
        losses.append(measures["global_loss"])
        moved = max(moved, abs(measures["angle_distance"] - config.problem.start_distance))
    c = (clients * (4 - rows) - 2) / (clients**2 * rows * (rows - 2))
    expected = (1 + c) * config.problem.start_distance**2
    mean, error = statistics.fmean(losses), statistics.stdev(losses) / draws**0.5
    return {
        "clients": clients,
        "rows": rows,
        "draws": draws,
        "c": c,
        "expected loss": expected,
        "mean loss": mean,
        "standard error": error,
        "errors away": (mean - expected) / error,
        "errors away without c": (mean - expected / (1 + c)) / error,
        "largest movement of the angle": moved,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "linear.json")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    sampled = ['problem.design="gaussian"', "rounds=60"]
    share = 1 - 0.9**2  # 1 - delta_0^2; |b*| = 1
    results = {
        "lemma 4.3": [
            lemma("rolora-linear", (1 - lr * share) ** 0.5, f"train.lr={lr}", *args.sets)
            for lr in (0.1, 0.25, 0.5, 0.75, 1.0)
        ],
        "lemma A3.16": [
            lemma("rolora-linear-hetero", 1 - 2 * lr * share, f"train.lr={lr}", *args.sets) for lr in (0.1, 0.25, 0.4)
        ],
        "finite samples": [
            lemma("rolora-linear-hetero", 1.0, *sampled, f"problem.rows={m}", f"train.batch_size={m}", *args.sets)
            for m in (50, 200, 800)
        ],
        "proposition 4.6": [proposition(n, m, args.draws) for n, m in SIZES],
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name, rows in results.items():
        print(f"\n{name}")
        for row in rows:
            print("  " + ", ".join(f"{k} {_number(v)}" for k, v in row.items() if not isinstance(v, list)))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
