"""A frozen module with low-rank adapters and a trained head, whose tensors enter it through its call only.

An :class:`AdaptedNetwork` is an unchanged frozen module with a forward hook on every adapted layer. Any layer that is
linear in its input can be adapted (``nn.Linear``, GPT-2's ``Conv1D``, ``nn.Conv2d``, a quantised linear). A call's
tensors stay in place until the same thread's next call, through ``backward`` too, so that activation checkpointing
recomputes with the tensors of its own forward pass. Threads do not see each other's calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.models.kernels import attention
from rondo.models.networks.adapted_layer import AdaptedLayer, Site
from rondo.models.networks.call import Call, Recomputed, output_of
from rondo.models.networks.network import Base, Network, Streams, freeze
from rondo.models.networks.rows import Packing, Rows
from rondo.params import HEAD_PREFIX, Params, add_client_axis, on_device
from rondo.tasks.task import Batch


class _HeadLinear:
    """A linear layer of the head. The call's tensors replace its own, each client's for that client's rows."""

    def __init__(self, path: str, module: nn.Linear, call: Call, initial: Params) -> None:
        self.path, self.call, self.initial = path, call, initial
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
        rows, shape = self.call.rows, (*x.shape[:-1], weight.shape[1])
        x = self.call.by_row(x, self.path)
        if rows.even:
            flat = x.reshape(weight.shape[0], -1, x.shape[-1])
            out = flat @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, weight.mT)
            return out.reshape(shape)
        rows_by_client = torch.split(x, list(rows.counts))
        return torch.cat(
            [functional.linear(r, weight[k], None if bias is None else bias[k]) for k, r in enumerate(rows_by_client)]
        ).reshape(shape)


class AdaptedNetwork(Network):
    """A frozen module with adapted layers and a trainable head. It runs in eval mode (no dropout in the base).

    ``head`` gives torch's own names of the head's tensors (``classifier.weight``). They stop being parameters of the
    module and become plain attributes; the head's linear layers read their tensors from the call. ``factors`` holds A
    and B of every site at their start values.
    """

    def __init__(
        self, module: nn.Module, sites: Sequence[Site], head: Sequence[str], factors: Params | None = None
    ) -> None:
        self.module = module
        freeze(module)
        self.sites = {s.path: s for s in sites}
        convolved = any(s.kind == "conv2d" for s in sites)
        self.no_pairs = "it adapts a convolution, which has no tokens to weigh them for" if convolved else None
        self._call = Call()
        self._layers = {s.path: AdaptedLayer(s, module.get_submodule(s.path), self._call) for s in sites}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self.initial_head: dict[str, Tensor] = {}
        head_paths = dict.fromkeys(name.rpartition(".")[0] for name in head)
        for name in head:
            owner, attribute = module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
            tensor = owner.get_parameter(attribute)
            delattr(owner, attribute)
            self.initial_head[HEAD_PREFIX + name] = tensor.detach().clone()
            setattr(owner, attribute, tensor.detach())
            if type(owner) is not nn.Linear:
                self._owners[HEAD_PREFIX + name] = (owner, attribute)
        for path in head_paths:
            owner = module.get_submodule(path)
            if type(owner) is nn.Linear:
                _HeadLinear(path, owner, self._call, self.initial_head)
        self._factors = dict(factors or {})
        self.packs = False
        """Whether rows of different lengths are laid end to end (:mod:`rondo.models.networks.rows`)."""
        if self._owners:
            # A call sets their tensors as attributes of their modules, which all threads see.
            kinds = sorted({type(owner).__name__ for owner, _ in self._owners.values()})
            self.one_at_a_time = f"the head has trained tensors in {', '.join(kinds)}"
            self.one_thread = True

    @property
    def initial(self) -> Params:  # type: ignore[override]
        return {**self._factors, **{n: t.cpu() for n, t in self.initial_head.items()}}

    def freeze_head(self) -> None:
        """Its start stands in for it."""

    def recompute_layers(self) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        layers: list[nn.Module] = [m for m in self.module.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            super().recompute_layers()
        self.recomputed = [Recomputed(layer, self._call) for layer in layers]
        for layer, recomputed in zip(layers, self.recomputed, strict=True):
            layer.forward = recomputed

    def __call__(
        self, params: Params, base: Base, batch: Batch, dropout: Streams = None, rows: Rows | None = None
    ) -> Tensor:
        for path in self._layers:
            clients = params[f"{path}.A"].shape[0]
            if params[f"{path}.B"].shape[0] != clients:
                raise ValueError(f"{path}: A has {clients} clients, B has {params[f'{path}.B'].shape[0]}")
        first = next(t for t in batch.values() if isinstance(t, Tensor))
        if rows is None:
            rows = Rows((first.shape[0] // clients,) * clients)
        self._place(params)
        batch = self.laid_out(self._typed(batch), lambda trial: self._run(params, base, trial, None, rows))
        return self._run(params, base, batch, dropout, rows)

    def _run(
        self, params: Params, base: Base, batch: Batch, dropout: Sequence[torch.Generator] | None, rows: Rows
    ) -> Tensor:
        tokens = frozenset(t.shape[1] if t.dim() > 1 else 1 for t in batch.values())
        packing = Packing.of(rows, self.device) if self.packs and rows.padded and rows.lengths is not None else None
        self._call.begin(params, base, rows, tokens, dropout, packing)
        output = None
        try:
            with attention.rows_are(attention.RowsOfCall(rows.padded, None if packing is None else packing.lengths)):
                if packing is None:
                    output = output_of(self.module, batch)
                else:
                    output = packing.padded(output_of(self.module, packing.inputs(batch)))
        finally:
            self._call.end(output)
        return output

    def _typed(self, batch: Batch) -> Batch:
        """``batch`` with its real numbers (pixels) in the type of the frozen layers: not every model casts them."""
        if not any(t.is_floating_point() for t in batch.values()):
            return batch
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}

    @contextmanager
    def lent(self, seen: Params, base: Base) -> Iterator[nn.Module]:
        params = add_client_axis(on_device(seen, self.device))
        self._place(params)
        self._call.begin(params, self.on_device(base), Rows((1,)), frozenset((1,)), None)
        try:
            yield self.module
        finally:
            self._call.end(None)

    def _place(self, params: Params) -> None:
        """Set the head's tensors that are attributes of their modules."""
        for name, (owner, attribute) in self._owners.items():
            tensor = params[name] if name in params else self.initial_head[name].unsqueeze(0)
            if tensor.shape[0] != 1:
                raise ValueError(f"{name} has {tensor.shape[0]} clients, but {self.one_at_a_time}")
            setattr(owner, attribute, tensor[0].to(self.device))

    def laid(self, x: Tensor) -> Tensor:
        """``x`` (rows, tokens, ...) in the layout of this thread's call."""
        packing = self._call.packing
        return x if packing is None else packing.laid(x)
