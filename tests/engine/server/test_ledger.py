"""What the ledger knows of base changes: a number of chunks per module and client."""

from __future__ import annotations

import json

import pytest
import torch

from rondo.algorithm import Shared
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import parcel
from rondo.lowrank import GrowingSum, LowRank

OUT, IN = 4, 12  # 48 numbers, a chunk of rank 1 has 16: a stack of more than three chunks is dense


def after(chunks: int) -> Shared:
    change = GrowingSum.of(LowRank(torch.ones(OUT, 1), torch.ones(1, IN)))
    for number in range(1, chunks):
        change += LowRank(torch.full((OUT, 1), float(number)), torch.ones(1, IN))
    return Shared({}, {"m": change})


@pytest.mark.parametrize(
    ("held", "now", "numbers"), [(0, 1, 16), (0, 3, 48), (0, 9, 48), (2, 5, 48), (6, 9, 48), (7, 9, 32), (5, 9, 48)]
)
def test_client_is_sent_what_is_smaller(held: int, now: int, numbers: int) -> None:
    ledger = Ledger()
    if held:
        ledger.send("ann", after(held))
    assert ledger.send("ann", after(now)) == (4 * numbers, 0 if held else 4 * numbers)
    assert ledger.send("ann", after(now)) == (0, 0)


def test_equal_chunks_are_each_counted() -> None:
    """A digest of their content would take them for one."""
    ledger, chunk = Ledger(), LowRank(torch.zeros(OUT, 1), torch.zeros(1, IN))
    first = GrowingSum.of(chunk)
    ledger.send("ann", Shared({}, {"m": first}))
    assert ledger.send("ann", Shared({}, {"m": first + chunk + chunk})) == (128, 0)


def test_client_is_not_believed_in_what_it_was_never_sent() -> None:
    """Else it could name tensors until they fill every checkpoint."""
    ledger = Ledger()
    ledger.send("ann", after(3))
    ledger.believe("ann", {"base:m": "1", "base:n": "4", **{f"tensor {i}": "v" for i in range(1000)}})
    assert ledger.held == {"ann": {"base:m": "1"}}
    ledger.believe("bob", {"base:m": "1"})
    assert ledger.held["bob"] == {}


def test_versions_of_freed_tensors_are_forgotten() -> None:
    tensors = [torch.full((3,), float(i)) for i in range(5)]
    before = len(parcel._versions)
    assert len(set(map(parcel.version, tensors))) == 5
    assert len(parcel._versions) == before + 5
    tensors.clear()
    assert len(parcel._versions) == before


def test_states_that_no_client_holds_are_forgotten() -> None:
    """Clients in one state share a mapping, and states of past rounds do not pile up."""
    ledger = Ledger()
    for i in range(1000):
        for client in ("ann", "bob"):
            ledger.send(client, Shared({"a": torch.full((3,), float(i))}))
    assert ledger.held["ann"] is ledger.held["bob"]
    assert len(ledger._known) < 100


def test_ledger_does_not_grow_with_the_chunks() -> None:
    short, long = Ledger(), Ledger()
    for count in range(1, 100):
        long.send("ann", after(count))
    short.send("ann", after(99))
    assert long.to_json() == short.to_json()
    assert Ledger.from_json(long.to_json()).held == {"ann": {"base:m": "99"}}


@pytest.mark.parametrize("count", ["-1", "1.0", "", "x", "١", "9" * 19, "0123456789abcdef0123456789abcdef"])
def test_number_of_chunks_is_a_number(count: str) -> None:
    text = json.dumps({"entries": [f"{count} base:m"], "records": [[0]], "clients": {"ann": 0}})
    with pytest.raises(ValueError, match="not a ledger: base:m has"):
        Ledger.from_json(text.encode())


def test_client_ahead_of_the_server_starts_anew() -> None:
    """The server went back to an older checkpoint: the chunks that the client has are of another future."""
    ledger = Ledger()
    ledger.send("ann", after(3))
    parcel = ledger.parcel("ann", after(2))
    assert parcel.base["m"].count == 2
    assert ledger.send("ann", after(2)) == (4 * 32, 0)
    assert ledger.held["ann"] == {"base:m": "2"}
