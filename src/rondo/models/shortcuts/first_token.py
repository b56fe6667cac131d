"""The last layer of a classifier that reads only the first token, computed for that token alone.

BERT, RoBERTa and their kin classify the first token's state. In the last layer every other token matters only as a key
and a value; its query, projection and feed-forward part, and their backward pass, would be thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.kernels.attention import attention as written_out
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.agreement import agree, rounding
from rondo.params import Params, add_client_axis
from rondo.tasks.task import Batch


class AllTokensMatter(Exception):
    """The last layer cannot be cut down to the first token. The message gives the reason."""


def first_token_only(network: AdaptedNetwork, seen: Params, inputs: Batch) -> None:
    """Cut the last layer down to the first token, from its queries on or else from its attention's output on, if
    ``network`` then gives the same logits on ``inputs`` (several rows and tokens). Raises :class:`AllTokensMatter`,
    having changed nothing, where it does not.
    """
    lists = [m for m in network.module.modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
    layers = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=[nn.Identity()])
    attention = getattr(layers[-1], "attention", None)
    if not isinstance(attention, nn.Module):
        raise AllTokensMatter("the last layer has no attention of a known name")
    if inputs["input_ids"].shape[1] < 2:  # the first token is the last and all that there is
        raise AllTokensMatter("no row that it could be tried on has several tokens")
    with torch.no_grad():
        batch = add_client_axis(seen)
        whole: Tensor = network(batch, {}, inputs)
        allowed = rounding(network) ** 0.5
        for cut in (_queries, _output):
            undo = cut(attention)
            if undo is None:
                continue
            tokens: list[int] = []
            count = layers[-1].register_forward_hook(lambda _, __, out, seen=tokens: seen.append(_first(out).shape[1]))
            try:
                short = network(batch, {}, inputs)
                same = agree(short, whole, allowed)
            except Exception as error:  # a model may raise anything
                if is_out_of_memory(error):
                    raise
                same = False
            count.remove()
            if same and tokens == [1]:
                return
            undo()
    raise AllTokensMatter("the model reads more than the first token of its last layer")


def _first(output: Any) -> Tensor:
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def _queries(attention: Any) -> Callable[[], None] | None:
    """Only the first token gets a query, in an attention made like BERT's. Returns the undoing; None where it is made
    otherwise."""
    from transformers import AttentionInterface

    inner: Any = getattr(attention, "self", None)
    size = getattr(inner, "attention_head_size", None)
    query, key, value = (getattr(inner, name, None) for name in ("query", "key", "value"))
    output = getattr(attention, "output", None)
    known = all(isinstance(layer, nn.Module) for layer in (query, key, value, output))
    if not known or not isinstance(size, int):
        return None

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, size).transpose(1, 2)

    def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        # Contiguous: torch would multiply a slice by one copy of the weight per row.
        first = hidden_states[:, :1].contiguous()
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        q, k, v = heads(query(first)), heads(key(hidden_states)), heads(value(hidden_states))  # type: ignore[misc]
        kernel = AttentionInterface().get_interface(inner.config._attn_implementation, written_out)
        attended: Tensor = kernel(inner, q, k, v, mask, dropout=0.0, scaling=size**-0.5)[0]
        return output(attended.flatten(2), first), None  # type: ignore[misc]

    attention.forward = forward
    return lambda: delattr(attention, "forward")


def _output(attention: nn.Module) -> Callable[[], None]:
    """Only the first token of the attention's output goes on. Returns the undoing."""

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0][:, :1].contiguous(), *output[1:])
        return output[:, :1].contiguous()

    return attention.register_forward_hook(cut).remove
