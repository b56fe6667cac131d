"""FedIT, FFA-LoRA and RoLoRA on GLUE text with MiniLM, at a constant number of examples per round.

    python benchmarks/glue.py --data FOLDER --task sst2 --clients 3 20 50 --seeds 0 1 2 --lr 1e-2 --out sst2.jsonl
    python benchmarks/glue.py --data FOLDER --task rte --clients 20 --seeds 0 1 2 --lr 1e-2 --out rte.jsonl
    python benchmarks/glue.py --data FOLDER --lr 1e-2 --seeds 0 1 2 --precision exact fast --out precision.jsonl
    python benchmarks/glue.py --table sst2.jsonl rte.jsonl

FOLDER holds glue_sst2/ and glue_rte/ with train.parquet and validation.parquet. Each run appends a line to --out; a run
that --out already has is not repeated. With --tune the score is taken on rows held out of the training set, so that no
learning rate is chosen on the test set.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

ALGORITHMS = ("fedit", "ffa-lora", "rolora")

# (task, clients) to (clients per round, local steps, batch size). A round has 480 examples of SST-2 or 320 of RTE. 50
# clients cannot share 480 examples evenly, so 48 of them take part in a round.
SHARES = {
    ("sst2", 3): (3, 20, 8),
    ("sst2", 20): (20, 3, 8),
    ("sst2", 50): (48, 2, 5),
    ("rte", 20): (20, 2, 8),
}


def in_float32(run_dir: Path) -> float:
    """Test accuracy of a finished run's model in float32, in whatever precision it was trained."""
    from rondo.results.reopen import reopen

    opened = reopen(run_dir, exact=True, source="glue", rows=("test_rows", "test_examples_sha256"))
    seen, base = opened.model(None)
    return float(opened.scorer.scores(seen, base, opened.assembly.population.test)["accuracy"] or 0.0)


def one_run(
    args: argparse.Namespace, algorithm: str, clients: int, seed: int, lr: float, precision: str
) -> dict[str, Any]:
    """Run one cell and return its figures for the table."""
    import rondo

    per_round, steps, batch = SHARES[args.task, clients]
    sets = [
        f"seed={seed}",
        f'algorithm.name="{algorithm}"',
        f"data.source='{args.data}/glue_{args.task}'",
        'partition.kind="iid"',
        f"partition.clients={clients}",
        f"clients.per_round={per_round}",
        f"train.local_steps={steps}",
        f"train.batch_size={batch}",
        f"train.lr={lr}",
        f'train.precision="{precision}"',
        f"rounds={args.rounds}",
    ]
    if args.tune:
        sets += [f"data.validation_fraction={0.1}", "evaluation.every=0"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(__file__).with_name("runs") / f"{args.task}.toml"
        result = rondo.run(config, sets=sets, run_dir=f"{folder}/run")
        exact = in_float32(result.run_dir)
    curve = {r["round"] + 1: r["scores"]["global"]["accuracy"] for r in result.history if "global" in r["scores"]}
    moved = [r["bytes_up"] + r["bytes_down"] for r in result.history]
    cell = {
        "task": args.task,
        "algorithm": algorithm,
        "clients": clients,
        "seed": seed,
        "lr": lr,
        "precision": precision,
        "accuracy_in_float32": exact,
        "rounds": args.rounds,
        "accuracy": curve,
        "bytes_by_round": [sum(moved[: i + 1]) for i in range(len(moved))],
        "bytes_up": sum(r["bytes_up"] for r in result.history),
        "bytes_down": sum(r["bytes_down"] for r in result.history),
        "seconds": result.summary["seconds"]["all"],
    }
    if args.tune:
        # All clients have the same number of rows, so the mean over clients is the mean over rows.
        cell["held_out"] = result.metrics["clients"]["accuracy"]["mean"]
    return cell


def finished(path: Path) -> Iterator[dict[str, Any]]:
    """The runs in a JSON lines file."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def table(paths: list[Path]) -> None:
    """Print mean and standard deviation over seeds, at equal rounds and at the bytes of the cheapest method."""
    cells = [{"precision": "exact", **c} for p in paths for c in finished(p) if "held_out" not in c]
    print("| task | clients | algorithm | precision | lr | accuracy | at equal bytes | MB up | MB down | s a run |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for task, clients in sorted({(c["task"], c["clients"]) for c in cells}):
        group = [c for c in cells if (c["task"], c["clients"]) == (task, clients)]
        budget = min(c["bytes_by_round"][-1] for c in group)
        for algorithm, precision in product(ALGORITHMS, ("exact", "fast")):
            runs = [c for c in group if (c["algorithm"], c["precision"]) == (algorithm, precision)]
            if not runs:
                continue
            last = [100 * c["accuracy"][str(c["rounds"])] for c in runs]
            equal, at = [], set()
            for c in runs:
                scored = [int(r) for r in c["accuracy"] if c["bytes_by_round"][int(r) - 1] <= 1.02 * budget]
                at.add(max(scored))
                equal.append(100 * c["accuracy"][str(max(scored))])
            up, down, seconds = (statistics.mean(c[k] for c in runs) for k in ("bytes_up", "bytes_down", "seconds"))
            rates = "/".join(sorted({f"{c['lr']:g}" for c in runs}))
            print(
                f"| {task} | {clients} | {algorithm} | {precision} | {rates} | {_spread(last)} | {_spread(equal)} "
                f"(round {'/'.join(map(str, sorted(at)))}) | {up / 1e6:.1f} | {down / 1e6:.1f} | {seconds:.0f} |"
            )


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f} (n={len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=".", help="folder with glue_sst2/ and glue_rte/")
    parser.add_argument("--task", choices=("sst2", "rte"), default="sst2")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--clients", nargs="+", type=int, default=[20])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--lr", nargs="+", type=float, default=[5e-3])
    parser.add_argument("--precision", nargs="+", choices=("exact", "fast"), default=["exact"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("glue.jsonl"))
    parser.add_argument("--table", nargs="+", type=Path, help="print the table of these files and stop")
    args = parser.parse_args()
    if args.table:
        table(args.table)
        return
    import torch

    torch.set_num_threads(args.threads)
    key = ("algorithm", "clients", "seed", "lr", "precision")
    done = {tuple(c.get(k, "exact") for k in key) for c in finished(args.out)}
    for clients, seed, algorithm, lr, precision in product(
        args.clients, args.seeds, args.algorithms, args.lr, args.precision
    ):
        if (algorithm, clients, seed, lr, precision) in done:
            continue
        cell = one_run(args, algorithm, clients, seed, lr, precision)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell) + "\n")
        scores = {r: round(a, 4) for r, a in cell["accuracy"].items()} | {"float32": cell["accuracy_in_float32"]}
        print(*(cell[k] for k in key), scores, cell.get("held_out"), f"{cell['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
