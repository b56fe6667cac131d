"""The process that follows one run for one tracker. Imports no torch.

The run says on the standard input how many rounds are committed, a line of JSON each, and reads nothing. The rounds
themselves are in the run directory. So a tracker that throws, hangs or dies costs the run nothing, and a round that
could not be told is told with the next one. The end of the input without an ending means that the run was killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rondo.config.track import Tracker as Name
from rondo.runs.tracking.tracker import About, Ending, Tracker
from rondo.runs.tracking.values import values

PATIENCE = 60.0
"""Seconds that a tracker has to end, once the run has."""


def made(name: Name) -> Tracker:
    """The tracker of this name. Its package is imported by :meth:`Tracker.begin`."""
    if name == "tensorboard":
        from rondo.runs.tracking.trackers.tensorboard import TensorBoard

        return TensorBoard()
    if name == "mlflow":
        from rondo.runs.tracking.trackers.mlflow import MLflow

        return MLflow()
    from rondo.runs.tracking.trackers.trackio_wandb import Trackio, Wandb

    return Trackio() if name == "trackio" else Wandb()


class Follower:
    """Tells ``tracker`` of the committed rounds of a run, each once."""

    def __init__(self, tracker: Tracker, about: About) -> None:
        self.tracker, self.about = tracker, about
        self.told: int | None = None
        """The number of rounds that the tracker has; None before it has begun."""
        self.faults, self.closed = 0, False

    def up_to(self, rounds: int) -> None:
        """Tell all rounds up to the ``rounds``-th that the tracker has not. A fault is noted, and what it kept back is
        told at the next call."""
        try:
            if self.told is None:
                self.told = self.tracker.begin(self.about)
            for record in _records(self.about.folder)[self.told : rounds]:
                self.tracker.round(self.told + 1, values(record, secret_turnout=self.about.secret_turnout))
                self.told += 1
        except Exception:
            self._note()

    def close(self, ending: Ending) -> None:
        """End the tracker's run, if it ever began."""
        try:
            if self.told is not None:
                self.tracker.close(ending)
            self.closed = True
        except Exception:
            self._note()

    def _note(self) -> None:
        self.faults += 1
        traceback.print_exc()


def follow(lines: Iterator[bytes], follower: Follower) -> int:
    """Follow a run by what it says. Returns the number of rounds that it had at its end.

    Where how many clients took part is a secret, all rounds are told at the end: a tracker keeps the time at which it
    is told each, and the time of a round tells how many trained in it.
    """
    rounds = 0
    ending: Ending = "stopped"
    for line in lines:
        said: Mapping[str, Any] = json.loads(line)
        rounds, ending = int(said["rounds"]), said.get("ending", "stopped")
        if not follower.about.secret_turnout:
            follower.up_to(rounds)
    if (follower.told or 0) < rounds:
        follower.up_to(rounds)  # a last try, or the only one
    follower.close(ending)
    return rounds


def _records(folder: Path) -> Sequence[Mapping[str, Any]]:
    """The whole lines of ``metrics.jsonl``."""
    lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1] if (folder / "metrics.jsonl").exists() else []
    return list(map(json.loads, lines))


def _input(stream: IO[bytes], over: Callable[[], None]) -> Iterator[bytes]:
    """The lines that have come, always the last of them: earlier ones say nothing that it does not."""
    newest: list[bytes] = []
    came, ended = threading.Condition(), threading.Event()

    def read() -> None:
        for line in iter(stream.readline, b""):
            with came:
                newest[:] = [line]
                came.notify()
        with came:
            ended.set()
            came.notify()
        over()

    threading.Thread(target=read, daemon=True).start()
    while True:
        with came:
            came.wait_for(lambda: newest or ended.is_set())
            if not newest:
                return
            line = newest.pop()
        yield line


def _alone(file: Path) -> IO[bytes]:
    """Wait until no other process follows the run for the same tracker: that of a run that was killed may still be
    writing. The lock ends with the file that is returned."""
    lock = file.open("ab")
    try:
        import fcntl
    except ImportError:  # Windows
        return lock
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def main() -> None:
    """Follow a run: the arguments are the tracker's name and the run directory, whose ``tracking.json`` has the rest
    of :class:`About`."""
    name, folder = cast(Name, sys.argv[1]), Path(sys.argv[2])
    lock = _alone(folder / f"track-{name}.log")
    about = json.loads((folder / "tracking.json").read_text(encoding="utf-8"))
    follower = Follower(made(name), About(folder=folder, **about))

    def give_up() -> None:
        """A tracker that hangs at its end would stay for ever, and nobody would know."""
        timer = threading.Timer(PATIENCE, os._exit, (3,))
        timer.daemon = True
        timer.start()

    rounds = follow(_input(sys.stdin.buffer, give_up), follower)
    sys.stdout.flush()
    told = follower.told or 0
    assert not lock.closed
    print(f"\n{min(told, rounds)} of {rounds} rounds, {follower.faults} faults", flush=True)
    os._exit(0 if told >= rounds and follower.closed else 1)  # without what a package does at an exit


if __name__ == "__main__":
    main()
