"""The page on preferences: its files are written and its commands run, in order, in an empty folder."""

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
    said = "".join(Reader(folder).follow("docs/how-to/preferences.md", **{"9092": free_port()}).values())
    scores = re.findall(r"test set: accuracy +│ +([\d.]+) │ +([\d.]+)", said)
    assert len(scores) >= 2, said
    assert min(float(after) for _, after in scores) > 0.8, said
    assert "verified: reloaded by transformers alone" in said
    answers, rewards = (
        [json.loads(line) for line in (folder / name).open()] for name in ("answers.jsonl", "rewards.jsonl")
    )
    assert [len(answers), len(rewards)] == [40, 40]
    assert {*map(tuple, rewards)} == {("reward",)}
    assert (folder / "server" / "runs" / "desks" / "adapter" / "adapter_model.safetensors").is_file()
