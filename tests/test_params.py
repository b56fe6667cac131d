"""Names, roles and collections of tensors."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo import params as p
from rondo.params import Role, Select, role

EXAMPLES = {
    "encoder.query.magnitude": Role.MAGNITUDE,
    "encoder.query.router": Role.ROUTER,
    "encoder.layer.0.query.A": Role.DOWN,
    "encoder.layer.0.query.B": Role.UP,
    "q.G": Role.GRAM,
    "q.C": Role.CORE,
    "q.L": Role.FIXED,
    "q.R": Role.FIXED,
    "q.s": Role.FIXED,
    "q.D": Role.DENSE,
    "q.S": Role.SPARSE,
    "q.I": Role.INDEX,
    "q.Ad": Role.NESTED,
    "q.Au": Role.NESTED,
    "q.Bd": Role.NESTED,
    "q.Bu": Role.NESTED,
    "q.pA": Role.PERSONAL_DOWN,
    "q.pB": Role.PERSONAL_UP,
    "head:classifier.weight": Role.HEAD,
    "head:q.A": Role.HEAD,
    "head:": Role.HEAD,
    "buffer:bn.running_mean": Role.BUFFER,
    "buffer:q.A": Role.BUFFER,
    "encoder.layer.0.query.weight": Role.BODY,
    "A": Role.BODY,
    "": Role.BODY,
    "q.a": Role.BODY,
    "q.A.weight": Role.BODY,
    "qA": Role.BODY,
    "heads:q.B": Role.UP,
    "q.range": Role.SKETCH,
    "q.corange": Role.SKETCH,
    "scales:encoder.query.A": Role.PACKED,
    "held:encoder.query.B": Role.PACKED,
    "aux:q.A": Role.AUXILIARY,
    "aux:head:out.weight": Role.AUXILIARY,
    "scales:q.A": Role.PACKED,
    "places:head:out.weight": Role.PACKED,
    "held:q.B": Role.PACKED,
    "scales": Role.BODY,
    "Head:x": Role.BODY,
}
NAMED = {
    "down": {Role.DOWN},
    "up": {Role.UP},
    "gram": {Role.GRAM},
    "core": {Role.CORE},
    "fixed": {Role.FIXED},
    "dense": {Role.DENSE},
    "sketch": {Role.SKETCH},
    "sparse": {Role.SPARSE},
    "magnitude": {Role.MAGNITUDE},
    "router": {Role.ROUTER},
    "nested": {Role.NESTED},
    "personal": {Role.PERSONAL_DOWN, Role.PERSONAL_UP},
    "head": {Role.HEAD},
    "buffer": {Role.BUFFER},
    "auxiliary": {Role.AUXILIARY},
    "packed": {Role.PACKED},
    "body": {Role.BODY, Role.BUFFER},
    "whole": {Role.HEAD, Role.BODY, Role.BUFFER, Role.MAGNITUDE},
    "everything": set(Role),
    "nothing": set(),
}
SELECTS = st.frozensets(st.sampled_from(Role)).map(Select)
NAMES = st.sampled_from(list(EXAMPLES))


@pytest.mark.parametrize(("name", "expected"), EXAMPLES.items())
def test_role_is_read_off_the_name(name: str, expected: Role) -> None:
    assert role(name) is expected


def test_every_role_has_an_example() -> None:
    assert set(EXAMPLES.values()) == set(Role)


@pytest.mark.parametrize(("select", "roles"), NAMED.items())
def test_named_select_accepts_only_its_roles(select: str, roles: set[Role]) -> None:
    for name, expected in EXAMPLES.items():
        assert getattr(p, select)(name) is (expected in roles)


@given(SELECTS, SELECTS, NAMES)
def test_selects_combine_as_predicates(a: Select, b: Select, name: str) -> None:
    assert (a | b)(name) is (a(name) or b(name))
    assert (a & b)(name) is (a(name) and b(name))
    assert (~a)(name) is (not a(name))


@given(SELECTS, SELECTS, SELECTS)
def test_selects_are_a_boolean_algebra(a: Select, b: Select, c: Select) -> None:
    assert ~~a == a
    assert ~(a | b) == ~a & ~b
    assert a & (b | c) == (a & b) | (a & c)
    assert a | ~a == p.everything
    assert a & ~a == p.nothing
    assert (a | b) == (b | a)
    assert hash(a | a) == hash(a)


def test_select_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.down.roles = frozenset()  # type: ignore[misc]


def test_pick_keeps_the_order_and_the_tensors_themselves() -> None:
    params = {n: torch.zeros(1) for n in EXAMPLES}
    picked = p.pick(params, p.head | p.up)
    assert list(picked) == [n for n in EXAMPLES if EXAMPLES[n] in (Role.HEAD, Role.UP)]
    assert [n for n in picked if picked[n] is not params[n]] == []


def test_adapted_modules_have_a_or_g_and_keep_their_order() -> None:
    params = {n: torch.zeros(1) for n in ("z.B", "z.A", "head:z.A", "a.b.G", "a.b.L", "c.weight", "d.B", "e.pA")}
    assert p.adapted_modules(params) == ("z", "a.b")
    assert p.module_of("a.b.G") == "a.b"


def test_sub_takes_the_names_of_its_first_argument() -> None:
    """The second argument needs them all."""
    a, b = {"x": torch.tensor([3.0])}, {"x": torch.tensor([1.0]), "y": torch.tensor([5.0])}
    assert p.sub(a, b) == {"x": torch.tensor([2.0])}
    with pytest.raises(KeyError, match="y"):
        p.sub(b, a)


def test_sq_norm_is_one_number_per_client() -> None:
    params = {"q.A": torch.arange(12.0).reshape(2, 2, 3), "head:bias": torch.tensor([[1.0], [2.0]]), "s": torch.ones(2)}
    assert p.sq_norm(params).tolist() == [sum(i * i for i in range(6)) + 2, sum(i * i for i in range(6, 12)) + 5]


def test_sq_norm_is_differentiable_and_keeps_clients_apart() -> None:
    x = torch.ones(3, 2, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(p.sq_norm({"q.A": x})[1], x)
    assert gradient.sum((1, 2)).tolist() == [0, 8, 0]


def test_clients_are_stacked_and_taken_apart_again() -> None:
    rows = [{"q.A": torch.full((2, 3), float(k)), "s": torch.tensor(float(k))} for k in range(3)]
    stacked = p.stack_clients(rows)
    assert {n: t.shape for n, t in stacked.items()} == {"q.A": (3, 2, 3), "s": (3,)}
    for k, row in enumerate(rows):
        torch.testing.assert_close(p.client_row(stacked, k), row, rtol=0, atol=0)
    assert p.stack_clients([]) == {}


def test_client_axis_is_a_view() -> None:
    x = torch.zeros(2, 3)
    widened = p.add_client_axis({"q.A": x}, 4)["q.A"]
    assert widened.shape == (4, 2, 3)
    assert widened.data_ptr() == x.data_ptr()


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5), st.booleans())
def test_packed_tensors_keep_their_values_in_one_vector(shapes: list[list[int]], mixed: bool) -> None:
    params = {f"t{n}": torch.randn(shape).bfloat16() for n, shape in enumerate(shapes)}
    if mixed:
        params["i"] = torch.tensor([2**40 + 1, 3])
    packed = p.Packed.of(params)
    assert list(packed) == list(params)
    assert len(packed.vector) == sum(t.numel() for t in params.values())
    types = {t.dtype for t in params.values()}
    assert packed.vector.dtype == (torch.float64 if len(types) > 1 else types.pop() if types else torch.float32)
    for name, tensor in params.items():
        assert torch.equal(packed[name], tensor.double() if mixed and shapes else tensor)
        assert packed[name].data_ptr() == 0 or packed[name].untyped_storage().data_ptr() == packed.vector.data_ptr()
    assert packed.layout == p.Packed.of(packed).layout
    with pytest.raises(KeyError):
        packed["none"]


def test_bytes_are_elements_times_their_size() -> None:
    assert p.num_bytes({"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.bfloat16)}) == 24 + 10
    assert p.num_bytes({}) == 0


def test_kaiming_is_centred_and_fills_its_bound() -> None:
    """U(-1/sqrt(in), 1/sqrt(in)), whose variance is 1/(3 in)."""
    rows, columns = 400, 64
    draw = p.kaiming(rows, columns, torch.Generator().manual_seed(0))
    bound = columns**-0.5
    assert 0.999 * bound < float(draw.max()) <= bound
    assert -bound <= float(draw.min()) < -0.999 * bound
    assert abs(float(draw.mean())) < 4 * bound * (3 * rows * columns) ** -0.5
    assert float(draw.var()) == pytest.approx(bound**2 / 3, rel=0.02)


def test_orthogonal_factors_are_a_tenth_and_of_orthogonal_spaces() -> None:
    """As PEFT draws them: a tenth of normal numbers times every second row of a rotation, so B A is zero at first."""
    out, inp, rank = 300, 400, 6
    a, b = p.fresh_factors((out, inp), rank, "orthogonal", torch.Generator().manual_seed(0))
    assert (a.shape, b.shape) == ((rank, inp), (out, rank))
    torch.testing.assert_close(b @ a, torch.zeros(out, inp, dtype=torch.float64), rtol=0, atol=1e-14)
    for factor, side in ((a, inp), (b, out)):
        assert float(factor.square().sum()) == pytest.approx(side * rank / 2 / 100, rel=0.2)


def test_orthogonal_factors_need_an_even_rank() -> None:
    with pytest.raises(ValueError, match="even rank, got 3"):
        p.fresh_factors((5, 4), 3, "orthogonal", torch.Generator())
