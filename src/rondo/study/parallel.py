"""Several runs at a time, each in a process beside this one.

A process makes one run after the other, since loading the libraries takes longer than a short run. It gets each as a
line on its standard input and answers with a line on its standard output; its lines of progress go to standard error,
each with the name of the run. It computes with as many threads as the process that started it, since results depend on
their number, so its results have the bits of runs in that process. One that dies takes its run with it, and another
goes on.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, DiskFailed, Problem, RunInterrupted, RunStopped, StopRequested, visible
from rondo.study.runs import Ended, Trial, make

_PROGRAM = "import sys; sys.path[:] = {path!r}; from rondo.study.parallel import work; work()"
_ANSWER = b"rondo answers: "
_POLL_SECONDS = 0.1


def check_processes(processes: int, source: str) -> None:
    """Raise :class:`ConfigError` for a number of processes that cannot be."""
    if processes < 1:
        raise ConfigError.at("--processes", f"should be a number of processes, 1 or more, got {processes}", source)


def in_processes(
    trials: Sequence[Trial],
    processes: int,
    device: str,
    source: str,
    *,
    stop: threading.Event | None = None,
    end: float = math.inf,
    shows_rounds: bool = False,
) -> Iterator[Ended]:
    """Make ``trials``, ``processes`` at a time; none is started after ``end``, by the monotonic clock.

    ``source``: the command, for faults. ``shows_rounds``: whether every round has its line on standard error. Raises
    :class:`ConfigError` of a run that was refused, and :class:`rondo.RunInterrupted` once ``stop`` is set, when all
    have stopped. Whatever ends it, the processes end too, each after its step.
    """
    waiting = list(trials)
    idle: list[_Worker] = []
    working: list[_Worker] = []
    try:
        while waiting or working:
            if stop is not None and stop.is_set():
                break
            if time.monotonic() > end:
                waiting.clear()
            while waiting and len(working) < processes:
                worker = idle.pop() if idle else _Worker(device, shows_rounds)
                if worker.process.poll() is None:
                    worker.give(waiting.pop(0))
                    working.append(worker)
            for one in [one for one in working if one.has_answered()]:
                ended, lives = one.ended(source)
                working.remove(one)
                if lives and waiting:
                    idle.append(one)
                else:  # its memory is free for the others
                    one.end()
                    one.process.wait()
                yield ended
            time.sleep(_POLL_SECONDS)
    finally:
        for one in [*idle, *working]:
            one.end()
        for one in [*idle, *working]:
            one.process.wait()
    if waiting or working:
        raise RunInterrupted(trials[0].folder)


class _Worker:
    """A process that makes runs, one after the other."""

    def __init__(self, device: str, shows_rounds: bool) -> None:
        import torch

        self._setting = {"device": device, "threads": torch.get_num_threads(), "shows_rounds": shows_rounds}
        command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                if line.startswith(_ANSWER):  # a library may print before :func:`work` has begun
                    self._answers.put(line.removeprefix(_ANSWER))

    def give(self, trial: Trial) -> None:
        """Have ``trial`` made."""
        self._trial, self._began = trial, time.monotonic()
        told = {
            **self._setting,
            "name": str(trial),
            # Keys that are not set stay so: some have a default that the data know.
            "config": trial.config.model_dump(mode="json", exclude_unset=True),
            "run_dir": str(trial.folder),
        }
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has died, which is told as its outcome
            self.process.stdin.write(json.dumps(told).encode() + b"\n")
            self.process.stdin.flush()

    def has_answered(self) -> bool:
        """Whether the run has ended, or the process."""
        return not self._answers.empty() or self.process.poll() is not None

    def ended(self, source: str) -> tuple[Ended, bool]:
        """The outcome of the run, and whether the process takes another. Raises :class:`ConfigError` of a run that was
        refused."""
        seconds = time.monotonic() - self._began
        try:
            # Of a process that has ended, the last line may still be on its way. The pipe does not tell that it has
            # ended: a process that it has forked may hold the pipe open.
            answer = json.loads(self._answers.get(timeout=1.0))
        except queue.Empty:
            how = f"ended with exit code {self.process.returncode}"
            return Ended(self._trial, seconds, died=f"its process {how}"), False
        if "problems" in answer:
            problems = [Problem(path, f"{self._trial}: {reason}") for path, reason in answer["problems"]]
            raise ConfigError(problems, source)
        if "interrupted" in answer:
            return Ended(self._trial, seconds, died="its process was told to stop"), False
        return Ended(self._trial, seconds, answer.get("stopped"), answer.get("disk_failed", False)), True

    def end(self) -> None:
        """Have the process end, after the step that it is in."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


def work() -> None:
    """Make the runs on standard input, and answer each with a line. Called in a process of its own.

    At the end of standard input, which is also that of the process that gives the runs, it stops after its step."""
    # A run finds no standard input, and whatever it prints goes to standard error: these two are for jobs and answers.
    jobs, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    given: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in jobs:
            given.put(line)
        stop.set()
        given.put(None)

    threading.Thread(target=listen, daemon=True).start()
    for library in ("torchao", "bitsandbytes", "torch.utils._pytree"):  # they warn of kernels for other machines
        logging.getLogger(library).setLevel(logging.ERROR)
    while not stop.is_set() and (line := given.get()) is not None:
        answer = _made(json.loads(line), stop)
        with contextlib.suppress(OSError):  # the process that gave the run has died
            answers.write(f"\n{_ANSWER.decode()}{json.dumps(answer)}\n")
            answers.flush()
        _free()


def _free() -> None:
    """Give back the memory of a run."""
    import torch

    gc.collect()  # hooks keep a model in a cycle
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _made(told: dict[str, Any], stop: threading.Event) -> dict[str, Any]:
    """Make the run that is ``told``; the answer."""
    import torch

    torch.set_num_threads(told["threads"])
    torch.manual_seed(0)  # code of the user's own that draws without a generator: the same in whichever process
    from rondo.runs.watching.progress import Lines, Quiet

    config, name = RunConfig.model_validate(told["config"]), told["name"]
    trial = Trial(name, config.seed, config, Path(told["run_dir"]))
    observer = Lines(sys.stderr, config.rounds, set(), name=name) if told["shows_rounds"] else Quiet()
    try:
        make(trial, told["device"], observer, stop)
    except RunStopped as error:
        return {"stopped": str(error), "disk_failed": isinstance(error, DiskFailed)}
    except ConfigError as error:
        return {"problems": [(problem.path, problem.message) for problem in error.problems]}
    except (RunInterrupted, StopRequested):
        return {"interrupted": True}
    if told["shows_rounds"]:
        print(visible(f"{name}: done"), file=sys.stderr, flush=True)
    return {}
