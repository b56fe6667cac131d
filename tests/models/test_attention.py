"""Attention written out: torch's results and gradients, and no gradient where none is needed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import tiny
from rondo.models.kernels import attention
from watched import noted


def draw(*shape: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()


def tensors(groups: int = 1, queries: int = 5) -> list[Tensor]:
    """Query, key, value and a gradient, laid out as a model's are: heads inside tokens."""
    inputs = [draw(3, t, 4 // g, 8, seed=s) for s, (t, g) in enumerate([(queries, 1), (5, groups), (5, groups)])]
    return [*(t.transpose(1, 2) for t in inputs), draw(3, queries, 4, 8, seed=9).detach()]


def seen(kind: str) -> Tensor | None:
    if kind == "none":
        return None
    mask = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    if kind == "causal":
        mask = mask.tril()
    mask[1, :, :, 3:] = False
    return mask


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("queries", [1, 5])
def test_attention_equals_torchs(mask: str, groups: int, queries: int) -> None:
    q, k, v, gradient = tensors(groups, queries)
    allowed = seen(mask)
    allowed = None if allowed is None else allowed[:, :, -queries:]
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    output, weights = attention.attention(module, q, k, v, allowed, scaling=0.3)
    wide = (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
    expected = scaled_dot_product_attention(*wide, attn_mask=allowed, scale=0.3).transpose(1, 2)
    assert weights is None
    assert output.is_contiguous()
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(o, (q, k, v), gradient, retain_graph=True) for o in (output, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("needed", range(3))
def test_only_trained_inputs_get_a_gradient(needed: int) -> None:
    *parts, gradient = tensors()
    inputs = [t if i == needed else t.detach() for i, t in enumerate(parts)]
    output, _ = attention.attention(nn.Module(), *inputs, None)
    (ours,) = torch.autograd.grad(output, (parts[needed],), gradient)
    expected = scaled_dot_product_attention(*parts).transpose(1, 2)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (parts[needed],), gradient)[0], rtol=0, atol=1e-12)


def test_mask_may_be_a_term_added_to_the_scores() -> None:
    q, k, v, _ = tensors()
    mask = seen("causal")
    assert mask is not None
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e300)
    ours, theirs = (attention.attention(nn.Module(), q, k, v, m)[0] for m in (added, mask))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_position_bias_goes_to_torch() -> None:
    q, k, v, _ = tensors()
    bias = draw(1, 4, 5, 5, seed=3).detach()
    module = SimpleNamespace(num_key_value_groups=1, is_causal=False)
    output, _ = attention.attention(module, q, k, v, None, position_bias=bias)
    expected = scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


MODELS: dict[str, Callable[[], Any]] = {
    "bert": tiny.bert,
    "roberta": tiny.roberta,
    "distilbert": tiny.distilbert,
    "gpt2": tiny.gpt2,
    "gpt2-lm": tiny.gpt2_lm,
    "llama-lm": tiny.llama_lm,
}


@pytest.mark.parametrize("chosen", ["written out", "torch, mask unread"])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("kind", MODELS)
def test_models_give_the_same_logits(kind: str, padding: str, chosen: Any) -> None:
    module = MODELS[kind]().double()
    batch = tiny.text_batch()
    if padding == "none":
        batch = {n: t[:1] for n, t in batch.items()}
    elif padding == "left":
        batch = {n: t.flip(1) for n, t in batch.items()}
    with torch.no_grad():
        before = module(**batch).logits
        attention.use(module, chosen)
        assert module.config._attn_implementation.startswith("rondo_")
        after = module(**batch).logits
        if padding == "none":
            with attention.rows_are(attention.RowsOfCall(padded=False)):
                assert module(**batch).logits.equal(after) or chosen != "written out"
                torch.testing.assert_close(module(**batch).logits, before, rtol=0, atol=1e-12)
    real = batch["attention_mask"].bool() if before.dim() == 3 else torch.ones(before.shape[:1], dtype=torch.bool)
    torch.testing.assert_close(after[real], before[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chosen", ["written out", "torch, mask unread"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["T5", "BART"])
@torch.no_grad()
def test_encoder_decoders_give_the_same_logits(name: str, padded: bool, chosen: Any) -> None:
    """From one sequence to another, and with T5's position bias."""
    family, g = FAMILIES[name], torch.Generator().manual_seed(0)
    config = getattr(transformers, family.config)(**family.options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForSeq2SeqLM.from_config(config).double().eval()
    ids, answer = (torch.randint(4, 90, (3, tokens), generator=g) for tokens in (9, 7))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": answer}
    before = module(**batch).logits
    attention.use(module, chosen)
    with attention.rows_are(attention.RowsOfCall(padded)):
        torch.testing.assert_close(module(**batch).logits, before, rtol=0, atol=1e-11)


def test_torchs_attention_gets_no_mask_without_padding() -> None:
    """Its fastest kernels take none."""
    for make in MODELS.values():
        module = make()
        attention.use(module, "torch, mask unread")
        batch = {n: t[:1] for n, t in tiny.text_batch().items()}
        for padded in (True, False):
            watch = noted(torch.nn.functional, "scaled_dot_product_attention")
            with watch as calls, torch.no_grad(), attention.rows_are(attention.RowsOfCall(padded)):
                module(**batch)
            assert {call.options.get("attn_mask") is None for call in calls} == {not padded}


def test_model_without_torchs_attention_is_left_alone() -> None:
    for module in (tiny.convolutions(), tiny.bert()):
        if hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation("eager")
        attention.use(module, "written out")
        config = getattr(module, "config", None)
        assert config is None or config._attn_implementation == "eager"
