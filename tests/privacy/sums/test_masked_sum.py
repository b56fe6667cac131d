"""Secure aggregation in a simulation: the mean is of integers, and nothing of a single upload is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from methods import KINDS
from rondo.algorithm import Client, Round
from rondo.algorithms.compatible import refused
from rondo.algorithms.table import TABLE
from rondo.config import RunConfig
from rondo.engine.transport import Answer, Transport, Work
from rondo.engine.wire import serialization
from rondo.errors import ConfigError
from rondo.privacy.masking.integers import FixedPoint
from rondo.privacy.sums.masked_sum import masked_sum
from tiny_federation import change, config, make

LINEAR = [n for n in KINDS if "secure aggregation" not in refused(TABLE[n].traits, linear=TABLE[n].linear)]


def uncounted(attempt: int, digest: str) -> None:
    """A sum without noise spends nothing."""


def masked(clip: float = 10.0, **sections: Any) -> RunConfig:
    privacy = {"adversary": "server", "secure_aggregation": True, "clip": clip, **sections.pop("privacy", {})}
    return config(privacy=privacy, evaluation={"diagnostics_every": 0}, **sections)


@dataclass
class Turned:
    """A transport whose answers come in the reverse order."""

    inner: Transport

    def __post_init__(self) -> None:
        self.expected, self.must_repeat = self.inner.expected, self.inner.must_repeat

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        return reversed(list(self.inner.exchange(round, work)))


def settings_of(name: str) -> dict[str, Any]:
    """The keys of ``[train]`` that the method asks for."""
    plain = TABLE[name].traits.plain_sgd or name == "scaffold"
    return {"train": {"optimizer": "sgd", "max_grad_norm": 0.0}} if plain else {}


@pytest.mark.parametrize("name", LINEAR)
def test_mean_of_integers_is_near_the_mean(name: str) -> None:
    sim, plain = make(name, run=masked(**settings_of(name))), make(name, run=config(**settings_of(name)))
    record, expected = sim.run_round(0), plain.run_round(0)
    assert (record["skipped"], record["clients"]) == (None, 3)
    assert (record["loss"], record["client_flops"], "diagnostics" in record) == (None, None, False)
    assert record["bytes_up"] == expected["bytes_up"]
    for one, other in zip(serialization.tensors(sim.state), serialization.tensors(plain.state), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert sim.run_round(1)["skipped"] is None


@pytest.mark.parametrize("name", ["flexlora", "fedex-lora"])
def test_products_from_masked_sketches_are_near_those_of_single_uploads(name: str) -> None:
    """Of products, since an SVD magnifies rounding in its vectors. Three clients of rank 3 need nine columns."""
    sim, plain = make(name, run=masked(), sketch=12), make(name, run=config())
    record, expected = sim.run_round(0), plain.run_round(0)
    assert (record["skipped"], record["loss"]) == (None, None)
    assert record["bytes_up"] != expected["bytes_up"]
    client, round = sim.server.clients[0], sim.server.round(1)
    models = []
    for server in (sim.server, plain.server):
        shared = server.algorithm.broadcast(server.state, client, round)
        models.append(change(sim, server.algorithm.view(shared, {}), shared.base))
    for path, matrix in models[1].items():
        torch.testing.assert_close(models[0][path], matrix, rtol=0, atol=1e-6)
    assert 0 < sim.server.algorithm.measures(sim.server.state)["sketch_error"] < 1e-3
    assert sim.run_round(1)["skipped"] is None


@pytest.mark.parametrize("name", ["rolora", "scaffold"])
def test_order_of_answers_does_not_matter(name: str) -> None:
    states = []
    for turned in (False, True):
        sim = make(name, run=masked(privacy={"ring": 64}, **settings_of(name)))
        server = sim.server
        if turned:
            server.transport = Turned(server.transport)
        assert [server.run_round(attempt)["skipped"] for attempt in range(2)] == [None, None]
        states.append(serialization.pack(server.state))
    assert states[0] == states[1]


def test_lost_client_leaves_no_trace() -> None:
    states = []
    for fault in ("crash", "nonfinite_loss"):
        sim = make(run=masked(faults={fault: ["bob"]}))
        assert sim.run_round(0)["clients"] == 2
        states.append(serialization.pack(sim.state))
    assert states[0] == states[1]


def test_longest_change_is_the_clip() -> None:
    sim = make(run=masked(clip=1e-3))
    before = [t.double() for t in serialization.tensors(sim.state)]
    assert sim.run_round(0)["skipped"] is None
    after = [t.double() for t in serialization.tensors(sim.state)]
    moved = torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]).norm()
    assert 0 < float(moved) <= 1e-3 * (1 + 1e-3)


def test_numbers_of_a_wide_ring_count_as_eight_bytes() -> None:
    sim, narrow = make(run=masked(privacy={"ring": 64})), make(run=masked())
    assert sim.run_round(0)["bytes_up"] == 2 * narrow.run_round(0)["bytes_up"]


def test_sum_out_of_bound_skips_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = make(run=masked())
    before = serialization.pack(sim.state)
    encode = FixedPoint.encode
    monkeypatch.setattr(FixedPoint, "encode", lambda *given: encode(*given) + 2**28)
    record = sim.run_round(0)
    assert "not decodable: the sum has a norm of " in record["skipped"]
    assert serialization.pack(sim.state) == before


def test_weight_that_is_not_public_skips_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = make(run=masked())
    update = type(sim.algorithm).client_update

    def weighing(self: Any, *given: Any) -> Any:
        uploads, kept = update(self, *given)
        return tuple(replace(u, weight=2.5) for u in uploads), kept

    monkeypatch.setattr(type(sim.algorithm), "client_update", weighing)
    assert "weighs its upload by itself" in sim.run_round(0)["skipped"]


def test_ring_too_small_for_the_clients_is_refused() -> None:
    clients = [Client(str(k), 1) for k in range(1639)]
    assert masked_sum(masked(), clients[:-1], uncounted) is not None
    with pytest.raises(ConfigError, match=r"privacy.clip: 1639 changes of norm 10 leave fewer than 16 .* in 32 bits"):
        masked_sum(masked(), clients, uncounted)
    assert masked_sum(masked(clients={"per_round": 100}), clients, uncounted) is not None
    assert masked_sum(masked(privacy={"ring": 64}), clients, uncounted) is not None
    assert masked_sum(config(), clients, uncounted) is None
