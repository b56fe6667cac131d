"""The configuration that ``rondo init --task KIND`` writes, with rows beside it where no data of the kind are built in.
Imports no torch."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from rondo.data.demo import STARTER

_PARTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("starters.toml").read_text(encoding="utf-8"))
_DEFAULT = _PARTS.pop("default")
KINDS = ("sequence-classification", *_PARTS)
"""The kinds of tasks. That of the first is the configuration of ``rondo demo``."""
_FACTORS = """
[adapter]                       # PEFT's LoraConfig: same keys, same meaning
r = 8
lora_alpha = 16
target_modules = {targets}
"""
_TEXT = """# A federated run. Try it as it is:  rondo run THIS_FILE
# Every value can be changed on the command line too:  rondo run THIS_FILE --set rounds=1
seed = 0
rounds = 3

[algorithm]
name = "{algorithm}"                  # "rondo list" shows them all
{factors}
[model]
name = "{model}"         # a folder, or a Hugging Face name

[task]
kind = "{kind}"
{task}
[data]
source = {source}  # a CSV, JSON lines or Parquet file, or a Hugging Face name

[partition]                     # the way rows are dealt to clients
{clients}
"""


def starter(kind: str, rows: str) -> tuple[str, str | None]:
    """The text of the configuration of ``kind``, one of :data:`KINDS`, and of the file ``rows`` with made-up rows in
    place of the user's own; None where data are built in."""
    if kind not in _PARTS:
        return STARTER.read_text(encoding="utf-8"), None
    parts = {"source": rows, "kind": kind, **_DEFAULT, **_PARTS[kind]}
    factors = _FACTORS.format_map(parts) if parts["targets"] else ""
    text = _TEXT.format_map({**parts, "factors": factors, "source": json.dumps(parts["source"])})
    return text, _rows(parts) if "rows" in parts else None


def _rows(parts: Any) -> str:
    """JSON lines. A number takes the place of a whole text."""
    written = [json.dumps(row, ensure_ascii=False) for row in parts["rows"]]
    pairs = [(row, word, "WORD" if isinstance(word, str) else '"WORD"') for word in parts["words"] for row in written]
    return "".join(row.replace(gap, str(word)) + "\n" for row, word, gap in pairs)
