"""Trackers of a run: each committed round is told once, whatever a tracker does meanwhile."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from page_runs import recorded
from rondo.engine.transport import Observer, Tee
from rondo.runs.tracking.observer import Told, Trackers
from rondo.runs.tracking.tracker import About, Ending


class Notes:
    """A tracker that notes what it is told, and fails where it is told to."""

    def __init__(self, has: int = 0, fails: Mapping[int, int] | None = None) -> None:
        self.has, self.fails = has, dict(fails or {})
        self.told: list[int] = []
        self.ended: Ending | None = None
        self.opened = 0

    def _may_fail(self, at: int) -> None:
        if self.fails.get(at, 0):
            self.fails[at] -= 1
            raise OSError("no room")

    def begin(self, about: About) -> int:
        self._may_fail(0)
        self.opened += 1
        return self.has

    def round(self, done: int, values: Mapping[str, float]) -> None:
        self._may_fail(done)
        assert values["round"] == done
        self.told.append(done)

    def close(self, ending: Ending) -> None:
        self._may_fail(-1)
        self.ended = ending


@pytest.fixture
def about(tmp_path: Path) -> About:
    lines = [json.dumps(record) + "\n" for record in recorded(rounds=6).rounds]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"round": 6, "half')
    return About(tmp_path, "0a1b", "run", "rondo", {})


def followed(about: About, tracker: Notes, *counts: int, ending: Ending = "finished") -> Trackers:
    trackers = Trackers({"notes": tracker}, about)
    for rounds in counts:
        trackers.up_to(rounds)
    trackers.close(counts[-1], ending)
    return trackers


def test_each_round_is_told_once_in_its_order(about: About) -> None:
    tracker = Notes()
    followed(about, tracker, 0, 1, 1, 4, 6, 6)
    assert (tracker.told, tracker.opened, tracker.ended) == ([1, 2, 3, 4, 5, 6], 1, "finished")


def test_round_that_is_not_committed_is_not_told(about: About) -> None:
    tracker = Notes()
    followed(about, tracker, 0, 2, ending="stopped")
    assert (tracker.told, tracker.ended) == ([1, 2], "stopped")


@pytest.mark.parametrize("has", [2, 5])
def test_rounds_that_the_tracker_has_are_not_told_again(about: About, has: int) -> None:
    """It has more than the run if this goes on from an earlier checkpoint."""
    tracker = Notes(has)
    followed(about, tracker, 3, 6)
    assert tracker.told == list(range(has + 1, 7))


@pytest.mark.parametrize("at", [0, 1, 3])
def test_round_that_could_not_be_told_is_told_later(about: About, at: int) -> None:
    tracker = Notes(fails={at: 2})
    trackers = followed(about, tracker, 0, 1, 2, 3, 4, 6)
    assert tracker.told == [1, 2, 3, 4, 5, 6]
    assert trackers.faults == {"notes": "OSError: no room"}


def followed_by(told: Told, rounds: int) -> list[str]:
    """What is warned of while a run has so many rounds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for done in range(rounds):
            told.round_done({"round": done})
        told.close("finished")
    return [str(warning.message) for warning in caught]


def test_tracker_that_fails_keeps_nothing_from_another(about: About) -> None:
    failing, sound = Notes(fails={2: 99, -1: 1}), Notes()
    told = Told(Trackers({"failing": failing, "sound": sound}, about))
    assert followed_by(told, 6) == ["failing may lack rounds of this run, which goes on (OSError: no room)"]
    assert (failing.told, sound.told, sound.ended) == ([1], [1, 2, 3, 4, 5, 6], "finished")


class Hangs(Notes):
    """Hangs in its second round until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def round(self, done: int, values: Mapping[str, float]) -> None:
        if done == 2:
            self.go.wait(60)


def test_tracker_that_hangs_stops_neither_the_run_nor_its_end(about: About) -> None:
    """Also if so many rounds are done meanwhile that the queue is full."""
    tracker = Hangs()
    told = Told(Trackers({"notes": tracker}, about), patience=0.2)
    (said,) = followed_by(told, 200)
    tracker.go.set()
    assert said.startswith("notes may lack rounds of this run, which goes on (it does not answer")


@pytest.mark.parametrize("ending", ["finished", "stopped"])
def test_rounds_of_a_secret_turnout_are_told_together_at_the_end(about: About, ending: Ending) -> None:
    """The time between two rounds tells how many clients trained in the later one."""
    tracker = Notes()
    told = Told(Trackers({"notes": tracker}, replace(about, settings={"privacy.unit": "client"})))
    for done in range(6):
        told.round_done({"round": done})
        assert (tracker.opened, tracker.told) == (0, [])
    told.close(ending)
    assert (tracker.opened, tracker.told, tracker.ended) == (1, [1, 2, 3, 4, 5, 6], ending)


def test_tee_tells_every_observer_everything() -> None:
    """A method that it lacks would reach nobody."""
    methods = [name for name in vars(Observer) if not name.startswith("_")]
    assert [name for name in methods if name not in vars(Tee)] == []
    heard: list[Any] = []

    class Hears(Observer):
        def client_done(self, client: str, loss: float | None) -> None:
            heard.append((client, loss))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tee(Hears(), Observer(), Hears()).client_done("a", 0.5)
    assert heard == [("a", 0.5)] * 2
