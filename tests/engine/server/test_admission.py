"""Admission: bad uploads are rejected with their own reason; no payload crashes the server or changes the model."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.algorithms.trial import trial_upload
from rondo.algorithms.wrappers.server_optimizer import OPTIMIZERS, ServerStep
from rondo.config import AdmissionConfig
from rondo.engine.server.admission import Admission
from rondo.engine.wire import envelope as wire
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Envelope, Identity, decode_upload, encode_upload, header_limit
from rondo.engine.wire.strict import Rejected
from rondo.params import Packed, Params, add_client_axis, everything, num_bytes
from rondo.testing.testbed import SgdTrainer, TwoLayers

NAMES = [n for n in algorithms.names() if algorithms.entry(n).traits.keeps != everything]  # the others send no tensor
IDENTITY = Identity("run 1", "0" * 64)


@dataclass(frozen=True)
class Server:
    """A server in round 1 of a run, and the uploads of its three clients as tensors and as bytes."""

    algorithm: Algorithm[Any]
    state: Any
    round: Round
    clients: tuple[Client, ...]
    uploads: tuple[Upload, ...]
    sent: tuple[bytes, ...]

    @property
    def largest(self) -> bytes:
        """The message with the most bytes of tensors; more tensors have a longer header, but may be fewer bytes."""
        return max(zip(self.uploads, self.sent, strict=True), key=lambda pair: num_bytes(pair[0].params))[1]

    def admission(self, **limits: Any) -> Admission:
        return Admission(self.algorithm, self.state, self.round, self.clients, AdmissionConfig(**limits), IDENTITY)


def envelope(upload: Upload, **changes: Any) -> Envelope:
    honest = Envelope(IDENTITY.run, 1, upload.client.id, IDENTITY.model, upload.client.num_examples, upload.weight)
    return replace(honest, **changes)


@functools.cache
def server(name: str, ranks: bool = False) -> Server:
    """``ranks``: the clients have ranks 1, 2 and 1 of 2."""
    algorithm, problem = algorithms.get(name), TwoLayers.make(3)
    clients = tuple(
        replace(c, rank=rank if ranks else None) for c, rank in zip(problem.clients, (1, 2, 1), strict=True)
    )
    state = algorithm.init(problem.params, problem.weights, Round(0, 4, 0, 3))
    for index in range(2):
        round = Round(index, 4, 0, 3)
        uploads = []
        for client in clients:
            shared = algorithm.broadcast(state, client, round)
            trainer = SgdTrainer((client,), round, problem.loss, shared.base)
            local = add_client_axis(algorithm.local_init(shared, client))
            batched = replace(shared, params=add_client_axis(shared.params))
            uploads.append(algorithm.client_update(batched, local, trainer)[0][0])
        if index == 0:
            state = algorithm.aggregate(state, uploads, round)
    sent = tuple(encode_upload(u, envelope(u)) for u in uploads)
    return Server(algorithm, state, round, clients, tuple(uploads), sent)


VARIANTS = [(name, False) for name in NAMES] + [(n, True) for n in NAMES if algorithms.entry(n).traits.client_ranks]


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_honest_uploads_are_admitted_unchanged(name: str, ranks: bool) -> None:
    setup = server(name, ranks)
    admission, direct = setup.admission(), setup.admission()
    for upload, data in zip(setup.uploads, setup.sent, strict=True):
        for admitted in (admission.admit(data), direct.check(upload)):
            assert (admitted.client, admitted.weight) == (upload.client, upload.weight)
            assert serialization.same(dict(admitted.params), dict(upload.params))
            one_type = len({t.dtype for t in upload.params.values()}) == 1
            assert isinstance(admitted.params, Packed) is one_type  # so that the server adds it in one call


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_admitted_tensors_have_one_order_whatever_the_uploads(name: str, ranks: bool) -> None:
    """A rule that lays a client's tensors end to end compares each with its like (safetensors keeps no order)."""
    setup = server(name, ranks)
    direct = setup.admission()
    orders = [list(direct.check(u).params) for u in setup.uploads]
    reversed_order = [replace(u, params=dict(reversed(list(u.params.items())))) for u in setup.uploads]
    admission = setup.admission()
    assert [list(admission.check(u).params) for u in reversed_order] == orders
    for _ in range(4):
        admission = setup.admission()
        assert [list(admission.admit(data).params) for data in setup.sent] == orders


def test_upload_without_tensors_is_admitted_and_no_other() -> None:
    """A method that sends nothing still answers, and its answer is held to its names and its weight."""
    setup = server("local")
    assert [len(u.params) for u in setup.uploads] == [0, 0, 0]
    admission, direct = setup.admission(max_norm=1.0), setup.admission(max_norm=1.0)
    for upload, data in zip(setup.uploads, setup.sent, strict=True):
        assert admission.admit(data) == direct.check(upload) == upload
    first = setup.uploads[0]
    surplus = replace(first, params={"head:out.weight": torch.zeros(1)})
    for bad, reason in ((surplus, "too_large"), (replace(first, weight=17.0), "bad_weight")):
        with pytest.raises(Rejected, match=reason):
            setup.admission().admit(encode_upload(bad, envelope(bad)))
    with pytest.raises(Rejected, match="wrong_names"):
        setup.admission().check(surplus)


# Hand-written payloads


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors' bytes."""
    size = int.from_bytes(data[32:40], "little")
    return json.loads(data[40 : 40 + size]), data[40 + size :]


def framed(content: bytes) -> bytes:
    """``content`` under a correct digest, which an attacker can compute."""
    return hashlib.sha256(content).digest() + content


def built(header: object, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return framed(struct.pack("<Q", len(text)) + text + body)


Case = Callable[[Server], bytes]
CASES: dict[str, tuple[str, Case]] = {}


def case(reason: str) -> Callable[[Case], Case]:
    def note(make: Case) -> Case:
        CASES[make.__name__] = (reason, make)
        return make

    return note


def raw(name: str, reason: str, content: Callable[[bytes], bytes]) -> None:
    """Add a case: bytes made from those of a whole upload."""
    CASES[name] = (reason, lambda setup: content(setup.sent[0]))


raw("empty", "corrupt", lambda d: b"")
raw("one byte", "corrupt", lambda d: b"\0")
raw("a digest of nothing", "unreadable", lambda d: framed(b""))
raw("seven bytes", "unreadable", lambda d: framed(b"\1" * 7))
raw("zeros", "unreadable", lambda d: framed(bytes(64)))
raw("cut off", "corrupt", lambda d: d[:-1])
raw("cut off with a right digest", "unreadable", lambda d: framed(d[32:-1]))
raw("longer", "corrupt", lambda d: d + b"\0")
raw("longer with a right digest", "too_large", lambda d: framed(d[32:] + bytes(1_000_000)))
CASES["one more byte"] = ("too_large", lambda setup: framed(setup.largest[32:] + b"\0"))
raw("huge", "too_large", lambda d: framed(bytes(10_000_000)))
raw("a bit turned over", "corrupt", lambda d: d[:-1] + bytes([d[-1] ^ 1]))
raw("a header of 2^63 bytes", "unreadable", lambda d: framed(struct.pack("<Q", 2**63) + d[40:]))
raw("a header longer than all", "unreadable", lambda d: framed(struct.pack("<Q", len(d)) + d[40:]))
raw("a header of no bytes", "unreadable", lambda d: framed(struct.pack("<Q", 0) + d[40:]))
raw("no JSON", "unreadable", lambda d: built(b"hello", b""))
raw("no UTF-8", "unreadable", lambda d: built(b'{"\xff": 1}', b""))
raw("a list", "unreadable", lambda d: built([], b""))
raw("a number", "unreadable", lambda d: built(1, b""))
raw("null", "unreadable", lambda d: built(None, b""))
raw("deep", "unreadable", lambda d: built(b"[" * 5_000, b""))
raw("deep objects", "unreadable", lambda d: built(b'{"a":' * 2_500, b""))
raw("a long number", "unreadable", lambda d: built(b'{"a": ' + b"9" * 5000 + b"}", b""))
raw("NaN in the header", "unreadable", lambda d: built(b'{"a": NaN}', b""))
raw("a pickle", "unreadable", lambda d: framed(b"\x80\x04cos\nsystem\n(S'true'\ntR." + bytes(64)))
raw("a zip", "unreadable", lambda d: framed(b"PK\3\4" + bytes(64)))
raw("a numpy file", "unreadable", lambda d: framed(b"\x93NUMPY\1\0v\0{'descr': '|O'}" + bytes(64)))
raw("no metadata", "no_envelope", lambda d: built({}, b""))
raw("metadata that are a list", "no_envelope", lambda d: built({"__metadata__": []}, b""))
raw("metadata of another program", "no_envelope", lambda d: built({"__metadata__": {"format": "pt"}}, b""))


def enveloped(name: str, reason: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Add a case: a whole upload with a changed envelope."""

    def make(setup: Server) -> bytes:
        header, body = parts(setup.sent[0])
        content = json.loads(header["__metadata__"]["rondo"])
        changed = change(content)
        text = changed if isinstance(changed, str) else json.dumps(changed)
        return built({**header, "__metadata__": {"rondo": text}}, body)

    CASES[name] = (reason, make)


enveloped("an envelope that is not JSON", "no_envelope", lambda e: "{")
enveloped("an envelope that is a list", "no_envelope", lambda e: [e])
enveloped("an empty envelope", "no_envelope", lambda e: {})
enveloped("an envelope with one more key", "no_envelope", lambda e: {**e, "admin": True})
enveloped("an envelope with a key twice", "duplicate_key", lambda e: json.dumps(e)[:-1] + ', "round": 1}')
enveloped("an older protocol", "wrong_protocol", lambda e: {**e, "protocol": 0})
enveloped("a later protocol", "wrong_protocol", lambda e: {**e, "protocol": 2})
enveloped("a protocol that is true", "wrong_protocol", lambda e: {**e, "protocol": True})
enveloped("another run", "wrong_run", lambda e: {**e, "run": "run 2"})
enveloped("another model", "wrong_model", lambda e: {**e, "model": "1" * 64})
enveloped("the round before", "wrong_round", lambda e: {**e, "round": 0})
enveloped("the round after", "wrong_round", lambda e: {**e, "round": 2})
enveloped("a negative round", "wrong_round", lambda e: {**e, "round": -1})
enveloped("a round that is true", "no_envelope", lambda e: {**e, "round": True})
enveloped("a round that is text", "no_envelope", lambda e: {**e, "round": "1"})
enveloped("a round that is a fraction", "no_envelope", lambda e: {**e, "round": 1.0})
enveloped("a round beyond 64 bits", "no_envelope", lambda e: {**e, "round": 2**80})
enveloped("a stranger", "unknown_client", lambda e: {**e, "client": "mallory"})
enveloped("nobody", "unknown_client", lambda e: {**e, "client": ""})
enveloped("a client that is a number", "no_envelope", lambda e: {**e, "client": 1})
enveloped("a client that is a list", "no_envelope", lambda e: {**e, "client": [e["client"]]})
enveloped("a client that is an object", "no_envelope", lambda e: {**e, "client": {}})
enveloped("a client that is null", "no_envelope", lambda e: {**e, "client": None})
enveloped("a run that is a list", "no_envelope", lambda e: {**e, "run": [e["run"]]})
enveloped("a client with a terminal's codes", "unknown_client", lambda e: {**e, "client": "\x1b[2J\u202e"})
enveloped("a client that is half a character", "unknown_client", lambda e: json.dumps({**e, "client": "\ud800"}))
enveloped("no examples", "bad_examples", lambda e: {**e, "examples": 0})
enveloped("fewer than no examples", "bad_examples", lambda e: {**e, "examples": -5})
enveloped("more examples than allowed", "bad_examples", lambda e: {**e, "examples": 10**6 + 1})
enveloped("half an example", "no_envelope", lambda e: {**e, "examples": 0.5})
enveloped("examples that are null", "no_envelope", lambda e: {**e, "examples": None})
enveloped("no weight", "bad_weight", lambda e: {**e, "weight": 0.0})
enveloped("a negative weight", "bad_weight", lambda e: {**e, "weight": -1.0})
enveloped("an infinite weight", "no_envelope", lambda e: json.dumps({**e, "weight": 0}).replace(": 0}", ": 1e999}"))
enveloped("more weight than examples", "bad_weight", lambda e: {**e, "weight": e["weight"] * 1000})
enveloped("a weight that is NaN", "no_envelope", lambda e: json.dumps({**e, "weight": math.nan}))
enveloped("a weight that is text", "no_envelope", lambda e: {**e, "weight": "1"})
enveloped("a weight of 10^400", "no_envelope", lambda e: {**e, "weight": 10**400})


def tensors(name: str, reason: str, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Add a case: other tensors under an honest envelope."""

    def make(setup: Server) -> bytes:
        upload = setup.uploads[0]
        return encode_upload(replace(upload, params=change(dict(upload.params))), envelope(upload))

    CASES[name] = (reason, make)


def first(params: Mapping[str, Tensor]) -> str:
    """The name of the first floating-point tensor with more than one number."""
    return next(n for n, t in params.items() if t.is_floating_point() and t.numel() > 1)


def with_first(change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda p: {**p, first(p): change(p[first(p)])}


def with_number(value: float) -> Callable[[Tensor], Tensor]:
    def change(t: Tensor) -> Tensor:
        changed = t.contiguous().clone()
        changed.view(-1)[-1] = value
        return changed

    return change


tensors("no tensors", "wrong_names", lambda p: {})
tensors("one tensor less", "wrong_names", lambda p: {n: t for n, t in p.items() if n != first(p)})
tensors("another name", "wrong_names", lambda p: {("x" + n if n == first(p) else n): t for n, t in p.items()})
tensors("a name of a path", "wrong_names", lambda p: {**p, "../../etc/passwd": torch.zeros(0)})
tensors("one tensor more", "wrong_names", lambda p: {**p, "y": torch.zeros(0)})
tensors("half the precision", "wrong_dtype", with_first(lambda t: t.half()))
tensors("float32", "wrong_dtype", with_first(lambda t: t.float()))
tensors("integers", "wrong_dtype", with_first(lambda t: t.long()))
tensors("complex numbers", "wrong_dtype", with_first(lambda t: t.to(torch.complex64)))
tensors("truth values", "wrong_dtype", with_first(lambda t: t > 0))
tensors("a row less", "wrong_shape", with_first(lambda t: t[1:]))
tensors("a column less", "wrong_shape", with_first(lambda t: t[..., 1:]))
tensors("flat and a number less", "wrong_shape", with_first(lambda t: t.flatten()[1:]))
tensors("one more axis", "wrong_shape", with_first(lambda t: t.unsqueeze(0)))
tensors("flat", "wrong_shape", with_first(lambda t: t.flatten()[:-1]))
tensors("no numbers", "wrong_shape", with_first(lambda t: t.flatten()[:0]))
tensors("one number", "wrong_shape", with_first(lambda t: t.flatten()[0]))
tensors("NaN", "not_finite", with_first(with_number(math.nan)))
tensors("infinity", "not_finite", with_first(with_number(math.inf)))
tensors("minus infinity", "not_finite", with_first(with_number(-math.inf)))


@case("unreadable")
def overlapping_tensors(setup: Server) -> bytes:
    header, body = parts(setup.sent[0])
    names = [n for n in header if n != "__metadata__"]
    offsets = header[names[0]]["data_offsets"]
    return built({n: {**v, "data_offsets": offsets} if n in names[1:] else v for n, v in header.items()}, body)


@case("unreadable")
def a_tensor_beyond_the_end(setup: Server) -> bytes:
    header, body = parts(setup.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "data_offsets": [10**9, 10**9 + 8]}}, body)


@case("unreadable")
def a_tensor_of_2_to_the_60_numbers(setup: Server) -> bytes:
    header, body = parts(setup.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "shape": [2**30, 2**30]}}, body)


@case("unreadable")
def a_negative_shape(setup: Server) -> bytes:
    header, body = parts(setup.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "shape": [-1]}}, body)


@case("unreadable")
def a_type_that_there_is_not(setup: Server) -> bytes:
    header, body = parts(setup.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "dtype": "object"}}, body)


@case("duplicate_key")
def a_tensor_twice(setup: Server) -> bytes:
    header, body = parts(setup.sent[0])
    name = next(n for n in header if n != "__metadata__")
    text = json.dumps(header)
    return built((text[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}").encode(), body)


assert len(CASES) >= 80


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_bad_payloads_are_rejected_with_their_reason(name: str, ranks: bool) -> None:
    """Each with its own reason, and without changing a byte of the server's state."""
    setup = server(name, ranks)
    before = serialization.pack(setup.state)
    for title, (reason, make) in CASES.items():
        if title == "overlapping_tensors" and len(setup.uploads[0].params) == 1:
            continue
        if title == "one more byte" and setup.algorithm.traits.form == "chosen":
            reason = "unreadable"  # its uploads have no single size
        admission = setup.admission(max_examples=10**6)
        with pytest.raises(Rejected) as error:
            admission.admit(make(setup))
        assert error.value.reason == reason, f"{title}: {error.value}"
        assert error.value.detail.isprintable(), title
        admission.admit(setup.sent[2])  # other clients are not held up
    assert serialization.pack(setup.state) == before


@pytest.mark.parametrize(("dtype", "finite"), [(torch.float32, False), (torch.float64, True)])
def test_1e39_is_finite_for_a_float64_state(dtype: torch.dtype, finite: bool) -> None:
    setup = server("fedit")
    state = replace(setup.state, params={n: t.to(dtype) for n, t in setup.state.params.items()})
    admission = Admission(setup.algorithm, state, setup.round, setup.clients, AdmissionConfig(), IDENTITY)
    wide = replace(setup.uploads[0], params={n: torch.full_like(t, 1e39) for n, t in setup.uploads[0].params.items()})
    admission._expected[None] = setup.uploads[0]  # a method may send wider numbers than the server keeps
    if finite:
        assert admission.check(wide).client == wide.client
        return
    with pytest.raises(Rejected, match="not_finite"):
        admission.check(wide)


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_admission_rejects_second_upload(name: str, ranks: bool) -> None:
    """One upload counts per client and round, and none once the round is closed."""
    setup = server(name, ranks)
    admission = setup.admission()
    admission.admit(setup.sent[0])
    for data, which in ((setup.sent[0], "the same upload"), (CASES["NaN"][1](setup), "another upload")):
        with pytest.raises(Rejected, match=f"duplicate: {which} of 'client-0' came before"):
            admission.admit(data)
    admission.close()
    with pytest.raises(Rejected, match="round_closed: round 1 is over"):
        admission.admit(setup.sent[1])
    with pytest.raises(Rejected, match="round_closed"):
        admission.check(setup.uploads[1])


def with_name(upload: Upload, client: str) -> Upload:
    return replace(upload, client=replace(upload.client, id=client))


def test_rejections_name_reason_and_difference() -> None:
    """Of uploads as bytes and as tensors, word for word."""
    setup, other = server("fedit"), "1" * 64
    whole = setup.uploads[0]
    closed, once = setup.admission(), setup.admission()
    closed.close()
    once.check(whole)
    sent = {
        f"wrong_run: 'run 2', this is '{IDENTITY.run}'": envelope(whole, run="run 2"),
        f"wrong_model: '{other}', this is '{IDENTITY.model}'": envelope(whole, model=other),
        "wrong_round: 0, this is 1": envelope(whole, round=0),
        "unknown_client: 'mallory' has no part in round 1": envelope(whole, client="mallory"),
    }
    rejections = [(setup.admission(), with_name(whole, "mallory"), "unknown_client: 'mallory' has no part in round 1")]
    rejections += [(closed, whole, "round_closed: round 1 is over")]
    rejections += [(once, whole, "duplicate: the same upload of 'client-0' came before")]
    for admission, upload, message in rejections:
        with pytest.raises(Rejected) as error:
            admission.check(upload)
        assert str(error.value) == message
    for message, signed in sent.items():
        with pytest.raises(Rejected) as error:
            setup.admission().admit(encode_upload(whole, signed))
        assert str(error.value) == message


def test_tensor_that_is_not_finite_is_named() -> None:
    setup = server("fedit")
    params = dict(setup.uploads[0].params)
    last = list(params)[-1]
    params[last] = with_number(math.nan)(params[last])
    with pytest.raises(Rejected) as error:
        setup.admission().check(replace(setup.uploads[0], params=params))
    assert str(error.value) == f"not_finite: {last}"


@pytest.mark.parametrize(("most", "allowed"), [(None, "at least 1"), (7, "1 to 7")])
def test_numbers_of_examples_have_exact_bounds(most: int | None, allowed: str) -> None:
    setup = server("fedit")

    def claiming(examples: int) -> Upload:
        client = replace(setup.clients[0], num_examples=examples)
        return replace(setup.uploads[0], client=client, weight=float(examples))

    for examples in (1, 7):
        assert setup.admission(max_examples=most).check(claiming(examples)).client.num_examples == examples
    for examples in (0, -1, 8) if most else (0, -1):
        with pytest.raises(Rejected) as error:
            setup.admission(max_examples=most).check(claiming(examples))
        assert str(error.value) == f"bad_examples: {examples}, allowed are {allowed}"


@pytest.mark.parametrize("ranks", [False, True])
def test_tensors_of_wrong_types_and_shapes_are_named(ranks: bool) -> None:
    """Where clients choose slots, as many columns or rows may come as there are slots, so axes alone are expected."""
    setup = server("lora-a2", ranks)
    upload = setup.uploads[0]
    name, tensor = next((n, t) for n, t in upload.params.items() if t.dim() == 2)
    shape = f"{tensor.dim()} axes"
    changes = {
        f"wrong_dtype: {name} is torch.float16, expected torch.float64": tensor.half(),
        f"wrong_shape: {name} is {(1, *tensor.shape)}, expected {shape}": tensor.unsqueeze(0),
    }
    for message, changed in changes.items():
        with pytest.raises(Rejected) as error:
            setup.admission().check(replace(upload, params={**upload.params, name: changed}))
        assert str(error.value) == message
    fixed = server("fedit")
    name, tensor = next((n, t) for n, t in fixed.uploads[0].params.items() if t.dim() == 2)
    with pytest.raises(Rejected) as error:
        fixed.admission().check(replace(fixed.uploads[0], params={**fixed.uploads[0].params, name: tensor[1:]}))
    assert str(error.value) == f"wrong_shape: {name} is {tuple(tensor[1:].shape)}, expected {tuple(tensor.shape)}"


def test_missing_and_surplus_tensors_are_named() -> None:
    setup = server("fedit")
    params = dict(setup.uploads[0].params)
    name = min(params)
    fewer = {n: t for n, t in params.items() if n != name}
    for changed, difference in (
        (fewer, f"missing {name!r}; 1 differ"),
        ({**params, "y": torch.zeros(0)}, "unexpected 'y'; 1 differ"),
        ({**fewer, "y": torch.zeros(0)}, f"missing {name!r}, unexpected 'y'; 2 differ"),
    ):
        with pytest.raises(Rejected) as error:
            setup.admission().check(replace(setup.uploads[0], params=changed))
        assert str(error.value) == f"wrong_names: {difference}"


def test_weight_of_its_own_kind_must_be_finite() -> None:
    """HetLoRA's clients weigh by a norm that only they know."""
    setup = server("hetlora")
    for weight in (math.inf, math.nan, 0.0, -1.0):
        with pytest.raises(Rejected) as error:
            setup.admission().check(replace(setup.uploads[0], weight=weight))
        assert str(error.value) == f"bad_weight: {weight}, must be positive and finite"


def test_uniform_weights_are_one() -> None:
    setup = server("fedit")
    examples = setup.clients[0].num_examples

    def admission() -> Admission:
        uniform = AdmissionConfig(), IDENTITY, "uniform"
        return Admission(setup.algorithm, setup.state, setup.round, setup.clients, *uniform)  # type: ignore[arg-type]

    assert admission().check(replace(setup.uploads[0], weight=1.0)).weight == 1.0
    for weight in (float(examples), 2.0):
        with pytest.raises(Rejected) as error:
            admission().check(replace(setup.uploads[0], weight=weight))
        assert str(error.value) == f"bad_weight: {weight}, for {examples} examples it is 1"


def test_rejection_of_slots_says_why() -> None:
    setup = server("lora-a2", True)
    params = dict(setup.uploads[0].params)
    slots = next(n for n in params if n.endswith(".I"))
    factor = next(n for n in params if n in (f"{slots[:-1]}A", f"{slots[:-1]}B"))
    bad = {
        "bad_slots": {slots: torch.full_like(params[slots], 9)},
        "wrong_shape": {factor: torch.cat([params[factor]] * 2, int(factor.endswith("B")))},
    }
    for reason, changed in bad.items():
        with pytest.raises(Rejected, match=rf"^{reason}: {factor}") as error:
            setup.admission().check(replace(setup.uploads[0], params={**params, **changed}))
        assert error.value.reason == reason


@pytest.mark.parametrize("ranks", [False, True])
def test_uploads_of_no_single_size_have_a_limit(ranks: bool) -> None:
    """Twice the numbers that the upload can expand to."""
    setup = server("lora-a2", ranks)
    limit = 2 * max(num_bytes(setup.algorithm.expand(setup.state, u).params) for u in setup.uploads)
    header, _ = parts(setup.sent[0])
    with pytest.raises(Rejected, match=f"too_large: more than {limit} bytes of tensors"):
        setup.admission().admit(built(header, bytes(limit + 1)))
    with pytest.raises(Rejected, match="unreadable"):
        setup.admission().admit(built(header, bytes(limit)))


def test_admission_rejects_retry_after_rejection() -> None:
    setup = server("fedit")
    admission = setup.admission()
    for data, reason in ((CASES["NaN"][1](setup), "not_finite"), (setup.sent[0], "duplicate")):
        with pytest.raises(Rejected, match=reason):
            admission.admit(data)


@pytest.mark.parametrize(
    ("slots", "values", "reason"),
    [
        ([0, 0], 2, "bad_slots"),
        ([2], 1, "bad_slots"),
        ([-1], 1, "bad_slots"),
        ([0, 1, 1], 3, "bad_slots"),
        ([0, 1], 1, "wrong_shape"),
        ([], 1, "wrong_shape"),
        ([], 0, None),
        ([1], 1, None),
        ([1, 0], 2, None),
    ],
)
def test_slots_must_exist_and_be_distinct(slots: list[int], values: int, reason: str | None) -> None:
    setup = server("lora-a2", True)
    upload = setup.uploads[0]
    params = dict(upload.params)
    name = next(n for n in params if n.endswith(".I"))
    factor = next(n for n in params if n in (name[:-1] + "A", name[:-1] + "B"))
    axis = 0 if factor.endswith("A") else 1
    width = params[factor].shape[1 - axis]
    params[name] = torch.tensor(slots, dtype=torch.int32)
    params[factor] = torch.ones((values, width) if axis == 0 else (width, values), dtype=params[factor].dtype)
    data = encode_upload(replace(upload, params=params), envelope(upload))
    if reason is not None:
        with pytest.raises(Rejected, match=reason):
            setup.admission().admit(data)
        return
    expanded = setup.algorithm.expand(setup.state, setup.admission().admit(data)).params[factor]
    start = setup.state.params[factor]
    for slot in range(start.shape[axis]):
        expected = torch.ones(width, dtype=start.dtype) if slot in slots else start.select(axis, slot)
        assert expanded.select(axis, slot).equal(expected)


# Norms


def change(setup: Server, upload: Upload) -> dict[str, Tensor]:
    """The change from broadcast to upload, in the server's coordinates."""
    params = setup.algorithm.expand(setup.state, upload).params
    same = setup.algorithm.traits.same_coordinates
    return {n: t - setup.state.params[n] if same and n in setup.state.params else t for n, t in params.items()}


def norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((t.double() ** 2).sum()) for t in tensors.values()))


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_norm_above_bound_is_rejected_or_clipped(name: str, ranks: bool) -> None:
    setup = server(name, ranks)
    upload = setup.uploads[1]
    size = norm(change(setup, upload))
    assert size > 0
    assert serialization.same(dict(setup.admission(max_norm=size * 1.001).check(upload).params), dict(upload.params))
    with pytest.raises(Rejected, match=r"norm_exceeded: .*, allowed is"):
        setup.admission(max_norm=size * 0.999).check(upload)
    clipped = setup.admission(max_norm=size / 4, clip=True).check(upload)
    clipped_change = change(setup, clipped)
    assert norm(clipped_change) == pytest.approx(size / 4, rel=1e-9)
    for n, t in change(setup, upload).items():
        torch.testing.assert_close(clipped_change[n], t / 4, rtol=1e-9, atol=1e-12)
    assert clipped.weight == upload.weight


@pytest.mark.parametrize("name", ["fedhm", "fedsvd", "flexlora", "flora", "florg", "slora"])
def test_bound_holds_for_uploads_in_other_coordinates(name: str) -> None:
    """For the upload itself: its difference from the broadcast, which is in other coordinates, means nothing."""
    setup = server(name)
    params = setup.algorithm.expand(setup.state, setup.uploads[1]).params
    size = norm(params)
    clipped = setup.admission(max_norm=size / 4, clip=True).check(setup.uploads[1]).params
    for n, t in params.items():
        torch.testing.assert_close(clipped[n], t / 4, rtol=1e-9, atol=1e-12)
    setup.admission(max_norm=size * 1.001).check(setup.uploads[1])


def test_bound_itself_is_allowed() -> None:
    setup = server("flora")  # its bound holds for the upload itself
    upload = setup.uploads[0]
    params = {n: torch.zeros_like(t) for n, t in upload.params.items()}
    params[first(params)].view(-1)[0] = 3.0
    upload = replace(upload, params=params)
    assert setup.admission(max_norm=3.0).check(upload).client == upload.client
    with pytest.raises(Rejected) as error:
        setup.admission(max_norm=2.75).check(upload)
    assert str(error.value) == "norm_exceeded: 3, allowed is 2.75"


def test_clipped_upload_keeps_its_types() -> None:
    setup = server("fedit")
    state = replace(setup.state, params={n: t.float() for n, t in setup.state.params.items()})
    upload = replace(setup.uploads[0], params={n: t.float() for n, t in setup.uploads[0].params.items()})
    limits = AdmissionConfig(max_norm=1e-3, clip=True)
    clipped = Admission(setup.algorithm, state, setup.round, setup.clients, limits, IDENTITY).check(upload).params
    assert {t.dtype for t in clipped.values()} == {torch.float32}
    assert norm(change(replace(setup, state=state), replace(upload, params=clipped))) == pytest.approx(1e-3, rel=1e-3)


# Arbitrary bytes


@dataclass(frozen=True)
class Mutation:
    """A change to the bytes of a whole upload.

    place: the position, as a share of the content.
    put: the bytes put there.
    taken: the number of bytes that they replace.
    digest: whether the digest is computed anew.
    """

    place: float
    put: bytes
    taken: int
    digest: bool

    def __call__(self, data: bytes) -> bytes:
        content = data[32:]
        at = int(self.place * len(content))
        content = content[:at] + self.put + content[at + self.taken :]
        return framed(content) if self.digest else data[:32] + content


mutations = st.builds(Mutation, st.floats(0, 1), st.binary(max_size=12), st.integers(0, 12), st.booleans())


def never_crashes(name: str, change: Mutation) -> None:
    setup = server(name)
    data = change(setup.sent[0])
    admission = setup.admission(max_examples=1000, max_norm=1e3)
    try:
        admitted = admission.admit(data)
    except Rejected:
        return
    # The mutation changed a number of a tensor or of the envelope; the result could be an honest upload.
    assert change.digest or data == setup.sent[0]
    new = setup.algorithm.aggregate(setup.state, [admitted, *(admission.admit(d) for d in setup.sent[1:])], setup.round)
    assert [t for t in serialization.tensors(new) if t.is_floating_point() and not t.isfinite().all()] == []


@pytest.mark.slow
@given(name=st.sampled_from(NAMES), change=mutations)
@settings(max_examples=2000)
def test_admission_survives_mutated_uploads(name: str, change: Mutation) -> None:
    never_crashes(name, change)


@pytest.mark.slow
@given(name=st.sampled_from(NAMES), change=mutations)
@settings(max_examples=200_000)
@pytest.mark.timeout(900)
def test_admission_survives_many_mutated_uploads(name: str, change: Mutation) -> None:
    never_crashes(name, change)


@given(data=st.binary(max_size=300))
@settings(max_examples=500)
def test_arbitrary_bytes_are_rejected(data: bytes) -> None:
    for content in (data, framed(data), framed(struct.pack("<Q", max(0, len(data) - 9)) + data)):
        with pytest.raises(Rejected):
            decode_upload(content, 10_000, 10_000).tensors()


LARGE_HEADER = 2**20
LARGE: dict[str, Callable[[int], str]] = {
    "names that differ": lambda i: f'"{i}":0',
    "names that differ but two": lambda i: f'"{i or 7}":0',
    "one name": lambda i: '"a":0',
    "tensors without numbers": lambda i: f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
    "objects": lambda i: f'"{i}":{{}}',
    "lists": lambda i: f'"{i}":[' + "[]," * 1000 + "[]]",
    "numbers": lambda i: f'"{i}":[{"9" * 4299},{"0." + "3" * 4299}]',
    "axes": lambda i: f'"{i}":{{"dtype":"F32","shape":[' + "1," * 1000 + "1]}",
}
"""Contents of large headers: the part that is repeated."""


def large(setup: Server, item: Callable[[int], str]) -> bytes:
    """An upload with a header that is filled with ``item``."""
    header, body = parts(setup.sent[0])
    pieces = [json.dumps({"__metadata__": header["__metadata__"]})[:-1]]
    length = len(pieces[0])
    for i in itertools.count():
        piece = "," + item(i)
        length += len(piece)
        if length >= LARGE_HEADER:
            break
        pieces.append(piece)
    return built(("".join(pieces) + "}").encode(), body)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("title", LARGE)
def test_large_headers_take_little_time(title: str) -> None:
    """Under 0.5 s of a processor per MB; a comparison of all names with each other took minutes."""
    data = large(server("fedit"), LARGE[title])
    assert len(data) > 0.98 * LARGE_HEADER
    doubled = title in ("names that differ but two", "one name")
    began = time.process_time()
    with pytest.raises(Rejected, match=r"duplicate_key: .{,200}$") if doubled else contextlib.nullcontext():
        decode_upload(data, 10_000, LARGE_HEADER)
    assert time.process_time() - began < 10  # with room for a slow machine


def test_header_beyond_any_honest_one_is_not_read() -> None:
    setup = server("fedit")
    admission = setup.admission()
    with pytest.raises(Rejected, match="too_large"):
        admission.admit(large(setup, LARGE["names that differ"]))
    header, _ = parts(setup.sent[0])
    limit = header_limit(setup.uploads[0].params.keys(), "client-0")
    text = json.dumps({"__metadata__": header["__metadata__"]}).encode()
    for length, reason in ((limit, "wrong_names"), (limit + 1, f"unreadable: .* a header of {limit + 1}")):
        with pytest.raises(Rejected, match=reason):
            setup.admission().admit(built(text.ljust(length), b""))


def test_longer_upload_than_the_largest_is_not_digested() -> None:
    tensors, header = 100, 200
    size = 32 + 8 + header + tensors  # digest, length of the header, and both parts
    assert wire.largest_upload(tensors, header) == size
    for length, reason in ((size, "corrupt"), (size + 1, "too_large")):
        with pytest.raises(Rejected, match=reason):
            decode_upload(bytes(length), tensors, header)
    body = json.dumps({"__metadata__": {}}).encode().ljust(header)
    for count, reason in ((tensors, "no_envelope"), (tensors + 1, "too_large")):  # of these bytes it consists
        with pytest.raises(Rejected, match=reason):
            decode_upload(built(body, bytes(count)), tensors, header)


def test_upload_in_anothers_name_is_rejected_and_theirs_counts() -> None:
    setup = server("fedit")
    admission = setup.admission()
    with pytest.raises(Rejected, match="wrong_client: 'client-0', and it came from 'client-1'"):
        admission.admit(setup.sent[0], "client-1")
    assert admission.admit(setup.sent[0], "client-0").client.id == "client-0"


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_honest_headers_stay_below_their_limit(name: str, ranks: bool) -> None:
    setup = server(name, ranks)
    for upload in setup.uploads:
        for client in ("", upload.client.id, "病院" * 1000, "\0\ud800" * 1000):
            params = {f"{n}\0病": t for n, t in upload.params.items()}
            data = encode_upload(replace(upload, params=params), envelope(upload, client=client))
            assert int.from_bytes(data[32:40], "little") < header_limit(params.keys(), client)


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_names_are_compared_before_tensors_are_read(name: str, ranks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the sender is looked up before that."""
    setup = server(name, ranks)
    read: list[bytes] = []
    monkeypatch.setattr(wire.safetensors.torch, "load", read.append)
    for title in ("one tensor more", "one tensor less", "another name", "a stranger", "another run"):
        with pytest.raises(Rejected):
            setup.admission().admit(CASES[title][1](setup))
    assert read == []


def test_tensor_of_many_axes_has_a_short_rejection() -> None:
    setup = server("fedit")
    header, body = parts(setup.sent[0])
    name = next(n for n in header if n != "__metadata__")
    header[name]["shape"] += [1] * 5000
    with pytest.raises(Rejected, match="wrong_shape") as error:
        setup.admission().admit(built(json.dumps(header, separators=(",", ":")).encode(), body))
    assert len(str(error.value)) < 300


def test_payloads_run_no_code_and_open_nothing() -> None:
    """An audit hook hears every import, file, process and unpickling while all payloads pass the admission."""
    setup = server("fedit")
    payloads = [make(setup) for _, make in CASES.values()]
    admissions = [setup.admission() for _ in payloads]
    for admission, data in zip(admissions, payloads, strict=True):  # first, so that the second pass imports nothing
        with pytest.raises(Rejected):
            admission.admit(data)
    heard: list[str] = []
    listening = [True]

    def hook(event: str, _: Any) -> None:
        if listening[0] and event.split(".")[0] in ("exec", "compile", "import", "open", "os", "subprocess", "pickle"):
            heard.append(event)

    sys.addaudithook(hook)  # cannot be removed again, hence the switch
    for data in payloads:
        with pytest.raises(Rejected):
            setup.admission().admit(data)
    listening[0] = False
    assert heard == []


# The expected upload


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_trial_upload_has_names_types_and_bytes_of_real_one(name: str, ranks: bool) -> None:
    setup = server(name, ranks)
    for upload in setup.uploads:
        trial = trial_upload(
            setup.algorithm,
            setup.algorithm.broadcast(setup.state, upload.client, setup.round),
            upload.client,
            setup.round,
        ).params
        assert {n: t.dtype for n, t in trial.items()} == {n: t.dtype for n, t in upload.params.items()}
        if not any(n.endswith(".I") for n in trial):
            assert num_bytes(trial) == num_bytes(upload.params)


def test_admission_sees_through_server_optimizer() -> None:
    setup = server("fedit")
    wrapped = ServerStep(setup.algorithm, OPTIMIZERS["adam"]())
    problem = TwoLayers.make(3)
    state = wrapped.init(problem.params, problem.weights, setup.round)
    admission = Admission(wrapped, state, setup.round, setup.clients, AdmissionConfig(max_norm=1e3), IDENTITY)
    params: Params = admission.admit(setup.sent[0]).params
    assert serialization.same(dict(params), dict(setup.uploads[0].params))
