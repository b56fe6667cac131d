"""Floating-point operations of a client's training, counted from shapes (FLoRG, Table 8: FLOPs per round).

Only products count: of matrices, convolutions and attention, two operations per multiplication and addition, as in
``torch.utils.flop_counter``. A product X W of n operations costs

    n            in the forward pass
    n            in the backward pass where X depends on a trained tensor (the gradient goes on through X)
    n            in the backward pass where W does (a trained weight, or LoRA's A and B)

so a frozen layer above a trained one costs 2 n, one below all trained tensors n, and a trained layer 3 n.

The count is that of plain training: every step passes all of the client's rows through the whole network, each without
padding, and the base has its changes inside its weights. It is therefore the same for every cohort, precision and
machine, and does not fall with the shortcuts that Rondo takes (:mod:`rondo.models.shortcuts`). A method's own products
outside of the network, of the size of its factors, do not count, nor does a fused attention that computes its
probabilities a second time in the backward pass.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from rondo.models.kernels.private_torch import ONEDNN_LINEAR, TorchDispatchMode, operation
from rondo.models.networks.network import Network
from rondo.models.networks.rows import Rows
from rondo.params import Params, add_client_axis, on_device
from rondo.tasks.task import Example, Task

_LONGEST = 24
"""Tokens of the longest row that is tried: few, so that a count takes less than a training step."""
_TRIED = {0: 1, 1: 3, 2: 8}
"""Rows to try, by the number of sequences in a row: a quadratic function of their lengths has as many unknowns, or
less."""

Products = Mapping[tuple[int, int], int]
"""Operations of a forward pass by the trained tensors that the two factors of a product depend on, as bits."""


@dataclass(frozen=True)
class Flops:
    """Operations of passes through one network. A row's are a quadratic function of the tokens in its sequences, which
    holds for attention over all tokens of a row, found from a few short rows."""

    names: tuple[str, ...]
    """The tensors that clients may train; a set of them is an integer with bit ``i`` for ``names[i]``."""
    lengths: tuple[tuple[int, ...], ...]
    """The tokens of each row that was tried, by sequence."""
    single: tuple[Products, ...]
    """The products of a pass of each of these rows alone."""
    twice: Products
    """The products of one pass of the first row and a copy of it."""
    _known: dict[int, _Quadratic] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, network: Network, initial: Params, task: Task, examples: Sequence[Example]) -> Flops | None:
        """Count on rows that are the beginnings of ``examples``. None without rows, and for recurrent layers, whose
        products torch does not show. ``network`` takes no shortcut yet. ``initial``: the tensors that clients train."""
        if not examples or any(isinstance(layer, nn.RNNBase) for layer in network.module.modules()):
            return None
        rows = list(_short_rows(task, [part for e in examples for part in task.sequences(e)]))
        lengths = tuple(task.lengths(row) for row in rows)
        single = tuple(_products(network, initial, task, [row]) for row in rows)
        return cls(tuple(initial), lengths, single, _products(network, initial, task, [rows[0], rows[0]]))

    def of_pass(self, trained: Collection[str], rows: Sequence[tuple[int, ...]]) -> int:
        """Operations of the loss on rows with these numbers of tokens and of its gradient in the ``trained`` tensors.
        Without any, of the forward pass alone."""
        if not rows:
            return 0
        bits = sum(1 << i for i, name in enumerate(self.names) if name in trained)
        cost = self._known.get(bits)
        if cost is None:
            cost = self._known[bits] = _Quadratic(
                self.lengths, [_total(p, bits) for p in self.single], _total(self.twice, bits)
            )
        return cost.constant + sum(map(cost.of_row, rows))


class _Quadratic:
    """A pass's operations: a ``constant``, and of every row a quadratic function of its sequences' tokens."""

    def __init__(self, lengths: Sequence[tuple[int, ...]], single: Sequence[int], twice: int) -> None:
        self.constant = 2 * single[0] - twice
        features = torch.tensor([_features(row) for row in lengths], dtype=torch.float64)
        values = torch.tensor([n - self.constant for n in single], dtype=torch.float64)
        solved = torch.linalg.lstsq(features, values[:, None], driver="gelsd").solution
        self._weights: list[float] = solved[:, 0].tolist()
        self._rows: dict[tuple[int, ...], int] = {}

    def of_row(self, tokens: tuple[int, ...]) -> int:
        count = self._rows.get(tokens)
        if count is None:
            value = math.fsum(w * x for w, x in zip(self._weights, _features(tokens), strict=True))
            count = self._rows[tokens] = round(value)
        return count


def _features(tokens: Sequence[int]) -> list[float]:
    scaled = [n / _LONGEST for n in tokens]
    return [1.0, *scaled, *(a * b for a, b in itertools.combinations_with_replacement(scaled, 2))]


def _total(products: Products, trained: int) -> int:
    return sum(n * (1 + bool(x & trained) + bool(w & trained)) for (x, w), n in products.items())


def _short_rows(task: Task, examples: Sequence[Example]) -> Iterator[Example]:
    """Beginnings of ``examples`` with different numbers of tokens, as many as a quadratic function needs if there
    are."""
    by_cost = sorted(examples, key=lambda e: e.cost, reverse=True)
    known: set[tuple[int, ...]] = set()
    for example in by_cost:
        longest = min(example.cost, _LONGEST)
        for part in (3, 2, 1):
            row = task.opening(example, max(1, longest * part // 3))
            tokens = task.lengths(row)
            if tokens not in known:
                known.add(tokens)
                yield row
            if len(known) == _TRIED[min(len(tokens), 2)]:
                return


@torch.no_grad()
def _products(network: Network, initial: Params, task: Task, rows: Sequence[Example]) -> Products:
    """The products of a forward pass of ``rows`` and its loss."""
    device = network.device
    inputs, targets = (on_device(part, device) for part in task.collate(rows))
    params = {n: t.to(device, copy=True) for n, t in add_client_axis(initial).items()}
    with _Recorder({params[name]: 1 << i for i, name in enumerate(initial)}) as recorder:
        output = network(params, {}, inputs, None, Rows.of([rows], task).to(device))
        task.loss(output, targets)
    return dict(recorder.products)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every product of a computation, with the tensors of ``origins`` that its factors were computed from."""

    def __init__(self, origins: Mapping[Tensor, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: Counter[tuple[int, int]] = Counter()
        self._origins = WeakTensorKeyDictionary(origins)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = operation(func)
        outputs = [t for t in _flat(result) if t.is_floating_point()]
        if packet in _PRODUCTS:
            self._multiplied(*_PRODUCTS[packet](args, outputs[0]))
        elif "scaled_dot_product" in packet.__name__:
            query, key, value = args[:3]
            scores = math.prod(query.shape[:-1]) * key.shape[-2]
            self._multiplied(query, key, 2 * scores * query.shape[-1])
            self.products[self._of(query) | self._of(key), self._of(value)] += 2 * scores * value.shape[-1]
        if outputs and packet is not torch.ops.aten.detach:
            origin = 0
            for tensor in (*_flat(args), *_flat(kwargs)):
                origin |= self._of(tensor)
            if origin:
                for tensor in outputs:
                    self._origins[tensor] = origin
        return result

    def _of(self, tensor: Tensor) -> int:
        return int(self._origins.get(tensor, 0))  # type: ignore[no-untyped-call]

    def _multiplied(self, x: Tensor, weight: Tensor, count: int) -> None:
        self.products[self._of(x), self._of(weight)] += count


def _flat(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _flat(part)
    elif isinstance(tree, Mapping):
        yield from _flat(list(tree.values()))


def _matrices(args: Sequence[Any], output: Tensor) -> tuple[Tensor, Tensor, int]:
    x, weight = args[0], args[1]
    return x, weight, 2 * output.numel() * x.shape[-1]


def _with_sum(args: Sequence[Any], output: Tensor) -> tuple[Tensor, Tensor, int]:
    return _matrices(args[1:], output)


def _convolution(args: Sequence[Any], output: Tensor) -> tuple[Tensor, Tensor, int]:
    """A kernel meets every output number, in a transposed convolution every input number."""
    x, weight, transposed = args[0], args[1], args[6]
    return x, weight, 2 * (x if transposed else output).numel() * weight[0].numel()


_aten = torch.ops.aten
_PRODUCTS: dict[Any, Callable[[Sequence[Any], Tensor], tuple[Tensor, Tensor, int]]] = {
    _aten.mm: _matrices,
    _aten.bmm: _matrices,
    _aten.addmm: _with_sum,
    _aten.baddbmm: _with_sum,
    _aten.convolution: _convolution,
}
"""The two factors of a product, and its operations, by torch's name for it."""
if ONEDNN_LINEAR is not None:
    _PRODUCTS[ONEDNN_LINEAR] = _matrices
