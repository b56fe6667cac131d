"""The last layer of a classifier that reads only the first token: only that token asks, and only it goes on.

BERT, RoBERTa and their kin classify the first token's state. In the last layer every other token matters only as a key
and a value; its query, projection, feed-forward part and their backward pass would be computed and thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.adapted_network import AdaptedNetwork
from rondo.models.attention import attention as written_out
from rondo.models.shortcuts.prefix import TOLERANCE
from rondo.params import Params, add_client_axis
from rondo.tasks.task import Batch


class AllTokensMatter(Exception):
    """The last layer cannot be cut down to the first token; the message says why."""


def first_token_only(network: AdaptedNetwork, seen: Params, inputs: Batch) -> None:
    """Cut the last layer down to the first token as far down as its attention's make allows (no keys and values, no
    other queries, or from its output on), if ``network`` gives the same logits on ``inputs`` (several rows and tokens).
    Raises :class:`AllTokensMatter`, having changed nothing, where it does not.
    """
    lists = [m for m in network.module.modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
    layers = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)
    attention = getattr(layers[-1], "attention", None) if layers is not None else None
    if layers is None or not isinstance(attention, nn.Module):
        raise AllTokensMatter("the last layer has no attention of a known name")
    if inputs["input_ids"].shape[1] < 2:  # the first token is the last and all that there is
        raise AllTokensMatter("no row that it could be tried on has several tokens")
    with torch.no_grad():
        batch = add_client_axis(seen)
        whole: Tensor = network(batch, {}, inputs)
        allowed = TOLERANCE.get(whole.dtype, 1e-4) * max(1.0, float(whole.abs().max()))
        for cut in (_folded, _queries, _output):
            undo = cut(network, attention)
            if undo is None:
                continue
            tokens: list[int] = []
            count = layers[-1].register_forward_hook(lambda _, __, out, seen=tokens: seen.append(_first(out).shape[1]))
            try:
                short = network(batch, {}, inputs)
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


@dataclass(frozen=True)
class _Bert:
    """The parts of an attention made like BERT's. ``size``: of a head."""

    inner: nn.Module
    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    size: int

    @classmethod
    def of(cls, attention: Any) -> _Bert | None:
        """``attention`` as one, or None where it is of another make."""
        inner: Any = getattr(attention, "self", None)
        size = getattr(inner, "attention_head_size", None)
        query, key, value = (getattr(inner, name, None) for name in ("query", "key", "value"))
        output = getattr(attention, "output", None)
        known = all(isinstance(layer, nn.Module) for layer in (query, key, value, output))
        if not known or not isinstance(size, int) or getattr(inner, "config", None) is None:
            return None
        return cls(inner, query, key, value, output, size)  # type: ignore[arg-type]

    def put(self, attention: Any, attend: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Callable[[], None]:
        """Make ``attend`` (first token, all tokens, mask) -> (rows, heads, size) the attention. What undoes it."""

        def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
            # Contiguous: torch would multiply a slice by one copy of the weight a row.
            first = hidden_states[:, :1].contiguous()
            mask = None if attention_mask is None else attention_mask[:, :, :1]
            return self.output(attend(first, hidden_states, mask).flatten(1).unsqueeze(1), first), None

        attention.forward = forward
        return lambda: delattr(attention, "forward")


def _folded(network: AdaptedNetwork, attention: Any) -> Callable[[], None] | None:
    """No token has a key or a value: with q the first token's query, ``q . (W_k h) = (W_k^T q) . h``, where the key's
    bias adds the same to all scores, and ``sum p W_v h = W_v (sum p h)`` for every head. For an attention made like
    BERT's, its key not adapted, its value without adapter dropout (which differs from token to token)."""
    bert = _Bert.of(attention)
    if bert is None:
        return None
    names = {module: name for name, module in network.module.named_modules()}
    value = network.sites.get(names[bert.value])
    if not _plain(bert.key) or names[bert.key] in network.sites or (value is not None and value.dropout > 0):
        return None

    def attend(first: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
        weight, size = bert.key.weight, bert.size
        assert isinstance(weight, Tensor)
        rows, heads = hidden.shape[0], weight.shape[0] // size
        q = bert.query(first).view(rows, heads, size).transpose(0, 1)
        folded = torch.bmm(q * size**-0.5, weight.view(heads, size, -1)).transpose(0, 1)
        scores = torch.bmm(folded, hidden.mT)
        if mask is not None and mask.dtype is torch.bool:
            scores = scores.masked_fill(~mask[:, 0], torch.finfo(scores.dtype).min)
        elif mask is not None:
            scores = scores + mask[:, 0]
        values: Tensor = bert.value(torch.bmm(torch.softmax(scores, -1), hidden))
        return values.view(rows, heads, heads, size).diagonal(dim1=1, dim2=2).transpose(1, 2)

    return bert.put(attention, attend)


def _plain(layer: nn.Module) -> bool:
    """Whether a layer is its weight and its bias and nothing else."""
    return type(layer) is nn.Linear and type(layer._parameters.get("weight")) is nn.Parameter


def _queries(_: AdaptedNetwork, attention: Any) -> Callable[[], None] | None:
    """Only the first token has a query, in an attention made like BERT's."""
    from transformers import AttentionInterface

    bert = _Bert.of(attention)
    if bert is None:
        return None
    inner: Any = bert.inner

    def attend(first: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], -1, bert.size).transpose(1, 2)

        q, k, v = heads(bert.query(first)), heads(bert.key(hidden)), heads(bert.value(hidden))
        kernel = AttentionInterface().get_interface(inner.config._attn_implementation, written_out)
        found: Tensor = kernel(inner, q, k, v, mask, dropout=0.0, scaling=bert.size**-0.5)[0]
        return found.squeeze(1)

    return bert.put(attention, attend)


def _output(_: AdaptedNetwork, attention: nn.Module) -> Callable[[], None]:
    """Of the attention's output only the first token goes on. What undoes it."""

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0][:, :1].contiguous(), *output[1:])
        return output[:, :1].contiguous()

    return attention.register_forward_hook(cut).remove
