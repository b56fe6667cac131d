"""Trackers that follow a run, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.config.track import Tracker
from rondo.engine.transport import Observer, Phase
from rondo.records.directory import RunDirectory
from rondo.records.durable import written
from rondo.runs.tracking.tracker import Ending
from rondo.runs.tracking.values import settings

FILE = "tracking.json"
"""The file of a run directory with what trackers know of the run: its id, name, project and settings."""

PATIENCE = 60.0
"""Seconds that the trackers have together to end, once the run has ended."""


@contextlib.contextmanager
def tracked(directory: RunDirectory, config: RunConfig, observer: Observer) -> Iterator[Observer]:
    """Within, the trackers of ``config`` follow a run; yields an observer that tells them and ``observer``.

    Nothing that a tracker does stops the run. At its end a warning names each that has not all rounds.
    """
    if not config.track.to:
        yield observer
        return
    about = {
        "id": _id(directory),
        "name": directory.path.resolve().name,
        "project": config.track.project,
        "settings": settings(config.model_dump(mode="json")),
    }
    with written(directory.path):
        directory.write(FILE, about)
    followers = [_started(name, directory) for name in config.track.to]
    ending: Ending = "stopped"
    told = Told(observer, [follower for follower in followers if follower.process is not None])
    try:
        yield told
        ending = "finished"
    finally:
        told.tell(ending)
        _ended(followers)


class Told(Observer):
    """Tells each follower the number of committed rounds, and ``observer`` everything."""

    def __init__(self, observer: Observer, followers: Sequence[Follower]) -> None:
        self.observer, self.followers, self.rounds = observer, followers, 0

    def tell(self, ending: Ending | None = None) -> None:
        """Tell the followers, without waiting for one that does not read."""
        said: dict[str, Any] = {"rounds": self.rounds} | ({} if ending is None else {"ending": ending})
        for follower in self.followers:
            follower.say(json.dumps(said).encode() + b"\n")

    def phase(self, name: Phase) -> None:
        self.observer.phase(name)

    def prepared(self, partition: Mapping[str, Any]) -> None:
        self.observer.prepared(partition)

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        self.rounds = rounds
        self.tell()
        self.observer.resumed(rounds, passed_over)

    def round_started(self, index: int, clients: int) -> None:
        self.observer.round_started(index, clients)

    def client_done(self, client: str, loss: float | None) -> None:
        self.observer.client_done(client, loss)

    def client_failed(self, client: str) -> None:
        self.observer.client_failed(client)

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.rounds = record["round"] + 1
        self.tell()
        self.observer.round_done(record)


@dataclass
class Follower:
    """The process of a tracker; None where it could not be started. ``log``: the file with all that it prints."""

    name: Tracker
    log: Path
    process: subprocess.Popen[bytes] | None

    def say(self, line: bytes) -> None:
        """Write a line. If there is no room for it, the follower has enough to read; if it has died, the end tells."""
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self.process.stdin.fileno(), line)

    def last_word(self) -> str:
        """The last line that it has printed."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _id(directory: RunDirectory) -> str:
    """The run's id, the same after a resumption."""
    if (directory.path / FILE).is_file():
        content = directory.read(FILE)
        if isinstance(content, dict) and isinstance(content.get("id"), str) and content["id"].isalnum():
            return str(content["id"])
    return secrets.token_hex(8)


def _started(name: Tracker, directory: RunDirectory) -> Follower:
    log = directory.path / f"track-{name}.log"
    # The same Rondo as here, and no module that merely lies in the working folder.
    places = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "rondo.runs.tracking.follower", name, str(directory.path.resolve())]
    try:
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
                start_new_session=True,  # ^C ends the run, which then tells its trackers
            )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
    except OSError as error:
        warnings.warn(f"{name} does not follow the run: {error}", stacklevel=2)
        return Follower(name, log, None)
    return Follower(name, log, process)


def _ended(followers: Sequence[Follower]) -> None:
    """Wait for the followers, kill those that hang, and warn of every one that has not all rounds."""
    until = time.monotonic() + PATIENCE
    for follower in followers:
        process = follower.process
        if process is None:
            continue
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            code: int | None = process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        if code != 0:
            what = "did not end and was killed" if code is None else follower.last_word()
            message = f"{follower.name} may lack rounds of this run, which is whole ({what}); see {follower.log}"
            warnings.warn(message, stacklevel=2)
