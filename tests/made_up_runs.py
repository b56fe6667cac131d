"""An entry of two arms, dear and cheap, with the made-up records of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from records import line, summary
from rondo.study.claims.entry import Entry
from rondo.study.claims.trials import Trials

CONFIG: dict[str, Any] = {
    "model": {"name": "builtin:linear"},
    "task": {"kind": "linear"},
    "data": {"source": "builtin:linear", "validation_fraction": 0.0},
    "train": {"optimizer": "sgd", "max_grad_norm": 0.0},
}
PRIVATE = {
    "privacy": {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 0.01},
    "clients": {"sampling": "full", "weighting": "uniform"},
}
"""Sections of clients whose turnout is a secret."""
ONE_CLIENT = {"dear": 1, "cheap": 1}


def entry(paper: float | None = 1.0, **changes: Any) -> Entry:
    contrast = {"claim": "the dear one is ahead", "plus": ["dear"], "minus": ["cheap"], "source": "none"}
    contrasts = [contrast if paper is None else {**contrast, "paper": paper}]
    arms = {"dear": {"algorithm": {"name": "rolora-linear"}}, "cheap": {"algorithm": {"name": "fedit"}}}
    return Entry.model_validate(
        {
            **dict.fromkeys(("paper", "item", "title", "differs"), "x"),
            "metric": "measures.score",
            "seeds": [0, 1, 2],
            "seconds": 1,
            "config": CONFIG,
            "arms": arms,
            "contrasts": contrasts,
            **changes,
        }
    )


def made(
    folder: Path,
    entry: Entry,
    of_arm: Mapping[str, tuple[int, Sequence[float]]],
    clients: Mapping[str, int] = ONE_CLIENT,
) -> Trials:
    """The entry's runs, each with its arm's bytes per round and scores, a thousandth higher per seed with ``dear``."""
    trials = Trials("own", entry, folder, folder)
    for trial in trials.runs():
        sent, scores = of_arm[trial.arm]
        trial.folder.mkdir(parents=True)
        more = trial.seed / 1000 if trial.arm == "dear" else 0.0
        write(trial.folder, sent, [score + more for score in scores], clients[trial.arm])
    return trials


def write(folder: Path, sent: int, scores: Sequence[float], clients: int = 1) -> None:
    traffic = {"bytes_up": max(0, sent - 1), "bytes_down": min(1, sent)}
    lines = [line(k, measures={"score": s}, **traffic) for k, s in enumerate(scores)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    content = summary(len(lines), seconds={"all": 1.0}, clients=clients)
    (folder / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    manifest = {"versions": {}, "config": {}, "device": "cpu", "threads": 1}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
