"""A stock PEFT model lent to a trainer of the user's own: a client's tensors put in, and taken out again."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.kernels.private_torch import changes_in_place
from rondo.models.loading import peft
from rondo.models.loading.peft import stock_model
from rondo.models.networks.adapted_layer import Site, merged_weight
from rondo.models.networks.network import Base
from rondo.params import HEAD_PREFIX, Params


@dataclass(frozen=True)
class Lent:
    """A PEFT model with the tensors of one client. Its frozen weights are those of all clients."""

    model: Any
    tokenizer: Any
    shared: Mapping[str, Tensor]
    """The frozen weights by name."""
    before: Mapping[str, tuple[int, int]]
    """Their states before the training, as :func:`_state` tells them."""

    def trained(self, like: Params) -> dict[str, Tensor]:
        """The tensors of the names of ``like``, in its shapes. Raises ValueError, in words, where the model has not
        the tensors that it was lent with."""
        moved = next((n for n, t in self.shared.items() if _state(t) != self.before[n]), None)
        if moved is not None:
            raise ValueError(f"it changed the frozen tensor {moved}, which all clients share")
        found, result = _by_name(self.model), {}
        for name, before in like.items():
            now = found.get(name)
            if now is None or now.numel() != before.numel():
                raise ValueError(f"the model has no tensor {name} of its size any more")
            result[name] = now.detach().to(before).reshape(before.shape).clone()
        return result


def lend(
    module: nn.Module,
    lora: Any,
    sites: Sequence[Site],
    tokenizer: Any,
    seen: Params,
    base: Base,
    train: Collection[str],
) -> Lent:
    """A copy of ``module`` with PEFT's adapters of ``lora`` at ``sites`` and the tensors ``seen`` (no client axis), of
    which those of the names ``train`` have gradients. Frozen weights are shared with ``module``, except those that
    ``base`` changes."""
    shared = dict(module.named_parameters())
    device = next(iter(shared.values())).device
    own = copy.deepcopy(module, {id(p): p for p in shared.values()}).to(device)
    for site in sites:
        if site.path in base:
            layer, (out, inp) = own.get_submodule(site.path), site.shape
            nothing = {
                f"{site.path}.A": torch.zeros(0, inp, device=device),
                f"{site.path}.B": torch.zeros(out, 0, device=device),
            }
            layer.weight = nn.Parameter(merged_weight(layer, site, nothing, base), requires_grad=False)
    model = peft.to_train(own, lora, sites)
    found = _by_name(model)
    with torch.no_grad():
        for name, parameter in found.items():
            parameter.requires_grad_(name in train)
            if name in seen:
                parameter.copy_(seen[name].reshape(parameter.shape))
    return Lent(model, tokenizer, shared, {name: _state(p) for name, p in shared.items()})


def _state(tensor: Tensor) -> tuple[int, int]:
    """A number of changes in place, and where the numbers lie: another place after a move or a cast."""
    return changes_in_place(tensor), tensor.data_ptr()


def _by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Factors, magnitudes and head of a PEFT model under Rondo's names."""
    result = {}
    for key, parameter in model.named_parameters():
        name = key.removeprefix("base_model.model.")
        path, _, factor = name.removesuffix(".default.weight").rpartition(".lora_")
        if path:
            result[f"{path}.{factor.removesuffix('_vector')}"] = parameter
        elif ".modules_to_save.default" in name:
            result[HEAD_PREFIX + name.replace(".modules_to_save.default", "")] = parameter
    return result


def untie(module: nn.Module) -> None:
    """Give every layer of ``module`` weights of its own. A file has a shared weight once, so that all layers but one
    would be random in a model that is loaded without ties."""
    seen: set[int] = set()
    for layer in module.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if id(parameter) in seen:
                setattr(layer, name, nn.Parameter(parameter.detach().clone()))
            seen.add(id(parameter))


def merge_adapter(module: nn.Module, folder: str | Path) -> nn.Module:
    """``module``, whose weights change, with the adapter in ``folder`` folded in by PEFT: a plain transformers model.

    An output layer that is adapted and tied to the embeddings gets a weight of its own, because the embeddings have no
    adapter; any other stays tied, also where PEFT says otherwise (T5Gemma).
    """
    tied = getattr(module.config, "tie_word_embeddings", None)
    loaded: Any = stock_model(module, folder)
    base: Any = loaded.get_base_model()
    output: Any = None
    with contextlib.suppress(NotImplementedError):  # a model of pictures
        output = base.get_output_embeddings()
    if hasattr(output, "get_base_layer"):
        untie(base)
        tied = False
    result: Any = loaded.merge_and_unload()
    if tied is not None:
        result.config.tie_word_embeddings = tied
    return result  # type: ignore[no-any-return]
