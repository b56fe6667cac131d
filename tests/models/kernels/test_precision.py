"""Kernels of the frozen layers: oneDNN against torch, layers left alone, the choice of kernels, and bfloat16."""

from __future__ import annotations

import copy
import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from rondo.models.kernels import precision
from rondo.models.kernels.precision import Kernels, apply, choose
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.params import add_client_axis

CPU = torch.device("cpu")
ONEDNN = Kernels(torch.float32, "onednn", "torch")
FAST = Kernels(torch.bfloat16, "torch", "written out")

needs_onednn = pytest.mark.skipif(not precision.has_onednn(), reason="torch has no oneDNN here")


def replaced(layer: nn.Module) -> bool:
    return "forward" in vars(layer)


def near(found: Tensor, expected: Tensor) -> None:
    """Assert equality to 1e-5 of the largest value."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


# oneDNN

SHAPES = """
import ctypes
import torch
from torch import nn
from rondo.models.kernels.precision import Kernels, apply

class Used(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]  # glibc's struct mallinfo2; h: bytes in use

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Used
layer = nn.Linear(256, 512).requires_grad_(False)
apply(layer, Kernels(torch.float32, "onednn", "torch"))

def used(rows):
    for count in rows:
        layer(torch.zeros(count, 256, requires_grad=True)).sum().backward()
    return mallinfo().h / 2**20

before = used(range(1, 101))
print(used(range(101, 301)) - before)
"""


@pytest.mark.slow
@needs_onednn
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc"
)
def test_ever_new_shapes_do_not_fill_the_memory() -> None:
    """Without a bound, products of ever new shapes would take some hundred MiB."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith("CACHE_CAPACITY")}
    done = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True, env=kept)
    assert float(done.stdout) < 4


@needs_onednn
@pytest.mark.parametrize("shape", [(64,), (1, 64), (7, 64), (3, 5, 64), (2, 3, 5, 64)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_exact_kernels_equal_torch(bias: bool, shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    plain = nn.Linear(64, 48, bias=bias).requires_grad_(False)
    ours = copy.deepcopy(plain)
    apply(ours, ONEDNN)
    assert replaced(ours)
    x = torch.randn(shape, generator=g)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [layer(one) for layer, one in zip((ours, plain), inputs, strict=True)]
    near(outputs[0], outputs[1])
    weight = torch.randn(outputs[1].shape, generator=g)
    for output in outputs:
        (output * weight).sum().backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is not None
    near(inputs[0].grad, inputs[1].grad)
    with torch.no_grad():
        near(ours(x), plain(x))


@needs_onednn
def test_noncontiguous_input_gives_the_same_result() -> None:
    plain = nn.Linear(64, 48).requires_grad_(False)
    ours = copy.deepcopy(plain)
    apply(ours, ONEDNN)
    x = torch.randn(64, 9, generator=torch.Generator().manual_seed(0)).T
    a, b = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    near(ours(a), plain(b))
    ours(a).sum().backward()  # the gradient of a sum is expanded, not contiguous
    plain(b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    near(a.grad, b.grad)


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_go_to_torch(dtype: torch.dtype) -> None:
    plain = nn.Linear(16, 8).requires_grad_(False).to(dtype)
    ours = copy.deepcopy(plain)
    apply(ours, ONEDNN)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert ours(x).equal(plain(x))


@needs_onednn
@pytest.mark.parametrize(
    ("dtype", "is_onednns"),
    [(torch.float32, True), (torch.bfloat16, True), (torch.float64, False), (torch.float16, False)],
)
def test_product_is_onednns_where_it_is_faster(dtype: torch.dtype, is_onednns: bool) -> None:
    if dtype is torch.bfloat16:  # without AVX-512, oneDNN refuses it
        is_onednns = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    layer = nn.Linear(16, 8).requires_grad_(False).to(dtype)
    apply(layer, ONEDNN)
    node, names = layer(torch.ones(5, 16, dtype=dtype, requires_grad=True)).grad_fn, []
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    assert ("_FrozenLinearBackward" in names) == is_onednns, names


@needs_onednn
def test_bfloat16_is_rounded_no_more_than_by_torch() -> None:
    plain = nn.Linear(384, 96).requires_grad_(False)
    exact = copy.deepcopy(plain).double()
    exact.weight.data, exact.bias.data = (t.bfloat16().double() for t in (plain.weight, plain.bias))
    plain.bfloat16()
    ours = copy.deepcopy(plain)
    apply(ours, ONEDNN)
    g = torch.Generator().manual_seed(0)
    x, back = torch.randn(50, 384, generator=g).bfloat16(), torch.randn(50, 96, generator=g).bfloat16()
    errors = []
    for layer, dtype in ((ours, torch.bfloat16), (plain, torch.bfloat16), (exact, torch.float64)):
        leaf = x.to(dtype).requires_grad_()
        out = layer(leaf)
        (grad,) = torch.autograd.grad(out, leaf, back.to(dtype))
        assert out.dtype is dtype
        errors.append((out.detach().double(), grad.double()))
    for one, other, true in zip(*errors, strict=True):
        assert (one - true).abs().max() <= 1.5 * (other - true).abs().max()


class Quantised(nn.Linear):
    """A class derived from the linear layer, as in quantising libraries."""


@needs_onednn
def test_other_layers_are_left_alone() -> None:
    module = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "norm": nn.LayerNorm(4),
            "quantised": Quantised(4, 4),
            "packed": nn.Linear(4, 4),
            "plain": nn.Linear(4, 4),
        }
    )
    module["packed"].weight = type("Packed", (nn.Parameter,), {})(torch.zeros(4, 4))
    apply(module, ONEDNN)
    assert [n for n, layer in module.items() if replaced(layer)] == ["plain"]


@needs_onednn
def test_heads_keep_their_forward_and_adapters_their_hook() -> None:
    module = tiny.bert()
    sites = tiny.sites(module, ("query", "value"))
    network = AdaptedNetwork(copy.deepcopy(module), sites, tiny.head_names(module))
    head = network.module.classifier.forward
    apply(network.module, ONEDNN)
    assert network.module.classifier.forward == head
    assert replaced(network.module.get_submodule(sites[0].path))
    params = tiny.factors(sites, 1, dtype=torch.float32) | tiny.head_of(network, 2)
    leaves = {n: t.clone().requires_grad_() for n, t in add_client_axis(params).items()}
    ours = network(leaves, {}, tiny.text_batch())
    theirs = AdaptedNetwork(copy.deepcopy(module), sites, tiny.head_names(module))
    others = {n: t.clone().requires_grad_() for n, t in add_client_axis(params).items()}
    expected = theirs(others, {}, tiny.text_batch())
    near(ours, expected)
    ours.square().sum().backward()
    expected.square().sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        assert (leaf.grad - others[name].grad).abs().max() <= 1e-4 * others[name].grad.abs().max()  # type: ignore
    for path, weight in network.weights().items():
        assert weight.matrix().equal(module.get_submodule(path).weight.detach())


# The choice of kernels


@pytest.mark.parametrize(
    ("has", "vendor", "mkl"),
    [
        (True, "AuthenticAMD", True),
        (True, "GenuineIntel", True),
        (True, "GenuineIntel", False),
        (False, "GenuineIntel", True),
        (False, "AuthenticAMD", True),
    ],
)
@pytest.mark.parametrize("faster", [True, False])
def test_kernels_chosen_for_a_processor(
    faster: bool, has: bool, vendor: str, mkl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "avx512_bf16 amx_bf16" if faster else "avx512f"
    processor = f"processor : 0\nvendor_id : {vendor}\nflags : fpu {flags}\n"
    monkeypatch.setattr(precision.Path, "read_text", lambda _, encoding: processor)
    monkeypatch.setattr(precision, "has_onednn", lambda: has)
    monkeypatch.setattr(precision, "has_mkl", lambda: mkl)
    exact = choose("exact", CPU)
    by_onednn = has and not (vendor == "GenuineIntel" and mkl)
    assert exact == Kernels(torch.float32, "onednn" if by_onednn else "torch", "torch")
    fast = choose("fast", CPU)
    assert fast.dtype is (torch.bfloat16 if faster else torch.float32)
    assert (fast.reason is None) == faster
    if not faster:
        assert (fast.linear, fast.attention) == (exact.linear, exact.attention)
        assert "bfloat16" in str(fast.reason)
    quantised = choose("fast", CPU, quantized=True)
    assert (quantised.dtype, quantised.linear) == (torch.float32, exact.linear)
    assert "quantised" in str(quantised.reason)
    assert choose("exact", CPU, quantized=True) == exact
    assert fast.record() == {
        "dtype": "bfloat16" if faster else "float32",
        "linear": fast.linear,
        "attention": fast.attention,
        "reason": fast.reason,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("vendor_id : AuthenticAMD\nflags : avx512f avx512_bf16\n", True),
        ("vendor_id : GenuineIntel\nflags : avx512f avx512_bf16\n", False),
        ("vendor_id : GenuineIntel\nflags : avx512f avx512_bf16 amx_bf16 amx_tile\n", True),
        ("flags : fpu amx_bf16\n", True),
        ("Features : fp asimd bf16\n", True),
        ("flags : fpu avx2 avx512f\n", False),
        ("flags : not_bf16\n", False),
        ("", False),
        (None, False),
    ],
)
def test_faster_bfloat16_is_read_from_the_processors_flags(
    text: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_text(_: Any, encoding: str) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr(precision.Path, "read_text", read_text)
    assert precision.faster_bf16() is expected


# bfloat16


@pytest.mark.parametrize("make", [tiny.bert, tiny.roberta, tiny.gpt2_lm, tiny.llama_lm])
def test_fast_logits_are_near_the_exact_ones(make: Any) -> None:
    module = make()
    endings = ("query", "value", "c_attn", "q_proj")
    sites = tiny.sites(module, endings)
    head = () if make in (tiny.gpt2_lm, tiny.llama_lm) else tiny.head_names(module)
    results = []
    for chosen in (ONEDNN if precision.has_onednn() else Kernels(torch.float32, "torch", "torch"), FAST):
        network = AdaptedNetwork(copy.deepcopy(module), sites, head)
        apply(network.module, chosen)
        params = tiny.factors(sites, 1, dtype=torch.float32)
        leaves = {n: 0.3 * t for n, t in add_client_axis(params).items()} | add_client_axis(network.initial_head)
        leaves = {n: t.clone().requires_grad_() for n, t in leaves.items()}
        batch = tiny.text_batch()
        logits = network(leaves, {}, batch)
        (
            logits.float() * batch["attention_mask"].unsqueeze(-1) if logits.dim() == 3 else logits
        ).square().sum().backward()
        assert {t.grad.dtype for t in leaves.values() if t.grad is not None} == {torch.float32}
        assert [n for n, t in leaves.items() if t.grad is None] == []
        results.append((logits.detach().float(), torch.cat([t.grad.flatten() for t in leaves.values()])))  # type: ignore
        # The head is computed in its own precision, float32.
        assert logits.dtype == (torch.float32 if head else chosen.dtype)
    mask = tiny.text_batch()["attention_mask"].bool()
    (exact, slope), (fast, rough) = results
    if exact.dim() == 3:
        exact, fast = exact[mask], fast[mask]
    assert 0 < float((fast - exact).norm() / exact.norm()) < 0.05  # zero would mean no rounding
    assert float((rough - slope).norm() / slope.norm()) < 0.1


@needs_onednn
def test_layer_of_no_rows_gives_none() -> None:
    """LongT5 has a row per block of a text, and a short text has no block."""
    layer = nn.Linear(16, 24)
    apply(layer, ONEDNN)
    assert layer(torch.zeros(1, 0, 16)).shape == (1, 0, 24)


def test_limits_of_the_user_on_caches_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "1024")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    precision._bound_caches()
    assert os.environ["LRU_CACHE_CAPACITY"] == "1024"
    assert os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == "64"
