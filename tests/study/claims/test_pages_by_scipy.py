"""Means, intervals and corrected p of three pages from their records by scipy alone: nothing of Rondo is called."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

stats = pytest.importorskip("scipy.stats")

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"


def scores(name: str, entry: dict[str, Any]) -> dict[tuple[str, int], float]:
    """The score of every run in the records of a page: the mean of its last values."""
    found = {}
    with tarfile.open(RESULTS / "runs" / f"{name}.tar.xz") as packed:
        for member in packed.getmembers():
            if not member.name.endswith("/metrics.jsonl"):
                continue
            arm, seed = re.fullmatch(r".*/(.+)-seed-(\d+)-\w+/metrics\.jsonl", member.name).groups()  # type: ignore[union-attr]
            lines = packed.extractfile(member).read().splitlines()  # type: ignore[union-attr]
            values = [
                value(json.loads(line)["scores"]) for line in lines[entry.get("every", 1) - 1 :: entry.get("every", 1)]
            ]
            last = [one for one in values if one is not None][-entry.get("last", 1) :]
            found[arm, int(seed)] = sum(last) / len(last)
    return found


def value(of_round: dict[str, Any]) -> float | None:
    """The accuracy of a round: of the one model, or the mean over clients of their own."""
    kind = next((one for one in ("fine_tuned", "personal", "clients", "global") if one in of_round), None)
    accuracy = None if kind is None else of_round[kind]["accuracy"]
    return accuracy["mean"] if isinstance(accuracy, dict) else accuracy


def differences(claim: dict[str, Any], of_run: dict[tuple[str, int], float], seeds: list[int]) -> list[float]:
    plus = claim.get("plus", [claim.get("arm")])
    minus = claim.get("minus", [claim.get("less")])
    return [sum(of_run[arm, seed] for arm in plus) - sum(of_run[arm, seed] for arm in minus) for seed in seeds]


def probability(claim: dict[str, Any], of_seeds: list[float]) -> float:
    """Of a mean as far from zero, or as far inside its bounds."""
    if "plus" in claim:
        return float(stats.ttest_1samp(of_seeds, 0.0).pvalue)
    ends = [(claim["at_least"], 1)] if "at_least" in claim else []
    ends += [(claim["at_most"], -1)] if "at_most" in claim else []
    mean = sum(of_seeds) / len(of_seeds)
    inside = [sign * (mean - end) > 0 for end, sign in ends]
    return max(float(stats.ttest_1samp(of_seeds, end).pvalue) for end, _ in ends) if all(inside) else 1.0


def holm(probabilities: list[float]) -> list[float]:
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    corrected, so_far = [0.0] * len(order), 0.0
    for left, index in zip(range(len(order), 0, -1), order, strict=True):
        so_far = max(so_far, min(1.0, left * probabilities[index]))
        corrected[index] = so_far
    return corrected


@pytest.mark.parametrize("name", ["rolora-table1", "rolora-figure6", "fedrep-table1"])
def test_page_is_what_scipy_makes_of_its_records(name: str) -> None:
    entry = tomllib.loads((ROOT / "src/rondo/study/claims/entries" / f"{name}.toml").read_text(encoding="utf-8"))
    claims = [*entry.get("contrasts", []), *entry.get("bounds", [])]
    of_run = scores(name, entry)
    numbers = [differences(claim, of_run, entry["seeds"]) for claim in claims]
    p = holm([probability(claim, of_seeds) for claim, of_seeds in zip(claims, numbers, strict=True)])
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    for claim, of_seeds, corrected in zip(claims, numbers, p, strict=True):
        row = next(line for line in page.splitlines() if line.startswith(f"| {claim['claim']} |"))
        told = re.match(r"(\S+) \[(\S+), (\S+)\], p = (\S+)$", row.split(" | ")[3])
        assert told is not None, row
        test = stats.ttest_1samp(of_seeds, 0.0).confidence_interval(0.95)
        made = (sum(of_seeds) / len(of_seeds), test.low, test.high)
        assert [float(one) for one in told.groups()[:3]] == pytest.approx(made, rel=6e-3, abs=1e-9), claim["claim"]
        assert float(told[4]) == pytest.approx(corrected, rel=6e-2), claim["claim"]
