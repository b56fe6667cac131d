"""The score of FlowerTune's leaderboard for general NLP: the first letter that a model answers to MMLU's questions.

    pip install 'lm-eval>=0.4.13,<0.5'
    python benchmarks/flowertune.py --mmlu FOLDER/mmlu --every 4 --out flowertune.json runs/base runs/tuned

The leaderboard (https://flower.ai/benchmarks/llm-leaderboard/nlp) asks without examples, in a form of its own, for one
token, greedily; the answer is its first letter or digit. Its score is the mean of STEM, social sciences and humanities,
in each of which all questions count alike. lm-eval asks, through ``rondo evaluate --lm-eval``. --every takes each n-th
question of a subject. The runs are those that benchmarks/instructions.py keeps.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet

HUMANITIES = (
    "formal_logic high_school_european_history high_school_us_history high_school_world_history international_law "
    "jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory professional_law "
    "world_religions"
)
SOCIAL_SCIENCES = (
    "econometrics high_school_geography high_school_government_and_politics high_school_macroeconomics "
    "high_school_microeconomics high_school_psychology human_sexuality professional_psychology public_relations "
    "security_studies sociology us_foreign_policy"
)
STEM = (
    "abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science college_mathematics "
    "college_physics computer_security conceptual_physics electrical_engineering elementary_mathematics "
    "high_school_biology high_school_chemistry high_school_computer_science high_school_mathematics "
    "high_school_physics high_school_statistics machine_learning"
)
CATEGORIES = {"stem": STEM.split(), "social_sciences": SOCIAL_SCIENCES.split(), "humanities": HUMANITIES.split()}
"""The leaderboard's categories; MMLU's fourth is not in it."""

TASK = """
task: flowertune_{category}
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{max_gen_toks: 1, do_sample: false, until: ["###"]}}
filter_list: [{{name: first, filter: [{{function: regex, regex_pattern: "^[^a-zA-Z0-9]*([a-zA-Z0-9])"}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}}]
"""  # noqa: E501


def prompt(row: Mapping[str, Any]) -> str:
    """A question in the leaderboard's form."""
    question = row["question"] if row["question"].endswith(("?", ".")) else row["question"] + "?"
    options = "\n".join(f"{letter}. {row[letter]}" for letter in "ABCD")
    asked = f"Answer the following multiple choice question.\nQuestion: {question}\n\nOptions:\n{options}"
    return f"<|im_start|>question\n{asked}\nThe answer is:\n<|im_end|>\n<|im_start|>answer\n"


def tasks(mmlu: Path, folder: Path, every: int) -> dict[str, int]:
    """Write a task file and its rows for each category. Returns the numbers of questions, by task."""
    rows, counts = parquet.read_table(mmlu / "test.parquet").to_pylist(), {}
    for category, subjects in CATEGORIES.items():
        of_subjects = [[row for row in rows if row["subject"] == subject][::every] for subject in subjects]
        chosen = [row for of_subject in of_subjects for row in of_subject]
        table = {"prompt": [prompt(row) for row in chosen], "answer": [row["answer"] for row in chosen]}
        file = folder / f"{category}.parquet"
        parquet.write_table(pyarrow.table(table), file)
        (folder / f"{category}.yaml").write_text(TASK.format(category=category, file=file), encoding="utf-8")
        counts[f"flowertune_{category}"] = len(chosen)
    return counts


def scored(run: Path, counts: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """The share of right answers in each category, their mean, and its standard error by chance."""
    from rondo.results.evaluate import evaluate_by_harness

    found = evaluate_by_harness(run, list(counts), folder)["results"]
    shares = {name: found[name]["exact_match,first"] for name in counts}
    error = math.sqrt(sum(s * (1 - s) / counts[name] for name, s in shares.items())) / len(shares)
    sent = json.loads((run / "summary.json").read_text(encoding="utf-8"))["bytes"]
    return {**shares, "mean": sum(shares.values()) / len(shares), "standard_error": error, "bytes": sent}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--mmlu", type=Path, required=True)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("flowertune.json"))
    args = parser.parse_args(arguments)
    lines: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        counts = tasks(args.mmlu, Path(place), args.every)
        lines["questions"] = counts
        for run in args.runs:
            lines[run.name] = scored(run, counts, Path(place))
            args.out.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
            print(run.name, lines[run.name], flush=True)


if __name__ == "__main__":
    main()
