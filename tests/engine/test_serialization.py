"""Saving a state: bit for bit where it works, ValueError or TypeError where it does not."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.algorithm import ServerState
from rondo.engine.wire.serialization import canonical, pack, same, tensors, unpack
from rondo.lowrank import LowRank


@dataclass(frozen=True)
class Inner:
    params: Mapping[str, torch.Tensor]
    note: Any = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    chunks: tuple[LowRank, ...]
    extra: Any = None


def outer() -> Outer:
    g = torch.Generator().manual_seed(0)
    chunk = LowRank(torch.randn(3, 2, generator=g), torch.randn(2, 4, generator=g))
    return Outer(Inner({"layer.A": torch.randn(2, 4, generator=g)}, "a note"), (chunk, 2 * chunk), {"t": 3, "x": 0.1})


def assert_identical(a: Any, b: Any) -> None:
    """Bit for bit, by other code than :func:`rondo.engine.wire.serialization.same`."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a.detach().reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8))
    elif is_dataclass(a):
        for f in fields(a):
            assert_identical(getattr(a, f.name), getattr(b, f.name))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_identical(x, y)
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b)
    else:
        assert a == b


def assert_survives(tree: Any) -> Any:
    back = unpack(pack(tree), tree)
    assert_identical(back, tree)
    assert same(back, tree)
    return back


# --- round trips --------------------------------------------------------------------------------------------------


def test_nested_dataclasses_survive() -> None:
    back = assert_survives(outer())
    assert isinstance(back, Outer)
    assert isinstance(back.inner, Inner)
    assert [c for c in back.chunks if not isinstance(c, LowRank)] == []
    assert torch.equal(back.chunks[1].dense(), outer().chunks[1].dense())


@pytest.mark.parametrize(
    "tree",
    [None, True, 0, -7, 2**80, 0.1, -0.0, math.inf, -math.inf, 5e-324, "", "ü \ud800 \0", (), [], {}, ((),), [None]],
    ids=repr,
)
def test_values_and_empty_containers_survive_with_their_types(tree: Any) -> None:
    assert_survives(tree)


def test_nan_survives() -> None:
    assert math.isnan(assert_survives({"loss": math.nan})["loss"])


def test_tuples_and_lists_stay_apart() -> None:
    assert assert_survives({"a": (1, [2, (3,)])}) == {"a": (1, [2, (3,)])}


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
    torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (2, 0, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_and_shape_survive(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    back = assert_survives(torch.full(shape, 1.5).to(dtype))
    assert (back.dtype, back.shape) == (dtype, shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_nan_infinity_and_negative_zero_survive_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0], dtype=dtype)
    back = assert_survives(tensor)
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    assert math.copysign(1, back[3]) == -1


def test_tensors_that_share_memory_survive() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tree = {"whole": whole, "again": whole, "row": whole[1], "turned": whole.mT, "wide": whole[:1].expand(5, 4)}
    back = assert_survives(tree)
    back["whole"].zero_()
    assert torch.equal(back["again"], whole)
    assert torch.equal(back["turned"], whole.mT)


def test_tensor_requiring_grad_survives_detached() -> None:
    back = unpack(pack(torch.ones(2, requires_grad=True) * 2), None)
    assert not back.requires_grad
    assert back.tolist() == [2, 2]


VALUES = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(max_size=3)
TREES = st.recursive(
    VALUES | st.integers(0, 3).map(lambda n: torch.arange(n) + 0.5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab/.0", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(TREES)
def test_any_tree_survives(tree: Any) -> None:
    assert_survives(tree)


def test_keys_with_a_slash_do_not_collide() -> None:
    tree = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}
    assert not same(tree, {"a/b": torch.ones(1), "a": {"b": torch.ones(1)}})
    assert_survives(tree)


def test_packing_twice_gives_the_same_bytes() -> None:
    assert pack(outer()) == pack(outer())


# --- same ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(1), 0.0),
        ((1,), [1]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (None, 0),
        (Inner({}), ServerState({})),
        (Inner({}), Inner({}, 1)),
    ],
    ids=repr,
)
def test_trees_differing_in_bits_types_or_shapes_are_not_same(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert same(one, one)


def test_equal_trees_are_same() -> None:
    """The order of keys and the origin of a NaN do not matter."""
    assert same(outer(), outer())
    assert same({"a": 1, "b": torch.zeros(1)}, {"b": torch.zeros(1), "a": 1})
    assert same(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert same({"x": float("nan")}, {"x": float("nan")})


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [{1: "a"}, {"a": {None: 1}}, {"a": [{(): 1}]}], ids=repr)
def test_non_string_keys_are_a_type_error(tree: Any) -> None:
    with pytest.raises(TypeError, match="keys"):
        pack(tree)


@pytest.mark.parametrize("leaf", [object(), {1, 2}, b"bytes", 1j, Inner, len], ids=lambda value: type(value).__name__)
def test_unknown_leaf_is_a_type_error_with_its_path(leaf: Any) -> None:
    with pytest.raises(TypeError, match="state/deep/1"):
        pack({"deep": (1, leaf)})


def test_unexpected_dataclass_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Outer"):
        unpack(pack(outer()), Inner({}))
    with pytest.raises(ValueError, match="Inner"):
        unpack(pack(Inner({})), None)


def test_low_rank_matrices_are_always_expected() -> None:
    chunk = LowRank(torch.ones(2, 1), torch.ones(1, 3))
    assert same(unpack(pack({"base": (chunk,)}), None), {"base": (chunk,)})


def saved_with(skeleton: Any) -> bytes:
    """A file with the given skeleton and one tensor, "t"."""
    return safetensors.torch.save({"t": torch.zeros(2)}, metadata={"skeleton": json.dumps(skeleton)})


MALFORMED = [
    1,
    None,
    [],
    {},
    {"other": 1},
    {"tensor": "missing"},
    {"tensor": ["t"]},
    {"tensor": None},
    {"dict": [1]},
    {"dict": 3},
    {"dict": None},
    {"tuple": 3},
    {"tuple": None},
    {"list": "text"},
    {"list": {"a": 1}},
    {"dataclass": "Inner"},
    {"dataclass": ["Inner"], "fields": {}},
    {"dataclass": {}, "fields": {}},
    {"dataclass": "Inner", "fields": []},
    {"dataclass": "Inner", "fields": None},
    {"dataclass": "Inner", "fields": {}},
    {"dataclass": "Inner", "fields": {"params": {"dict": {}}, "other": {"value": 1}}},
    {"dataclass": "LowRank", "fields": {"up": {"value": 1}, "down": {"value": 1}}},
    {"dataclass": "LowRank", "fields": {"up": {"tensor": "t"}, "down": {"tensor": "t"}}},
    {"value": {"tensor": "t"}},
    {"value": [1]},
]


@pytest.mark.parametrize("skeleton", MALFORMED, ids=json.dumps)
def test_malformed_skeleton_is_a_value_error(skeleton: Any) -> None:
    with pytest.raises(ValueError):
        unpack(saved_with(skeleton), Inner({}))


def test_skeleton_nested_too_deep_is_a_value_error() -> None:
    outcomes = []
    for depth in (*range(50, 1000, 50), 5000):
        skeleton = '{"list": [' * depth + "]}" * depth
        data = safetensors.torch.save({"t": torch.zeros(2)}, metadata={"skeleton": skeleton})
        outcomes.append(refused_or_read(data, None))
    assert (outcomes[0], outcomes[-1]) == ("read", "refused")


def test_foreign_safetensors_file_is_a_value_error() -> None:
    for data in (b"", b"{}", safetensors.torch.save({"t": torch.zeros(2)}), saved_with({})[:8]):
        with pytest.raises(ValueError, match="not a saved state"):
            unpack(data, None)


# --- damage -------------------------------------------------------------------------------------------------------


def refused_or_read(data: bytes, like: Any) -> str:
    """The fate of ``data``; a flipped bit in a name or a number can look like another state."""
    try:
        unpack(data, like)
    except ValueError:
        return "refused"
    return "read"


def test_truncated_file_is_a_value_error_at_any_length() -> None:
    data = pack(outer())
    assert {refused_or_read(data[:end], outer()) for end in range(len(data))} == {"refused"}


def test_trailing_bytes_are_a_value_error() -> None:
    assert refused_or_read(pack(outer()) + b"\0", outer()) == "refused"


@pytest.mark.parametrize("seed", range(4))
def test_flipped_header_bit_is_a_value_error_or_harmless(seed: int) -> None:
    data, rng = pack(outer()), random.Random(seed)
    end = 8 + int.from_bytes(data[:8], "little")
    fates = set()
    for _ in range(200):
        bit = rng.randrange(8 * end)
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        fates.add(refused_or_read(bytes(flipped), outer()))
    assert "refused" in fates


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_error(data: bytes) -> None:
    assert refused_or_read(data, outer()) == "refused"


def test_canonical_state_lies_in_memory_as_read_back() -> None:
    """Views of one vector, and rows of a cohort's tensors, move to aligned memory of their own: alignment decides
    the last bit of a product, and a small view would keep the whole vector alive."""
    vector = torch.arange(40, dtype=torch.float32)
    odd = torch.frombuffer(bytearray(b"\0" + vector.numpy().tobytes()), dtype=torch.float32, offset=1)
    whole = torch.ones(3, 5)
    tree = {
        "part": vector[3:18].view(3, 5),
        "row": vector.view(2, 20)[1],
        "turned": vector.view(5, 8).mT,
        "chunks": (LowRank(vector[:6].view(3, 2), vector[7:13].view(2, 3)),),
        "odd": odd,
        "all of it": vector,
        "repeated": torch.ones(1).expand(16),
        "none": vector[:0],
        "number": vector[5],
        "mine": whole,
    }
    moved = canonical(tree)
    assert same(moved, tree)
    for tensor in tensors(moved):
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor.data_ptr() % 64 == 0
    assert moved["mine"] is whole  # it was aligned and whole before, so it is not copied
