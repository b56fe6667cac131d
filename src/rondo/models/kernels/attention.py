"""Attention for transformers models that would use torch's fused attention.

On a CPU in bfloat16, attention is written out: softmax(q k^T / sqrt(d)) v with its own backward pass. The backward pass
of torch's fused attention takes several times as long there as the five products themselves (docs/dev/log/decisions.md,
"Attention and the last layer"). The forward pass here keeps the probabilities for the backward pass, and a query, key
or value that needs no gradient gets none.

On an accelerator, torch's fused attention is used with a different mask: transformers checks whether any row is padded,
and every forward pass would wait for the answer. :func:`rows_are` gives the answer in advance.

Where rows are laid end to end (:mod:`rondo.models.networks.rows`), each attends within itself, at the cost of its
own length.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from rondo.models.kernels.private_torch import softmax_backward
from rondo.models.kernels.private_transformers import attention_of

Attention: TypeAlias = Literal["torch", "torch, mask unread", "written out"]


@dataclass(frozen=True)
class RowsOfCall:
    """Facts about a call's rows that attention needs."""

    padded: bool = True
    """Whether any row may be padded."""
    lengths: tuple[int, ...] | None = None
    """Tokens of each row, where rows are laid end to end without padding."""


class _Known(threading.local):
    """The rows in this thread's calls."""

    rows = RowsOfCall()


_known = _Known()


def rows_of_call() -> RowsOfCall:
    return _known.rows


@contextlib.contextmanager
def rows_are(rows: RowsOfCall) -> Iterator[None]:
    """Say what the rows are in the calls inside. Outside, any row may be padded."""
    before, _known.rows = _known.rows, rows
    try:
        yield
    finally:
        _known.rows = before


def end_to_end(module: nn.Module) -> Callable[[], None] | None:
    """Make a transformers model attend within each row where rows are laid end to end, and as before elsewhere. Returns
    the undoing; None if its attention cannot be exchanged."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    name = attention_of(getattr(module, "config", None))
    kernels, masks = AttentionInterface(), AttentionMaskInterface()
    if name is None or name not in masks or not hasattr(module, "set_attn_implementation"):
        return None
    if name != "sdpa" and not name.startswith("rondo_"):
        return None
    kernel: Any = sdpa_attention_forward if name == "sdpa" else kernels[name]
    mask: Any = masks[name]

    def within_rows(
        layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        lengths = _known.rows.lengths
        if lengths is None:
            result: tuple[Tensor, None] = kernel(layer, query, key, value, attention_mask, **kwargs)
            return result
        rows = zip(*(torch.split(t, list(lengths), dim=2) for t in (query, key, value)), strict=True)
        seen = [None if attention_mask is None else attention_mask[:, :, :n, :n] for n in lengths]
        parts = [kernel(layer, *qkv, mask_n, **kwargs)[0] for qkv, mask_n in zip(rows, seen, strict=True)]
        return torch.cat(parts, dim=1), None

    def mask_of_the_longest(**kwargs: Any) -> Tensor | None:
        lengths = _known.rows.lengths
        if lengths is not None:
            longest = max(lengths)
            kwargs |= {"batch_size": 1, "q_length": longest, "kv_length": longest, "attention_mask": None}
        made: Tensor | None = mask(**kwargs)
        return made

    attention = f"{name}_end_to_end"
    AttentionInterface.register(attention, within_rows)
    AttentionMaskInterface.register(attention, mask_of_the_longest)
    module.set_attn_implementation(attention)  # type: ignore[operator]
    return lambda: module.set_attn_implementation(name)  # type: ignore[operator]


def use(module: nn.Module, chosen: Attention) -> None:
    """Make a transformers model attend as ``chosen`` if it would use torch's attention. Other models are left alone."""
    config = getattr(module, "config", None)
    sdpa = attention_of(config) == "sdpa" and hasattr(module, "set_attn_implementation")
    if chosen == "torch" or not sdpa:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    name = "rondo_" + "".join(c if c.isalpha() else "_" for c in chosen)
    AttentionInterface.register(name, attention if chosen == "written out" else sdpa_attention_forward)
    AttentionMaskInterface.register(name, _mask if chosen == "written out" else _unread_mask)
    module.set_attn_implementation(name)  # type: ignore[operator]


def _unread_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask for torch's attention, made without reading the values of the padding mask."""
    from transformers.masking_utils import sdpa_mask

    if _known.rows.padded:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    else:
        kwargs["attention_mask"] = None
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The keys that each query sees (True), or None if there is neither padding nor causal order."""
    from transformers.masking_utils import sdpa_mask

    kwargs.pop("allow_is_causal_skip", None)
    mask: Tensor | None = sdpa_mask(*args, allow_is_causal_skip=False, **kwargs)
    return mask


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention with the signature that transformers calls. Returns (N, T, h, d) and None.

    ``query``: (N, h, T, d)
    ``key``, ``value``: (N, h or fewer, S, d)
    ``attention_mask``: (N, 1, T, S), True for a key that is seen, or numbers to add to the scores
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if dropout > 0 or kwargs.get("position_bias") is not None or kwargs.get("cache") is not None:
        kwargs["is_causal"] = False  # the mask holds the causal order
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    written: Tensor = _Attention.apply(query, key, value, attention_mask, scale)  # type: ignore[no-untyped-call]
    return written, None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        n, heads, queries, _ = query.shape
        # Scale the queries: it costs less than scaling the scores, and makes them contiguous on the way.
        q = torch.mul(query, scale, out=query.new_empty(query.shape)).flatten(0, 1)
        k, v = key.reshape(n * heads, *key.shape[2:]), value.reshape(n * heads, *value.shape[2:])
        scores = torch.bmm(q, k.mT)
        by_head = scores.view(n, heads, queries, -1)
        if mask is not None and mask.dtype is torch.bool:
            # Finite, not minus infinity: a query that sees nothing gets a mean, which is never read, instead of NaN.
            by_head.masked_fill_(~mask, torch.finfo(scores.dtype).min)
        elif mask is not None:
            by_head.add_(mask)
        p = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        out = torch.bmm(p, v).view(n, heads, queries, -1).transpose(1, 2)
        return out.contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        q, k, v, p = ctx.saved_tensors
        n, queries, heads, _ = grad.shape
        g = grad.transpose(1, 2).reshape(n * heads, queries, -1)
        for_query, for_key, for_value = ctx.needs_input_grad[:3]

        def split(t: Tensor) -> Tensor:
            return t.view(n, heads, *t.shape[1:])

        dq = dk = dv = None
        if for_value:
            dv = split(torch.bmm(p.mT, g))
        if for_query or for_key:
            ds = softmax_backward(torch.bmm(g, v.mT), p)
            dq = split(torch.bmm(ds, k).mul_(ctx.scale)) if for_query else None
            dk = split(torch.bmm(ds.mT, q)) if for_key else None
        return dq, dk, dv, None, None
