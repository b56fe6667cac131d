"""The server's seconds and memory of an aggregation: without the clients', and without changing a bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from test_diagnostics import play

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.engine.server import exchange
from rondo.engine.server.exchange import AggregationCost
from rondo.engine.wire import serialization
from rondo.params import Packed

KB = 1000


def upload(index: int, *, packed: bool = False) -> Upload:
    """4 kB."""
    params = {"x.A": torch.full((1, 1000), float(index))}
    return Upload(Client(str(index), 1), Packed.of(params) if packed else params, 1.0)


def added(uploads: Iterable[Upload]) -> torch.Tensor:
    total = torch.zeros(1, 1000, dtype=torch.float64)
    for each_upload in uploads:
        total += each_upload.params["x.A"]
    return total


def given(counted: AggregationCost, uploads: Iterable[Upload]) -> Iterator[Upload]:
    arriving = iter(uploads)
    while (arrived := counted.following(arriving)) is not None:
        yield arrived
        del arrived


def held(uploads: Iterable[Upload]) -> torch.Tensor:
    return torch.stack([u.params["x.A"] for u in list(uploads)]).sum(0)


@pytest.mark.parametrize("packed", [False, True])
def test_memory_of_a_sum_is_one_upload_and_the_sum(packed: bool) -> None:
    """The uploads themselves stay alive elsewhere."""
    elsewhere = [upload(i, packed=packed) for i in range(20)]
    with AggregationCost([]) as counted:
        total = added(given(counted, elsewhere))
    assert total[0, 0] == sum(range(20))
    assert 12 * KB <= counted.peak_bytes <= 16 * KB  # the last upload may still be named while the next one comes


def test_memory_of_a_stack_is_all_uploads_and_the_stack() -> None:
    with AggregationCost([]) as counted:
        held(given(counted, (upload(i) for i in range(20))))
    assert counted.peak_bytes == 20 * 4 * KB + 20 * 4 * KB


def test_known_tensors_and_their_views_are_free() -> None:
    state = torch.zeros(1000, 1000)
    with AggregationCost([state]) as counted:
        state[0].view(10, 100).T.sum()
    assert counted.peak_bytes == 4


def test_freed_memory_is_taken_again() -> None:
    with AggregationCost([]) as counted:
        for _ in range(10):
            torch.zeros(1000)
    assert counted.peak_bytes == 4 * KB


def test_arrival_of_uploads_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload is trained while it is asked for, in the same thread: a hundred seconds and 4 MB each."""
    now = [0.0]
    monkeypatch.setattr(exchange.time, "perf_counter", lambda: now[0])
    trained = []

    def arriving() -> Iterator[Upload]:
        for i in range(3):
            now[0] += 100
            trained.append(torch.zeros(1000, 1000))
            yield upload(i)
            now[0] += 1000

    with AggregationCost([]) as counted:
        now[0] += 2
        for _ in given(counted, arriving()):
            now[0] += 5
        now[0] += 3
    assert counted.seconds == 2 + 3 * 5 + 3
    assert counted.peak_bytes <= 8 * KB


def test_error_on_the_way_of_an_upload_comes_through() -> None:
    def arriving() -> Iterator[Upload]:
        yield upload(0)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"), AggregationCost([]) as counted:
        added(given(counted, arriving()))
    before = counted.peak_bytes
    torch.zeros(10_000)
    assert counted.peak_bytes == before  # it counts no longer


def test_uploads_without_tensors() -> None:
    with AggregationCost([]) as counted:
        assert len(list(given(counted, [Upload(Client("a", 1), {}, 1.0)]))) == 1
    assert counted.peak_bytes == 0


@pytest.mark.parametrize("name", [n for n in algorithms.names() if algorithms.entry(n).traits.needs_factors])
def test_counting_changes_no_bit(name: str) -> None:
    for played in play(algorithms.get(name), rounds=2):
        counted = AggregationCost(serialization.tensors(played.before))
        with counted:
            after = played.algorithm.aggregate(played.before, given(counted, played.uploads), played.round)
        assert serialization.same(after, played.after)
        assert counted.seconds > 0


def peak(algorithm: Algorithm[Any], count: int) -> int:
    g = torch.Generator().manual_seed(0)
    start = {"m.A": torch.randn(4, 300, generator=g), "m.B": torch.randn(300, 4, generator=g)}
    state = algorithm.init(start, {}, Round(0, 4, 0, count))
    uploads = (Upload(Client(f"{i:02}", 1), {n: t + i for n, t in start.items()}, 1.0) for i in range(count))
    counted = AggregationCost(serialization.tensors(state))
    with counted:
        algorithm.aggregate(state, given(counted, uploads), Round(0, 4, 0, count))
    return counted.peak_bytes


def test_only_a_linear_method_takes_the_same_memory_for_any_number_of_clients() -> None:
    counts = (16, 32)
    one, two = (peak(algorithms.get("fedit"), n) for n in counts)
    assert one == two
    first, second = (peak(algorithms.get("flexlora"), n) for n in counts)
    assert second - first >= 16 * 2 * 4 * 300 * 4 > 0  # the factors of sixteen more clients
