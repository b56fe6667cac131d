"""Cohorts trained by workers: the same rounds as in one process, bit for bit, whatever dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from composed import Composed
from pretend_workers import PretendWorkers, Train
from records import timeless
from rondo.algorithm import Client, ClientFailed, Round, Shared, Upload
from rondo.engine.client.local_round import LocalRound
from rondo.engine.faults import in_training
from rondo.engine.simulation import (
    ByWorkers,
    Common,
    InProcess,
    Job,
    decode_answers,
    decode_job,
    encode_answers,
    encode_job,
)
from rondo.engine.transport import Answer
from rondo.engine.wire import serialization
from rondo.errors import RunStopped, StopRequested
from rondo.lowrank import GrowingSum, LowRank
from rondo.runs.assembling.private import counted_by_the_server
from tiny_federation import ALONE, HEADS_OF_KINDS, config, make, population, run

PEOPLE = {"ann": 4, "bob": 9, "cid": 6, "dan": 5, "eve": 7}


def hand(sim: Composed) -> Train:
    """A worker with the parts of ``sim``, but for what clients keep."""
    facts = (sim.algorithm, sim.network, sim.task, sim.config, {}, counted_by_the_server, sim.prefix)
    local = LocalRound(*facts, around=in_training(sim.config.faults))  # type: ignore[arg-type]

    def train(job: bytes, name: str, common: bytes) -> bytes:
        work, kept = decode_job(job, Common.decode(common))
        (answers,) = InProcess(sim.population, replace(local, kept=kept)).train([work], 1)
        return encode_answers(answers)

    return train


def by_workers(sim: Composed, count: int = 2, **options: Any) -> tuple[Composed, PretendWorkers]:
    """``sim`` with its clients trained by ``count`` workers."""
    workers = PretendWorkers([hand(sim) for _ in range(count)], **options)
    sim.elsewhere = workers
    return sim, workers


@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
@pytest.mark.parametrize("cohort", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.sweep(3)
def test_by_workers_as_in_one_process(name: str, policy: Any, cohort: int) -> None:
    """States, kept tensors and records are equal for every method, with partial participation."""
    settings = config(simulation={"cohort": cohort}, clients={"per_round": 4})
    here, there = (make(name, policy, run=settings, people=population(PEOPLE)) for _ in range(2))
    by_workers(there)
    for index in range(3):
        one, other = here.run_round(index), there.run_round(index)
        assert serialization.same(here.state, there.state), f"round {index}"
        assert serialization.same(here.locals, there.locals), f"round {index}"
        assert timeless(one) == timeless(other)


def test_faults_rehearsed_by_workers() -> None:
    faults = {"out_of_memory": ["bob"], "nonfinite_loss": ["cid"], "corrupt_upload": ["dan"], "duplicate": ["eve"]}
    settings = config(simulation={"cohort": 2}, faults=faults)
    here, there = (make("fedit", run=settings, people=population(PEOPLE)) for _ in range(2))
    by_workers(there)
    for one, other in zip(run(here), run(there), strict=True):
        assert one["failed"] == other["failed"] != []
    assert serialization.same(here.state, there.state)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("workers", [1, 3])
def test_cohorts_of_dead_workers_are_done_again(workers: int) -> None:
    here, there = (make("rolora", "local", run=ALONE, people=population(PEOPLE)) for _ in range(2))
    _, crew = by_workers(there, workers, dies=lambda number, time: number % 2 == 0 and time < 3, room=2, late=2)
    run(here, 3)
    run(there, 3)
    assert serialization.same((here.state, here.locals), (there.state, there.locals))
    assert len(crew.log) > 3 * len(PEOPLE)


def test_cohort_that_kills_its_workers_stops_the_run() -> None:
    sim, _ = by_workers(make("rolora", run=ALONE), dies=lambda number, time: number == 1)
    with pytest.raises(RunStopped, match="3 workers died training bob, the last: it is gone"):
        sim.run_round(0)


def test_stop_does_not_wait_for_workers() -> None:
    stop = threading.Event()
    sim, workers = by_workers(make("rolora", run=ALONE), dies=lambda number, time: bool(stop.set()))
    sim.stop = stop
    with pytest.raises(StopRequested):
        sim.run_round(0)
    assert len(workers.log) == 2


def test_error_of_a_worker_ends_the_round() -> None:
    sim, workers = by_workers(make("rolora", run=ALONE))

    def broken(*_: object) -> bytes:
        raise ZeroDivisionError("a bug")

    workers.hands = [broken, broken]
    with pytest.raises(ZeroDivisionError, match="a bug"):
        sim.run_round(0)


def test_jobs_are_asked_for_as_workers_have_room() -> None:
    asked: list[int] = []

    def jobs() -> Iterator[Job]:
        for i in range(9):
            asked.append(i)
            yield Job(Round(0, 1, 0, 9), (Client(str(i), 1),), (Shared({}),))

    def answered(job: bytes, name: str, common: bytes) -> bytes:
        work, _ = decode_job(job, Common.decode(common))
        return encode_answers([Answer(work.clients[0], Upload(work.clients[0], {}, 1.0))])

    crew = ByWorkers(PretendWorkers([answered] * 2), {})
    for done, (answer,) in enumerate(crew.train(jobs(), 1)):
        assert answer.client.id == str(done)
        assert len(asked) <= done + 5, "few results wait for their turn"


def test_client_goes_to_the_worker_that_had_it() -> None:
    sim, workers = by_workers(make("rolora", run=ALONE, people=population(PEOPLE)), 5)
    server = sim.server
    for index in range(3):
        server.run_round(index)
    placed: list[Callable[..., Any]] = [lambda log: {n % 5: w for w, n, _ in log}]
    assert placed[0](workers.log[:5]) == placed[0](workers.log[5:10]) == placed[0](workers.log[10:])


def test_threads_are_those_of_one_process() -> None:
    sim, workers = by_workers(make("rolora", run=ALONE))
    torch.set_num_threads(6)
    sim.run_round(0)
    assert {threads for *_, threads in workers.log} == {2}


def test_common_tensors_travel_once_and_stay_one() -> None:
    shared = Shared({"a": torch.randn(500), "b": torch.randn(3)}, {"m": GrowingSum.of(LowRank.whole(torch.eye(2)))})
    clients = tuple(Client(c, 3) for c in "xyz")
    job = Job(Round(1, 2, 3, 4), clients, (shared,) * 3)
    other = replace(job, shared=(shared, replace(shared, params={**shared.params, "b": torch.zeros(3)}), shared))
    common = Common.of(job)
    data = encode_job(other, {"y": {"own": torch.ones(2)}, "elsewhere": {}}, common)
    assert len(data) < 2000 < len(common.encode())
    read, kept = decode_job(data, Common.decode(common.encode()))
    assert serialization.same(read, other)
    assert serialization.same(kept, {"y": {"own": torch.ones(2)}})
    first, second, third = read.shared
    assert first.params["a"] is second.params["a"] is third.params["a"]
    assert first.params["b"] is third.params["b"] is not second.params["b"]
    assert first.base is second.base


def test_own_base_of_a_job_travels_with_it() -> None:
    one, two = (Shared({}, {"m": GrowingSum.of(LowRank.whole(n * torch.eye(2)))}) for n in (1.0, 2.0))
    jobs = [Job(Round(0, 1, 0, 2), (Client("x", 1),), (shared,)) for shared in (one, two)]
    common = Common.of(jobs[0])
    read, _ = decode_job(encode_job(jobs[1], {}, common), common)
    assert serialization.same(read, jobs[1])


def test_answers_survive() -> None:
    client = Client("ann", 3, 2)
    answers = [
        Answer(client, Upload(client, {"a": torch.randn(2, 2)}, 0.1 + 0.2), {"own": torch.ones(1)}, 1 / 3),
        Answer(client, failure=ClientFailed("ann", "out_of_memory", "7 GB")),
        Answer(client, Upload(client, {}, 1.0), {}, float("nan")),
    ]
    read = decode_answers(encode_answers(answers))
    for one, other in zip(answers, read, strict=True):
        assert serialization.same(
            [one.client, one.upload, one.kept, one.loss], [other.client, other.upload, other.kept, other.loss]
        )
    failure = read[1].failure
    assert failure is not None
    assert (failure.client, failure.reason, failure.detail) == ("ann", "out_of_memory", "7 GB")
