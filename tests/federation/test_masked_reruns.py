"""A plan that runs again trains to the same bits, so what two runs open must not differ by one site."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from desk_line import DeskLine
from parties import ROWS
from test_masked_kills import MASKED, listening, run_of
from test_masked_waits import WAITING

from rondo.errors import ConfigError, RunInterrupted, RunStopped
from rondo.federation.server.run import serve
from rondo.federation.site.sum_state import OPENED, Opened
from rondo.privacy.masking.session import Refused
from rondo.privacy.sums.masked_sum import MaskedSum
from rondo.runs.watching.result import RunResult
from small_runs import write_rows

pytestmark = pytest.mark.usefixtures("refusals_at_once")

ANOTHER = "set another seed in the server's configuration: 0 was another run's"


class Runs:
    """Runs with the same sites, each from the site's own disk, and the sums that they opened."""

    def __init__(self, place: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.folder, self.sums = place, folder, list[torch.Tensor]()
        self.told: list[str] = []
        real = MaskedSum.opened

        def opened(of: MaskedSum, algorithm: Any, state: Any, total: Any, round: Any) -> Any:
            self.sums.append(total.integers.clone())
            return real(of, algorithm, state, total, round)

        monkeypatch.setattr(MaskedSum, "opened", opened)

    def __call__(self, name: str, away: Collection[str] = (), silent: str = "", **changes: Any) -> RunResult:
        """``away``: sites that are not there. ``silent``: one that is lost before it unmasks."""
        line, stop = DeskLine(self.place, self.folder), threading.Event()
        self.told = line.told

        def watch(site: str, kind: str, moment: str) -> None:
            if (site, kind, moment) == (silent, "unmask", "before"):
                line.kill(site, returns=False)

        line.watch = watch
        for site in away:
            line._since.pop(site)
        refused = self.sums and changes.get("seed", 0) % 2**32 == 0
        way = replace(listening(self.place), wait=0.5) if away or refused else listening(self.place)

        def told(text: str) -> None:
            line.told.append(text)
            if WAITING in text:  # for a site that stays away
                stop.set()

        with line.served():
            config = run_of(self.place, **{"rounds": 1, **changes})
            return serve(config, way, run_dir=self.folder / name, device="cpu", told=told, stop=stop)


@pytest.fixture
def runs(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(place, tmp_path, monkeypatch)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ANOTHER),  # the difference of both sums would be the upload of the site that was away
        ({"rounds": 5}, ANOTHER),  # it would train from the same start in another order of rows
        ({"seed": 2**32}, "4294967296, the same as 0 to a start, was another run's"),  # generators keep 32 bits of it
    ],
)
def test_second_run_without_a_site_opens_no_sum(runs: Runs, changes: dict[str, Any], message: str) -> None:
    runs("first")
    with pytest.raises(ConfigError, match=message):
        runs("second", away=["south"], **changes)
    assert len(runs.sums) == 1


@pytest.mark.slow
def test_second_run_with_a_site_more_opens_no_sum(runs: Runs) -> None:
    runs("first", away=["south"])
    with pytest.raises(RunStopped):
        runs("second")
    assert len(runs.sums) == 1
    assert ANOTHER in "\n".join(runs.told)


@pytest.mark.slow
def test_noise_of_a_seed_is_no_other_company(runs: Runs) -> None:
    """The server can take it off."""
    runs("first")
    pytest.importorskip("dp_accounting")
    seeded = {**MASKED, "unit": "client", "noise": 8.0, "delta": 1e-3, "debug_seed": 3}
    with pytest.raises(ConfigError, match=ANOTHER):
        runs("second", away=["south"], privacy=seeded, clients={"weighting": "uniform", "min_clients": 1})
    assert len(runs.sums) == 1


@pytest.mark.slow
def test_site_that_was_not_asked_to_unmask_knows_the_seed(runs: Runs) -> None:
    """Its vector was in the sum."""
    runs("first", silent="south")
    (runs.folder / "at-north" / OPENED).unlink()
    (runs.folder / "at-west" / OPENED).unlink()
    with pytest.raises(RunInterrupted):
        runs("second", away=["north"])
    assert len(runs.sums) == 1
    assert ANOTHER in "\n".join(runs.told)


@pytest.mark.slow
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
    "sketch": ({"algorithm": {"name": "fedex-lora", "sketch": 4}}, {"algorithm": {"name": "fedex-lora", "sketch": 8}}),
}
"""Pairs of plans with one seed. Two sums of the same sites are then two equations in what each of them sent."""


@pytest.mark.sweep(7)
@pytest.mark.parametrize("difference", PLANS)
def test_second_run_by_other_settings_opens_no_sum(runs: Runs, difference: str) -> None:
    first, second = PLANS[difference]
    runs("first", **first)
    with pytest.raises(ConfigError, match=ANOTHER):
        runs("second", **second)
    assert len(runs.sums) == 1


@pytest.mark.slow
def test_second_run_with_a_row_more_at_one_site_opens_no_sum(runs: Runs) -> None:
    """The difference of both sums would be what that row does to a training."""
    uniform = {"clients": {"min_clients": 1, "weighting": "uniform"}}
    runs("first", **uniform)
    write_rows(runs.place / "data" / "south" / "bob.csv", [*ROWS["bob"], ROWS["ann"][0]])
    with pytest.raises(ConfigError, match=ANOTHER):
        runs("second", **uniform)
    assert len(runs.sums) == 1


ONES, ZEROS = (make(3, dtype=torch.float64) for make in (torch.ones, torch.zeros))


def test_round_is_opened_in_one_company_and_none_before_it(tmp_path: Path) -> None:
    """A round that was opened and skipped is trained again from the same state."""
    opened = Opened(tmp_path, "first", 0)
    opened.note(1, [ONES], ["north", "south"])
    opened.note(1, [2 * ONES], ["south", "north"])
    for index in (0, 1):
        with pytest.raises(Refused, match="a sum of this round was opened with other sites or clients"):
            opened.check(index, [3 * ONES], ["north", "west"])
    opened.note(2, [3 * ONES], ["north", "west"])


def test_training_of_another_seed_that_ends_alike_is_opened_in_one_company(tmp_path: Path) -> None:
    """Of a step over all rows from a start that no seed decides."""
    Opened(tmp_path, "first", 0).note(0, [ONES], ["north", "south"])
    Opened(tmp_path, "second", 1).note(0, [ONES], ["south", "north"])
    with pytest.raises(Refused, match="a sum with the same training of this site was opened with other sites"):
        Opened(tmp_path, "third", 2).check(0, [ONES], ["north", "west"])


def test_trainings_of_other_seeds_that_learned_nothing_are_not_the_same(tmp_path: Path) -> None:
    Opened(tmp_path, "first", 0).note(0, [ZEROS], ["north", "south"])
    Opened(tmp_path, "second", 1).note(0, [ZEROS], ["north", "west"])


def test_record_that_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / OPENED).write_bytes(b"x" * 40)
    with pytest.raises(Refused, match="this site cannot know which sums it has opened"):
        Opened(tmp_path, "first", 0).check(0, [ONES], ["north"])


def test_sum_that_a_full_disk_could_not_note_is_not_opened(runs: Runs, full_at: Any) -> None:
    """The site sends no shares before it has written down with whom."""
    with full_at("at-south/opened.sums"), pytest.raises(OSError, match=r"No space left on device: .*opened\.sums"):
        runs("first")
    assert not (runs.folder / "at-south" / OPENED).exists()
    assert not runs.sums
