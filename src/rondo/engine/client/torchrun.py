"""Local training in the processes of ``torchrun``: the first makes the run or is the site, and the others only train
with it, each on its part of every batch."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed

from rondo import own_code
from rondo.engine.trainers import LocalTraining
from rondo.models.kernels.private_torch import equal_in_all_processes
from rondo.process import seeded

_CPU = torch.device("cpu")


def join() -> None:
    """Meet the other processes. Returns in the first; the others end with it."""
    distributed.init_process_group(timeout=timedelta(days=365))  # between two trainings a site may wait for long
    if distributed.get_rank() == 0:
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the first process stops after its step, and needs this one for it
    while True:
        handed: list[Any] = [None]
        try:
            distributed.broadcast_object_list(handed, device=_CPU)
        except RuntimeError:  # the first process has ended
            os._exit(0)  # its group cannot be left in order any more
        place, local = handed[0]
        with seeded(local.seed, next(local.model.parameters()).device), streams(local.seed):
            own_code.load(place)(local)


def together(place: str, function: Callable[[LocalTraining], object], local: LocalTraining) -> object:
    """Call ``function``, found at ``place``, here and in the processes that have joined, and return its result."""
    if not (distributed.is_available() and distributed.is_torchelastic_launched() and distributed.is_initialized()):
        return function(local)
    frozen = {name: p for name, p in local.model.named_parameters() if not p.requires_grad}
    equal_in_all_processes(local.model, list(frozen))
    before = {name: p.data for name, p in frozen.items()}
    distributed.broadcast_object_list([(place, local)], device=_CPU)
    result = function(local)
    for name, p in frozen.items():
        if p.device == before[name].device and torch.equal(p.data, before[name]):
            p.data = before[name]  # accelerate's move to "cpu:0" has copied it
    return result


@contextmanager
def streams(seed: int) -> Iterator[None]:
    """Seed the generators of Python and NumPy, and restore them afterwards."""
    pythons, numpys = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
