"""The low-rank term of a layer: its value and gradients equal those of the plain formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rondo.models.networks.adapted_layer import add_low_rank

NAMES = ("y", "x", "down", "up")


def tensors(k: int, rows: int, into: int, out: int, r: int, dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(k + 10 * rows)
    shapes = {"y": (k, rows, out), "x": (k, rows, into), "down": (k, r, into), "up": (k, out, r)}
    return {n: torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for n, s in shapes.items()}


def plain(y: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    return y + x @ down.mT @ up.mT


@given(k=st.integers(1, 3), rows=st.integers(1, 9), into=st.integers(1, 8), out=st.integers(1, 8), r=st.integers(1, 4))
def test_value_and_gradients_equal_the_plain_formula(k: int, rows: int, into: int, out: int, r: int) -> None:
    inputs = tensors(k, rows, into, out, r, torch.float64)
    value, expected = add_low_rank(**inputs), plain(**inputs)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
    weight = torch.randn(value.shape, dtype=torch.float64)
    one, other = (torch.autograd.grad((v * weight).sum(), list(inputs.values())) for v in (value, expected))
    for name, a, b in zip(NAMES, one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_round_no_more_than_the_formula(dtype: torch.dtype) -> None:
    narrow = tensors(2, 40, 24, 16, 4, dtype)
    wide = {n: t.detach().double().requires_grad_() for n, t in narrow.items()}
    allowed = 4 * torch.finfo(dtype).eps
    exact, value = plain(**wide), add_low_rank(**narrow)
    assert value.dtype is dtype
    assert float((value - exact).abs().max()) <= allowed * float(exact.abs().max())
    one = torch.autograd.grad(value.sum(), list(narrow.values()))
    other = torch.autograd.grad(exact.sum(), list(wide.values()))
    for name, a, b in zip(NAMES, one, other, strict=True):
        assert a.dtype is dtype
        assert float((a - b).abs().max()) <= allowed * float(b.abs().max()), name


@pytest.mark.parametrize("frozen", NAMES)
def test_frozen_input_gets_no_gradient(frozen: str) -> None:
    inputs = tensors(2, 3, 4, 5, 2, torch.float64)
    inputs[frozen] = inputs[frozen].detach()
    trained = {n: t for n, t in inputs.items() if n != frozen}
    one, other = (torch.autograd.grad(f(**inputs).sum(), list(trained.values())) for f in (add_low_rank, plain))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


class Sizes(TorchDispatchMode):
    """Records the number of elements of every tensor that torch's operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen += [
            t.numel() for t in (result if isinstance(result, tuple | list) else [result]) if isinstance(t, Tensor)
        ]
        return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_product_of_factors_is_never_formed(dtype: torch.dtype) -> None:
    rows, side = 3, 64
    inputs = tensors(1, rows, side, side, 2, dtype)
    with Sizes() as sizes:
        torch.autograd.grad(add_low_rank(**inputs).sum(), list(inputs.values()))
    assert 0 < max(sizes.seen) <= rows * side < side * side
    with Sizes() as sizes:
        down, up = inputs["down"].detach(), inputs["up"].detach()
        inputs["y"].detach() + inputs["x"].detach() @ (up @ down).mT
    assert max(sizes.seen) == side * side  # a product would be seen
