"""A decoder's inputs are the model's own, or the model is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import transformers
from families import AUTO, FAMILIES, tokenizer

from rondo.errors import ConfigError
from rondo.models.loading.checks import check_decoder
from rondo.tasks.language.seq2seq_lm import DecoderStart, decoder_start, shifted

WORDS = tokenizer()
LABELS = torch.tensor([[7, 8, 9, 2], [7, 2, -100, -100]])


def model_of(name: str, **options: Any) -> Any:
    family = FAMILIES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, family.config)(**{**family.options, **options})
        return getattr(transformers, AUTO["seq2seq-lm"]).from_config(config).eval()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.writes[0] != "none"])
def test_inputs_are_those_that_the_model_makes_of_labels(name: str) -> None:
    module = model_of(name)
    start = decoder_start(module, WORDS)
    check_decoder(module, WORDS)
    if name == "M2M100":  # makes them within its forward
        assert start == DecoderStart(module.config.decoder_start_token_id, 1)
        return
    if name == "mBART":  # takes a row's last token, so this row's padding would be its start
        assert torch.equal(shifted(LABELS[:1], start), module.prepare_decoder_input_ids_from_labels(LABELS[:1]))
        return
    assert torch.equal(shifted(LABELS, start), module.prepare_decoder_input_ids_from_labels(labels=LABELS))


def refused(name: str, words: str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=words):
        decoder_start(model_of(name, **options), WORDS)


def test_decoder_without_a_start_of_its_own_is_refused() -> None:
    refused("T5", "names no first token", decoder_start_token_id=None)
    refused("mBART", "begins each row with a token of the row's own", decoder_start_token_id=5)


def test_model_that_shifts_within_its_forward_in_another_way_is_refused() -> None:
    module = model_of("M2M100")
    forward = module.forward

    def other(*args: Any, labels: Any = None, **kwargs: Any) -> Any:
        if labels is not None:
            kwargs["decoder_input_ids"] = labels  # not shifted
        return forward(*args, **kwargs)

    module.forward = other
    with pytest.raises(ConfigError, match="other logits from labels"):
        check_decoder(module, WORDS)


def test_decoder_that_sees_what_it_is_to_predict_is_refused() -> None:
    module = model_of("T5")
    forward = module.forward

    def pooled(**kwargs: Any) -> Any:
        output = forward(**kwargs)
        output.logits = output.logits + output.logits.mean(1, keepdim=True)
        return output

    module.forward = pooled
    with pytest.raises(ConfigError, match="sees the tokens that it is to predict"):
        check_decoder(module, WORDS)


@pytest.mark.parametrize(("error", "right"), [(0.0005, True), (0.002, False)])
def test_loss_is_compared_to_a_thousandth(error: float, right: bool) -> None:
    """Rounding passes, and a loss that smooths labels or weighs tokens does not."""
    module = model_of("T5")
    forward = module.forward

    def scaled(**kwargs: Any) -> Any:
        output = forward(**kwargs)
        if output.loss is not None:
            output.loss = (1 + error) * output.loss
        return output

    module.forward = scaled
    with contextlib.nullcontext() if right else pytest.raises(ConfigError, match="another loss than the cross-entropy"):
        check_decoder(module, WORDS)


def test_model_with_a_loss_of_its_own_is_refused() -> None:
    """ProphetNet's is over several tokens ahead."""
    config = transformers.ProphetNetConfig(
        vocab_size=len(WORDS), hidden_size=16, encoder_ffn_dim=24, decoder_ffn_dim=24, num_encoder_layers=1,
        num_decoder_layers=1, num_encoder_attention_heads=2, num_decoder_attention_heads=2, max_position_embeddings=64,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.ProphetNetForConditionalGeneration(config).eval()
    with pytest.raises(ConfigError, match="prophetnet"):
        check_decoder(module, WORDS)
