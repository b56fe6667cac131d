"""A round whose uploads cannot be aggregated is skipped; other errors are not taken for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from composed import Composed
from methods import every_method
from rondo.algorithm import Round, Upload
from rondo.engine.server.rounds import Server
from rondo.engine.transport import Answer, Transport, Work
from rondo.engine.wire import serialization
from rondo.errors import StopRequested
from tiny_federation import SIZES, config, make, population


@dataclass
class Changed:
    """A transport whose answers are changed before the server sees them."""

    inner: Transport
    change: Callable[[Answer], Answer]

    def __post_init__(self) -> None:
        self.expected, self.must_repeat = self.inner.expected, self.inner.must_repeat

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        return map(self.change, self.inner.exchange(round, work))


def with_change(sim: Composed, change: Callable[[Answer], Answer]) -> Server:
    server = sim.server
    server.transport = Changed(server.transport, change)
    return server


def enormous(answer: Answer) -> Answer:
    """An upload of bob's, well formed, finite, and near float64's largest number."""
    if answer.client.id != "bob":
        return answer
    assert isinstance(answer.upload, Upload)
    params = {n: torch.full_like(t, 1e300) for n, t in answer.upload.params.items()}
    return replace(answer, upload=replace(answer.upload, params=params))


def test_upload_that_breaks_a_factorisation_skips_the_round() -> None:
    sim = make("flexlora", dtype=torch.float64)
    before = serialization.pack(sim.state)
    server = with_change(sim, enormous)
    record = server.run_round(0)
    assert record["skipped"].startswith("the uploads cannot be aggregated: _LinAlgError: ")
    assert (record["clients"], record["failed"]) == (3, [])
    assert serialization.pack(server.state) == before


@contextlib.contextmanager
def failing(sim: Composed, fail: Callable[[], object], after: int) -> Iterator[None]:
    """Let the aggregation call ``fail`` after so many uploads."""

    def aggregate(self: Any, state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        arriving = iter(uploads)
        for _ in range(after):
            next(arriving)
        fail()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sim.algorithm), "aggregate", aggregate)
        yield


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.sweep(3)
@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", every_method())
def test_failed_aggregation_skips_the_round(name: str, after: int) -> None:
    """With the error's type and message as the reason. Every client is asked, the state stays, the run goes on."""
    sim, plain = make(name), make(name)
    before = serialization.pack(sim.state), serialization.pack(sim.locals)
    with failing(sim, raising(ZeroDivisionError("float division\nby zero")), after):
        record = sim.run_round(0)
    assert record["skipped"] == "the uploads cannot be aggregated: ZeroDivisionError: float division"
    assert (serialization.pack(sim.state), serialization.pack(sim.locals)) == before
    expected = plain.run_round(0)
    same = ("clients", "sampled", "failed", "loss", "bytes_up", "bytes_down", "bytes_first_contact")
    assert [record[key] for key in same] == [expected[key] for key in same]
    assert sim.run_round(1)["skipped"] is None


def test_programming_error_is_told_with_type_and_message() -> None:
    sim = make()
    with failing(sim, lambda: sim.state.paramz, 2):
        record = sim.run_round(0)
    assert record["skipped"].startswith("the uploads cannot be aggregated: AttributeError: 'ServerState' object has no")


def test_too_few_uploads_are_told_before_a_failed_aggregation() -> None:
    sim = make(people=population(SIZES, poisoned=["ann", "bob"]), run=config(clients={"min_clients": 2}))
    with failing(sim, raising(ValueError("no")), 1):
        record = sim.run_round(0)
    assert record["skipped"] == "1 uploads, min_clients is 2"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), SystemExit()])
def test_interrupts_and_shortages_are_no_failed_aggregation(error: BaseException) -> None:
    sim = make()
    with failing(sim, raising(error), 1), pytest.raises(type(error)):
        sim.run_round(0)
    with failing(sim, lambda: torch.empty(2**50), 1), pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        sim.run_round(0)


@pytest.mark.parametrize("error", [OSError("the line is down"), StopRequested("the line is down")])
@pytest.mark.parametrize("client", ["ann", "cid"])
def test_error_of_the_transport_is_no_failed_aggregation(client: str, error: Exception) -> None:
    """It passes through the algorithm, which is asking for uploads."""

    def broken(answer: Answer) -> Answer:
        if answer.client.id == client:
            raise error
        return answer

    with pytest.raises(type(error), match="the line is down"):
        with_change(make(), broken).run_round(0)
