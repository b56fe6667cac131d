"""Several runs at a time, each in a process of its own.

A process gets its run by its standard input and answers by its exit code and standard output; its lines of progress go
to standard error, each with the name of the run. It computes with as many threads as the process that started it, since
results depend on their number, so its result has the bits of a run in that process.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, RunInterrupted, RunStopped, StopRequested, visible

_DONE, _STOPPED, _REFUSED, _INTERRUPTED = 0, 10, 11, 12
_PROGRAM = "import sys; sys.path[:] = {path!r}; from rondo.runs.parallel import work; sys.exit(work())"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """A run for a process of its own: of ``config`` in ``run_dir``, or what is left of the one there (``resumes``)."""

    name: str
    config: RunConfig
    run_dir: Path
    resumes: bool


@dataclass(frozen=True)
class Ended:
    """A run whose process ended: after how many seconds, and why the run is not finished, if it is not."""

    job: Job
    seconds: float
    stopped: str | None = None
    """The reason of a run that cannot finish."""
    died: str | None = None
    """How its process ended, of one that did not end by itself."""


def check_processes(processes: int, source: str) -> None:
    """Raise :class:`ConfigError` for a number of processes that cannot be."""
    if processes < 1:
        raise ConfigError.at("--processes", f"should be a number of processes, 1 or more, got {processes}", source)


def in_processes(
    jobs: Sequence[Job],
    processes: int,
    device: str,
    source: str,
    *,
    stop: threading.Event | None = None,
    end: float = math.inf,
    shows_rounds: bool = False,
) -> Iterator[Ended]:
    """Make ``jobs``, ``processes`` at a time; none is started after ``end``, by the monotonic clock.

    ``source``: the command, for faults. ``shows_rounds``: whether every round has its line on standard error. Raises
    :class:`ConfigError` of a run that was refused, and :class:`rondo.RunInterrupted` once ``stop`` is set, when all
    have stopped. Whatever ends it, the processes end too, each after its step.
    """
    import torch

    waiting = list(jobs)
    working: list[_Working] = []
    try:
        while waiting or working:
            if stop is not None and stop.is_set():
                break
            if time.monotonic() > end:
                waiting.clear()
            while waiting and len(working) < processes:
                working.append(_Working(waiting.pop(0), device, torch.get_num_threads(), shows_rounds))
            for one in [one for one in working if one.process.poll() is not None]:
                working.remove(one)
                yield one.ended(source)
            time.sleep(_POLL_SECONDS)
    finally:
        for one in working:
            one.process.terminate()
        for one in working:
            one.process.wait()
    if waiting or working:
        raise RunInterrupted(jobs[0].run_dir)


class _Working:
    """A run in its process."""

    def __init__(self, job: Job, device: str, threads: int, shows_rounds: bool) -> None:
        self.job, self._began = job, time.monotonic()
        told = {
            "name": job.name,
            # Keys that are not set stay so: some have a default that the data know.
            "config": job.config.model_dump(mode="json", exclude_unset=True),
            "run_dir": str(job.run_dir),
            "resumes": job.resumes,
            "device": device,
            "threads": threads,
            "shows_rounds": shows_rounds,
        }
        command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(json.dumps(told).encode())

    def ended(self, source: str) -> Ended:
        """Its outcome. Raises :class:`ConfigError` of a run that was refused."""
        seconds, code = time.monotonic() - self._began, self.process.returncode
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            said = pipe.read().decode(errors="replace").strip().splitlines()
        if code == _DONE:
            return Ended(self.job, seconds)
        if code == _STOPPED:
            return Ended(self.job, seconds, stopped=json.loads(said[-1])["reason"])
        if code == _REFUSED:
            answer = json.loads(said[-1])
            raise ConfigError.at(answer["path"], f"{self.job.name}: {answer['reason']}", source)
        how = "was told to stop" if code == _INTERRUPTED else f"ended with exit code {code}"
        return Ended(self.job, seconds, died=f"its process {how}")


def work() -> int:
    """Make the run on standard input; the exit code of its process. Called in a process of its own."""
    told = json.load(sys.stdin)
    config, name = RunConfig.model_validate(told["config"]), told["name"]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    import torch

    torch.set_num_threads(told["threads"])
    for library in ("torchao", "bitsandbytes", "torch.utils._pytree"):  # they warn of kernels for other machines
        logging.getLogger(library).setLevel(logging.ERROR)
    from rondo.runs import runner
    from rondo.runs.watching.progress import Lines, Quiet

    observer = Lines(sys.stderr, config.rounds, set(), name=name) if told["shows_rounds"] else Quiet()
    try:
        if told["resumes"]:
            # The user has named the code again, in the same configuration.
            runner.resume(told["run_dir"], device=told["device"], allow_code=True, observer=observer, stop=stop)
        else:
            runner.run(config, run_dir=told["run_dir"], device=told["device"], observer=observer, stop=stop)
    except RunStopped as error:
        print(json.dumps({"reason": str(error)}), flush=True)
        return _STOPPED
    except ConfigError as error:
        first = error.problems[0]
        print(json.dumps({"path": first.path, "reason": first.message}), flush=True)
        return _REFUSED
    except (RunInterrupted, StopRequested):
        return _INTERRUPTED
    if told["shows_rounds"]:
        print(visible(f"{name}: done"), file=sys.stderr, flush=True)
    return _DONE
