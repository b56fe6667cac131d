"""The bytes that the ledger counts suffice: with them alone, a client has every broadcast, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Client, Round, Shared
from rondo.algorithms.table import TABLE
from rondo.engine.client.party import Holdings, Lacking
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.letters import Request
from rondo.engine.wire.parcel import sent_digest, sum_version
from rondo.lowrank import GrowingSum, LowRank
from rondo.testing.run import Run, problems

ROUNDS = 8


def used(shared: Shared) -> Any:
    """A broadcast as training uses it: base changes without chunks that their sum has already."""
    return dict(shared.params), {path: change.on(torch.device("cpu")) for path, change in shared.base.items()}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.sweep(4)
def test_sent_bytes_suffice_for_every_broadcast(name: str) -> None:
    algorithm = algorithms.load(name)()
    for problem in problems(algorithm, 1):
        run, ledger, holdings = Run(algorithm, 1, problem), Ledger(), dict[str, Holdings]()
        for index in range(ROUNDS):
            # Clients miss rounds, so that they are brought up to date over several.
            sampled = [c for k, c in enumerate(run.clients) if k == 0 or (index + k) % 3 == 0]
            for client in sampled:
                shared = run.shared(client, index)
                request = Request(Identity("", ""), run.round(index), client, ledger.parcel(client.id, shared))
                data = request.encode()
                down, _ = ledger.send(client.id, shared)
                parcel = Request.decode(data).parcel
                assert parcel.num_bytes == down
                received = holdings.setdefault(client.id, Holdings()).take(parcel)
                assert serialization.same(used(received), used(shared)), f"round {index}"
                digests = [sent_digest(s, client, run.round(index)) for s in (received, shared)]
                assert digests[0] == digests[1], f"round {index}"
            run.step(index, sampled)


def sums(chunks: int) -> dict[str, GrowingSum]:
    generator = torch.Generator().manual_seed(0)
    total = None
    for _ in range(chunks):
        chunk = LowRank(torch.randn(4, 1, generator=generator), torch.randn(1, 12, generator=generator))
        total = GrowingSum.of(chunk) if total is None else total + chunk
    assert total is not None
    return {"m": total}


def test_client_without_its_disk_says_so_and_keeps_nothing() -> None:
    ledger, holdings = Ledger(), Holdings()
    first, second = ({"a.A": torch.tensor([1.0]), "a.B": torch.tensor([float(k)])} for k in (1, 2))
    ledger.send("ann", Shared(first, sums(1)))
    with pytest.raises(Lacking) as error:
        holdings.take(ledger.parcel("ann", Shared(second, sums(2))))
    assert error.value.names == ["a.A", "m"]
    assert (holdings.params, holdings.base) == ({}, {})
    everything = Ledger().parcel("ann", Shared(second, sums(2)))
    assert serialization.same(used(holdings.take(everything)), used(Shared(second, sums(2))))


def test_base_change_that_another_machine_has_rounded_otherwise_is_sent_whole() -> None:
    """Where all clients must have the same bits. One chunk or the sum is as the server has it."""
    ledger, holdings, shared = Ledger(), Holdings(), Shared({}, sums(5))
    assert shared.base["m"].dense is not None
    digests = {"m": sum_version(shared.base["m"])}
    holdings.take(ledger.parcel("ann", Shared({}, sums(4))))
    ledger.send("ann", Shared({}, sums(4)))
    held = holdings.base["m"]
    assert held.dense is not None
    holdings.base["m"] = replace(held, dense=held.dense.nextafter(torch.tensor(1.0)))
    with pytest.raises(Lacking) as error:
        holdings.take(replace(ledger.parcel("ann", shared), sums=digests))
    assert (error.value.names, holdings.versions) == (["m"], {})
    ledger.believe("ann", holdings.versions)
    received = holdings.take(replace(ledger.parcel("ann", shared), sums=digests))
    assert serialization.same(used(received), used(shared))


def test_digest_of_what_was_sent_is_of_all_that_training_starts_from() -> None:
    params, client, round = {"a.A": torch.ones(3)}, Client("ann", 5), Round(1, 9, 0, 3)
    starts = [
        (Shared(params, sums(2)), client, round),
        (Shared({"a.A": torch.zeros(3)}, sums(2)), client, round),
        (Shared({"a.B": torch.ones(3)}, sums(2)), client, round),
        (Shared({"a.A": torch.ones(3, 1)}, sums(2)), client, round),
        (Shared({"a.A": torch.ones(3).double()}, sums(2)), client, round),
        (Shared(params, sums(3)), client, round),
        (Shared(params), client, round),
        (Shared(params, sums(2)), replace(client, rank=1), round),
        *((Shared(params, sums(2)), client, replace(round, **change)) for change in ROUNDS_CHANGED),
    ]
    assert len({sent_digest(*start) for start in starts}) == len(starts)
    assert sent_digest(*starts[0]) == sent_digest(starts[0][0], Client("bob", 7), round)


ROUNDS_CHANGED: list[dict[str, Any]] = [
    *({"index": 0, "skipped": 1}, {"total": 8}, {"seed": 1}, {"population": 4}, {"init_lora_weights": False})
]


def test_tensor_of_another_version_is_refused() -> None:
    parcel = Ledger().parcel("ann", Shared({"a.A": torch.ones(3)}))
    holdings = Holdings()
    with pytest.raises(ValueError, match=r"a\.A does not have the version"):
        holdings.take(replace(parcel, params={"a.A": torch.zeros(3)}))
    assert holdings.params == {}
