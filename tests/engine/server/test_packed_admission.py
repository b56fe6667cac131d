"""Admission of packed uploads: honest ones count as what they unpack to, hostile ones are refused with the reason."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.algorithms.wrappers.compressed import Compressed, Packing, Rounding, TopK
from rondo.config import AdmissionConfig
from rondo.engine.server.admission import Admission
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Envelope, Identity, encode_upload
from rondo.engine.wire.strict import Rejected
from rondo.params import num_bytes
from rondo.testing.run import Run

IDENTITY = Identity("run 1", "0" * 64)
PACKINGS: dict[str, Packing] = {"8 bits": Rounding(8), "4 bits": Rounding(4), "top-k": TopK(0.3)}


@dataclass(frozen=True)
class Server:
    algorithm: Algorithm[Any]
    state: Any
    round: Round
    clients: tuple[Client, ...]
    upload: Upload

    def admission(self, **limits: Any) -> Admission:
        return Admission(self.algorithm, self.state, self.round, self.clients, AdmissionConfig(**limits), IDENTITY)

    def sent(self, upload: Upload) -> bytes:
        client = upload.client
        return encode_upload(
            upload, Envelope(IDENTITY.run, 1, client.id, IDENTITY.model, client.num_examples, upload.weight)
        )


def server(packing: str, name: str = "fedit") -> Server:
    run = Run(Compressed(algorithms.get(name), PACKINGS[packing]), 3)
    run.step(0)
    outcome = run.train(run.clients[:1], 1)[0]
    client = run.clients[0]
    upload = replace(outcome.upload, weight=float(client.num_examples))
    return Server(run.algorithm, run.state, run.round(1), tuple(run.clients), upload)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["fedit", "rolora"])
def test_honest_upload_is_admitted_as_it_travelled(packing: str, name: str) -> None:
    setup = server(packing, name)
    for admitted in (setup.admission().admit(setup.sent(setup.upload)), setup.admission().check(setup.upload)):
        assert serialization.same(dict(admitted.params), {n: setup.upload.params[n] for n in admitted.params})
        assert num_bytes(admitted.params) == num_bytes(setup.upload.params)


def with_(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[Server], Upload]:
    """The upload whose first tensor with a name that begins with ``part`` is changed."""

    def make(setup: Server) -> Upload:
        params = dict(setup.upload.params)
        name = min(n for n in params if n.startswith(part) and params[n].numel() > 1)
        return replace(setup.upload, params={**params, name: change(params[name].clone())})

    return make


def put(value: float, place: int = 0) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[place] = value
        return tensor

    return change


def without(part: str) -> Callable[[Server], Upload]:
    def make(setup: Server) -> Upload:
        params = dict(setup.upload.params)
        return replace(setup.upload, params={n: t for n, t in params.items() if not n.startswith(part)})

    return make


def scales(change: Callable[[Tensor], Tensor]) -> Callable[[Server], Upload]:
    def make(setup: Server) -> Upload:
        params = {n: change(t.clone()) if n.startswith("scales:") else t for n, t in setup.upload.params.items()}
        return replace(setup.upload, params=params)

    return make


CASES: dict[str, tuple[str, str, Callable[[Server], Upload]]] = {
    "a scale that is NaN": ("8 bits", "bad_scale", scales(put(math.nan))),
    "an infinite scale": ("4 bits", "bad_scale", scales(put(math.inf))),
    "a negative scale": ("8 bits", "bad_scale", scales(put(-1.0))),
    "scales in float64": ("8 bits", "wrong_dtype", scales(lambda t: t.double())),
    "one scale more": ("8 bits", "wrong_shape", scales(lambda t: torch.cat([t, t]))),
    "no scale": ("4 bits", "wrong_shape", scales(lambda t: t[:0])),
    "scales left out": ("8 bits", "wrong_names", without("scales:")),
    "a level too many": ("8 bits", "bad_code", with_("first", put(255))),
    "a level too many of four bits": ("4 bits", "bad_code", with_("first", put(15))),
    "a code less": ("8 bits", "wrong_shape", with_("first", lambda t: t[1:])),
    "codes of 8 bits for those of 4": ("4 bits", "wrong_shape", with_("first", lambda t: torch.cat([t, t]))),
    "codes as numbers": ("8 bits", "wrong_dtype", with_("first", lambda t: t.float())),
    "a place twice": ("top-k", "bad_places", with_("places:", lambda t: t.fill_(1))),
    "places in another order": ("top-k", "bad_places", with_("places:", lambda t: t.flip(0))),
    "a negative place": ("top-k", "bad_places", with_("places:", put(-1))),
    "a place beyond the tensor": ("top-k", "bad_places", with_("places:", put(30_000, -1))),
    "a place less": ("top-k", "wrong_shape", with_("places:", lambda t: t[1:])),
    "places as int64": ("top-k", "wrong_dtype", with_("places:", lambda t: t.long())),
    "a value less": ("top-k", "wrong_shape", with_("first", lambda t: t[1:])),
    "a value that is NaN": ("top-k", "not_finite", with_("first", put(math.nan))),
    "an infinite value": ("top-k", "not_finite", with_("first", put(math.inf))),
    "a tensor that is not packed": ("8 bits", "wrong_dtype", with_("first", lambda t: t.double())),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_upload_is_refused_with_its_reason(case: str) -> None:
    packing, reason, make = CASES[case]
    setup = server(packing)
    before = serialization.pack(setup.state)
    hostile = make(setup)
    for admit in (lambda: setup.admission().check(hostile), lambda: setup.admission().admit(setup.sent(hostile))):
        with pytest.raises(Rejected, match=f"^({reason}|too_large)"):
            admit()
    with pytest.raises(Rejected, match=f"^{reason}"):
        setup.admission().check(hostile)
    assert serialization.pack(setup.state) == before


def test_finite_change_that_overflows_with_the_broadcast_is_refused() -> None:
    """6e4 is a number in half precision, and twice as much is none."""
    setup = server("8 bits")
    half = {n: torch.full_like(t, 6e4).half() for n, t in setup.state.inner.params.items()}
    setup = replace(setup, state=replace(setup.state, inner=replace(setup.state.inner, params=half)))
    assert setup.admission().check(setup.upload)
    hostile = with_("first", lambda t: t.fill_(254))(replace(setup, upload=scales(lambda t: t.fill_(6e4))(setup)))
    with pytest.raises(Rejected, match=r"^not_finite"):
        setup.admission().check(hostile)


def test_norm_is_that_of_the_unpacked_change() -> None:
    setup = server("8 bits")
    change = setup.algorithm.expand(setup.state, setup.upload).params
    start = setup.state.params
    norm = math.sqrt(sum(float((t - start[n]).double().square().sum()) for n, t in change.items()))
    assert setup.admission(max_norm=norm * 1.001).check(setup.upload)
    with pytest.raises(Rejected, match="norm_exceeded"):
        setup.admission(max_norm=norm * 0.999).check(setup.upload)


SETUPS = {packing: server(packing) for packing in PACKINGS}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PACKINGS)), st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6))
def test_changed_bytes_are_refused_or_finite(packing: str, changes: list[tuple[int, int]]) -> None:
    """Bytes of any kind, under a right digest, raise nothing but a rejection, and what is admitted can be added."""
    setup = SETUPS[packing]
    content = bytearray(setup.sent(setup.upload)[32:])
    for place, value in changes:
        content[-1 - place % len(content)] = value
    try:
        admitted = setup.admission().admit(hashlib.sha256(content).digest() + bytes(content))
    except Rejected:
        return
    unpacked = setup.algorithm.expand(setup.state, admitted).params
    assert [name for name, t in unpacked.items() if not t.isfinite().all()] == []
