"""The page on embeddings: its files are written and its commands run, in order, in an empty folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_tutorial import Reader, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_page_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    pytest.importorskip("hassil")
    folder = tmp_path / "empty"
    folder.mkdir()
    said = "".join(Reader(folder).follow("docs/how-to/embeddings.md", **{"9093": free_port()}).values())
    score = re.search(r"test set: recall_at_1 +│ +([\d.]+) │ +([\d.]+)", said)
    assert score is not None, said
    assert float(score[2]) > float(score[1]) + 0.05, said
    found = json.loads((folder / "vectors.jsonl").open().readline())["embedding"]
    assert sum(x * x for x in found) == pytest.approx(1.0, abs=1e-5)
    assert "verified: reloaded by transformers alone" in said
    assert "1_Pooling" in said
    assert (folder / "server" / "runs" / "homes" / "adapter" / "modules.json").is_file()
