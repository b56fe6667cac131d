"""Rows of two texts and small encoder-decoders, for tests of sequence to sequence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

COLOURS = ("red", "green", "blue", "grey")
POSITIONS = 64


def requests(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Rows whose answer repeats a part of the request."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        named = draw.sample(COLOURS, draw.randrange(1, 4))
        rows.append({"request": f"the light is {' and '.join(named)} now", "answer": " ".join(named)})
    return rows


def unigrams() -> Any:
    """A tokenizer like T5's: a unigram model that puts ``</s>`` behind a text."""
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=48, special_tokens=special, unk_token="<unk>", show_progress=False)
    inner.train_from_iterator([text for row in requests(40) for text in row.values()], trainer)
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    from tokenizers import decoders

    inner.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def save_tiny(name: str, folder: Path) -> Path:
    """Save a "T5" or a "BART" with random weights, and its tokenizer, for ``from_pretrained``."""
    coder = unigrams()
    ids = {"vocab_size": len(coder), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0}
    config: Any = transformers.T5Config(
        **ids, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    if name == "BART":
        config = transformers.BartConfig(
            **ids, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=POSITIONS,
            decoder_start_token_id=1, forced_eos_token_id=None,
        )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    coder.save_pretrained(folder)
    return folder
