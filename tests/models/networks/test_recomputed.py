"""Layers that run again in the backward pass: the same bits, in less memory, in any order of calls and any thread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rondo
import tiny
from rondo.engine.client.memory import activation_bytes
from rondo.errors import ConfigError
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows
from rondo.params import Params
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.text import TextExample
from small_runs import write_rows

MODELS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "bert": (tiny.bert, ("query", "dense")),
    "gpt2": (tiny.gpt2_lm, ("c_attn", "c_fc")),
    "llama": (tiny.llama_lm, ("q_proj", "down_proj")),
}


def pair(kind: str, dropout: float = 0.0) -> tuple[AdaptedNetwork, AdaptedNetwork, Params]:
    """The same network twice, the second one with layers that run again, and the factors of two clients."""
    make, endings = MODELS[kind]
    module = make()
    sites = tiny.sites(module, endings, dropout=dropout)
    head = tiny.head_names(module) if kind == "bert" else ()
    plain, again = (AdaptedNetwork(copy.deepcopy(module), sites, head) for _ in range(2))
    again.recompute_layers()
    return plain, again, tiny.factors(sites, 1, clients=2, dtype=torch.float32)


def loss_of(network: AdaptedNetwork, leaves: Params, dropped: bool = False, seed: int = 0) -> Tensor:
    dropout = [torch.Generator().manual_seed(k) for k in (3, 4)] if dropped else None
    return network(leaves, {}, tiny.text_batch(5, seed), dropout, Rows((2, 3), (9, 9))).square().mean()


def leaves_of(params: Params) -> dict[str, Tensor]:
    return {n: t.detach().clone().requires_grad_() for n, t in params.items()}


def gradients(network: AdaptedNetwork, params: Params, *, dropped: bool = False) -> dict[str, Tensor]:
    leaves = leaves_of(params)
    loss_of(network, leaves, dropped).backward()
    return {n: t.grad for n, t in leaves.items() if t.grad is not None}


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys() != set()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["plain", "dropout"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_have_the_same_bits(kind: str, dropout: float) -> None:
    plain, again, params = pair(kind, dropout)
    runs: list[int] = []
    again.module.get_submodule(next(iter(again.sites))).register_forward_hook(lambda *_: runs.append(1))
    found, expected = (gradients(n, params, dropped=dropout > 0) for n in (again, plain))
    assert len(runs) == 2
    assert_same_bits(found, expected)


def test_two_calls_before_one_backward_keep_their_tensors() -> None:
    """An objective may evaluate the loss of a personal and of a global model before one backward pass."""
    plain, again, first = pair("llama")
    second = tiny.factors(tuple(plain.sites.values()), 2, clients=2, dtype=torch.float32)

    def both(network: AdaptedNetwork) -> dict[str, Tensor]:
        one, other = leaves_of(first), leaves_of(second)
        (loss_of(network, one, seed=1) + loss_of(network, other, seed=2)).backward()
        return {f"{k}.{n}": t.grad for k, ts in enumerate((one, other)) for n, t in ts.items() if t.grad is not None}

    assert_same_bits(both(again), both(plain))


def test_call_is_what_it_was_after_layers_ran_again() -> None:
    """The forward pass of the next loss may have begun."""
    _, again, first = pair("llama")
    second = tiny.factors(tuple(again.sites.values()), 2, clients=2, dtype=torch.float32)
    one, other = (loss_of(again, leaves_of(params)) for params in (first, second))
    before = again._call.state()
    one.backward()
    assert {n: v for n, v in again._call.state().items() if v is not before[n]} == {}
    other.backward()


def test_backward_pass_in_another_thread_keeps_the_tensors() -> None:
    """As on an accelerator, whose backward pass has a thread of its own."""
    plain, again, params = pair("llama", 0.5)
    leaves = leaves_of(params)
    loss = loss_of(again, leaves, dropped=True)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    found = {n: t.grad for n, t in leaves.items() if t.grad is not None}
    assert_same_bits(found, gradients(plain, params, dropped=True))


def test_memory_is_the_layers_inputs_and_one_layer() -> None:
    plain, again, params = pair("llama")
    task = CausalLM(tiny.tokenizer("llama"), "text", (), None, 48)
    rows = [TextExample(tuple(range(4, 36)), tuple(range(4, 36)))] * 4
    seen = {n: t[0] for n, t in params.items()}
    whole, kept = (activation_bytes(n, task, seen, rows) for n in (plain, again))
    assert 0.4 * whole < kept < 0.8 * whole  # two layers and the output
    assert [layer for layer in again.recomputed if not layer.on] == []
    assert activation_bytes(again, task, seen, rows) == kept


@pytest.mark.parametrize("model", ["builtin:mlp", "bert"])
def test_other_networks_are_refused(model: str, tmp_path: Path) -> None:
    """Tensors that are trained whole, in a built-in network or in a model of transformers."""
    run: dict[str, Any] = {
        "rounds": 1,
        "algorithm": {"name": "fedavg"},
        "train": {"checkpointing": True, "what": "all"},
        "partition": {"kind": "iid", "clients": 2},
    }
    if model == "bert":
        run |= {"model": {"name": tiny.saved(tmp_path / "m", tiny.bert(), tiny.tokenizer())}}
        run |= {"task": {"text": "text", "label": "label", "max_length": 8}}
        rows = [{"text": f"w{i % 9}", "label": str(i % 3)} for i in range(12)]
        run["data"] = {"source": str(write_rows(tmp_path / "rows.jsonl", rows))}
    else:
        run |= {"model": {"name": model}, "task": {"kind": "image-classification"}}
        run["data"] = {"max_train_rows": 20, "max_test_rows": 4}
    with pytest.raises(ConfigError, match=r"train\.checkpointing: it is for low-rank factors"):
        rondo.run(run, run_dir=tmp_path / "run", device="cpu")
