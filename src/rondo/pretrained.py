"""Pre-trained models and their tokenizers, from a folder, a hub or a GGUF file; and what identifies their weights."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        for part, tensor in _plain_parts(name, value) if isinstance(value, Tensor) else ():
            digest.update(f"{part} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain_parts(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """A tensor of a packed format (quantised) as the plain ones that it is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [(name, tensor)]
    parts, _ = tensor.__tensor_flatten__()
    return [found for part in parts for found in _plain_parts(f"{name}.{part}", getattr(tensor, part))]


def load_pretrained(
    kind: Literal["sequence-classification", "causal-lm"],
    name: str,
    *,
    seed: int,
    labels: Sequence[str] = (),
    revision: str | None = None,
    gguf_file: str | None = None,
    quantization: Literal["int8"] | None = None,
) -> tuple[nn.Module, Any, tuple[str, ...]]:
    """A pre-trained model from a folder or a hub, its tokenizer, and the names of its head's tensors.

    The head is all outside the base model (``base_model_prefix``) plus whatever the checkpoint lacked; new tensors are
    drawn from ``seed``. A causal language model has no head. Raises OSError or ValueError as transformers does.
    """
    import transformers

    options: dict[str, Any] = {"revision": revision or "main", "dtype": torch.float32}
    if gguf_file is not None:
        options |= {"gguf_file": gguf_file, "quantization_config": transformers.GgufConfig(dequantize=True)}
    if kind == "sequence-classification":
        auto = transformers.AutoModelForSequenceClassification
        names = dict(enumerate(labels))
        options |= {"num_labels": len(labels), "id2label": names, "label2id": {n: i for i, n in names.items()}}
        options["ignore_mismatched_sizes"] = True  # a head of another task is replaced
    else:
        auto = transformers.AutoModelForCausalLM
    if quantization is not None:
        options["quantization_config"] = _int8(auto, name, options)
    verbosity = transformers.logging.get_verbosity()
    bar = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        # GGUF files are read under a progress bar of their own that no setting turns off.
        quiet = contextlib.redirect_stderr(io.StringIO()) if gguf_file is not None else contextlib.nullcontext()
        with torch.random.fork_rng(devices=[]), quiet:
            torch.manual_seed(seed)
            module, info = auto.from_pretrained(name, output_loading_info=True, **options)
        extra = {"gguf_file": gguf_file} if gguf_file is not None else {}
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, revision=revision or "main", **extra)
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bar:
            transformers.logging.enable_progress_bar()
    if tokenizer.pad_token is None:
        # Padding is masked by attention mask, never by id, so the end token may double as padding.
        tokenizer.pad_token = tokenizer.eos_token
    if module.config.pad_token_id is None:
        module.config.pad_token_id = tokenizer.pad_token_id
    head: tuple[str, ...] = ()
    if kind == "sequence-classification":
        prefix = module.base_model_prefix + "."
        fresh = set(info["missing_keys"]) | {k[0] for k in info.get("mismatched_keys", ())}
        head = tuple(n for n, _ in module.named_parameters() if not n.startswith(prefix) or n in fresh)
    return module, tokenizer, head


def _int8(auto: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Weight-only int8 by torchao, the head left as it is (transformers would quantise a classifier too)."""
    import transformers
    from torchao.quantization import Int8WeightOnlyConfig

    if auto is transformers.AutoModelForCausalLM:
        return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    config = transformers.AutoConfig.from_pretrained(name, revision=options["revision"])
    with torch.device("meta"):
        empty = auto.from_config(config)
    keep = [n for n, _ in empty.named_children() if n != empty.base_model_prefix]
    return transformers.TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=keep)
