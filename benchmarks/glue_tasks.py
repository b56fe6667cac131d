"""All nine tasks of GLUE with MiniLM at small scale, each by the metric that GLUE scores it by, before and after.

    python benchmarks/glue_tasks.py --data FOLDER --methods fedit,rolora --out glue-tasks.jsonl
    python benchmarks/glue_tasks.py --table glue-tasks.jsonl

FOLDER holds glue_cola/, glue_sst2/ and so on, each with train.parquet and validation.parquet. Each run appends a line
to --out; a run that --out already has is not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

GLUE: dict[str, tuple[list[str], str | None]] = {
    "cola": (["sentence"], "matthews"),
    "sst2": (["sentence"], None),
    "mrpc": (["sentence1", "sentence2"], "f1"),
    "qqp": (["question1", "question2"], "f1"),
    "stsb": (["sentence1", "sentence2"], None),
    "mnli": (["premise", "hypothesis"], None),
    "qnli": (["question", "sentence"], None),
    "rte": (["sentence1", "sentence2"], None),
    "wnli": (["sentence1", "sentence2"], None),
}
"""Columns of the text, and the metric to go by if it is not the task's own, by name."""

CLIENTS, STEPS, BATCH = 10, 8, 16


def configuration(args: argparse.Namespace, name: str, method: str) -> dict[str, Any]:
    """One run."""
    columns, metric = GLUE[name]
    number = name == "stsb"
    task = {
        "kind": "sequence-regression" if number else "sequence-classification",
        "text": columns if len(columns) > 1 else columns[0],
        "target" if number else "label": "label",
        "max_length": 128,
    }
    return {
        "seed": args.seed,
        "rounds": args.rounds,
        "algorithm": {"name": method},
        "adapter": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
        "task": task if metric is None else {**task, "metric": metric},
        "data": {
            "source": f"{args.data}/glue_{name}",
            "validation_fraction": 0.0,
            "max_train_rows": 4000,
            "max_test_rows": 1000,
        },
        "partition": {"kind": "iid", "clients": CLIENTS},
        "train": {"lr": 3e-3, "batch_size": BATCH, "local_steps": STEPS},
        "evaluation": {"every": 0, "diagnostics_every": 0},
    }


def one_run(args: argparse.Namespace, name: str, method: str) -> dict[str, Any]:
    import rondo

    with tempfile.TemporaryDirectory() as folder:
        result = rondo.run(configuration(args, name, method), run_dir=f"{folder}/run")
        before, after = result.summary["before"], result.history[-1]["scores"]
    return {
        "task": name,
        "method": method,
        "seed": args.seed,
        "before": before,
        "after": after,
        "bytes_up": sum(record["bytes_up"] for record in result.history),
        "seconds": sum(record["seconds"] for record in result.history),
    }


def shown(scores: dict[str, Any], name: str) -> str:
    """The metrics that GLUE has for a task."""
    metrics = {
        "cola": ("matthews",),
        "stsb": ("pearson", "spearman"),
        "mrpc": ("f1", "accuracy"),
        "qqp": ("f1", "accuracy"),
    }
    found = scores.get("global", scores)
    return " / ".join("-" if found[m] is None else f"{found[m]:.3f}" for m in metrics.get(name, ("accuracy",)))


def table(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    methods = list(dict.fromkeys(line["method"] for line in lines))
    print("| task | before | " + " | ".join(methods) + " |")
    print("|---" * (2 + len(methods)) + "|")
    for name in GLUE:
        by_method = {line["method"]: line for line in lines if line["task"] == name}
        if by_method:
            before = shown(next(iter(by_method.values()))["before"], name)
            cells = [shown(by_method[m]["after"], name) if m in by_method else "" for m in methods]
            print(f"| {name} | {before} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--methods", default="fedit,rolora")
    parser.add_argument("--tasks", default=",".join(GLUE))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("glue-tasks.jsonl"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table is not None:
        table(args.table)
        return
    known = (
        [json.loads(line) for line in args.out.read_text(encoding="utf-8").splitlines()] if args.out.exists() else []
    )
    done = {(line["task"], line["method"], line["seed"]) for line in known}
    for name in args.tasks.split(","):
        for method in args.methods.split(","):
            if (name, method, args.seed) not in done:
                line = one_run(args, name, method)
                with args.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
