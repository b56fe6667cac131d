"""RoLoRA's figure 2: test accuracy over rounds of RoLoRA, FFA-LoRA and LoRA, with 5 and with 10 clients.

    python benchmarks/rolora_figure2.py OUT [--seeds 0,1,2] [--images docs/images] [--set KEY=VALUE ...]

Run from the folder that holds `mnist/mnist.npz`. The paper names no optimizer and no rate, so some run at two, in
RATES. OUT gets a run directory each; a finished run is kept. A curve is the mean over seeds, its band reaches from the
least to the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import rondo

RUNS = Path(__file__).parent / "runs"
METHODS = {"rolora": "RoLoRA", "ffa-lora": "FFA-LoRA", "fedit": "LoRA"}
RATES = {5: {0.3: tuple(METHODS)}, 10: {0.3: tuple(METHODS), 0.1: ("rolora", "fedit")}}
"""The methods run at each rate, by number of clients. RoLoRA with 10 clients jumps at 0.3, so 0.1 is beside it."""
STYLES = {0.3: "-", 0.1: "--"}
COLOURS = ("#0072B2", "#D55E00", "#009E73")
PANELS = {5: "5 clients, two labels each", 10: "10 clients, one label each"}


def curve(folder: Path, clients: int, method: str, seed: int, sets: list[str]) -> list[float]:
    """The test accuracy before the first round and after each. A run that ``folder`` holds is not run again."""
    run_dir = folder / f"{method}-seed-{seed}"
    if not (run_dir / "summary.json").exists():
        rondo.run(RUNS / f"rolora-figure2-{clients}.toml", sets=[*sets, f"seed={seed}"], run_dir=run_dir)
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))["before"]
    return [scores["global"]["accuracy"] for scores in (before, *(json.loads(line)["scores"] for line in lines))]


def draw(curves: dict[tuple[int, float, str], list[list[float]]], file: Path) -> None:
    """One panel per number of clients, one line per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (clients, title) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        for rate, method in ((rate, method) for rate, methods in RATES[clients].items() for method in methods):
            colour = COLOURS[list(METHODS).index(method)]
            scores = list(zip(*curves[clients, rate, method], strict=True))
            rounds = range(len(scores))
            axes.fill_between(
                rounds, [min(s) for s in scores], [max(s) for s in scores], color=colour, alpha=0.15, lw=0
            )
            label = f"{METHODS[method]}, rate {rate}"
            axes.plot(rounds, [statistics.mean(s) for s in scores], STYLES[rate], color=colour, label=label, lw=1.5)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("rounds")
        axes.set_xticks(range(0, len(rounds), 5))
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.25, lw=0.5)
        axes.label_outer()
        axes.legend(frameon=False, loc="lower right", fontsize=8)
    figure.axes[0].set_ylabel("accuracy on the test images")
    figure.savefig(file, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--images", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    curves: dict[tuple[int, float, str], list[list[float]]] = {}
    for clients, rate in ((clients, rate) for clients, rates in RATES.items() for rate in rates):
        for method in RATES[clients][rate]:
            sets = [f"train.lr={rate}", f"algorithm.name={method}", *args.sets]
            folder = args.out / f"{clients}-clients-rate-{rate}"
            found = [curve(folder, clients, method, seed, sets) for seed in seeds]
            curves[clients, rate, method] = found
            last, best = [c[-1] for c in found], [max(c) for c in found]
            print(f"{clients} clients, rate {rate}, {method}: last {last}, best {best}", flush=True)
    draw(curves, args.images / "rolora-figure2.png")


if __name__ == "__main__":
    main()
