"""The page on token classification: its files are written and its commands run, in order, in an empty folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_tutorial import Reader, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_page_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    seen = Reader(folder).follow("docs/how-to/token-classification.md", **{"9092": free_port()})
    said = "".join(seen.values())
    counts = re.search(r"^client +train +validation +DRUG +DOSE$", said, re.M)
    assert counts is not None, said
    score = re.search(r"test set: f1 +│ +([\d.]+) │ +([\d.]+)", said)
    assert score is not None, said
    assert float(score[2]) > 0.8, said
    assert "test set: f1 of DOSE" in said
    row, found = (json.loads((folder / name).open().readline()) for name in ("test.jsonl", "found.jsonl"))
    assert [{**span, "text": row["text"][span["start"] : span["end"]]} for span in found["spans"]] == found["spans"]
    assert "verified: reloaded by transformers alone" in said
    assert "'entity_group': 'DRUG'" in said
    assert (folder / "server" / "runs" / "notes" / "adapter" / "adapter_model.safetensors").is_file()
    (letters,) = (out for block, out in seen.items() if "--letters" in block)
    assert "labels [O, B-DOSE, I-DOSE, B-DRUG, I-DRUG]" in letters
