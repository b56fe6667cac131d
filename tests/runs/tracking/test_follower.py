"""The follower of a run: each committed round is told once, whatever the tracker does meanwhile."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from page_runs import recorded
from rondo.runs.tracking.follower import Follower, _input, follow
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


def says(*rounds: int, ending: str | None = None) -> Iterator[bytes]:
    for number, done in enumerate(rounds, 1):
        last = {"ending": ending} if ending is not None and number == len(rounds) else {}
        yield json.dumps({"rounds": done, **last}).encode()


def followed(about: About, tracker: Notes, lines: Iterator[bytes]) -> Follower:
    follower = Follower(tracker, about)
    follow(lines, follower)
    return follower


def test_each_round_is_told_once_in_its_order(about: About) -> None:
    tracker = Notes()
    followed(about, tracker, says(0, 1, 1, 4, 6, 6, ending="finished"))
    assert (tracker.told, tracker.opened, tracker.ended) == ([1, 2, 3, 4, 5, 6], 1, "finished")


def test_round_that_is_not_committed_is_not_told(about: About) -> None:
    tracker = Notes()
    followed(about, tracker, says(0, 2))
    assert (tracker.told, tracker.ended) == ([1, 2], "stopped")


@pytest.mark.parametrize("has", [2, 5])
def test_rounds_that_the_tracker_has_are_not_told_again(about: About, has: int) -> None:
    """It has more than the run where this goes on from an earlier checkpoint."""
    tracker = Notes(has)
    followed(about, tracker, says(3, 6, ending="finished"))
    assert tracker.told == list(range(has + 1, 7))


@pytest.mark.parametrize("at", [0, 1, 3])
def test_round_that_could_not_be_told_is_told_later(about: About, at: int) -> None:
    tracker = Notes(fails={at: 2})
    follower = followed(about, tracker, says(0, 1, 2, 3, 4, 6, ending="finished"))
    assert tracker.told == [1, 2, 3, 4, 5, 6]
    assert follower.faults == 2


def test_tracker_that_always_fails_ends_the_follower_alone(about: About) -> None:
    tracker = Notes(fails={2: 99, -1: 1})
    follower = followed(about, tracker, says(1, 2, 3, ending="finished"))
    assert (tracker.told, follower.told, follower.faults, follower.closed) == ([1], 1, 4, False)


@pytest.mark.parametrize("ending", ["finished", None])
def test_rounds_of_a_secret_turnout_are_told_together_at_the_end(about: About, ending: str | None) -> None:
    """The time between two rounds tells how many clients trained in the later one."""
    tracker = Notes()

    def lines() -> Iterator[bytes]:
        for line in says(1, 3, 6, ending=ending):
            yield line
            assert (tracker.opened, tracker.told) == (0, [])

    followed(replace(about, settings={"privacy.unit": "client"}), tracker, lines())
    assert (tracker.opened, tracker.told, tracker.ended) == (1, [1, 2, 3, 4, 5, 6], ending or "stopped")


def test_input_gives_its_last_line_and_ends() -> None:
    over: list[Any] = []
    lines = list(_input(io.BytesIO(b"1\n2\n3\n"), lambda: over.append(1)))
    assert lines[-1] == b"3\n"
