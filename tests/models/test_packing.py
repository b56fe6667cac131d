"""Rows laid end to end: the losses, gradients and masks of padded rows, each row within itself; or refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES, save
from family_runs import configured, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rondo
import tiny
from rondo.models.kernels import attention
from rondo.models.kernels.attention import Attention
from rondo.models.loading import peft
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Base
from rondo.models.networks.rows import Rows
from rondo.models.shortcuts.choose import lay_end_to_end, shorten
from rondo.models.shortcuts.prefix import ShortcutRefused
from rondo.params import Params
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.text import TextExample
from small_runs import settings as run_settings
from small_runs import write_rows

TASK = CausalLM(tiny.tokenizer("llama"), "text", (), None, 48)
KERNELS: tuple[Attention, ...] = ("torch", "torch, mask unread", "written out")
MODELS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "gpt2": (tiny.gpt2_lm, ("c_attn", "c_fc")),
    "llama": (tiny.llama_lm, ("q_proj", "down_proj", "lm_head")),
    "opt": (lambda: _opt(), ("q_proj", "fc1")),  # its tokens are in one axis before fc1
}


def _opt() -> Any:
    config = transformers.OPTConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24,
        max_position_embeddings=64, word_embed_proj_dim=16,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.OPTForCausalLM(config)


def row(*lengths: int) -> list[TextExample]:
    """Rows of so many tokens, whose later half has a loss."""
    rows = []
    for n, length in enumerate(lengths):
        ids = tuple(4 + (7 * n + 3 * i) % (tiny.VOCABULARY - 4) for i in range(length))
        rows.append(TextExample(ids, (-100,) * (length // 2) + ids[length // 2 :]))
    return rows


def pair(
    kind: str, kernel: Attention = "torch", dropout: float = 0.0, *, magnitude: bool = False
) -> tuple[AdaptedNetwork, AdaptedNetwork]:
    """The same network in float64 with padded rows, and with rows laid end to end."""
    make, endings = MODELS[kind]
    module = make().double()
    sites = tiny.sites(module, endings, dropout=dropout, magnitude=magnitude)
    networks = [AdaptedNetwork(copy.deepcopy(module), sites, ()) for _ in range(2)]
    for network in networks:
        attention.use(network.module, kernel)
    seen = {n: t[0] for n, t in tiny.factors(sites, 3, clients=1).items()}
    lay_end_to_end(networks[1], TASK, seen, row(9, 4))
    return networks[0], networks[1]


def step(
    network: AdaptedNetwork, groups: Sequence[Sequence[TextExample]], *, dropped: bool = False, base: Base | None = None
) -> list[Tensor]:
    """Losses of all rows and the gradients of all clients, weighted unequally."""
    inputs, targets = TASK.collate([e for group in groups for e in group])
    leaves = {
        n: t.requires_grad_() for n, t in tiny.factors(tuple(network.sites.values()), 1, clients=len(groups)).items()
    }
    dropout = [torch.Generator().manual_seed(k) for k in range(len(groups))] if dropped else None
    rows = Rows.of(groups, TASK)
    sums, counts = TASK.loss(network(leaves, base or {}, inputs, dropout, rows), targets)
    ((rows.sum(sums) / rows.sum(counts).clamp_min(1)) * torch.arange(1, 1 + len(groups))).sum().backward()
    return [sums.detach(), *(t.grad for t in leaves.values() if t.grad is not None)]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], allowed: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=allowed)


GPT2 = pair("gpt2")
STRETCHED = pair("gpt2", magnitude=True)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(2, 12), max_size=4), min_size=1, max_size=3).filter(any))
def test_losses_and_gradients_are_those_of_padded_rows(lengths: list[list[int]]) -> None:
    """For any clients, also without a row, with and without magnitudes."""
    groups = [row(*client) for client in lengths]
    for padded, laid in (GPT2, STRETCHED):
        assert_same(step(laid, groups), step(padded, groups), 1e-12)


@pytest.mark.parametrize("dropped", [False, True], ids=["plain", "dropout"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", MODELS)
def test_every_attention_gives_the_same(kind: str, kernel: Attention, dropped: bool) -> None:
    """And the same masks of adapter dropout. Llama normalises in float32."""
    padded, laid = pair(kind, kernel, 0.4 if dropped else 0.0)
    for groups in ([row(5, 12), row(3)], [row(7, 2, 2)]):
        found, expected = (step(n, groups, dropped=dropped) for n in (laid, padded))
        assert_same(found, expected, 1e-5 if kind == "llama" else 1e-12)


@pytest.mark.parametrize("clients", [1, 2])
def test_change_of_the_base_is_in_every_row(clients: int) -> None:
    padded, laid = GPT2
    base = tiny.chunks(tuple(padded.sites.values()), 5)
    groups = [row(5, 12), row(3)] if clients == 2 else [row(5, 12, 3)]
    expected = step(padded, groups, base=base)
    assert_same(step(laid, groups, base=base), expected, 1e-12)
    assert not torch.allclose(step(laid, groups)[0], expected[0])


def test_scores_and_answers_are_those_of_padded_rows() -> None:
    """Neither is laid end to end."""
    padded, laid = pair("llama")
    params = tiny.factors(tuple(padded.sites.values()), 1, clients=1)
    batch = tiny.text_batch()
    assert torch.equal(laid(params, {}, batch), padded(params, {}, batch))
    turned = {n: t.flip(1) for n, t in batch.items()}  # padded on the left, as answers are generated
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    answers = []
    for network in (padded, laid):
        with network.lent({n: t[0] for n, t in params.items()}, {}) as module:
            answers.append(module.generate(**turned, **options))  # type: ignore[operator]
    assert torch.equal(*answers)


def test_padding_is_not_computed() -> None:
    _, laid = pair("llama")
    seen: list[torch.Size] = []
    laid.module.model.layers[0].mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))  # type: ignore[union-attr, operator]
    step(laid, [row(12, 2), row(3)])
    step(laid, [row(5, 5)])  # there is no padding
    assert [tuple(s) for s in seen] == [(1, 17, 32), (2, 5, 32)]


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_do_not_see_each_other(kernel: Attention) -> None:
    _, laid = pair("llama", kernel)
    params = tiny.factors(tuple(laid.sites.values()), 1, clients=1)
    first, second, third = row(6, 9, 4)
    changed = TextExample((30, *second.ids[1:]), second.target)
    outputs = []
    for middle in (second, changed):
        groups = [[first, middle, third]]
        inputs, _ = TASK.collate(groups[0])
        outputs.append(laid(params, {}, inputs, None, Rows.of(groups, TASK)))
    before, after = outputs
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1, :9], after[1, :9])


def test_layers_that_run_again_have_the_same_bits() -> None:
    _, laid = pair("llama", "written out", 0.4)
    groups = [row(5, 12), row(3)]
    expected = step(laid, groups, dropped=True)
    laid.recompute_layers()
    found = step(laid, groups, dropped=True)
    torch.testing.assert_close(list(found), list(expected), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Gemma 2", "the model's attention is its own"),
        ("Bloom", "the model counts positions itself"),
        ("BART", "the model counts positions itself"),
        ("Mamba", "the model counts positions itself"),
        ("Falcon", "rows laid end to end give other logits"),
    ],
)
@pytest.mark.slow
def test_family_that_needs_its_rows_apart(name: str, reason: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    config = configured(save(family, "causal-lm", tmp_path), "causal-lm", list(family.attention))
    model, task, examples = opened(config)
    kernel = model.network.module.config._attn_implementation  # type: ignore[union-attr]
    model.shorten(task, [e for client in examples for e in client])
    assert model.shortened.record()["packing"] == {"on": False, "reason": reason}
    assert model.network.module.config._attn_implementation == kernel  # type: ignore[union-attr]
    assert not model.network.packs  # type: ignore[union-attr]


class Mixing(nn.Module):
    """A language model whose tokens see all tokens before them in the call: rows laid end to end see one another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny.llama_lm().double()
        self.config = self.inner.config

    def set_attn_implementation(self, name: str) -> None:
        self.inner.set_attn_implementation(name)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None) -> Tensor:
        before = input_ids.double().cumsum(1)[..., None]
        logits: Tensor = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
        ).logits
        return logits + 1e-3 * before


def test_model_whose_rows_see_one_another_is_refused() -> None:
    module = Mixing()
    network = AdaptedNetwork(module, tiny.sites(module, ("q_proj",)), ())
    seen: Params = {n: t[0] for n, t in tiny.factors(tuple(network.sites.values()), 1, clients=1).items()}
    with pytest.raises(ShortcutRefused, match="rows laid end to end give other logits"):
        lay_end_to_end(network, TASK, seen, row(9, 4))
    assert not network.packs
    assert module.inner.config._attn_implementation == "sdpa"


def test_rows_of_one_length_have_nothing_to_gain() -> None:
    network, _ = pair("llama")
    with pytest.raises(ShortcutRefused, match="no rows that it could be tried on differ in length"):
        lay_end_to_end(network, TASK, {}, row(5, 5))


def test_packing_can_be_turned_off(tmp_path: Path) -> None:
    config = configured(save(FAMILIES["Llama"], "causal-lm", tmp_path), "causal-lm", ["q_proj"])
    model, task, examples = opened(config)
    network: Any = model.network
    rows = [e for client in examples for e in client]
    found = shorten(network, task, rows, config.simulation, packing=False)
    assert found.record()["packing"] == {"on": False, "reason": "train.packing is off"}
    assert not network.packs


@pytest.mark.slow
def test_run_has_the_records_of_padded_rows(tmp_path: Path) -> None:
    """Within rounding, with micro-batches, layers that run again, and states of the lower layer kept."""
    rows = [{"text": " ".join(f"w{(5 * i + j) % 96}" for j in range(3 + (7 * i) % 40))} for i in range(24)]
    source = write_rows(tmp_path / "rows.csv", rows)
    model = save(FAMILIES["Llama"], "causal-lm", tmp_path / "model")
    results = []
    for packing in (True, False):
        config = run_settings(
            model,
            adapter={"target_modules": r".*\.1\..*\.(q_proj|down_proj)"},
            task={"kind": "causal-lm", "label": None, "max_length": 64},
            data={"source": str(source), "validation_fraction": 0.0},
            train={"optimizer": "sgd", "lr": 0.1, "precision": "exact", "packing": packing},
        )
        if packing:
            config["train"] |= {"micro_batch": 3, "checkpointing": True}
        results.append(rondo.run(config, run_dir=tmp_path / f"run-{packing}", device="cpu"))
    manifests = [json.loads((r.run_dir / "manifest.json").read_text()) for r in results]
    assert [m["packing"]["on"] for m in manifests] == [True, False]
    assert manifests[0]["prefix"]["layers"] == 1
    laid, padded = ([record["loss"] for record in r.history] for r in results)
    assert laid == pytest.approx(padded, rel=1e-5)
    for tensor, expected in zip(*(peft.read_tensors(r.run_dir / "adapter").values() for r in results), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-5)


def test_model_that_counts_places_in_a_call_keeps_rows_apart() -> None:
    """Llama 4 scales queries from place 8,192 on, where no trial comes."""
    config = transformers.Llama4TextConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=24, intermediate_size_mlp=24, head_dim=8, num_local_experts=2, no_rope_layers=[1, 0],
    )  # fmt: skip
    module = transformers.Llama4ForCausalLM(config)
    network = AdaptedNetwork(module, tiny.sites(module, ("q_proj",)), ())
    with pytest.raises(ShortcutRefused, match="counts places in a call"):
        lay_end_to_end(network, TASK, {}, row(9, 4))
