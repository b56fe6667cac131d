"""Workers as actors of Ray. The only file that imports ray, and only once a run asks for it.

A worker loads the frozen base and the rows of all clients, and keeps nothing that a run needs later, so a lost one is
replaced. Jobs and answers pass between processes as safetensors, through Ray's object store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from rondo.config import packages
from rondo.engine.simulation import JobResult
from rondo.errors import ConfigError, RunStopped

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # a lost worker is told in the run's log, in one line
}
"""Settings that ray reads when it is imported. Those of the user's own stay."""
_LOADINGS = 3
"""A worker that dies this many times while it loads the run stops it."""


class _Actor:
    """Runs in a process of Ray's. It loads the run in a call, not in its constructor, whose errors Ray hides."""

    def __init__(self, make: Callable[[Any], Any], paths: Sequence[str]) -> None:
        sys.path += [p for p in paths if p not in sys.path]  # code of the user's own
        self._make, self._lock = make, threading.Lock()
        self._hand: Any = None

    def load(self, order: Any) -> tuple[str, Mapping[str, Any] | None, str]:
        """The machine's name, and the run's facts, or what the user must mend."""
        host = f"{socket.gethostname()}, process {os.getpid()}"
        try:
            with self._lock:
                if self._hand is None:
                    self._hand = self._make(order)
            return host, self._hand.facts, ""
        except ConfigError as error:
            return host, None, "; ".join(map(str, error.problems))

    def train(self, job: bytes, name: str, common: bytes, threads: int) -> bytes:
        torch.set_num_threads(threads)
        answers: bytes = self._hand.train(job, name, common)
        return answers


@dataclass
class _Worker:
    actor: Any
    ready: bool = False
    busy: int = 0
    deaths: int = 0
    """Deaths before it was ready, one after another."""


@dataclass
class RayWorkers:
    """Workers of a Ray cluster. See :class:`rondo.engine.simulation.Workers`."""

    count: int
    device: str
    """Kind of device that every worker trains on."""
    threads: int
    """Threads of one worker."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Machine and process of every worker that was ready, by number."""
    lost: list[str] = field(default_factory=list)
    """See :class:`rondo.engine.simulation.Workers`."""
    _workers: list[_Worker] = field(default_factory=list)
    _running: dict[Any, tuple[int, int]] = field(default_factory=dict)
    _loading: dict[Any, int] = field(default_factory=dict)
    _common: tuple[str, Any] = ("", None)

    @property
    def devices(self) -> int:
        return 1 if self.device == "cpu" else self.count

    def load(self, make: Callable[[Any], Any], order: Any, check: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Have every worker begin to load a run.

        ``make``: gives a worker its part, from ``order``: a :class:`~rondo.runs.workers.places.Hand`.
        ``check``: raises an error if a worker's facts are not those of the run.
        """
        import ray

        try:
            self._order = ray.put(order)
        except Exception as error:  # whatever the pickling of an object of the user's raises
            message = f"what the run was given cannot be sent to Ray's workers: {type(error).__name__}: {error}"
            raise ConfigError.at("simulation.engine", f"{message}. Use engine = 'process'") from None
        self._make, self._check = make, check
        for number in range(self.count):
            self._workers.append(_Worker(None))
            self._start(number)

    def close(self) -> None:
        """End the workers, whatever they do."""
        import ray

        for worker in self._workers:
            with contextlib.suppress(Exception):  # it may be dead
                ray.kill(worker.actor)
        self._workers.clear()

    def idle(self, threads: int) -> Sequence[int]:
        """A worker has room for one cohort at least."""
        room = 1 if self.device != "cpu" else max(1, self.threads // threads)
        free = [(w.busy, number) for number, w in enumerate(self._workers) if w.ready and w.busy < room]
        return [number for _, number in sorted(free)]

    def keep(self, common: bytes) -> Any:
        import ray

        reference = ray.put(common)
        return reference.hex(), reference

    def send(self, worker: int, number: int, job: bytes, common: Any, threads: int) -> None:
        name, reference = common
        answer = self._workers[worker].actor.train.remote(job, name, reference, threads)
        self._workers[worker].busy += 1
        self._running[answer] = (worker, number)

    def replies(self, seconds: float) -> Sequence[JobResult]:
        """Raises :class:`RunStopped` where a worker cannot load the run."""
        import ray

        waiting = [*self._running, *self._loading]
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if not ready:
            ready, _ = ray.wait(waiting, num_returns=1, timeout=seconds)
        replies: list[JobResult] = []
        for reference in ready:
            number = self._loading.pop(reference, None)
            if number is not None:
                self._note_loaded(number, reference)
            elif reference in self._running:
                worker, job = self._running.pop(reference)
                try:
                    answers = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise _cause(error) from error
                except ray.exceptions.RayError as error:
                    replies += self._lost(worker, job, error)
                else:
                    self._workers[worker].busy -= 1
                    replies.append(JobResult(job, answers))
        return replies

    def _start(self, number: int) -> None:
        """Start worker ``number``, or another in its place."""
        import ray

        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_concurrency": self.threads}
        options["scheduling_strategy"] = "SPREAD"
        if self.device == "cuda":
            options |= {"num_gpus": 1, "max_concurrency": 1}
        actor = ray.remote(_Actor).options(**options).remote(self._make, sys.path)
        worker = self._workers[number]
        worker.actor, worker.ready, worker.busy = actor, False, 0
        self._loading[actor.load.remote(self._order)] = number

    def _note_loaded(self, number: int, reference: Any) -> None:
        import ray

        worker = self._workers[number]
        try:
            host, facts, fault = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except ray.exceptions.RayError as error:
            worker.deaths += 1
            if worker.deaths == _LOADINGS:
                raise RunStopped(f"a worker of Ray died {_LOADINGS} times while it loaded: {_words(error)}") from None
            self._start(number)
            return
        if facts is None:
            raise RunStopped(f"a worker of Ray ({host}) cannot load the run: {fault}")
        self._check(host, facts)
        worker.ready, worker.deaths, self.hosts[number] = True, 0, host

    def _lost(self, worker: int, job: int, error: Exception) -> Iterator[JobResult]:
        """Replace a lost worker. All its jobs are lost with it."""
        reason = _words(error)
        self.lost.append(f"worker {self.hosts[worker]} is lost, and another does its cohorts again: {reason}")
        yield JobResult(job, None, reason)
        for reference, (other, lost) in list(self._running.items()):
            if other == worker:
                del self._running[reference]
                yield JobResult(lost, None, reason)
        self._start(worker)


@contextlib.contextmanager
def ray_workers(count: int | None, device: str) -> Iterator[RayWorkers]:
    """Within, a Ray cluster with room for ``count`` workers: the one that the program has joined, the one at
    ``RAY_ADDRESS``, or one on this machine, which ends with the context.

    ``count``: by default one for every GPU or, without, for every machine.
    ``device``: kind of device that they train on.

    Raises :class:`ConfigError` where ray is not installed, cannot be reached, or has no room.
    """
    require()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    joined = ray.is_initialized()
    if not joined:
        _join(ray, count)
    workers = None
    try:
        has = ray.cluster_resources()
        kind, name = ("GPU", "GPUs") if device == "cuda" else ("CPU", "CPU cores")
        room = int(has.get(kind, 0))
        machines = sum(1 for node in ray.nodes() if node["Alive"])
        wanted = count or (room if kind == "GPU" else machines)
        if not 0 < wanted <= room:
            message = f"{wanted} workers, and Ray's cluster has {room} {name}: lower it, or join a larger cluster"
            raise ConfigError.at("simulation.workers", message)
        cores = int(has.get("CPU", 1)) if joined or "RAY_ADDRESS" in os.environ else torch.get_num_threads()
        workers = RayWorkers(wanted, device, max(1, cores // wanted))
        yield workers
    finally:
        if workers is not None:
            workers.close()
        if not joined:
            ray.shutdown()


def require() -> None:
    """Raise :class:`ConfigError` if ray is not installed."""
    if find_spec("ray") is None:
        message = f"'ray' {packages.missing('ray')}, or use 'process'"
        raise ConfigError.at("simulation.engine", message)


def _join(ray: Any, count: int | None) -> None:
    """Join the cluster at ``RAY_ADDRESS``, or start one on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address}
    if address is None:
        cores = max(torch.get_num_threads(), count or 1)
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    with _own_signals():
        try:
            ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:  # ray has no one class for what can go wrong here
            where = f"at RAY_ADDRESS = {address!r}" if address else "on this machine"
            message = f"Ray cannot be reached {where}: {_words(error)}" if address else f"Ray cannot start: {error}"
            raise ConfigError.at("simulation.engine", message) from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of signals as they are: ray puts one of its own in place of SIGTERM's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cause(error: Any) -> Exception:
    """The exception of a worker's code, as if it had been raised here."""
    return error.cause if isinstance(error.cause, Exception) else error


def _words(error: Exception) -> str:
    """The first line of a message of ray's, which go on for a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
