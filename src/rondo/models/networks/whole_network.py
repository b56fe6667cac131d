"""A module whose tensors are trained as they are, with low-rank factors beside them on some layers.

Clients enter a call one after the other. On a CPU a whole network trains faster with one client per thread than with
several clients in one call (docs/dev/adr/0013-whole-tensors-beside-factors.md). Each thread has a copy of the module,
whose tensors a call replaces. ``torch.func.functional_call`` does the same for any module, but looks for tied tensors
and for every tensor's place in each call, which takes longer than a small network's layers."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.kernels.private_torch import Dropout, Normalisation, holders
from rondo.models.networks.adapted_layer import Site, merged_weight
from rondo.models.networks.call import output_of
from rondo.models.networks.checks import check_training_mode
from rondo.models.networks.network import Base, Network, Streams, freeze
from rondo.models.networks.rows import Rows
from rondo.params import BUFFER_PREFIX, HEAD_PREFIX, Params, client_row, on_device
from rondo.tasks.task import Batch


class ThreadCopy:
    """A copy of ``module`` that shares all tensors with it, and drops by generators of its own."""

    def __init__(self, module: nn.Module) -> None:
        shared: dict[int, Any] = {id(t): t for t in (*module.parameters(), *module.buffers())}
        self.module = copy.deepcopy(module, shared)
        replaced: dict[nn.Module, _Drop] = {}
        for path, layer in list(self.module.named_modules(remove_duplicate=False)):
            if isinstance(layer, Dropout):
                self.module.set_submodule(path, replaced.setdefault(layer, _Drop(layer)))
        self._drops = list(replaced.values())
        self._norms = {p: m for p, m in self.module.named_modules() if isinstance(m, Normalisation)}
        self._places = _places(self.module)

    def prepare(self, moving: Collection[str], generator: torch.Generator | None) -> None:
        """Put the layers that differ in training into that mode, or back.

        ``moving``: paths of the batch normalisations that normalise by the batch.
        ``generator``: None outside training.
        """
        for path, layer in self._norms.items():
            layer.training = generator is not None and path in moving
        for drop in self._drops:
            drop.generator = generator

    @contextlib.contextmanager
    def holding(self, tensors: Params) -> Iterator[nn.Module]:
        """The module with ``tensors`` in place of its own of these names, under all names that they have."""
        places = [(holder, key, t) for name, t in tensors.items() for holder, key in self._places[name]]
        before = [holder[key] for holder, key, _ in places]
        for holder, key, tensor in places:
            holder[key] = tensor
        try:
            yield self.module
        finally:
            for (holder, key, _), tensor in zip(places, before, strict=True):
                holder[key] = tensor


def _places(module: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """By the name of every tensor, all places that hold it: tied tensors have several."""
    held: dict[int, list[tuple[dict[str, Any], str]]] = {}
    names: dict[str, int] = {}
    for path, layer in module.named_modules():
        for holder in holders(layer):
            for key, tensor in holder.items():
                if tensor is not None:
                    held.setdefault(id(tensor), []).append((holder, key))
                    names[f"{path}.{key}" if path else key] = id(tensor)
    return {name: held[number] for name, number in names.items()}


class _Drop(nn.Module):
    """Dropout that draws from a generator of its own, and does nothing without one."""

    def __init__(self, like: Dropout) -> None:
        super().__init__()
        self.keep = 1 - like.p
        self.channels = not isinstance(like, nn.Dropout)
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None or self.keep == 1:
            return x
        # nn.Dropout2d and its kin drop whole channels, the second axis.
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        mask = torch.empty(shape).bernoulli_(self.keep, generator=self.generator)
        return x * (mask / self.keep if self.keep else mask).to(x)


ONE_PER_THREAD = "a network that is trained whole is faster with one client per thread"
_STATISTICS = ("running_mean", "running_var")
HEAD_INPUT = "head_input"
"""Name of the one tensor, (rows, width), of a batch that begins at the head."""


class WholeNetwork(Network):
    """A module that takes the tensors ``trained`` from clients, as ``head:<name>`` in the ``head`` and by their own
    name elsewhere, and A and B of every site in ``sites``.

    The module is in eval mode, with two exceptions in training. A batch normalisation of which a tensor is trained
    normalises by the batch and updates its statistics, ``buffer:<name>``, unless ``statistics`` is False or the batch
    has a single row, which has no spread. An ``nn.Dropout`` drops, by the client's generator. Dropout inside other
    layers (attention, LSTM) stays off, because it would draw from a stream that all threads share.

    A site's factors are added to its frozen weight before the call: W + scale * B A.

    ``products``: the type that layers multiply in (:func:`rondo.models.kernels.precision.products`). Tensors, loss and
    gradients keep their own.
    """

    head_alone = True

    def __init__(
        self,
        module: nn.Module,
        trained: Sequence[str],
        head: Sequence[str] = (),
        *,
        statistics: bool = True,
        sites: Sequence[Site] = (),
        factors: Params | None = None,
        products: torch.dtype | None = None,
    ) -> None:
        self.module = module
        freeze(module)
        self.sites = {s.path: s for s in sites}
        self.one_at_a_time = ONE_PER_THREAD
        parameters = dict(module.named_parameters())
        self._names = {(HEAD_PREFIX if n in head else "") + n: n for n in trained}
        self._moving = _moving(module, trained) if statistics else ()
        for path in self._moving:
            self._names |= {f"{BUFFER_PREFIX}{path}.{s}": f"{path}.{s}" for s in _STATISTICS}
        tensors = {**parameters, **dict(module.named_buffers())}
        self._start = {n: tensors[inner].detach().cpu().clone() for n, inner in self._names.items()}
        self._factors = dict(factors or {})
        self.products = products
        self._autocast = products is torch.bfloat16
        self._copies = threading.local()
        self.moves_statistics = bool(self._moving)

    @property
    def initial(self) -> Params:  # type: ignore[override]
        return {**self._factors, **self._start}

    def check_training(self, inputs: Batch) -> None:
        check_training_mode(self.module, inputs)

    def freeze_head(self) -> None:
        """The module has it."""

    def tensors(self, seen: Params, base: Base) -> dict[str, Tensor]:
        """The module's own names and the tensors that a client's model has there. ``seen`` has no client axis."""
        result = {inner: seen[name] for name, inner in self._names.items() if name in seen}
        for path, site in self.sites.items():
            result[f"{path}.weight"] = merged_weight(self.module.get_submodule(path), site, seen, base)
        return result

    def __call__(
        self, params: Params, base: Base, batch: Batch, dropout: Streams = None, rows: Rows | None = None
    ) -> Tensor:
        """Several clients' outputs are computed one after the other. Statistics in ``params`` are updated in place in
        training."""
        clients = next(iter(params.values())).shape[0]
        counts = rows.counts if rows is not None else (next(iter(batch.values())).shape[0] // clients,) * clients
        batch = self.laid_out(batch, self._run)
        copy = self._mine()
        outputs, start = [], 0
        for k, count in enumerate(counts):
            part = batch if clients == 1 else {n: t[start : start + count] for n, t in batch.items()}
            start += count
            if count:
                copy.prepare(self._moving if count > 1 else (), None if dropout is None else dropout[k])
                # Its count of batches is no statistic: it would be added to by all clients.
                counters = {f"{p}.num_batches_tracked": torch.zeros((), dtype=torch.long) for p in self._moving}
                tensors = self.tensors(client_row(params, k), base) | counters
                autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast)
                with autocast, copy.holding(tensors) as module:
                    if HEAD_INPUT in part and self.head_layer is not None:
                        output = module.get_submodule(self.head_layer)(part[HEAD_INPUT])
                    else:
                        output = output_of(module, part)
                outputs.append(output.float() if self._autocast else output)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    @contextmanager
    def lent(self, seen: Params, base: Base) -> Iterator[nn.Module]:
        copy = self._mine()
        copy.prepare((), None)
        tensors = self.tensors(on_device(seen, self.device), self.on_device(base))
        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast),
            copy.holding(tensors) as module,
        ):
            yield module

    @torch.no_grad()
    def head_input(self, params: Params, base: Base, batch: Batch) -> Tensor:
        assert self.head_layer is not None
        seen: list[Tensor] = []
        layer = self._mine().module.get_submodule(self.head_layer)
        hook = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            self(params, base, batch)
        finally:
            hook.remove()
        return seen[0]

    def _run(self, batch: Batch) -> None:
        copy = self._mine()
        copy.prepare((), None)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
            output_of(copy.module, batch)

    def _mine(self) -> ThreadCopy:
        mine: ThreadCopy | None = getattr(self._copies, "copy", None)
        if mine is None or self._copies.device != self.device:
            mine = self._copies.copy = ThreadCopy(self.module)
            self._copies.device = self.device
        return mine


def normalises_by_batch(network: Network) -> bool:
    """Whether a row's output in training depends on the other rows of its batch, by a batch normalisation."""
    layers = network.module.modules()
    return network.moves_statistics or any(
        isinstance(layer, Normalisation) and not layer.track_running_stats for layer in layers
    )


def _moving(module: nn.Module, trained: Sequence[str]) -> tuple[str, ...]:
    """Paths of the batch normalisations whose statistics move: those with a trained tensor, or without any tensor in a
    network of which something is trained."""
    paths = []
    for path, layer in module.named_modules():
        if isinstance(layer, Normalisation) and layer.track_running_stats:
            names = {f"{path}.{n}" for n, _ in layer.named_parameters()}
            if names & set(trained) or (not names and trained):
                paths.append(path)
    return tuple(paths)
