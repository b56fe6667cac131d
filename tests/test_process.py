"""Two runs in threads of one process, and a run in a process that was forked from one."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
import transformers

from rondo import process
from rondo.errors import ConfigError
from rondo.models.kernels.quiet import quiet
from rondo.process import no_warnings, peak_memory, seeded


def both(one: Callable[[], object], other: Callable[[], object]) -> list[object]:
    """What the two return, each in a thread of its own, the second begun while the first waits within its block."""
    inside = threading.Event()

    def first() -> object:
        with seeded(0):
            before = one()
            inside.set()
            waited.wait(0.2)
            return before, one()

    def second() -> object:
        inside.wait()
        with seeded(1):
            waited.set()
            return other(), other()

    waited = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in (pool.submit(first), pool.submit(second))]


def test_threads_draw_under_their_own_seeds() -> None:
    def draw() -> list[float]:
        return torch.rand(3).tolist()

    def alone(seed: int) -> object:
        with seeded(seed):
            return draw(), draw()

    before = torch.random.get_rng_state()
    assert both(draw, draw) == [alone(0), alone(1)]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("manager", [no_warnings, quiet])
def test_threads_leave_warnings_and_stderr_as_they_were(manager: Callable[..., AbstractContextManager[None]]) -> None:
    """The first to come is the first to go, so each would restore what the other one set."""
    stderr, filters, level = sys.stderr, list(warnings.filters), logging.getLogger(transformers.__name__).level
    inside, second_inside, left = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with manager(stderr=True):
            inside.set()
            second_inside.wait(0.2)
        left.set()

    def second() -> None:
        inside.wait()
        with manager(stderr=True):
            second_inside.set()
            left.wait()

    with ThreadPoolExecutor(2) as pool:
        for future in (pool.submit(first), pool.submit(second)):
            future.result()
    assert sys.stderr is stderr
    assert list(warnings.filters) == filters
    assert logging.getLogger(transformers.__name__).level == level


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("threads", "ends"), [(2, 7), (1, 0)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_run_in_a_forked_process(threads: int, ends: int) -> None:
    """torch's threads do not survive a fork: with several, the first product would wait for ever."""
    torch.set_num_threads(threads)
    process.computes()
    child = os.fork()
    if child == 0:
        try:
            process.computes()
            os._exit(0)
        except ConfigError as error:
            os._exit(7 if "it was forked" in str(error) and "spawn" in str(error) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ends


def test_seed_is_that_of_a_generator_and_the_state_comes_back() -> None:
    before = torch.random.get_rng_state()
    with seeded(5):
        drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    with seeded(None):
        following = torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(following, torch.rand(3))


@pytest.mark.parametrize(
    ("device", "forked"), [(None, []), (torch.device("cpu"), []), (torch.device("cuda", 1), [torch.device("cuda", 1)])]
)
def test_generator_of_an_accelerator_is_kept_too(
    device: torch.device | None, forked: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []

    def fork_rng(devices: object) -> AbstractContextManager[None]:
        kept.append(devices)
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    with seeded(None, device):
        pass
    assert kept == [forked]


@pytest.mark.filterwarnings("error")
def test_warnings_are_ignored_and_standard_error_only_if_asked() -> None:
    stderr = sys.stderr
    with no_warnings():
        warnings.warn("not shown", stacklevel=1)
        assert sys.stderr is stderr
    with no_warnings(stderr=True):
        warnings.warn("not shown", stacklevel=1)
        assert sys.stderr is not stderr
    with pytest.raises(UserWarning, match="shown again"):
        warnings.warn("shown again", stacklevel=1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak there")
def test_peak_memory_is_the_systems() -> None:
    """Linux counts both at moments of its own."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    told = peak_memory()
    assert told["process_memory_bytes"] == pytest.approx(int(line.split()[1]) * 1024, rel=0.02)
    assert (told["device_memory_bytes"] is None) == (not torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
