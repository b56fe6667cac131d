"""The page of measured methods, docs/results/measured.md: bytes of a real run and verdicts on claims.

python docs/.site/measured.py --run    # measures again, into bytes.json; minutes
python docs/.site/measured.py          # writes the page from bytes.json and docs/results/facts
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from rondo import algorithms
from rondo.study.claims import entry as entries

HERE = Path(__file__).parent
BYTES, PAGE, FACTS = HERE / "bytes.json", HERE.parent / "results" / "measured.md", HERE.parent / "results" / "facts"

ROUNDS = 4
SETTING = {
    "rounds": ROUNDS,
    "model": {"name": "builtin:minilm"},
    "adapter": {"r": 8, "lora_alpha": 16, "target_modules": ["query", "value"]},
    "task": {"text": "text", "label": "label", "max_length": 16},
    "data": {"validation_fraction": 0.0},
    "partition": {"kind": "iid", "clients": 4},
    "train": {"optimizer": "sgd", "lr": 0.5, "local_steps": 2, "batch_size": 4},
    "evaluation": {"diagnostics_every": 0},
}
ROWS = [{"text": f"word {n}", "label": ("routine", "urgent")[n % 2]} for n in range(32)]

HEAD = """# Methods, measured

Bytes of real runs, and the verdicts on claims that name a method. The formulas of the bytes, the properties and the
papers are in [the methods](../methods.md).

**Bytes**: kilobytes of tensors per client in each of four rounds of one run, up and down. The model is MiniLM (six
layers of 384) with rank 8 on query and value. Its head of two classes travels unless the method keeps it. Four
clients take part in every round. A client receives what it lacks, which is nothing in the first round of most
methods. The numbers depend only on shapes, except for `florist`, whose ranks follow from what was learned. A method
with a period longer than four rounds sends more in some later round.

**Verdicts**: numbers of [claims of the papers](README.md) in which a run of the method takes part, on either
side of the comparison. So a verdict is about a claim, and not about a method.

| method | kB up, rounds 1 to 4 | kB down, rounds 1 to 4 | seen | smaller | not seen here | open | not as stated |
|---|---|---|---|---|---|---|---|
"""
FOOT = """
The methods of linear regression (`rolora-linear`, `ffa-linear`, `fedrep-linear`) train no language model and have no
bytes here. Every formula on the other page is checked against what is sent, by the law of bytes
([`rondo.testing`](../reference/testing.md)).

This page is written by `docs/.site/measured.py`, from a measurement of 2026-11-26 (seed 0) and the facts behind the
claims' table.
"""


def measured() -> dict[str, dict[str, list[int]]]:
    """Bytes per client, up and down, of every round of every method; from one run of each."""
    import rondo

    found = {}
    for name in algorithms.names():
        with tempfile.TemporaryDirectory() as folder:
            raw = SETTING | {"algorithm": {"name": name}}
            history = rondo.run(raw, train=ROWS, run_dir=Path(folder) / "run").history
        rounds = [record for record in history if "bytes_up" in record][-ROUNDS:]
        found[name] = {key: [r[f"bytes_{key}"] // 4 for r in rounds] for key in ("up", "down")}
    return found


def verdicts() -> dict[str, Counter[str]]:
    """The number of verdicts of each kind per method."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name in entries.names():
        if not (FACTS / f"{name}.json").exists():  # its page is not there yet
            continue
        entry = entries.read(name)
        facts = json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8"))["claims"]
        by_claim = {fact["claim"]: fact.get("verdict", "open") for fact in facts}
        for claim in entry.claims:
            shared = entry.config.get("algorithm", {}).get("name")
            for method in {entry.arms[arm].get("algorithm", {}).get("name", shared) for arm in claim.arms} - {None}:
                counts[method][by_claim[claim.claim]] += 1
    return counts


def page() -> str:
    """The page's text."""
    sent = json.loads(BYTES.read_text(encoding="utf-8"))
    counts = verdicts()
    rows = []
    for name in algorithms.TABLE:
        nothing = {"up": [], "down": []}
        up, down = (", ".join(f"{n / 1000:.1f}" for n in sent.get(name, nothing)[key]) for key in ("up", "down"))
        said = [counts[name][v] for v in ("seen", "seen, smaller", "not seen here", "open", "not tested as stated")]
        rows.append(f"| `{name}` | {up} | {down} | {' | '.join(str(n) if n else '' for n in said)} |\n")
    return HEAD + "".join(rows) + FOOT


if __name__ == "__main__":
    if "--run" in sys.argv:
        BYTES.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
