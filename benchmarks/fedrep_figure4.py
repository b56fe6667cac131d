"""FedRep's Figure 4: the squared error at new clients over the number of their rows.

    python benchmarks/fedrep_figure4.py OUT [--seeds 3] [--newcomers 5] [--images docs/images] [--set KEY=VALUE ...]

`benchmarks/runs/fedrep-figure4.toml` is run once per seed. Every new client has a head of its own above the problem's
true representation, rows with noise, and 200 rows without for the score, as in appendix A.1. Four models, medians over
new clients and seeds:

- `rondo adapt` on FedRep's run: the head is fitted by gradient steps, the representation stays
- the exact head above FedRep's representation, and above that of FedSGD, one model for all by one gradient step a round
- alone: the exact model (of least norm) of the client's rows without any representation
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import rondo
from rondo.config import load
from rondo.tasks.numbers.linear_problem import LinearProblem

RUN = Path(__file__).parent / "runs" / "fedrep-figure4.toml"
FEDSGD = ('algorithm.name="fedavg"', "algorithm.start_rounds=", "train.local_steps=1")
SHOTS = (1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 50)
SCORED = 200
MODELS = {
    "rondo adapt": "FedRep, rondo adapt",
    "FedRep": "FedRep, exact head",
    "FedSGD": "FedSGD, exact head",
    "alone": "alone",
}


def newcomer(problem: LinearProblem, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows x (n, d) and y (n, 1) of a new client, and the same for the score, without noise."""
    drawn = torch.Generator().manual_seed(1000 * problem.seed + number)
    sizes = (max(SHOTS), SCORED)
    head = torch.randn(1, problem.config.rank, generator=drawn, dtype=torch.float64)
    slope = (head @ problem.down).mT
    x, scored = (torch.randn(n, problem.config.inputs, generator=drawn, dtype=torch.float64) for n in sizes)
    noise = problem.config.noise * torch.randn(len(x), 1, generator=drawn, dtype=torch.float64)
    return x, x @ slope + noise, scored, scored @ slope


def exact_error(rows: tuple[Tensor, Tensor, Tensor, Tensor], features: Tensor) -> float:
    """The mean squared error of the least-norm exact linear model on ``features`` (k, d) of the rows."""
    x, y, scored, truth = rows
    head = torch.linalg.lstsq(x @ features.mT, y, driver="gelsd").solution
    return float((scored @ features.mT @ head - truth).square().mean())


def table(x: Tensor, y: Tensor) -> list[dict[str, list[float]]]:
    return [{"x": a, "y": b} for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def representation(run_dir: Path) -> Tensor:
    return load_file(run_dir / "adapter" / "tensors.safetensors")["representation.weight"]


def draw(errors: dict[tuple[str, int], list[float]], file: Path) -> None:
    """One line per model, with the quartiles as its band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    for (model, label), colour in zip(MODELS.items(), ("#56B4E9", "#0072B2", "#D55E00", "#000000"), strict=True):
        low, middle, high = zip(*(statistics.quantiles(errors[model, n], n=4) for n in SHOTS), strict=True)
        axes.fill_between(SHOTS, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(SHOTS, middle, color=colour, label=label, lw=1.5, ls="--" if model == "rondo adapt" else "-")
    axes.set_yscale("log")
    axes.set_xlabel("rows of the new client")
    axes.set_ylabel("squared error on its test rows")
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--newcomers", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=500, help="of the head that rondo adapt fits")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--images", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for seed in range(args.seeds):
        features = {}
        for model, sets in (("FedRep", ()), ("FedSGD", FEDSGD)):
            run_dir = args.out / f"{model}-seed-{seed}"
            if not (run_dir / "summary.json").exists():
                rondo.run(RUN, sets=[*sets, *args.sets, f"seed={seed}"], run_dir=run_dir)
            features[model] = representation(run_dir)
        problem = LinearProblem.draw(load(RUN, [*args.sets, f"seed={seed}"]).problem, seed)
        features["alone"] = torch.eye(problem.config.inputs, dtype=torch.float64)
        for number in range(args.newcomers):
            x, y, scored, truth = newcomer(problem, number)
            for shots in SHOTS:
                for model, rows in features.items():
                    errors[model, shots].append(exact_error((x[:shots], y[:shots], scored, truth), rows))
                fitted = rondo.adapt(
                    args.out / f"FedRep-seed-{seed}",
                    table(x[:shots], y[:shots]),
                    test=table(scored, truth),
                    epochs=args.epochs,
                )
                # The task's loss for heads is half the squared error.
                errors["rondo adapt", shots].append(2 * fitted.shots[0].adapted["loss"])
    with (args.results / "fedrep-figure4.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("model", "rows", "median", "lower_quartile", "upper_quartile"))
        for model in MODELS:
            for shots in SHOTS:
                low, middle, high = statistics.quantiles(errors[model, shots], n=4)
                lines.writerow((model, shots, f"{middle:.4g}", f"{low:.4g}", f"{high:.4g}"))
            medians = ", ".join(f"{n}: {statistics.median(errors[model, n]):.3g}" for n in SHOTS)
            print(f"{model}: {medians}", flush=True)
    draw(errors, args.images / "fedrep-figure4.png")


if __name__ == "__main__":
    main()
