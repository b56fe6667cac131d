"""Two ways of a transformers model to attend where it would use torch's fused attention.

On a CPU, written out: softmax(q k^T / sqrt(d)) v with a backward pass of its own. In bfloat16 the backward pass of
torch's fused attention takes several times as long as the five products themselves
(docs/log/decisions.md, "Attention and the last layer"). Here the
probabilities are kept for it, and a query, key or value that needs no gradient gets none.

On an accelerator, torch's fused attention, but for how its mask is made: transformers asks whether there is any
padding, and the answer would have to be waited for in every forward pass. :func:`padding` tells it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

Attention: TypeAlias = Literal["torch", "torch, mask unread", "written out"]


class _Known(threading.local):
    """Whether the rows of the calls of this thread may be padded."""

    padded = True


_known = _Known()


@contextlib.contextmanager
def padding(there: bool) -> Iterator[None]:
    """Whether any row is padded in the calls inside; outside, any may be."""
    _known.padded = there
    try:
        yield
    finally:
        _known.padded = True


def use(module: nn.Module, chosen: Attention) -> None:
    """Make a transformers model attend as ``chosen`` where it would use torch's way; any other is left as it is."""
    config = getattr(module, "config", None)
    sdpa = getattr(config, "_attn_implementation", None) == "sdpa" and hasattr(module, "set_attn_implementation")
    if chosen == "torch" or not sdpa:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    name = "rondo_" + "".join(c if c.isalpha() else "_" for c in chosen)
    AttentionInterface.register(name, attention if chosen == "written out" else sdpa_attention_forward)
    AttentionMaskInterface.register(name, _mask if chosen == "written out" else _unread_mask)
    module.set_attn_implementation(name)  # type: ignore[operator]


def _unread_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """As torch's attention wants it, without a look at what the padding mask says."""
    from transformers.masking_utils import sdpa_mask

    if _known.padded:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    else:
        kwargs["attention_mask"] = None
    found: Tensor | None = sdpa_mask(*args, **kwargs)
    return found


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Which keys each query sees (True), or None where there is no padding and no order."""
    from transformers.masking_utils import sdpa_mask

    kwargs.pop("allow_is_causal_skip", None)
    found: Tensor | None = sdpa_mask(*args, allow_is_causal_skip=False, **kwargs)
    return found


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
    """What transformers calls: query (N, h, T, d), key and value (N, h or fewer, S, d), a mask (N, 1, T, S) of what
    is seen or of what to add; gives (N, T, h, d)."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if dropout > 0 or kwargs.get("position_bias") is not None or kwargs.get("cache") is not None:
        kwargs["is_causal"] = False  # the order is in the mask
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
        # Scaling the queries costs less than scaling the scores, and copies them into order on the way.
        q = torch.mul(query, scale, out=query.new_empty(query.shape)).flatten(0, 1)
        k, v = key.reshape(n * heads, *key.shape[2:]), value.reshape(n * heads, *value.shape[2:])
        scores = torch.bmm(q, k.mT)
        wide = scores.view(n, heads, queries, -1)
        if mask is not None and mask.dtype is torch.bool:
            # Not minus infinity: a query that may see nothing gets some mean, not NaN, and nobody reads it.
            wide.masked_fill_(~mask, torch.finfo(scores.dtype).min)
        elif mask is not None:
            wide.add_(mask)
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
            ds = torch._softmax_backward_data(torch.bmm(g, v.mT), p, -1, p.dtype)
            dq = split(torch.bmm(ds, k).mul_(ctx.scale)) if for_query else None
            dk = split(torch.bmm(ds.mT, q)) if for_key else None
        return dq, dk, dv, None, None
