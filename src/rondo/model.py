"""What a torch module exposes to federated low-rank training, and the one way in which tensors enter it.

A :class:`Network` is an unchanged frozen module with a forward hook on every adapted layer, so any layer that is
linear in its input will do (``nn.Linear``, GPT-2's ``Conv1D``, ``nn.Conv2d``, a quantised linear). The tensors of a
call stay in place until the next call of the same thread, through ``backward`` too, so that activation checkpointing
recomputes with the tensors of its own forward pass. Threads do not see each other's calls.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.adapter import add_low_rank
from rondo.algorithm import Weight
from rondo.lowrank import LowRank, total
from rondo.params import HEAD_PREFIX, Params

Batch: TypeAlias = Mapping[str, Tensor]
LayerKind: TypeAlias = Literal["linear", "conv1d", "conv2d"]


@dataclass(frozen=True)
class Site:
    """An adapted layer: its module path, kind, matrix shape (out, in), the adapter's rank, scale and dropout.

    For a convolution ``in`` is in_channels * kernel height * kernel width.
    """

    path: str
    kind: LayerKind
    shape: tuple[int, int]
    rank: int
    scale: float
    dropout: float


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the processor's on ``device``, without waiting for the copy where it is an accelerator."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class UnsupportedLayer(ValueError):
    """A layer that the user targets cannot carry a low-rank adapter; the message says why."""


def layer_kind(module: nn.Module, path: str) -> tuple[LayerKind, tuple[int, int]]:
    """The kind of a layer and the shape (out, in) of its matrix. Raises :class:`UnsupportedLayer`."""
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or module.padding_mode != "zeros" or module.dilation != (1, 1):
            # Groups and padding modes are not one matrix product; dilation PEFT's own adapter leaves out.
            raise UnsupportedLayer(f"{path}: a convolution with groups, dilation or a padding mode cannot be adapted")
        height, width = module.kernel_size
        return "conv2d", (module.out_channels, module.in_channels * height * width)
    if isinstance(module, nn.Linear):  # quantised linears (bitsandbytes, torchao) derive from it
        return "linear", (module.out_features, module.in_features)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        weight = module.weight
        assert isinstance(weight, Tensor)
        return "conv1d", (weight.shape[1], weight.shape[0])  # stored transposed: in x out
    raise UnsupportedLayer(f"{path}: a {type(module).__name__} cannot be adapted; Linear, Conv1D and Conv2d can")


@dataclass(frozen=True)
class Rows:
    """Which rows of a batch are whose: ``counts`` of K clients, the rows ordered by client. A count may be zero.

    ``longest``: tokens of each client's longest row, where rows are padded to that of the longest of all.
    """

    counts: tuple[int, ...]
    longest: tuple[int, ...] | None = None
    index: Tensor = field(init=False, repr=False)
    """The client of every row, shape (rows,)."""

    def __post_init__(self) -> None:
        counts = torch.tensor(self.counts)
        object.__setattr__(self, "index", torch.arange(len(counts)).repeat_interleave(counts))

    @property
    def even(self) -> bool:
        """Whether every client has the same number of rows, so that rows can be reshaped to (K, rows a client)."""
        return len(set(self.counts)) == 1

    def to(self, device: torch.device) -> Rows:
        """With ``index`` on ``device``."""
        moved = Rows(self.counts, self.longest)
        object.__setattr__(moved, "index", sent(self.index, device))
        return moved

    def sum(self, values: Tensor) -> Tensor:
        """Sums over each client's rows, shape (K,), of ``values`` (rows,). What is not finite stays its client's."""
        if self.even:
            return values.reshape(len(self.counts), -1).sum(1)
        return values.new_zeros(len(self.counts)).index_add(0, self.index, values)


class _Token:
    """Lives as long as the graph of the call that it was made for."""


class _Call(threading.local):
    """What a network's layers must know of the call that this thread is in, or was in last: its tensors, and, because
    activation checkpointing runs layers again in ``backward``, which calls have a graph whose layers could yet run
    again."""

    def __init__(self) -> None:
        self.params: Params = {}
        self.base: Mapping[str, LowRank] = {}
        self.rows = Rows((1,))
        self.dropout: Sequence[torch.Generator] | None = None
        self.masks: dict[str, list[Tensor]] = {}
        self.inside = False
        self.open: list[weakref.ref[_Token]] = []
        self.again = False

    def begin(
        self, params: Params, base: Mapping[str, LowRank], rows: Rows, dropout: Sequence[torch.Generator] | None
    ) -> None:
        if self.again:  # the backward that ran layers again was the earlier calls' own
            self.open, self.again = [], False
        self.params, self.base, self.rows, self.dropout, self.masks = params, base, rows, dropout, {}
        self.inside = True

    def end(self, output: Any) -> None:
        """Note the call as open for as long as its graph lives."""
        self.inside = False
        self.open = [ref for ref in self.open if ref() is not None]
        logits = getattr(output, "logits", output)
        if isinstance(logits, Tensor) and logits.grad_fn is not None:
            token = _Token()
            logits.grad_fn.metadata["rondo call"] = token  # type: ignore[index]
            self.open.append(weakref.ref(token))

    def layer_runs(self) -> None:
        """Raises RuntimeError where a layer runs again with another call's tensors in place."""
        if not self.inside:
            self.again = True
            if sum(ref() is not None for ref in self.open) > 1:
                raise RuntimeError("activation checkpointing allows one network call before each backward")


class _Slot:
    """One adapted layer of a network: the hook that adds the effect of the call's tensors."""

    def __init__(self, site: Site, module: nn.Module, call: _Call) -> None:
        self.site, self.module, self.call = site, module, call
        module.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.call.layer_runs()
        x, path = args[0], self.site.path
        base = self.call.base.get(path)
        if base is not None:
            output = self._add(output, x, base.down.unsqueeze(0), base.up.unsqueeze(0), Rows((x.shape[0],)))
        a, b = self.call.params.get(f"{path}.A"), self.call.params.get(f"{path}.B")
        if a is not None and b is not None:
            # Scaled in the wider of the two types, so that the product is rounded once.
            b = self.site.scale * b.to(torch.promote_types(b.dtype, x.dtype))
            output = self._add(output, self._drop(x), a, b, self.call.rows)
        return output

    def _add(self, output: Tensor, x: Tensor, down: Tensor, up: Tensor, rows: Rows) -> Tensor:
        """``output + B (A x)`` for ``down`` (K, r, in) and ``up`` (K, out, r); B A is never formed."""
        down, up = down.to(x.dtype), up.to(x.dtype)
        if self.site.kind == "conv2d":
            return output + self._convolved(x, down, up, rows)
        if not rows.even:
            # One small matrix a row, so that uneven clients waste no work on the frozen layers.
            down, up = down[rows.index], up[rows.index]
        flat = x.reshape(down.shape[0], -1, x.shape[-1])
        wide = output.to(x.dtype).reshape(up.shape[0], -1, output.shape[-1])
        return add_low_rank(wide, flat, down, up).reshape(output.shape).to(output.dtype)

    def _convolved(self, x: Tensor, down: Tensor, up: Tensor, rows: Rows) -> Tensor:
        conv = self.module
        assert isinstance(conv, nn.Conv2d)
        kernel = (conv.in_channels, *conv.kernel_size)
        parts = []
        for rows_k, down_k, up_k in zip(torch.split(x, list(rows.counts)), down, up, strict=True):
            inner = functional.conv2d(
                rows_k, down_k.reshape(-1, *kernel), None, conv.stride, conv.padding, conv.dilation
            )
            parts.append(functional.conv2d(inner, up_k[:, :, None, None]))
        return torch.cat(parts)

    def _drop(self, x: Tensor) -> Tensor:
        """Adapter dropout, each client's mask from its own generator."""
        call = self.call
        if call.dropout is None or self.site.dropout == 0:
            return x
        masks = call.masks.setdefault(self.site.path, [])
        if call.inside:
            keep = 1 - self.site.dropout
            mask = torch.ones(x.shape)
            ends = call.rows.longest if x.dim() == 3 else None
            for k, (part, g) in enumerate(zip(torch.split(mask, list(call.rows.counts)), call.dropout, strict=True)):
                # Nothing is drawn for padding that is there for other clients, so a client's masks are its own.
                own = part if ends is None else part[:, : ends[k]]
                own.copy_(torch.empty(own.shape).bernoulli_(keep, generator=g))
            masks.append(sent((mask / keep).to(x.dtype), x.device))
        elif len(masks) != 1:
            raise RuntimeError(f"{self.site.path} runs several times a call: no dropout with activation checkpointing")
        return x * masks[-1]


class _HeadLinear:
    """A linear layer of the head, computed with the call's tensors: each client's rows with its own."""

    def __init__(self, path: str, module: nn.Linear, call: _Call, initial: Params) -> None:
        self.call, self.initial = call, initial
        self.weight, self.bias = (f"{HEAD_PREFIX}{path}.{n}" for n in ("weight", "bias"))
        module.forward = self.forward  # type: ignore[method-assign, assignment]

    def _tensor(self, name: str) -> Tensor | None:
        if name in self.call.params:
            return self.call.params[name]
        tensor = self.initial.get(name)
        return None if tensor is None else tensor.unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._tensor(self.weight), self._tensor(self.bias)
        assert weight is not None
        weight, bias = weight.to(x.device), None if bias is None else bias.to(x.device)
        x = x.to(weight.dtype)
        if weight.shape[0] == 1:
            return functional.linear(x, weight[0], None if bias is None else bias[0])
        rows = self.call.rows
        if rows.even:
            flat = x.reshape(weight.shape[0], -1, x.shape[-1])
            out = flat @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, weight.mT)
            return out.reshape(*x.shape[:-1], weight.shape[1])
        each = torch.split(x, list(rows.counts))
        return torch.cat(
            [functional.linear(part, weight[k], None if bias is None else bias[k]) for k, part in enumerate(each)]
        )


class Network:
    """A frozen module, its adapted layers and its trainable head. The module runs in eval mode (no base dropout).

    ``head``: torch's own names of the head's tensors (``classifier.weight``). They leave the module's parameters and
    become plain attributes; the head's linear layers read their tensors from the call.
    """

    def __init__(self, module: nn.Module, sites: Sequence[Site], head: Sequence[str]) -> None:
        self.module = module.eval().requires_grad_(False)
        self.sites = {s.path: s for s in sites}
        self._call = _Call()
        self._slots = {s.path: _Slot(s, module.get_submodule(s.path), self._call) for s in sites}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self.initial_head: dict[str, Tensor] = {}
        layers = dict.fromkeys(name.rpartition(".")[0] for name in head)
        for name in head:
            owner, attribute = module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
            tensor = owner._parameters.pop(attribute)
            assert tensor is not None
            self.initial_head[HEAD_PREFIX + name] = tensor.detach().clone()
            setattr(owner, attribute, tensor.detach())
            if type(owner) is not nn.Linear:
                self._owners[HEAD_PREFIX + name] = (owner, attribute)
        for path in layers:
            owner = module.get_submodule(path)
            if type(owner) is nn.Linear:
                _HeadLinear(path, owner, self._call, self.initial_head)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def one_at_a_time(self) -> str | None:
        """Why clients cannot share a call, nor calls run in several threads; None where they can."""
        kinds = sorted({type(owner).__name__ for owner, _ in self._owners.values()})
        return f"the head has trained tensors in {', '.join(kinds)}" if kinds else None

    def weights(self) -> dict[str, Weight]:
        """The frozen matrix of every adapted layer, read lazily."""
        return {
            p: Weight(s.shape, s.scale, lambda slot=self._slots[p]: _matrix(slot))  # type: ignore[misc]
            for p, s in self.sites.items()
        }

    def __call__(
        self,
        params: Params,
        base: Mapping[str, tuple[LowRank, ...]],
        batch: Batch,
        dropout: Sequence[torch.Generator] | None = None,
        rows: Rows | None = None,
    ) -> Any:
        """The module's output on ``batch``, its rows ordered by client, with tensors as ``view`` returns them.

        ``params`` have a client axis K; ``base`` has none. ``rows``: whose the rows are; None: the same number for
        each client. ``dropout``: one generator a client while training. Raises KeyError where ``params`` lacks a
        tensor, ValueError for several clients where :attr:`one_at_a_time` says why not.
        """
        for path in self._slots:
            clients = params[f"{path}.A"].shape[0]
            if params[f"{path}.B"].shape[0] != clients:
                raise ValueError(f"{path}: A has {clients} clients, B has {params[f'{path}.B'].shape[0]}")
        if rows is None:
            first = next(t for t in batch.values() if isinstance(t, Tensor))
            rows = Rows((first.shape[0] // clients,) * clients)
        for name, (owner, attribute) in self._owners.items():
            tensor = params[name] if name in params else self.initial_head[name].unsqueeze(0)
            if tensor.shape[0] != 1:
                raise ValueError(f"{name} has {tensor.shape[0]} clients, but {self.one_at_a_time}")
            setattr(owner, attribute, tensor[0].to(self.device))
        self._call.begin(params, {p: total(c) for p, c in base.items() if c}, rows, dropout)
        output = None
        try:
            output = self.module(**batch)
        finally:
            self._call.end(output)
        return output


@torch.no_grad()
def _matrix(slot: _Slot) -> Tensor:
    """W (out, in) in float32. A weight in a packed format that is not ours to know is read by applying it to I."""
    module, (out, inp) = slot.module, slot.site.shape
    weight = module.weight
    if hasattr(weight, "qdata"):  # torchao
        weight = weight.dequantize()  # type: ignore[operator]
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.numel() == out * inp:
        plain = weight.detach().float()
        return plain.T if slot.site.kind == "conv1d" else plain.reshape(out, inp)
    eye = torch.eye(inp, device=next(module.parameters()).device)
    columns: Tensor = module.forward(eye)
    bias = module.bias
    return (columns - bias if isinstance(bias, Tensor) else columns).T.float()
