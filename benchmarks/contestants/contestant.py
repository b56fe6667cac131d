"""Parts that all contestants share: the command line, the report, and the mean of the clients' tensors."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contests import WORKS, Work

_BEGAN = time.time()  # before the large imports


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line of every contestant."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    return parser


def since_start(moment: float) -> float:
    """Seconds from the first import to ``moment`` (of ``time.time``)."""
    return moment - _BEGAN


@dataclass
class Outcome:
    """A contestant's report."""

    startup_seconds: float
    """Seconds until the first round began."""
    round_seconds: list[float]
    loss: list[float]
    """One mean training loss per round."""
    parameters: int
    """Number of trained parameters."""

    def print(self, workload: Work) -> None:
        """Print the last line that ``simulation.py`` reads."""
        print(json.dumps({**vars(self), "samples_per_round": workload.samples_per_round}), flush=True)


def weighted_mean(states: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    """The weighted mean of state dicts."""
    total = sum(weights)
    return {n: sum(s[n] * (w / total) for s, w in zip(states, weights, strict=True)) for n in states[0]}
