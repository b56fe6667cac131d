"""Workers that live in the process of the test, get their jobs as bytes, and die when told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.engine.simulation import JobResult

Train = Callable[[bytes, str, bytes], bytes]


@dataclass
class PretendWorkers:
    """``hands``: what each worker does with a job, its common bytes' name, and the common bytes.

    ``dies``: whether a worker dies over the job of this number, which it gets for the n-th time.
    ``late``: looks for news that pass before the first worker is ready.
    ``log``: numbers of worker, job and threads, in the order of sending.
    """

    hands: Sequence[Train]
    dies: Callable[[int, int], bool] = lambda number, time: False
    late: int = 0
    room: int = 1
    devices: int = 1
    log: list[tuple[int, int, int]] = field(default_factory=list)
    moved: int = 0
    lost: list[str] = field(default_factory=list)
    _running: list[tuple[int, int, bytes, Any]] = field(default_factory=list)
    _kept: int = 0

    def idle(self, threads: int) -> Sequence[int]:
        busy = [worker for worker, *_ in self._running]
        return [] if self.late > 0 else [w for w in range(len(self.hands)) if busy.count(w) < self.room]

    def keep(self, common: bytes) -> Any:
        self._kept += 1
        self.moved += len(common)
        return str(self._kept), common

    def send(self, worker: int, number: int, job: bytes, common: Any, threads: int) -> None:
        assert worker in self.idle(threads)
        self.log.append((worker, number, threads))
        self.moved += len(job)
        self._running.append((worker, number, job, common))

    def replies(self, seconds: float) -> Sequence[JobResult]:
        """The last job given is the first done. A worker that dies loses all its jobs, and another takes its place."""
        self.late -= 1
        if not self._running:
            assert self.late >= 0, "nothing is under way"
            return []
        worker, number, job, common = self._running.pop()
        if not self.dies(number, [n for _, n, _ in self.log].count(number)):
            answers = self.hands[worker](job, *common)
            self.moved += len(answers)
            return [JobResult(number, answers)]
        self.lost.append(f"worker {worker} is gone")
        lost = [n for w, n, *_ in self._running if w == worker]
        self._running = [entry for entry in self._running if entry[0] != worker]
        return [JobResult(n, None, "it is gone") for n in (number, *lost)]
