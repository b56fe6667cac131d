"""The last layer of a classifier that reads only the first token: what follows its attention runs on that token alone.

BERT, RoBERTa and their kin classify the first token's state. In the last layer every other token matters only as a key
and a value; its projection, feed-forward part and their backward pass would be computed and thrown away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rondo.model import Batch, Network
from rondo.params import Params, add_client_axis
from rondo.prefix import TOLERANCE


class AllTokensMatter(Exception):
    """The last layer cannot be cut down to the first token; the message says why."""


def first_token_only(network: Network, seen: Params, inputs: Batch) -> None:
    """Cut what follows the last layer's attention down to the first token, if ``network`` gives the same logits on
    ``inputs`` (several rows and tokens). Raises :class:`AllTokensMatter`, having changed nothing, where it does not.
    """
    lists = [m for m in network.module.modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
    layers = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)
    attention = getattr(layers[-1], "attention", None) if layers is not None else None
    if layers is None or not isinstance(attention, nn.Module):
        raise AllTokensMatter("the last layer has no attention of a known name")
    tokens: list[int] = []

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        # Contiguous: torch would multiply a slice by one copy of the weight a row.
        if isinstance(output, tuple):
            return (output[0][:, :1].contiguous(), *output[1:])
        return output[:, :1].contiguous()

    def count(_: nn.Module, __: Any, output: Any) -> None:
        tokens.append((output[0] if isinstance(output, tuple) else output).shape[1])

    batch = add_client_axis(seen)
    with torch.no_grad():
        whole: Tensor = network(batch, {}, inputs).logits
        hooks = [attention.register_forward_hook(cut), layers[-1].register_forward_hook(count)]
        try:
            short: Tensor | None = network(batch, {}, inputs).logits
        except (RuntimeError, IndexError, TypeError, ValueError):
            short = None
        hooks.pop().remove()
    allowed = TOLERANCE.get(whole.dtype, 1e-4) * max(1.0, float(whole.abs().max()))
    same = short is not None and short.shape == whole.shape and float((whole - short).abs().max()) <= allowed
    if not same or tokens != [1]:
        hooks.pop().remove()
        raise AllTokensMatter("the model reads more than the first token of its last layer")
