"""GGUF files of small Llamas with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def write_llama(
    path: Path,
    tokens: list[str],
    vocabulary: Callable[[Any], None],
    *,
    context: int,
    width: int,
    heads: int,
    hidden: int,
    layers: int = 2,
) -> Path:
    """Write a Llama of two layers, of which the file holds ``layers``. ``vocabulary``: adds the tokenizer's entries to
    the writer."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    vocabulary(writer)
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(tokens), width), "output": (len(tokens), width)}
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_{n}": (width, width) for n in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{n}": (hidden, width) for n in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down": (width, hidden)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (0.1 * draw.standard_normal(shape)).astype(np.float32))
    for name in ["output_norm", *(f"blk.{i}.{n}_norm" for i in range(layers) for n in ("attn", "ffn"))]:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
