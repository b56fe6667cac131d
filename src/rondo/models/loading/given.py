"""A transformers model that a program gives, in place of one that is loaded by name."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from rondo.config.task_kinds import Kind
from rondo.errors import ConfigError
from rondo.models.kernels.private_transformers import classes_of
from rondo.models.loading import checks, peft
from rondo.models.loading.pretrained import Pretrained, auto, head_names, pad_by, padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def copied(kind: Kind, model: PreTrainedModel, tokenizer: Any, labels: Sequence[str]) -> Pretrained:
    """A copy of ``model`` in float32 that a run may change. Weights that are in float32 already are shared with
    ``model``, which costs no memory: a run replaces tensors and never writes into them.

    The head is everything outside the base model. The padding token is the ``tokenizer``'s. Raises
    :class:`ConfigError` if ``model`` cannot be trained as ``kind``.
    """
    _check(kind, model, labels)
    # Entries of the memo are taken in place of copies.
    parameters = model.parameters()
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in parameters}
    module = copy.deepcopy(model, shared)
    module.eval()
    nn.Module.float(module)  # transformers' own refuses models that were loaded from GGUF files
    if kind.peft == "CAUSAL_LM":
        checks.check_architecture(module.config, module)
        checks.check_logits(module)
    pad_by(tokenizer, module)
    if kind.peft == "SEQ_2_SEQ_LM":
        checks.check_decoder(module, tokenizer)
    return Pretrained(module, head_names(kind, module, ()), [])


def copied_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Any:
    """A copy of ``tokenizer`` with a padding token. Raises :class:`ConfigError` if it is none or cannot be used."""
    import transformers

    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        raise ConfigError.at("tokenizer", f"expected a tokenizer of transformers, got a {type(tokenizer).__name__}")
    try:
        return padded(copy.deepcopy(tokenizer))
    except ValueError as error:
        raise ConfigError.at("tokenizer", f"{error}; give another") from None


def _check(kind: Kind, model: Any, labels: Sequence[str]) -> None:
    import transformers

    if not isinstance(model, transformers.PreTrainedModel):
        message = f"expected a PreTrainedModel of transformers, got a {type(model).__name__}"
        hint = ": give model.merge_and_unload()" if hasattr(model, "merge_and_unload") else ""
        raise ConfigError.at("model", message + hint)
    fitting = classes_of(auto(kind)).get(type(model.config), ())
    classes: tuple[Any, ...] = fitting if isinstance(fitting, tuple) else (fitting,)
    fits = isinstance(model, classes)
    if not fits:
        names = " or ".join(c.__name__ for c in classes) or f"one of {kind.auto}"
        raise ConfigError.at("model", f"a {type(model).__name__} does not fit task.kind: give a {names}")
    packed = any(type(p) is not nn.Parameter or not p.is_floating_point() for p in model.parameters())
    if packed or peft.has_adapters(model):
        message = "it is quantised or has adapters: give one with plain weights, or name it in model.name"
        raise ConfigError.at("model", message)
    if any(tensor.is_meta for tensor in model.parameters()):
        raise ConfigError.at("model", "some of its weights are not in memory (meta device): load them")
    outputs = kind.outputs if kind.outputs is not None else len(labels)
    if kind.head and model.config.num_labels != outputs:
        has = f"it has {model.config.num_labels} classes and the rows have {len(labels)}"
        if kind.outputs is not None:
            has = f"it has {model.config.num_labels} outputs and the task has {kind.outputs}"
        raise ConfigError.at("model", f"{has}: load it with num_labels={outputs}")
