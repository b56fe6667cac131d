"""Every output of a run says the same of what its ``[privacy]`` protects and from whom, whatever its kind."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rondo
from rondo.privacy.accounts.accountant import epsilon
from rondo.records.directory import RunDirectory
from rondo.report.page.document import html
from rondo.report.terminal import summary_table
from rondo.runs.watching.result import RunResult
from rondo.study.compare.table import comparison_table
from small_runs import reviews, save_tiny_bert, settings, write_rows

pytest.importorskip("dp_accounting")

NOISE = {"clip": 1.0, "noise": 2.0, "delta": 1e-2}
MASKS = "masked sums, against the server: it sees sums alone"
SIMULATED = "against the machine of this simulation: nothing"
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "clients": (
        {"adversary": "reader", "unit": "client", **NOISE},
        ("differential privacy of clients, against who reads the released model: epsilon ",),
    ),
    "clients, with noise from a seed": (
        {"adversary": "reader", "unit": "client", **NOISE, "debug_seed": 3},
        (
            "differential privacy of clients, against who reads the released model: none, NOT VALID: its noise came "
            "from a known seed",
        ),
    ),
    "rows": (
        {"adversary": "server", "unit": "example", **NOISE},
        ("differential privacy of rows, against the server too: epsilon ", SIMULATED),
    ),
    "masked sums": ({"adversary": "server", "secure_aggregation": True, "clip": 10.0}, (MASKS, SIMULATED)),
    "masked sums with noise of the sites": (
        {"adversary": "server", "secure_aggregation": True, "unit": "client", **NOISE},
        ("differential privacy of clients, against the server too with 1 of the sites: epsilon ", MASKS, SIMULATED),
    ),
    "masked sums of rows with noise": (
        {"adversary": "reader", "secure_aggregation": True, "unit": "example", "upload_clip": 10.0, **NOISE},
        ("differential privacy of rows, against who reads the released model: epsilon ", MASKS, SIMULATED),
    ),
}
"""A section ``[privacy]`` by kind, and what each of its outputs says."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    save_tiny_bert(folder / "bert")
    write_rows(folder / "train.csv", reviews(24))
    write_rows(folder / "test.csv", reviews(6, seed=1))
    return folder


def private(sources: Path, kind: str, **changes: Any) -> dict[str, Any]:
    return settings(
        sources / "bert",
        data={"source": str(sources / "train.csv"), "test_source": str(sources / "test.csv")},
        partition={"kind": "iid", "clients": 3},
        clients={"weighting": "uniform", "sampling": "full"},
        train={"optimizer": "sgd", "lr": 0.05, "batch_size": 8, "local_epochs": 1, "max_grad_norm": 0.0},
        evaluation={"diagnostics_every": 0, "every": 1},
        task={"labels": ["neg", "pos"]},
        privacy=KINDS[kind][0],
        **changes,
    )


def printed(table: Any) -> str:
    console = Console(file=io.StringIO(), width=300, no_color=True)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def outputs(folder: Path, comparison: rondo.Comparison) -> Mapping[str, str]:
    """Every output of a comparison of one run, by name. A table's row ends with what it says, after its label."""
    run = RunDirectory(folder / "rolora-seed-0")
    summary = run.read("summary.json")
    rondo.export(run.path, folder / "export")
    result = RunResult(run.rounds(), run.path, summary["after"], summary)
    found = {file.name: file.read_text() for file in sorted(folder.glob("comparison.*")) if file.suffix != ".png"}
    del found["comparison.svg"]
    found |= {"the comparison": printed(comparison_table(vars(comparison))), "its notebook": comparison._repr_html_()}
    found |= {"the last round": json.dumps(run.rounds()[-1])}
    found |= {"the table": printed(summary_table(summary)), "the notebook": result._repr_html_()}
    found |= {f"{name}, card": (run.path / name / "README.md").read_text() for name in ("adapter", "adapter-best")}
    return found | {"the page": html([folder]), "export, card": (folder / "export" / "README.md").read_text()}


def says_otherwise(text: str, sentences: list[list[str]]) -> list[str]:
    """The protections that ``text`` names never, or once with another bound. Tables have borders or tags between."""
    between = r"\W*(?:<[^<>]*>\W*)*"
    text = " ".join(text.split())
    named = {protection: text.count(protection) for protection, _ in sentences}
    right = {a: len(re.findall(re.escape(a) + between + re.escape(b) + r"(?!\w)", text)) for a, b in sentences}
    return [protection for protection, count in named.items() if not count or right[protection] != count]


@pytest.mark.sweep(6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_output_says_the_sentences_of_the_record(kind: str, sources: Path, tmp_path: Path) -> None:
    """Terminal, notebooks, records, cards, pages and comparisons; a search takes no private run."""
    privacy, said = KINDS[kind]
    config = private(sources, kind)
    folder = tmp_path / "out"
    found = outputs(folder, rondo.compare(["rolora"], config, out=folder, device="cpu"))
    assert len(found) == 12
    sentences = json.loads((folder / "rolora-seed-0" / "summary.json").read_text())["privacy"]["sentences"]
    assert [line for line in map(": ".join, sentences) if not line.startswith(said)] == []
    assert len(sentences) == len(said)
    assert {name: otherwise for name, text in found.items() if (otherwise := says_otherwise(text, sentences))} == {}
    summary = json.loads((folder / "rolora-seed-0" / "summary.json").read_text())["privacy"]
    assert {key: summary[key] for key in ("adversary", "unit", "secure_aggregation", "simulation")} == {
        "adversary": privacy["adversary"],
        "unit": privacy.get("unit"),
        "secure_aggregation": privacy.get("secure_aggregation", False),
        "simulation": True,
    }


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("kind", "bare"), [("clients", True), ("masked sums", True), ("rows", False)])
def test_card_promises_nothing_of_tensors_without_noise(kind: str, bare: bool, sources: Path, tmp_path: Path) -> None:
    """What a client keeps has no noise, except where each step has; rows that a model is adapted to never have."""
    config = private(sources, kind, rounds=1, algorithm={"name": "fedsa-lora"})
    run = rondo.run(config, run_dir=tmp_path / "run", device="cpu").run_dir
    client = next(iter(RunDirectory(run).read("partition.json")["clients"]))
    rondo.export(run, tmp_path / "shared")
    rondo.export(run, tmp_path / "own", client=client)
    rondo.adapt(run, reviews(10, seed=2), to=tmp_path / "new")
    cards = {name: (tmp_path / name / "README.md").read_text() for name in ("shared", "own", "new")}
    assert {name: "No guarantee holds for this model" in card for name, card in cards.items()} == {
        "shared": False,
        "own": bare,
        "new": True,
    }


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize(("kind", "seeds"), [("clients", [0, 1]), ("rows", [0])])
def test_comparison_tells_what_all_its_runs_spent_together(
    kind: str, seeds: list[int], sources: Path, tmp_path: Path
) -> None:
    """Of rows, whose clients are the same in every run, each client's steps add up."""
    config = private(sources, kind, rounds=2)
    comparison = rondo.compare(["fedit", "ffa-lora"], config, seeds=seeds, out=tmp_path / "out", device="cpu")
    runs, rounds = 2 * len(seeds), 2
    bound = epsilon(2.0, 1.0, runs * rounds, 1e-2)  # a batch is all rows of a client
    said = f"each run by itself; all {runs} together: epsilon {bound:.3g} at delta 0.01"
    assert comparison.together == said
    assert said in comparison._repr_html_()
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["together"] == said
