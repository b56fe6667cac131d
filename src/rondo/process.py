"""State that a process has once and its threads share: torch's own generator, warnings, standard error.

Threads that change it take turns, so two runs in one process have the bits of each alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import torch

from rondo.errors import ConfigError


class _Process:
    turn = threading.RLock()
    computed = False
    """Whether torch has computed for Rondo here."""
    forked = False
    """Whether this process was forked from one that had computed."""


def alone() -> threading.RLock:
    """The turn to change what the process has once, as a context manager. A thread may take it again."""
    return _Process.turn


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's own generators, on the CPU and on ``device``, and restore them afterwards: for code that takes no
    generator. None leaves them as they are at first."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with alone(), torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def shared_streams(device: torch.device) -> tuple[bytes, ...]:
    """The states of the streams of random numbers that all code of the process shares: torch's on the CPU and on
    ``device``, NumPy's and Python's."""
    torchs = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return (
        *(state.numpy().tobytes() for state in torchs),
        pickle.dumps(np.random.get_state()),
        repr(random.getstate()).encode(),
    )


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Inside, torch computes on ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def no_warnings(*, stderr: bool = False) -> Iterator[None]:
    """Ignore warnings; ``stderr``: and all that is written there, for progress bars that no setting turns off."""
    with alone(), warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        if stderr:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


def peak_memory() -> dict[str, int | None]:
    """The most memory that this process has had so far, and the most that tensors have taken on its current
    accelerator; None where the system does not tell, or there is none."""
    try:
        import resource

        # Linux counts in KiB, macOS in bytes.
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    except ImportError:  # Windows
        resident = None
    device = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return {"process_memory_bytes": resident, "device_memory_bytes": device}


def computes() -> None:
    """Note that torch will compute here. Raises :class:`ConfigError` in a process that was forked from one that has:
    torch's threads do not survive a fork, and the first product would wait for them for ever."""
    if _Process.forked and torch.get_num_threads() > 1:
        message = (
            "it was forked from a process that had a run, whose threads are missing here: start it by "
            'multiprocessing.get_context("spawn"), or set OMP_NUM_THREADS=1 for both'
        )
        raise ConfigError.at("this process", message, "rondo")
    _Process.computed = True


def _after_fork() -> None:
    _Process.turn = threading.RLock()  # its holder may be a thread of the other process
    _Process.forked = _Process.computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
