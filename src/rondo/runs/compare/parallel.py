"""Runs of a comparison in processes of their own, several at a time.

A process gets its run by its standard input and answers by its exit code and standard output; its lines of progress go
to standard error, each with the name of the run. It computes with as many threads as the process that started it, since
results depend on their number, so its result has the bits of a run in that process.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, RunInterrupted, RunStopped, StopRequested, visible
from rondo.runs.compare.places import Planned
from rondo.runs.compare.variants import Variant
from rondo.runs.given import Given

_SOURCE = "rondo compare"
_DONE, _STOPPED, _REFUSED, _INTERRUPTED = 0, 10, 11, 12
_PROGRAM = "import sys; sys.path[:] = {path!r}; from rondo.runs.compare.parallel import work; sys.exit(work())"
_POLL_SECONDS = 0.1


def check_processes(processes: int, given: Given) -> None:
    """Raise :class:`ConfigError` for a number of processes that cannot be."""
    if processes < 1:
        raise ConfigError.at("--processes", f"should be a number of processes, 1 or more, got {processes}", _SOURCE)
    if processes > 1 and given.sets:
        message = "rows and a model that are given in Python stay in its process: name files, or leave processes out"
        raise ConfigError.at("processes", message, _SOURCE)


def in_processes(runs: Sequence[Planned], processes: int, device: str, stop: threading.Event | None) -> dict[Path, str]:
    """Make all ``runs`` that are not finished, ``processes`` at a time. Returns the reasons of those that could not
    finish, by their folders. Raises :class:`ConfigError` of a run that was refused, and :class:`rondo.RunInterrupted`
    once ``stop`` is set, when all have stopped."""
    import torch

    waiting = [run for run in runs if run.state != "finished"]
    working: dict[Path, tuple[Planned, subprocess.Popen[bytes]]] = {}
    reasons: dict[Path, str] = {}
    stopping = False
    try:
        while waiting or working:
            if stop is not None and stop.is_set() and not stopping:
                stopping = True
                waiting.clear()
                for _, process in working.values():
                    process.send_signal(signal.SIGTERM)
            while waiting and len(working) < processes:
                run = waiting.pop(0)
                working[run.run_dir] = run, _started(run, device, torch.get_num_threads())
            for run, process in [pair for pair in working.values() if pair[1].poll() is not None]:
                del working[run.run_dir]
                if (reason := _ended(run, process)) is not None:
                    reasons[run.run_dir] = reason
            time.sleep(_POLL_SECONDS)
    finally:
        for _, process in working.values():
            process.terminate()
        for _, process in working.values():
            process.wait()
    if stopping:
        raise RunInterrupted(runs[0].run_dir)
    return reasons


def _started(run: Planned, device: str, threads: int) -> subprocess.Popen[bytes]:
    program = _PROGRAM.format(path=sys.path)
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(_told(run, device, threads)).encode())
    return process


def _told(run: Planned, device: str, threads: int) -> dict[str, Any]:
    """A run for :func:`work`, as JSON has it. Keys that are not set stay so: some have a default that the data know."""
    return {
        "label": run.variant.label,
        "method": run.variant.method,
        "config": run.config.model_dump(mode="json", exclude_unset=True),
        "run_dir": str(run.run_dir),
        "state": run.state,
        "device": device,
        "threads": threads,
    }


def _ended(run: Planned, process: subprocess.Popen[bytes]) -> str | None:
    """The reason why a run could not finish; None of one that is finished, or that was interrupted. Raises
    :class:`ConfigError` of one that was refused."""
    assert process.stdout is not None
    with process.stdout as pipe:
        said = pipe.read().decode(errors="replace").strip().splitlines()
    if process.returncode in (_DONE, _INTERRUPTED):
        return None
    if process.returncode in (_STOPPED, _REFUSED):
        answer: dict[str, Any] = json.loads(said[-1])
        if process.returncode == _STOPPED:
            return str(answer["reason"])
        raise ConfigError.at(answer["path"], f"{run}: {answer['reason']}", _SOURCE)
    return f"its process ended with exit code {process.returncode}"


def work() -> int:
    """Make the run on standard input; the exit code of its process. Called in a process of its own."""
    told = json.load(sys.stdin)
    variant = Variant(told["label"], told["method"], RunConfig.model_validate(told["config"]))
    run = Planned(variant, Path(told["run_dir"]), told["state"])
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    import torch

    torch.set_num_threads(told["threads"])
    for name in ("torchao", "bitsandbytes", "torch.utils._pytree"):  # they warn of kernels for other machines
        logging.getLogger(name).setLevel(logging.ERROR)
    from rondo.runs.compare.carrying import make
    from rondo.runs.watching.progress import Lines

    try:
        make(run, told["device"], observer=Lines(sys.stderr, run.config.rounds, set(), name=str(run)), stop=stop)
    except RunStopped as error:
        print(json.dumps({"reason": str(error)}), flush=True)
        return _STOPPED
    except ConfigError as error:
        first = error.problems[0]
        print(json.dumps({"path": first.path, "reason": first.message}), flush=True)
        return _REFUSED
    except (RunInterrupted, StopRequested):
        return _INTERRUPTED
    print(visible(f"{run}: done"), file=sys.stderr, flush=True)
    return _DONE
