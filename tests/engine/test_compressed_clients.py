"""Compressed uploads of clients elsewhere: the simulation's bits and bytes, whatever dies in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_clients_elsewhere import PARTIAL, federation, settled

from composed import Composed
from records import timeless
from rondo.algorithms.wrappers.compressed import Compressed, Packing, Rounding, TopK
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import decode_upload
from rondo.engine.wire.letters import Reply
from rondo.federation.site.disk import Disk
from rondo.params import num_bytes
from rondo.roles import HELD_PREFIX
from tiny_federation import SIZES, make

CASES = [
    ("rolora", TopK(0.2)),
    pytest.param("fedit", Rounding(4), marks=pytest.mark.slow),
    pytest.param("fedsa-lora", TopK(0.2), marks=pytest.mark.slow),
    pytest.param("scaffold", TopK(0.2), marks=pytest.mark.slow),
    pytest.param("florg", Rounding(8), marks=pytest.mark.slow),
]


def made(name: str, packing: Packing) -> Composed:
    sim = make(name, run=PARTIAL)
    return replace(sim, algorithm=Compressed(sim.algorithm, packing))


@pytest.mark.parametrize(("name", "packing"), CASES)
def test_clients_elsewhere_equal_the_simulation_after_any_death(name: str, packing: Packing, tmp_path: Path) -> None:
    """Two of three clients per round. The server dies after clients have trained a round that it has not written, and
    each client is killed after every letter: a new process has its disk alone."""
    sim, other = made(name, packing), made(name, packing)
    server, post = federation(other)
    disk = Disk(tmp_path, "run")
    arrived: dict[str, int] = {}

    def reborn(client: str, reply: bytes) -> list[bytes]:
        party = post.parties[client]
        disk.save(party)
        party.kept.clear()
        party.pending = None
        assert disk.load(party) is None
        upload = Reply.decode(reply).upload
        arrived[client] = num_bytes(decode_upload(upload, len(upload), len(upload)).tensors())
        return [reply]

    post.on_way = reborn
    for index in range(4):
        expected = sim.run_round(index)
        saved = serialization.pack(server.state), server.ledger.to_json(), server.aggregated
        server.run_round(index)  # is lost
        state = serialization.unpack(saved[0], server.state)
        server = replace(server, state=state, ledger=Ledger.from_json(saved[1]), aggregated=saved[2], kept={})
        arrived.clear()
        record = server.run_round(index)
        assert timeless(record) == timeless(expected)
        assert serialization.same(server.state, sim.state), f"round {index}"
        assert record["bytes_up"] == sum(arrived.values())
    assert serialization.same(settled(post), {c: sim.locals.get(c) for c in SIZES})
    held = [t for kept in sim.locals.values() for n, t in kept.items() if n.startswith(HELD_PREFIX)]
    assert (max((float(t.abs().max()) for t in held), default=0.0) > 0) == packing.holds_back


def test_round_that_did_not_count_leaves_the_rest_as_it_was() -> None:
    """Its upload is lost, and what was held back of earlier rounds is still to come."""
    sim = made("fedit", TopK(0.2))
    sim.run_round(0)
    before = {client: dict(kept) for client, kept in sim.locals.items()}
    sim.config = sim.config.model_copy(update={"clients": sim.config.clients.model_copy(update={"min_clients": 3})})
    record = sim.run_round(1)
    assert record["skipped"] is not None
    assert serialization.same(dict(sim.locals), before)
