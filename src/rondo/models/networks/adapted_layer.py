"""The low-rank term of an adapted layer, ``y + B (A x)``, with its products in the order that is fast on a CPU.

A product with one long and one very short side takes up to five times as long in one order as in the other, and
autograd alone would choose the slow order for three of the six products (docs/dev/log/decisions.md, "Adapters'
products").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.lowrank import GrowingSum
from rondo.models.kernels.rounded import is_rounded, read_back
from rondo.models.networks.call import Call
from rondo.models.networks.magnitude import normalised, row_norms, stretched
from rondo.models.networks.pairs import add_weighed, one_pair
from rondo.models.networks.rows import Rows, to_device
from rondo.params import Params

_SHORT, _MANY = 2, 4
"""Rows with fewer tokens than so many ranks are smaller than factors of their own. There a CPU computes uneven clients
one after the other, if they have so many rows in the mean: up to five times as fast (docs/dev/log/simulation.md,
"Uneven clients with short rows")."""


def add_low_rank(y: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """``y + B (A x)`` without forming B A. All tensors have one type.

    ``y``: (K, rows, out)
    ``x``: (K, rows, in)
    ``down``: A, (K, r, in)
    ``up``: B, (K, out, r)
    """
    result: Tensor = _AddLowRank.apply(y, x, down, up)  # type: ignore[no-untyped-call]
    return result


def _narrow(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply ``x`` (K, rows, n) by the transpose of ``matrix`` (K, r, n), for a small r."""
    if x.dtype is torch.bfloat16:
        return torch.bmm(matrix, x.mT).mT
    return torch.bmm(x, matrix.contiguous().mT)


class _AddLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
        inner = _narrow(x, down)
        ctx.save_for_backward(x, inner, down, up)
        return torch.baddbmm(y, inner, up.mT)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        x, inner, down, up = ctx.saved_tensors
        _, for_x, for_down, for_up = ctx.needs_input_grad
        d_x = d_down = d_up = None
        if for_up:
            d_up = torch.bmm(inner.mT, grad).mT
        if for_x or for_down:
            d_inner = _narrow(grad, up.mT)
            d_x = torch.bmm(d_inner, down) if for_x else None
            d_down = torch.bmm(d_inner.mT, x) if for_down else None
        return grad, d_x, d_down, d_up


@dataclass(frozen=True)
class Site:
    """An adapted layer and its adapter."""

    path: str
    """Module path of the layer."""
    kind: LayerKind
    shape: tuple[int, int]
    """(out, in) of the layer's matrix. For a convolution ``in`` is in_channels * kernel height * kernel width."""
    rank: int
    """Rank of the adapter."""
    scale: float
    """Factor of B A in the adapted layer."""
    dropout: float
    """Probability that training drops an input of the adapter."""
    magnitude: bool = False
    """Whether the norms of its rows are trained too (:mod:`rondo.models.networks.magnitude`)."""


LayerKind: TypeAlias = Literal["linear", "conv1d", "conv2d"]


class UnsupportedLayer(ValueError):
    """A targeted layer cannot carry a low-rank adapter; the message says why."""


def layer_kind(module: nn.Module) -> tuple[LayerKind, tuple[int, int]]:
    """The kind of a layer and the shape (out, in) of its matrix. Raises :class:`UnsupportedLayer`."""
    if "weight" not in dict(module.named_parameters(recurse=False)) and isinstance(module, nn.Conv2d | nn.Linear):
        raise UnsupportedLayer("a weight that is computed from others (weight_norm, spectral_norm) cannot be adapted")
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or module.padding_mode != "zeros" or module.dilation != (1, 1):
            # Groups and padding modes are not one matrix product, and PEFT's own adapter ignores dilation.
            raise UnsupportedLayer("a convolution with groups, dilation or a padding mode cannot be adapted")
        height, width = module.kernel_size
        return "conv2d", (module.out_channels, module.in_channels * height * width)
    if isinstance(module, nn.Linear):  # quantised linears (bitsandbytes, torchao) derive from it
        return "linear", (module.out_features, module.in_features)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        weight = module.weight
        assert isinstance(weight, Tensor)
        return "conv1d", (weight.shape[1], weight.shape[0])  # stored transposed: in x out
    raise UnsupportedLayer(f"a {type(module).__name__} cannot be adapted; Linear, Conv1D and Conv2d can")


@torch.no_grad()
def frozen_matrix(module: nn.Module, site: Site) -> Tensor:
    """W (out, in) of an adapted layer in float32, or float64 where it is in that. A weight in an unknown packed format
    is read by applying its layer to the identity."""
    out, inp = site.shape
    weight = read_back(module) if is_rounded(module) else module.weight
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.numel() == out * inp:
        plain = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        return plain.T if site.kind == "conv1d" else plain.reshape(out, inp)
    eye = torch.eye(inp, device=next(module.parameters()).device)
    columns: Tensor = module.forward(eye)
    bias = module.bias
    return (columns - bias if isinstance(bias, Tensor) else columns).T.float()


def merged_weight(module: nn.Module, site: Site, seen: Params, base: Mapping[str, GrowingSum]) -> Tensor:
    """The layer's weight, in its own shape, with all that a client's model adds to it: W + base + scale * B A, with its
    rows stretched where the site has magnitudes. ``seen`` has no client axis; gradients flow to its tensors."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    down, up = one_pair(seen, site.path)
    change = site.scale * (up @ down)
    if site.path in base:
        change = change + base[site.path].factors().dense().to(change.dtype)
    if site.kind == "conv1d":
        change = change.mT
    whole = weight + change.to(weight).reshape(weight.shape)
    if (magnitude := seen.get(f"{site.path}.magnitude")) is None:
        return whole
    return normalised(whole.mT, magnitude).mT if site.kind == "conv1d" else normalised(whole, magnitude)


class AdaptedLayer:
    """A forward hook on one layer of a network that adds the low-rank terms of the call."""

    def __init__(self, site: Site, module: nn.Module, call: Call) -> None:
        self.site, self.module, self.call = site, module, call
        module.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.call.layer_runs()
        path = self.site.path
        x = self.call.by_row(args[0], path)
        change = self.call.base.get(path)
        if change is not None:
            output = self._changed(output, args[0], change)
        a, b = self.call.params.get(f"{path}.A"), self.call.params.get(f"{path}.B")
        if a is not None and b is not None:
            # Scale in the wider of the two types, so that the product is rounded once.
            b = self.site.scale * b.to(torch.promote_types(b.dtype, x.dtype))
            if (router := self.call.params.get(f"{path}.router")) is not None:
                return self._weighed(output, x, self._drop(x), a, b, router)
            output = self._add(output, self._drop(x), a, b, self.call.rows)
            if (magnitude := self.call.params.get(f"{path}.magnitude")) is not None:
                output = self._stretched(output, a, b, magnitude)
        return output

    def _weighed(self, output: Tensor, x: Tensor, dropped: Tensor, down: Tensor, up: Tensor, router: Tensor) -> Tensor:
        """``output`` with all pairs of ``down`` (K, pairs * r, in) and ``up`` (K, out, pairs * r), which ``router``
        (K, pairs, in) weighs for each token of ``x``."""
        rows, packing, y = self.call.rows, self.call.packing, output.to(x.dtype)
        down, up = down.to(x.dtype), up.to(x.dtype)
        if len(down) == 1 or (packing is None and rows.even):
            y, x, dropped = (t.reshape(len(down), -1, t.shape[-1]) for t in (y, x, dropped))
            return add_weighed(y, x, dropped, down, up, router).reshape(output.shape).to(output.dtype)
        tokens = x.shape[1:-1].numel()
        lengths = [count * tokens for count in rows.counts] if packing is None else list(packing.clients)
        parts = [torch.split(t.flatten(0, -2)[None], lengths, 1) for t in (y, x, dropped)]
        parts += [torch.split(t, 1) for t in (down, up, router)]
        outputs = [add_weighed(y, x, d, a, b, g) for y, x, d, a, b, g in zip(*parts, strict=True)]
        return torch.cat(outputs, 1).reshape(output.shape).to(output.dtype)

    def _stretched(self, output: Tensor, down: Tensor, up: Tensor, magnitude: Tensor) -> Tensor:
        """``output`` of W + base + B A with its rows stretched to ``magnitude`` (K, out)."""
        weight, change = frozen_matrix(self.module, self.site), self.call.base.get(self.site.path)
        down, up = down.detach().to(weight.dtype), up.detach().to(weight.dtype)
        if change is not None:
            added = change.factors().to(weight.dtype)
            down = torch.cat([down, added.down.expand(len(down), -1, -1)], 1)
            up = torch.cat([up, added.up.expand(len(up), -1, -1)], 2)
        factor = magnitude / row_norms(weight, down, up)
        rows, packing, tokens = self.call.rows, self.call.packing, None
        if len(factor) > 1 and packing is not None:
            tokens = packing.clients
        elif len(factor) > 1 and not rows.even:
            per_row = output.numel() // (sum(rows.counts) * output.shape[-1])
            tokens = tuple(count * per_row for count in rows.counts)
        return stretched(output, factor, self.module.bias, tokens)  # type: ignore[arg-type]

    def _changed(self, output: Tensor, x: Tensor, change: GrowingSum) -> Tensor:
        """``output`` with the change of the base, which all clients share."""
        if change.dense is None:
            down, up = change.recent.down.unsqueeze(0), change.recent.up.unsqueeze(0)
            return self._add(output, x, down, up, Rows((x.shape[0],)))
        matrix, conv = change.dense.to(x.dtype), self.module
        if isinstance(conv, nn.Conv2d):
            kernel = matrix.reshape(conv.weight.shape)
            added = functional.conv2d(x, kernel, None, conv.stride, conv.padding, conv.dilation)
        else:
            added = functional.linear(x, matrix)
        return output + added.to(output.dtype)

    def _add(self, output: Tensor, x: Tensor, down: Tensor, up: Tensor, rows: Rows) -> Tensor:
        """``output + B (A x)`` for ``down`` (K, r, in) and ``up`` (K, out, r), without forming B A."""
        down, up = down.to(x.dtype), up.to(x.dtype)
        packing = self.call.packing
        if self.site.kind == "conv2d" and packing is None:
            return output + self._convolved(x, down, up, rows)
        tokens = x.shape[1:-1].numel()
        short = tokens < _SHORT * down.shape[1] and len(x) >= _MANY * len(down)
        one_by_one = short and not rows.even and x.device.type == "cpu"
        if len(down) > 1 and (packing is not None or one_by_one):
            lengths = [count * tokens for count in rows.counts] if packing is None else packing.clients
            parts = [torch.split(t.flatten(0, -2), list(lengths)) for t in (output.to(x.dtype), x)]
            parts += [torch.split(t, 1) for t in (down, up)]  # a slice for each would have a gradient of all clients
            outputs = [add_low_rank(y[None], x[None], a, b)[0] for y, x, a, b in zip(*parts, strict=True)]
            return torch.cat(outputs).reshape(output.shape).to(output.dtype)
        if not rows.even:
            # Give each row its own small matrix, so that uneven clients waste no work on the frozen layers.
            down, up = down[rows.index], up[rows.index]
        flat_x = x.reshape(down.shape[0], -1, x.shape[-1])
        flat_output = output.to(x.dtype).reshape(up.shape[0], -1, output.shape[-1])
        return add_low_rank(flat_output, flat_x, down, up).reshape(output.shape).to(output.dtype)

    def _convolved(self, x: Tensor, down: Tensor, up: Tensor, rows: Rows) -> Tensor:
        conv = self.module
        assert isinstance(conv, nn.Conv2d)
        kernel = (conv.in_channels, *conv.kernel_size)
        parts = []
        counts = rows.counts if len(down) > 1 else (len(x),)
        for rows_k, down_k, up_k in zip(torch.split(x, list(counts)), down, up, strict=True):
            inner = functional.conv2d(
                rows_k, down_k.reshape(-1, *kernel), None, conv.stride, conv.padding, conv.dilation
            )
            parts.append(functional.conv2d(inner, up_k[:, :, None, None]))
        return torch.cat(parts)

    def _drop(self, x: Tensor) -> Tensor:
        """Adapter dropout. Each client's mask is drawn from its own generator."""
        call = self.call
        if call.dropout is None or self.site.dropout == 0:
            return x
        masks = call.masks.setdefault(self.site.path, [])
        if call.inside:
            keep = 1 - self.site.dropout
            packing = call.packing
            mask = torch.ones(x.shape if packing is None else (sum(call.rows.counts), packing.longest, x.shape[-1]))
            parts = (mask,) if len(call.dropout) == 1 else torch.split(mask, list(call.rows.counts))
            by_token = packing is not None or (x.dim() == 3 and mask.shape[1] in call.tokens)
            lengths = call.rows.longest if by_token else None
            generators = map(_successor, call.dropout) if call.rows.apart else call.dropout
            for k, (part, g) in enumerate(zip(parts, generators, strict=True)):
                # Draw as much as the client's own longest sequence takes, whichever this one is and however far it is
                # padded, so that a client's masks do not depend on the others.
                size = part.shape if lengths is None else (len(part), lengths[k], *part.shape[2:])
                drawn = torch.empty(size).bernoulli_(keep, generator=g)
                part[:, : drawn.shape[1]] = drawn[:, : part.shape[1]]
            if packing is not None:
                mask = mask.flatten(0, 1)[packing.drawn].reshape(x.shape)
            masks.append(to_device((mask / keep).to(x.dtype), x.device))
        elif len(masks) != 1:
            raise RuntimeError(f"{self.site.path} runs several times a call: no dropout with activation checkpointing")
        return x * masks[-1]


def _successor(generator: torch.Generator) -> torch.Generator:
    """A generator seeded by the next number of ``generator``, which moves on by as much however many are drawn."""
    return torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (), generator=generator)))
