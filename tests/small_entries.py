"""An entry of seconds, written to a file, decided, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from typer.testing import CliRunner

from rondo.cli import app

LINEAR: dict[str, Any] = {
    "rounds": 6,
    "model": {"name": "builtin:linear"},
    "task": {"kind": "linear"},
    "data": {"source": "builtin:linear", "validation_fraction": 0.0},
    "problem": {"kind": "factors", "clients": 4, "rows": 12, "inputs": 5, "start_distance": 0.9},
    "clients": {"weighting": "uniform"},
    "evaluation": {"diagnostics_every": 0},
}
TRAIN = {"optimizer": "sgd", "lr": 0.3, "batch_size": 12, "max_grad_norm": 0.0}
ENTRY: dict[str, Any] = {
    "paper": "RoLoRA",
    "item": "Section 4",
    "title": "alternating finds the truth",
    "differs": "Small.",
    "metric": "measures.angle_distance",
    "seeds": [0, 1, 2],
    "seconds": 1,
    "config": LINEAR,
    "arms": {
        "alternating": {"algorithm": {"name": "rolora-linear"}, "train": TRAIN},
        "frozen": {"algorithm": {"name": "ffa-linear"}},
    },
    "contrasts": [
        {"claim": "alternating is nearer", "plus": ["frozen"], "minus": ["alternating"], "paper": 0.2, "source": "none"}
    ],
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "own.toml"
    path.write_text(tomli_w.dumps({**ENTRY, **changes}), encoding="utf-8")
    return path


def decided(path: Path, out: Path, *more: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", str(path), "--out", str(out), "--device", "cpu", *more])
    assert result.exit_code == 0, result.output
    return result.output


def page(out: Path) -> list[str]:
    """The lines of the page that do not depend on the time it took."""
    return [
        line for line in (out / "pages" / "own.md").read_text(encoding="utf-8").splitlines() if " h of runs" not in line
    ]
