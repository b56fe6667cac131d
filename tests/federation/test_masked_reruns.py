"""A plan that runs again trains to the same bits, so what two runs open must not differ by one site."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("flwr")

from desk_line import DeskLine
from parties import ROWS
from test_federation import weights
from test_masked_kills import MASKED, listening, run_of

from rondo.engine.server.masked_sum import MaskedSum
from rondo.errors import RunStopped
from rondo.federation.server.run import serve
from rondo.federation.site.opened import FILE, Opened, Training
from rondo.privacy.session import Refused
from rondo.runs.watching.result import RunResult
from small_runs import write_rows

ANOTHER = "take another seed: a run has opened this training with other sites"


class Runs:
    """Runs with the same sites, each from the site's own disk, and the sums that they opened."""

    def __init__(self, place: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.folder, self.sums = place, folder, list[torch.Tensor]()
        real = MaskedSum.opened

        def opened(of: MaskedSum, algorithm: Any, state: Any, total: Any, round: Any) -> Any:
            self.sums.append(total.integers.clone())
            return real(of, algorithm, state, total, round)

        monkeypatch.setattr(MaskedSum, "opened", opened)

    def __call__(self, name: str, away: Collection[str] = (), **changes: Any) -> RunResult:
        line = DeskLine(self.place, self.folder)
        for site in away:
            line._since.pop(site)
        way = replace(listening(self.place), wait=0.5) if away else listening(self.place)
        with line.served():
            config = run_of(self.place, rounds=1, **changes)
            return serve(config, way, run_dir=self.folder / name, device="cpu", told=line.told.append)


@pytest.fixture
def runs(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(place, tmp_path, monkeypatch)


def test_second_run_without_a_site_opens_no_sum(runs: Runs) -> None:
    """The difference of both sums would be the upload of the site that was away."""
    runs("first")
    with pytest.raises(RunStopped, match=ANOTHER):
        runs("second", away=["south"])
    assert len(runs.sums) == 1


def test_second_run_with_a_site_more_opens_no_sum(runs: Runs) -> None:
    runs("first", away=["south"])
    with pytest.raises(RunStopped, match=ANOTHER):
        runs("second")
    assert len(runs.sums) == 1


def test_noise_of_a_seed_is_no_other_company(runs: Runs) -> None:
    """The server can take it off."""
    runs("first")
    pytest.importorskip("dp_accounting")
    seeded = {**MASKED, "unit": "client", "noise": 8.0, "delta": 1e-3, "debug_seed": 3}
    with pytest.raises(RunStopped, match=ANOTHER):
        runs("second", away=["south"], privacy=seeded, clients={"weighting": "uniform", "min_clients": 1})
    assert len(runs.sums) == 1


def test_second_run_with_the_same_sites_opens_the_same_sum(runs: Runs) -> None:
    first, second = runs("first"), runs("second")
    assert runs.sums[0].equal(runs.sums[1])
    assert weights(first) == weights(second)


def test_run_with_another_seed_is_other_training(runs: Runs) -> None:
    runs("first")
    runs("second", away=["south"], seed=1)
    assert len(runs.sums) == 2


PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weighting": (
        {"clients": {"min_clients": 1, "weighting": "uniform"}},
        {"clients": {"min_clients": 1, "weighting": "examples"}},
    ),
    "clip": ({}, {"privacy": {**MASKED, "clip": 0.001}}),
    "ring": ({}, {"privacy": {**MASKED, "ring": 64}}),
    "micro-batch": ({}, {"train": {"local_epochs": 1, "batch_size": 8, "micro_batch": 4}}),
    "rate": ({}, {"train": {"local_epochs": 1, "batch_size": 8, "lr": 1e-2}}),
    "method": ({}, {"algorithm": {"name": "fedit"}}),
    "sketch": (
        {"algorithm": {"name": "fedex-lora", "sketch": 4}},
        {"algorithm": {"name": "fedex-lora", "sketch": 8}},
    ),
}
"""Pairs of plans with one seed. Two sums of the same sites are then two equations in what each of them sent."""


@pytest.mark.parametrize("difference", PLANS)
def test_second_run_by_other_settings_opens_no_sum(runs: Runs, difference: str) -> None:
    first, second = PLANS[difference]
    runs("first", **first)
    with pytest.raises(RunStopped, match=ANOTHER):
        runs("second", **second)
    assert len(runs.sums) == 1


def test_second_run_with_a_row_more_at_one_site_opens_no_sum(runs: Runs) -> None:
    """The difference of both sums would be what that row does to a training."""
    uniform = {"clients": {"min_clients": 1, "weighting": "uniform"}}
    runs("first", **uniform)
    write_rows(runs.place / "data" / "south" / "bob.csv", [*ROWS["bob"], ROWS["ann"][0]])
    with pytest.raises(RunStopped, match=ANOTHER):
        runs("second", **uniform)
    assert len(runs.sums) == 1


def test_runs_of_two_models_may_have_one_seed(tmp_path: Path) -> None:
    opened, ones = Opened(tmp_path), numpy.ones(3, dtype=numpy.int64)
    opened.note([Training("a", 0, 0, "ann", torch.ones(3, dtype=torch.float64))], ones, ["north", "south"])
    opened.note([Training("b", 0, 0, "ann", torch.zeros(3, dtype=torch.float64))], ones, ["north", "west"])


def test_training_of_another_seed_that_ends_alike_is_the_same_training(tmp_path: Path) -> None:
    """Of a step over all rows from a start that no seed decides."""
    opened, ones, change = Opened(tmp_path), numpy.ones(3, dtype=numpy.int64), torch.ones(3, dtype=torch.float64)
    opened.note([Training("a", 0, 0, "ann", change)], ones, ["north", "south"])
    opened.note([Training("a", 1, 0, "ann", change)], ones, ["south", "north"])
    with pytest.raises(Refused, match=ANOTHER):
        opened.check([Training("a", 2, 0, "ann", change)], ones, ["north", "west"])
    with pytest.raises(Refused, match=ANOTHER):
        opened.check([Training("a", 2, 0, "ann", change)], 2 * ones, ["north", "south"])


def test_trainings_of_other_seeds_that_learned_nothing_are_not_the_same(tmp_path: Path) -> None:
    opened, zeros = Opened(tmp_path), numpy.zeros(3, dtype=numpy.int64)
    opened.note([Training("a", 0, 0, "ann", torch.zeros(3, dtype=torch.float64))], zeros, ["north", "south"])
    opened.note([Training("a", 1, 0, "ann", torch.zeros(3, dtype=torch.float64))], zeros, ["north", "west"])


def test_record_that_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"x" * 40)
    training = Training("a", 0, 0, "ann", torch.ones(3, dtype=torch.float64))
    with pytest.raises(Refused, match="this site cannot know which sums it has opened"):
        Opened(tmp_path).check([training], numpy.ones(3, dtype=numpy.int64), ["north"])


def test_sum_that_a_full_disk_could_not_note_is_not_opened(runs: Runs, full_at: Any) -> None:
    """The site sends no shares before it has written down with whom."""
    with full_at("at-south/opened.sums"), pytest.raises(OSError, match=r"No space left on device: .*opened\.sums"):
        runs("first")
    assert not (runs.folder / "at-south" / FILE).exists()
    assert not runs.sums
