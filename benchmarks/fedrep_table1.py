"""A row of FedRep's Table 1: every method's mean accuracy at the clients, on rows that they never train on.

    python benchmarks/fedrep_table1.py benchmarks/runs/fedrep-cifar.toml OUT [--seeds 0,1,2] [--set KEY=VALUE ...]

One run directory per method and seed under OUT, and OUT.csv. A finished run is kept. Settings of a method that the
paper names (appendix A.2) are in METHODS. "+FT" is the head of the global model, fine-tuned for ten epochs.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tomllib
from pathlib import Path

import rondo

METHODS: dict[str, tuple[str, ...]] = {
    "local": ("train.local_epochs={longer}",),
    "fedavg": (),
    "fedprox": ("algorithm.mu={mu}",),
    "scaffold": (),
    "fed-mtl": ("algorithm.lam=0.1",),
    "per-fedavg": ("algorithm.inner_lr=1e-4", "algorithm.support=0.8"),
    "lg-fedavg": ("model.head_layers={upper}",),
    "l2gd": ("train.lr={l2gd}",),
    "apfl": ("algorithm.alpha=0.25",),
    "ditto": ("algorithm.lam=0.75",),
    "fedper": (),
    "fedrep": ("algorithm.head_epochs=10", "algorithm.body_epochs={epochs}"),
}
GLOBAL = ("fedavg", "fedprox", "scaffold")
FINE_TUNED = ("evaluation.fine_tune_epochs=10", 'evaluation.fine_tune="head"')
ALONE = 5
"""Times the local epochs for "local", which no server helps."""


def settings(config: Path, method: str) -> list[str]:
    """The settings of ``method``, with the paper's values for the configuration's kind of data."""
    train, model = (tomllib.loads(config.read_text(encoding="utf-8"))[section] for section in ("train", "model"))
    image, epochs = model["name"] == "builtin:cnn", train["local_epochs"]
    values = {
        "longer": ALONE * epochs,
        "epochs": epochs,
        "mu": 0.1 if image else 0.25,
        "upper": '["fc1", "fc2", "fc3"]' if image else '["fc1", "fc2"]',
        "l2gd": 0.025 if image else train["lr"],
    }
    sets = [text.format(**values) for text in METHODS[method]]
    return [f"algorithm.name={method}", "algorithm.head_epochs=", "algorithm.body_epochs=", *sets] + (
        list(FINE_TUNED) if method in GLOBAL else []
    )


def score(run_dir: Path, kind: str) -> float | None:
    """The mean over clients of the last round's accuracy of this kind ("clients", "personal", "fine_tuned")."""
    *_, last = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = json.loads(last)["scores"].get(kind)
    return None if found is None else found["accuracy"]["mean"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    rows: list[tuple[str, list[float]]] = []
    for method in args.methods.split(","):
        accuracies: dict[str, list[float]] = {}
        for seed in seeds:
            run_dir = args.out / f"{method}-seed-{seed}"
            if not (run_dir / "summary.json").exists():
                rondo.run(
                    args.config, sets=[*settings(args.config, method), *args.sets, f"seed={seed}"], run_dir=run_dir
                )
            own = score(run_dir, "clients") if score(run_dir, "personal") is None else score(run_dir, "personal")
            for name, value in ((method, own), (f"{method}+FT", score(run_dir, "fine_tuned"))):
                if value is not None:
                    accuracies.setdefault(name, []).append(value)
        rows += accuracies.items()
        for name, values in accuracies.items():
            spread = statistics.stdev(values) if len(values) > 1 else float("nan")
            print(f"{name}: {100 * statistics.mean(values):.1f} +- {100 * spread:.1f}", flush=True)
    with args.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("method", *(f"seed {seed}" for seed in seeds)))
        table.writerows((name, *(f"{value:.4f}" for value in values)) for name, values in rows)


if __name__ == "__main__":
    main()
