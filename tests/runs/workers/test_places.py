"""Whole runs whose clients train at workers that assemble the run themselves: equal to the run in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from kinds_of_runs import KINDS, configured, outcome
from pretend_workers import PretendWorkers
from rondo.config import ConfigError, load
from rondo.records.directory import RunDirectory
from rondo.runs import launch
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.given import Given
from rondo.runs.loop import Onlooker, Runner
from rondo.runs.watching.progress import Quiet
from rondo.runs.workers.places import Hand, Order, check, facts
from small_runs import stopped


class Elsewhere:
    """A run with workers in this process."""

    def __init__(self, raw: dict[str, Any], given: Given) -> None:
        self.assembly = assemble(load(raw, given.sets), "cpu", given=given)
        order = Order.of(self.assembly, given, 2)
        hands = [Hand(order) for _ in range(2)]
        here = facts(self.assembly)
        for hand in hands:
            check(here, "here", hand.facts)
        self.workers = PretendWorkers([hand.train for hand in hands], dies=lambda number, time: number == time == 1)

    def run(self, folder: Path) -> None:
        """Start the run in ``folder``, or go on with it."""
        resumed = (folder / "manifest.json").exists()
        directory = RunDirectory.open(folder) if resumed else RunDirectory.create(folder, "x")
        if not resumed:
            launch.begin(directory, self.assembly)
        Runner(
            self.assembly,
            self.assembly.start(),
            directory,
            Onlooker(Quiet(), None, 0.0),
            resumed=resumed,
            workers=self.workers,
        ).run()


IN_CREW = ("shared factors", "personal factors", "states on both sides", "a base that grows")
"""Kinds that ``tests/engine/test_crew.py`` has in the default run."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in IN_CREW else k for k in KINDS])
def test_run_with_workers_as_in_one_process(kind: str, sources: Path, tmp_path: Path) -> None:
    """Also where one is stopped here and goes on there, and a worker dies."""
    raw, rows = configured(kind, sources)
    rondo.run(raw, run_dir=tmp_path / "here", device="cpu", **rows)
    there = Elsewhere(raw, Given(**rows))
    there.run(tmp_path / "there")
    expected = outcome(tmp_path / "here")
    assert outcome(tmp_path / "there") == expected
    assert " worker 1 is gone\n" in (tmp_path / "there" / "run.log").read_text()
    stopped(raw, tmp_path / "both", **rows)
    there.run(tmp_path / "both")
    assert outcome(tmp_path / "both") == expected


@pytest.mark.parametrize("cohort", ["auto", pytest.param(2, marks=pytest.mark.slow)])
def test_cohorts_are_those_of_one_process(cohort: Any, sources: Path, tmp_path: Path) -> None:
    raw, _ = configured("shared factors", sources, simulation={"cohort": cohort})
    rondo.run(raw, run_dir=tmp_path / "here", device="cpu")
    there = Elsewhere(raw, Given())
    there.run(tmp_path / "there")
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")


def test_worker_with_other_rows_is_refused(sources: Path) -> None:
    one, two = (configured("shared factors", sources, seed=seed)[0] for seed in (0, 1))
    here, there = (facts(assemble(load(raw), "cpu")) for raw in (one, two))
    with pytest.raises(ConfigError) as caught:
        check(here, "node-3", there)
    assert "worker of Ray (node-3)" in str(caught.value)
    assert "partition.examples_sha256: was" in str(caught.value)
    assert "every machine of the cluster needs the same packages, data and model" in str(caught.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_worker_has_the_threads_of_the_run(threads: int, sources: Path) -> None:
    """Cohorts have the bits of one process only with as many threads."""
    raw, _ = configured("shared factors", sources)
    order = Order.of(assemble(load(raw), "cpu"), Given(), 2)
    torch.set_num_threads(3 - threads)
    Hand(replace(order, threads=threads))
    assert torch.get_num_threads() == threads
