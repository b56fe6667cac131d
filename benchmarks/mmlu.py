"""MMLU, five-shot, by lm-eval: through ``rondo evaluate --lm-eval`` and by lm-eval alone, which must agree.

    pip install 'lm-eval>=0.4.13,<0.5'
    python benchmarks/mmlu.py --mmlu FOLDER/mmlu --limit 4 --out mmlu.json runs/base runs/tuned

The folder holds dev.parquet, from which the examples in the prompt come, and test.parquet. The task files that it
writes say what lm-eval's own for MMLU say, with data on the disk; --limit takes the first rows of each of the 57
subjects. lm-eval alone gets the exported adapter on its base through its own model class for transformers and PEFT.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.compute as compute
import pyarrow.parquet as parquet

TASK = """
task: {task}
dataset_path: parquet
dataset_kwargs: {{data_files: {{dev: "{folder}/{subject}-dev.parquet", test: "{folder}/{subject}-test.parquet"}}}}
test_split: test
fewshot_split: dev
fewshot_config: {{sampler: first_n}}
num_fewshot: 5
output_type: multiple_choice
description: "The following are multiple choice questions (with answers) about {name}.\\n\\n"
doc_to_text: "{{{{question.strip()}}}}\\nA. {{{{A}}}}\\nB. {{{{B}}}}\\nC. {{{{C}}}}\\nD. {{{{D}}}}\\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: "{{{{['A', 'B', 'C', 'D'].index(answer)}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def tasks(mmlu: Path, folder: Path, limit: int) -> list[str]:
    """Write a task file and its rows for each subject; return the names."""
    tables = {split: parquet.read_table(mmlu / f"{split}.parquet") for split in ("dev", "test")}
    names = []
    for subject in sorted(set(tables["test"]["subject"].to_pylist())):
        for split, table in tables.items():
            rows = table.filter(compute.equal(table["subject"], subject))
            parquet.write_table(rows.slice(0, limit if split == "test" else 5), folder / f"{subject}-{split}.parquet")
        task = f"local_mmlu_{subject}"
        text = TASK.format(task=task, folder=folder, subject=subject, name=subject.replace("_", " "))
        (folder / f"{task}.yaml").write_text(text, encoding="utf-8")
        names.append(task)
    return names


def accuracies(results: dict[str, Any]) -> dict[str, float]:
    return {task.removeprefix("local_mmlu_"): found["acc,none"] for task, found in sorted(results.items())}


def alone(run: Path, names: list[str], folder: Path) -> dict[str, float]:
    """lm-eval without Rondo's door: transformers loads the base, PEFT the exported adapter."""
    import lm_eval
    import peft
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    import rondo

    with tempfile.TemporaryDirectory() as place:
        rondo.export(run, f"{place}/adapter")
        base = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))["model"]["name"]
        gguf = next(Path(base).glob("*.gguf")).name
        tokenizer = transformers.AutoTokenizer.from_pretrained(base, gguf_file=gguf)
        model = transformers.AutoModelForCausalLM.from_pretrained(base, gguf_file=gguf, dtype=torch.float32)
        model = peft.PeftModel.from_pretrained(model, f"{place}/adapter").eval()
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        handed = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
        return accuracies(lm_eval.simple_evaluate(model=handed, tasks=names, task_manager=manager)["results"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--mmlu", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("mmlu.json"))
    args = parser.parse_args()
    from rondo.results.evaluate import evaluate_by_harness

    lines = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = tasks(args.mmlu, folder, args.limit)
        for run in args.runs:
            found = evaluate_by_harness(run, names, folder)
            ours, theirs = accuracies(found.get("results", found)), alone(run, names, folder)
            lines[run.name] = {
                "rows": args.limit * len(names),
                "accuracy": sum(ours.values()) / len(ours),
                "accuracy_alone": sum(theirs.values()) / len(theirs),
                "subjects_that_differ": sorted(name for name in ours if ours[name] != theirs[name]),
                "subjects": ours,
            }
            args.out.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
            print(run.name, {k: v for k, v in lines[run.name].items() if k != "subjects"}, flush=True)


if __name__ == "__main__":
    main()
