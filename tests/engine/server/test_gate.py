"""The gate: what is turned away, as what; nothing that comes in crashes the server or changes the model."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
import sys
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
from rondo.algorithms.wrappers.server_optimizer import OPTIMIZERS, ServerStep
from rondo.config import AdmissionConfig
from rondo.engine import serialization
from rondo.engine.server.expected_upload import trial_upload
from rondo.engine.server.gate import Gate
from rondo.engine.wire import HEADER_BYTES, Envelope, Identity, Rejected, decode_upload, encode_upload
from rondo.params import Packed, Params, add_client_axis, num_bytes
from rondo.testing.problem import LinearProblem, SgdTrainer

NAMES = algorithms.names()
IDENTITY = Identity("run 1", "0" * 64)


@dataclass(frozen=True)
class Server:
    """A server in round 1 of a run, and what its three clients upload, as tensors and as bytes."""

    algorithm: Algorithm[Any]
    state: Any
    round: Round
    clients: tuple[Client, ...]
    uploads: tuple[Upload, ...]
    sent: tuple[bytes, ...]

    def gate(self, **limits: Any) -> Gate:
        return Gate(self.algorithm, self.state, self.round, self.clients, AdmissionConfig(**limits), IDENTITY)


def envelope(upload: Upload, **changes: Any) -> Envelope:
    known = Envelope(IDENTITY.run, 1, upload.client.id, IDENTITY.model, upload.client.num_examples, upload.weight)
    return replace(known, **changes)


@functools.cache
def server(name: str, ranks: bool = False) -> Server:
    """``ranks``: the clients have ranks of their own, 1, 2 and 1 of 2."""
    algorithm, problem = algorithms.get(name), LinearProblem.make(3)
    clients = tuple(
        replace(c, rank=rank if ranks else None) for c, rank in zip(problem.clients, (1, 2, 1), strict=True)
    )
    now = algorithm.init(problem.params, problem.weights, Round(0, 4, 0, 3))
    for index in range(2):
        round = Round(index, 4, 0, 3)
        uploads = []
        for client in clients:
            shared = algorithm.broadcast(now, client, round)
            trainer = SgdTrainer((client,), round, problem.loss, shared.base)
            local = add_client_axis(algorithm.local_init(shared, client))
            batched = replace(shared, params=add_client_axis(shared.params))
            uploads.append(algorithm.client_update(batched, local, trainer)[0][0])
        if index == 0:
            now = algorithm.aggregate(now, uploads, round)
    sent = tuple(encode_upload(u, envelope(u)) for u in uploads)
    return Server(algorithm, now, round, clients, tuple(uploads), sent)


VARIANTS = [(name, False) for name in NAMES] + [(n, True) for n in NAMES if algorithms.load(n).client_ranks]


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_what_clients_send_is_admitted_as_it_is(name: str, ranks: bool) -> None:
    here = server(name, ranks)
    gate, direct = here.gate(), here.gate()
    for upload, data in zip(here.uploads, here.sent, strict=True):
        for found in (gate.admit(data), direct.check(upload)):
            assert (found.client, found.weight) == (upload.client, upload.weight)
            assert serialization.same(dict(found.params), dict(upload.params))
            one_type = len({t.dtype for t in upload.params.values()}) == 1
            assert isinstance(found.params, Packed) is one_type  # so that a server adds it in one call


# Payloads by hand


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors' bytes."""
    size = int.from_bytes(data[32:40], "little")
    return json.loads(data[40 : 40 + size]), data[40 + size :]


def framed(content: bytes) -> bytes:
    """With a right digest: whoever means harm makes one."""
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
    """Bytes made from a whole upload's."""
    CASES[name] = (reason, lambda here: content(here.sent[0]))


raw("empty", "corrupt", lambda d: b"")
raw("one byte", "corrupt", lambda d: b"\0")
raw("a digest of nothing", "unreadable", lambda d: framed(b""))
raw("seven bytes", "unreadable", lambda d: framed(b"\1" * 7))
raw("zeros", "unreadable", lambda d: framed(bytes(64)))
raw("cut off", "corrupt", lambda d: d[:-1])
raw("cut off with a right digest", "unreadable", lambda d: framed(d[32:-1]))
raw("longer", "corrupt", lambda d: d + b"\0")
raw("longer with a right digest", "too_large", lambda d: framed(d[32:] + bytes(1_000_000)))
CASES["one more byte"] = ("too_large", lambda here: framed(max(here.sent, key=len)[32:] + b"\0"))
raw("huge", "too_large", lambda d: framed(bytes(HEADER_BYTES + 10_000_000)))
raw("a bit turned over", "corrupt", lambda d: d[:-1] + bytes([d[-1] ^ 1]))
raw("a header of 2^63 bytes", "unreadable", lambda d: framed(struct.pack("<Q", 2**63) + d[40:]))
raw("a header longer than all", "unreadable", lambda d: framed(struct.pack("<Q", len(d)) + d[40:]))
raw("a header of no bytes", "unreadable", lambda d: framed(struct.pack("<Q", 0) + d[40:]))
raw("no JSON", "unreadable", lambda d: built(b"hello", b""))
raw("no UTF-8", "unreadable", lambda d: built(b'{"\xff": 1}', b""))
raw("a list", "unreadable", lambda d: built([], b""))
raw("a number", "unreadable", lambda d: built(1, b""))
raw("null", "unreadable", lambda d: built(None, b""))
raw("deep", "unreadable", lambda d: built(b"[" * 100_000, b""))
raw("deep objects", "unreadable", lambda d: built(b'{"a":' * 50_000, b""))
raw("a long number", "unreadable", lambda d: built(b'{"a": ' + b"9" * 5000 + b"}", b""))
raw("NaN in the header", "unreadable", lambda d: built(b'{"a": NaN}', b""))
raw("a pickle", "unreadable", lambda d: framed(b"\x80\x04cos\nsystem\n(S'true'\ntR." + bytes(64)))
raw("a zip", "unreadable", lambda d: framed(b"PK\3\4" + bytes(64)))
raw("a numpy file", "unreadable", lambda d: framed(b"\x93NUMPY\1\0v\0{'descr': '|O'}" + bytes(64)))
raw("no metadata", "no_envelope", lambda d: built({}, b""))
raw("metadata that are a list", "no_envelope", lambda d: built({"__metadata__": []}, b""))
raw("metadata of another program", "no_envelope", lambda d: built({"__metadata__": {"format": "pt"}}, b""))


def enveloped(name: str, reason: str, change: Callable[[dict[str, Any]], object]) -> None:
    """A whole upload but for its envelope."""

    def make(here: Server) -> bytes:
        header, body = parts(here.sent[0])
        content = json.loads(header["__metadata__"]["rondo"])
        changed = change(content)
        text = changed if isinstance(changed, str) else json.dumps(changed)
        return built({**header, "__metadata__": {"rondo": text}}, body)

    CASES[name] = (reason, make)


enveloped("an envelope that is no JSON", "no_envelope", lambda e: "{")
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
    """A whole envelope on other tensors."""

    def make(here: Server) -> bytes:
        upload = here.uploads[0]
        return encode_upload(replace(upload, params=change(dict(upload.params))), envelope(upload))

    CASES[name] = (reason, make)


def first(params: Mapping[str, Tensor]) -> str:
    """A tensor of numbers that has several."""
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
tensors("a row less", "wrong_shape", with_first(lambda t: t.flatten()[1:]))
tensors("one more axis", "wrong_shape", with_first(lambda t: t.unsqueeze(0)))
tensors("flat", "wrong_shape", with_first(lambda t: t.flatten()[:-1]))
tensors("no numbers", "wrong_shape", with_first(lambda t: t.flatten()[:0]))
tensors("one number", "wrong_shape", with_first(lambda t: t.flatten()[0]))
tensors("NaN", "not_finite", with_first(with_number(math.nan)))
tensors("infinity", "not_finite", with_first(with_number(math.inf)))
tensors("minus infinity", "not_finite", with_first(with_number(-math.inf)))


@case("unreadable")
def overlapping_tensors(here: Server) -> bytes:
    header, body = parts(here.sent[0])
    names = [n for n in header if n != "__metadata__"]
    offsets = header[names[0]]["data_offsets"]
    return built({n: {**v, "data_offsets": offsets} if n in names[1:] else v for n, v in header.items()}, body)


@case("unreadable")
def a_tensor_beyond_the_end(here: Server) -> bytes:
    header, body = parts(here.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "data_offsets": [10**9, 10**9 + 8]}}, body)


@case("unreadable")
def a_tensor_of_2_to_the_60_numbers(here: Server) -> bytes:
    header, body = parts(here.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "shape": [2**30, 2**30]}}, body)


@case("unreadable")
def a_negative_shape(here: Server) -> bytes:
    header, body = parts(here.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "shape": [-1]}}, body)


@case("unreadable")
def a_type_that_there_is_not(here: Server) -> bytes:
    header, body = parts(here.sent[0])
    name = next(n for n in header if n != "__metadata__")
    return built({**header, name: {**header[name], "dtype": "object"}}, body)


@case("duplicate_key")
def a_tensor_twice(here: Server) -> bytes:
    header, body = parts(here.sent[0])
    name = next(n for n in header if n != "__metadata__")
    text = json.dumps(header)
    return built((text[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}").encode(), body)


assert len(CASES) >= 80


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_each_payload_is_turned_away_as_what_it_is_and_changes_nothing(name: str, ranks: bool) -> None:
    here = server(name, ranks)
    before = serialization.pack(here.state)
    for title, (reason, make) in CASES.items():
        if title == "more weight than examples" and name == "hetlora":
            continue  # whose weight is the norm of what was learned, which only the client says
        if title == "one more byte" and here.algorithm.varying_shapes:
            reason = "unreadable"  # its uploads have no single size
        gate = here.gate(max_examples=10**6)
        with pytest.raises(Rejected) as error:
            gate.admit(make(here))
        assert error.value.reason == reason, f"{title}: {error.value}"
        assert error.value.detail.isprintable(), title
        gate.admit(here.sent[2])  # others are not held up
    assert serialization.pack(here.state) == before


@pytest.mark.parametrize(("dtype", "finite"), [(torch.float32, False), (torch.float64, True)])
def test_1e39_is_finite_where_the_state_has_double_precision(dtype: torch.dtype, finite: bool) -> None:
    here = server("fedit")
    state = replace(here.state, params={n: t.to(dtype) for n, t in here.state.params.items()})
    gate = Gate(here.algorithm, state, here.round, here.clients, AdmissionConfig(), IDENTITY)
    wide = replace(here.uploads[0], params={n: torch.full_like(t, 1e39) for n, t in here.uploads[0].params.items()})
    gate._expected[None] = here.uploads[0]  # a method may send wider numbers than the server keeps
    if finite:
        assert gate.check(wide).client == wide.client
        return
    with pytest.raises(Rejected, match="not_finite"):
        gate.check(wide)


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_one_upload_a_client_and_round(name: str, ranks: bool) -> None:
    here = server(name, ranks)
    gate = here.gate()
    gate.admit(here.sent[0])
    for data, which in ((here.sent[0], "the same upload"), (CASES["NaN"][1](here), "another upload")):
        with pytest.raises(Rejected, match=f"duplicate: {which} of 'client-0' came before"):
            gate.admit(data)
    gate.close()
    with pytest.raises(Rejected, match="round_closed: round 1 is over"):
        gate.admit(here.sent[1])
    with pytest.raises(Rejected, match="round_closed"):
        gate.check(here.uploads[1])


def test_a_first_upload_that_was_turned_away_was_the_only_try() -> None:
    here = server("fedit")
    gate = here.gate()
    for data, reason in ((CASES["NaN"][1](here), "not_finite"), (here.sent[0], "duplicate")):
        with pytest.raises(Rejected, match=reason):
            gate.admit(data)


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
def test_slots_are_those_that_there_are_and_each_once(slots: list[int], values: int, reason: str | None) -> None:
    here = server("lora-a2", True)
    upload = here.uploads[0]
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
            here.gate().admit(data)
        return
    found = here.algorithm.expand(here.state, here.gate().admit(data)).params[factor]
    start = here.state.params[factor]
    for slot in range(start.shape[axis]):
        expected = torch.ones(width, dtype=start.dtype) if slot in slots else start.select(axis, slot)
        assert found.select(axis, slot).equal(expected)


# Norms


def change(here: Server, upload: Upload) -> dict[str, Tensor]:
    """From what was sent to what came back, in the server's coordinates."""
    params = here.algorithm.expand(here.state, upload).params
    same = here.algorithm.same_coordinates
    return {n: t - here.state.params[n] if same and n in here.state.params else t for n, t in params.items()}


def norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((t.double() ** 2).sum()) for t in tensors.values()))


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_a_norm_above_the_bound_is_turned_away_or_clipped(name: str, ranks: bool) -> None:
    here = server(name, ranks)
    upload = here.uploads[1]
    size = norm(change(here, upload))
    assert size > 0
    assert serialization.same(dict(here.gate(max_norm=size * 1.001).check(upload).params), dict(upload.params))
    with pytest.raises(Rejected, match=r"norm_exceeded: .*, allowed is"):
        here.gate(max_norm=size * 0.999).check(upload)
    clipped = here.gate(max_norm=size / 4, clip=True).check(upload)
    found = change(here, clipped)
    assert norm(found) == pytest.approx(size / 4, rel=1e-9)
    for n, t in change(here, upload).items():
        torch.testing.assert_close(found[n], t / 4, rtol=1e-9, atol=1e-12)
    assert clipped.weight == upload.weight


# Any bytes


@dataclass(frozen=True)
class Mutation:
    """A change of a whole upload's bytes: where, what is put there, and how many bytes that replaces."""

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
    here = server(name)
    data = change(here.sent[0])
    gate = here.gate(max_examples=1000, max_norm=1e3)
    try:
        found = gate.admit(data)
    except Rejected:
        return
    # What was changed is a number of a tensor, or of the envelope, that could have been honest.
    assert change.digest or data == here.sent[0]
    new = here.algorithm.aggregate(here.state, [found, *(gate.admit(d) for d in here.sent[1:])], here.round)
    assert all(t.isfinite().all() for t in serialization.tensors(new) if t.is_floating_point())


@given(name=st.sampled_from(NAMES), change=mutations)
@settings(max_examples=2000)
def test_no_bytes_crash_the_gate(name: str, change: Mutation) -> None:
    never_crashes(name, change)


@pytest.mark.slow
@given(name=st.sampled_from(NAMES), change=mutations)
@settings(max_examples=200_000)
def test_no_bytes_crash_the_gate_however_many(name: str, change: Mutation) -> None:
    never_crashes(name, change)


@given(data=st.binary(max_size=300))
@settings(max_examples=500)
def test_bytes_from_nowhere_are_no_upload(data: bytes) -> None:
    for content in (data, framed(data), framed(struct.pack("<Q", max(0, len(data) - 9)) + data)):
        with pytest.raises(Rejected):
            decode_upload(content, 10_000)


def test_no_payload_runs_code_or_opens_anything() -> None:
    """An audit hook hears of every import, file, process and unpickling while all payloads pass the gate."""
    here = server("fedit")
    payloads = [make(here) for _, make in CASES.values()]
    gates = [here.gate() for _ in payloads]
    for gate, data in zip(gates, payloads, strict=True):  # once, so that nothing is imported for the first time
        with pytest.raises(Rejected):
            gate.admit(data)
    heard: list[str] = []
    listening = [True]

    def hook(event: str, _: Any) -> None:
        if listening[0] and event.split(".")[0] in ("exec", "compile", "import", "open", "os", "subprocess", "pickle"):
            heard.append(event)

    sys.addaudithook(hook)  # cannot be taken away again, so it is told when to listen
    for data in payloads:
        with pytest.raises(Rejected):
            here.gate().admit(data)
    listening[0] = False
    assert heard == []


# What is expected of an upload


@pytest.mark.parametrize(("name", "ranks"), VARIANTS)
def test_a_trial_has_the_names_types_and_bytes_of_an_upload(name: str, ranks: bool) -> None:
    here = server(name, ranks)
    for upload in here.uploads:
        found = trial_upload(here.algorithm, here.state, upload.client, here.round).params
        assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in upload.params.items()}
        if not any(n.endswith(".I") for n in found):
            assert num_bytes(found) == num_bytes(upload.params)


def test_the_gate_sees_through_a_server_optimizer() -> None:
    here = server("fedit")
    wrapped = ServerStep(here.algorithm, OPTIMIZERS["adam"]())
    problem = LinearProblem.make(3)
    now = wrapped.init(problem.params, problem.weights, here.round)
    gate = Gate(wrapped, now, here.round, here.clients, AdmissionConfig(max_norm=1e3), IDENTITY)
    params: Params = gate.admit(here.sent[0]).params
    assert serialization.same(dict(params), dict(here.uploads[0].params))
