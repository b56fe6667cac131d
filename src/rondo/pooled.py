"""The last layer of a classifier that reads only the first token: only that token asks, and only it goes on.

BERT, RoBERTa and their kin classify the first token's state. In the last layer every other token matters only as a key
and a value; its query, projection, feed-forward part and their backward pass would be computed and thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rondo.attention import attention as written_out
from rondo.model import Batch, Network
from rondo.params import Params, add_client_axis
from rondo.prefix import TOLERANCE


class AllTokensMatter(Exception):
    """The last layer cannot be cut down to the first token; the message says why."""


def first_token_only(network: Network, seen: Params, inputs: Batch) -> None:
    """Cut the last layer down to the first token, from its queries on or, where its attention is of another make, from
    the attention's output on, if ``network`` gives the same logits on ``inputs`` (several rows and tokens). Raises
    :class:`AllTokensMatter`, having changed nothing, where it does not.
    """
    lists = [m for m in network.module.modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
    layers = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)
    attention = getattr(layers[-1], "attention", None) if layers is not None else None
    if layers is None or not isinstance(attention, nn.Module):
        raise AllTokensMatter("the last layer has no attention of a known name")
    with torch.no_grad():
        batch = add_client_axis(seen)
        whole: Tensor = network(batch, {}, inputs).logits
        allowed = TOLERANCE.get(whole.dtype, 1e-4) * max(1.0, float(whole.abs().max()))
        for cut in (_queries, _output):
            undo = cut(attention)
            if undo is None:
                continue
            tokens: list[int] = []
            count = layers[-1].register_forward_hook(lambda _, __, out, seen=tokens: seen.append(_first(out).shape[1]))
            try:
                short = network(batch, {}, inputs).logits
                same = short.shape == whole.shape and float((whole - short).abs().max()) <= allowed
            except (RuntimeError, IndexError, TypeError, ValueError):
                same = False
            count.remove()
            if same and tokens == [1]:
                return
            undo()
    raise AllTokensMatter("the model reads more than the first token of its last layer")


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _queries(attention: Any) -> Callable[[], None] | None:
    """Only the first token has a query, in an attention made like BERT's. What undoes it, or None for another make."""
    from transformers import AttentionInterface

    inner: Any = getattr(attention, "self", None)
    output = getattr(attention, "output", None)
    size, config = getattr(inner, "attention_head_size", None), getattr(inner, "config", None)
    layers: list[Any] = [*(getattr(inner, name, None) for name in ("query", "key", "value")), output]
    query, key, value, output = layers
    if not all(isinstance(layer, nn.Module) for layer in layers) or not isinstance(size, int) or config is None:
        return None

    def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        # Contiguous: torch would multiply a slice by one copy of the weight a row.
        first = hidden_states[:, :1].contiguous()

        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], -1, size).transpose(1, 2)

        q, k, v = heads(query(first)), heads(key(hidden_states)), heads(value(hidden_states))
        attend = AttentionInterface().get_interface(config._attn_implementation, written_out)
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        found = attend(inner, q, k, v, mask, dropout=0.0, scaling=size**-0.5)[0]
        return output(found.reshape(*first.shape[:2], -1), first), None

    attention.forward = forward
    return lambda: delattr(attention, "forward")


def _output(attention: nn.Module) -> Callable[[], None]:
    """Of the attention's output only the first token goes on. What undoes it."""

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0][:, :1].contiguous(), *output[1:])
        return output[:, :1].contiguous()

    return attention.register_forward_hook(cut).remove
