"""What FedRep's pages say of the age of a head: scores by rounds since a client's last turn, from their records."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rondo.algorithm import Round
from rondo.privacy.sums.sum import sample
from rondo.records.paired import Paired
from site_scripts import RESULTS, site


def of_rounds(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "fedrep", "tuned", "ages"),
    [
        ("fedrep-table1", "fedrep", "fedavg-ft", [(0, 0), (1, 5), (6, 10), (11, 20), (21, 99)]),
        ("fedrep-classes", "fedrep-5", "fedavg-ft-5", [(0, 0), (21, 99)]),
    ],
)
def test_scores_by_the_age_of_a_head(
    name: str, fedrep: str, tuned: str, ages: list[tuple[int, int]], tmp_path: Path
) -> None:
    trials = site("pages").unpacked(name, tmp_path)
    runs = {(run.arm, run.seed): run for run in trials.runs()}
    by_age: dict[int, list[float]] = {}
    differences = []
    for seed in trials.entry.seeds:
        rounds, turns, fresh = of_rounds(runs[fedrep, seed].folder), dict[str, int](), list[float]()
        clients = sorted(rounds[0]["scores"]["personal"]["per_client"])
        population: Any = [SimpleNamespace(id=client, num_examples=1) for client in clients]
        for index, record in enumerate(rounds):
            drawn = Round(record["round"], len(rounds), seed, len(clients))
            chosen = [client.id for client in sample(runs[fedrep, seed].config.clients, population, drawn)]
            turns |= dict.fromkeys(chosen, index)
            if index >= len(rounds) - trials.entry.last:
                scores = record["scores"]["personal"]["per_client"]
                fresh += [scores[client]["accuracy"] for client in chosen]
                for client in clients:
                    by_age.setdefault(index - turns.get(client, -1), []).append(scores[client]["accuracy"])
        fine_tuned = of_rounds(runs[tuned, seed].folder)[-1]["scores"]["fine_tuned"]["accuracy"]["mean"]
        differences.append(statistics.fmean(fresh) - fine_tuned)
    said = (RESULTS / f"{name}.md").read_text(encoding="utf-8").partition("Seen in the runs: ")[2].partition("\n")[0]
    told = [
        float(number) for number in re.findall(r"FedRep has (.*?)[.;] ", said)[0].split() if number.startswith("0.")
    ]
    made = [statistics.fmean(s for age, of in by_age.items() if a <= age <= b for s in of) for a, b in ages]
    assert told == [round(score, 3) for score in made]
    paired = Paired.of(differences)
    assert paired.interval is not None
    interval = ", ".join(f"{end:.3f}" for end in paired.interval)
    assert f"its difference to FedAvg + FT is {paired.mean:.3f} [{interval}]" in said
