"""The low-rank term of a layer: the value and the gradients that differentiating the plain formula gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rondo.models.adapted_layer import add_low_rank

NAMES = ("y", "x", "down", "up")


def tensors(k: int, rows: int, into: int, out: int, r: int, dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(k + 10 * rows)
    shapes = {"y": (k, rows, out), "x": (k, rows, into), "down": (k, r, into), "up": (k, out, r)}
    return {n: torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for n, s in shapes.items()}


def plain(y: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    return y + x @ down.mT @ up.mT


@given(k=st.integers(1, 3), rows=st.integers(1, 9), into=st.integers(1, 8), out=st.integers(1, 8), r=st.integers(1, 4))
def test_value_and_gradients(k: int, rows: int, into: int, out: int, r: int) -> None:
    given_ = tensors(k, rows, into, out, r, torch.float64)
    found, expected = add_low_rank(**given_), plain(**given_)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weight = torch.randn(found.shape, dtype=torch.float64)
    one, other = (torch.autograd.grad((v * weight).sum(), list(given_.values())) for v in (found, expected))
    for name, a, b in zip(NAMES, one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_are_rounded_no_more_than_the_formula_is(dtype: torch.dtype) -> None:
    narrow = tensors(2, 40, 24, 16, 4, dtype)
    wide = {n: t.detach().double().requires_grad_() for n, t in narrow.items()}
    allowed = 4 * torch.finfo(dtype).eps
    exact, found = plain(**wide), add_low_rank(**narrow)
    assert found.dtype is dtype
    assert float((found - exact).abs().max()) <= allowed * float(exact.abs().max())
    one = torch.autograd.grad(found.sum(), list(narrow.values()))
    other = torch.autograd.grad(exact.sum(), list(wide.values()))
    for name, a, b in zip(NAMES, one, other, strict=True):
        assert a.dtype is dtype
        assert float((a - b).abs().max()) <= allowed * float(b.abs().max()), name


@pytest.mark.parametrize("frozen", NAMES)
def test_what_needs_no_gradient_gets_none(frozen: str) -> None:
    given_ = tensors(2, 3, 4, 5, 2, torch.float64)
    given_[frozen] = given_[frozen].detach()
    trained = {n: t for n, t in given_.items() if n != frozen}
    one, other = (torch.autograd.grad(f(**given_).sum(), list(trained.values())) for f in (add_low_rank, plain))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


class Sizes(TorchDispatchMode):
    """The numbers of elements of all tensors that torch's operations give."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.seen += [
            t.numel() for t in (found if isinstance(found, tuple | list) else [found]) if isinstance(t, Tensor)
        ]
        return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_product_of_the_factors_is_never_formed(dtype: torch.dtype) -> None:
    rows, side = 3, 64
    given_ = tensors(1, rows, side, side, 2, dtype)
    with Sizes() as sizes:
        torch.autograd.grad(add_low_rank(**given_).sum(), list(given_.values()))
    assert 0 < max(sizes.seen) <= rows * side < side * side
    with Sizes() as sizes:
        down, up = given_["down"].detach(), given_["up"].detach()
        given_["y"].detach() + given_["x"].detach() @ (up @ down).mT
    assert max(sizes.seen) == side * side  # it would be seen
