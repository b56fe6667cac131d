"""Fed-SB's start by chance; its start from an adapter, and its rounds, have golden files."""

from __future__ import annotations

import torch

from rondo.algorithm import Client, Round, Weight
from rondo.algorithms.factors.fed_sb import FedSB


def test_start_by_chance_is_the_pretrained_model_in_orthonormal_bases() -> None:
    factors = {"layer.A": torch.randn(3, 7).double(), "layer.B": torch.zeros(5, 3).double()}
    weights = {"layer": Weight((5, 7), 2.0, lambda: torch.zeros(5, 7))}
    first, same, other = (FedSB().init(factors, weights, Round(0, 2, seed, 1)).params for seed in (0, 0, 1))
    assert {n: tuple(t.shape) for n, t in first.items()} == {"layer.L": (5, 3), "layer.C": (3, 3), "layer.R": (3, 7)}
    left, right = first["layer.L"], first["layer.R"]
    torch.testing.assert_close(left.mT @ left, torch.eye(3).double())
    torch.testing.assert_close(right @ right.mT, torch.eye(3).double())
    assert not first["layer.C"].any()
    assert [n for n in first if not torch.equal(first[n], same[n])] == []
    assert not torch.equal(left, other["layer.L"])
    shared = FedSB().broadcast(FedSB().init(factors, weights, Round(0, 2, 0, 1)), Client("a", 1), Round(0, 2, 0, 1))
    seen = FedSB().view(shared, {})
    assert torch.equal(seen["layer.A"], right)
    assert not seen["layer.B"].any()


def test_layers_of_one_shape_have_bases_of_their_own() -> None:
    layers = ("first", "second")
    factors = {f"{layer}.A": torch.ones(3, 7) for layer in layers} | {
        f"{layer}.B": torch.zeros(5, 3) for layer in layers
    }
    weights = {layer: Weight((5, 7), 2.0, lambda: torch.zeros(5, 7)) for layer in layers}
    start = FedSB().init(factors, weights, Round(0, 2, 0, 1)).params
    for base in "LR":
        assert not torch.equal(start[f"first.{base}"], start[f"second.{base}"])
