"""Flat, immutable collections of named tensors, and the meaning of their names (:mod:`rondo.roles`).

``Params`` maps a flat name to a tensor and is never mutated. A tensor's purpose (its *role*) is a pure function of its
name. PEFT's orientation holds everywhere: A is ``(r, in)``, B is ``(out, r)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rondo.roles import AUXILIARY_PREFIX as AUXILIARY_PREFIX
from rondo.roles import BUFFER_PREFIX as BUFFER_PREFIX
from rondo.roles import HEAD_PREFIX as HEAD_PREFIX
from rondo.roles import Role as Role
from rondo.roles import Select as Select
from rondo.roles import auxiliary as auxiliary
from rondo.roles import body as body
from rondo.roles import buffer as buffer
from rondo.roles import core as core
from rondo.roles import dense as dense
from rondo.roles import down as down
from rondo.roles import everything as everything
from rondo.roles import fixed as fixed
from rondo.roles import gram as gram
from rondo.roles import head as head
from rondo.roles import magnitude as magnitude
from rondo.roles import module_of as module_of
from rondo.roles import nested as nested
from rondo.roles import nothing as nothing
from rondo.roles import packed as packed
from rondo.roles import personal as personal
from rondo.roles import role as role
from rondo.roles import router as router
from rondo.roles import sketch as sketch
from rondo.roles import sparse as sparse
from rondo.roles import up as up
from rondo.roles import whole as whole

Params: TypeAlias = Mapping[str, Tensor]


def pick(params: Params, select: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors whose name ``select`` accepts, in the order of ``params``.

    >>> import torch
    >>> from rondo.params import pick, up
    >>> list(pick({"query.A": torch.ones(2, 5), "query.B": torch.zeros(7, 2)}, up))
    ['query.B']
    """
    return {name: tensor for name, tensor in params.items() if select(name)}


def adapted_modules(params: Params) -> tuple[str, ...]:
    """Paths of the modules that have an adapter (a DOWN, GRAM, CORE or DENSE tensor) in ``params``, in order.

    >>> import torch
    >>> from rondo.params import adapted_modules
    >>> factors = {"query.A": torch.ones(2, 5), "query.B": torch.zeros(7, 2), "head:out.bias": torch.zeros(3)}
    >>> adapted_modules(factors)
    ('query',)
    """
    return tuple(module_of(n) for n in params if role(n) in (Role.DOWN, Role.GRAM, Role.CORE, Role.DENSE))


def sub(a: Params, b: Params) -> dict[str, Tensor]:
    """``a - b``, name by name. Raises KeyError if ``b`` lacks a name of ``a``.

    >>> import torch
    >>> from rondo.params import sub
    >>> sub({"query.A": torch.tensor([3.0, 2.0])}, {"query.A": torch.tensor([1.0, 1.0])})
    {'query.A': tensor([2., 1.])}
    """
    return {name: tensor - b[name] for name, tensor in a.items()}


def sq_norm(params: Params) -> Tensor:
    """Sum of squares over every axis but the first, the client axis: shape (K,).

    >>> import torch
    >>> from rondo.params import sq_norm
    >>> sq_norm({"query.A": torch.ones(3, 2, 5), "query.B": torch.zeros(3, 7, 2)})  # K = 3 clients
    tensor([10., 10., 10.])
    """
    return inner(params, params)


def inner(a: Params, b: Params) -> Tensor:
    """Sum of the products ``a * b`` over the names of ``a`` and every axis but the first, the client axis: shape
    (K,).

    >>> import torch
    >>> from rondo.params import inner
    >>> inner({"head:out.bias": torch.ones(2, 3)}, {"head:out.bias": torch.full((2, 3), 2.0)})  # K = 2 clients
    tensor([6., 6.])
    """
    terms = [(tensor * b[name]).unsqueeze(-1).flatten(1).sum(1) for name, tensor in a.items()]
    return torch.stack(terms).sum(0)


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """``values`` (K,), or () without a client axis, with as many axes as ``like`` (K, ...).

    >>> import torch
    >>> from rondo.params import per_client
    >>> per_client(torch.tensor([0.0, 1.0]), like=torch.ones(2, 7, 5)).shape
    torch.Size([2, 1, 1])
    """
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))


def add_client_axis(params: Params, size: int = 1) -> dict[str, Tensor]:
    """Every tensor with a leading client axis of length ``size``, as a view: nothing is copied.

    >>> import torch
    >>> from rondo.params import add_client_axis
    >>> add_client_axis({"query.A": torch.ones(2, 5)}, size=3)["query.A"].shape
    torch.Size([3, 2, 5])
    """
    return {name: tensor.unsqueeze(0).expand(size, *tensor.shape) for name, tensor in params.items()}


def stack_clients(clients: Iterable[Params]) -> dict[str, Tensor]:
    """The clients' ``Params``, one each, stacked along a new leading client axis. All must have the same names.

    >>> import torch
    >>> from rondo.params import stack_clients
    >>> stack_clients([{"query.A": torch.zeros(2, 5)}, {"query.A": torch.ones(2, 5)}])["query.A"].shape
    torch.Size([2, 2, 5])
    """
    rows = list(clients)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def on_device(params: Params, device: torch.device) -> dict[str, Tensor]:
    """Every tensor on ``device``.

    >>> import torch
    >>> from rondo.params import on_device
    >>> on_device({"query.A": torch.ones(2, 5)}, torch.device("meta"))["query.A"].device
    device(type='meta')
    """
    return {name: tensor.to(device) for name, tensor in params.items()}


def client_row(params: Params, index: int) -> dict[str, Tensor]:
    """One client's tensors from a cohort's, without the client axis.

    >>> import torch
    >>> from rondo.params import client_row
    >>> client_row({"query.A": torch.arange(6.0).reshape(3, 1, 2)}, 2)  # the last of K = 3 clients
    {'query.A': tensor([[4., 5.]])}
    """
    # An index's gradient is written into zeros and copied, of a cohort of one for nothing.
    return {name: tensor.squeeze(0) if len(tensor) == 1 else tensor[index] for name, tensor in params.items()}


def cut_rank(params: Params, rank: int | None) -> dict[str, Tensor]:
    """The first ``rank`` rows of every DOWN and columns of every UP (no client axis); all if ``rank`` is None.

    >>> import torch
    >>> from rondo.params import cut_rank
    >>> cut = cut_rank({"query.A": torch.ones(8, 5), "query.B": torch.ones(7, 8)}, 2)
    >>> [tuple(tensor.shape) for tensor in cut.values()]
    [(2, 5), (7, 2)]
    """
    if rank is None:
        return dict(params)
    kept = {Role.DOWN: (slice(rank), slice(None)), Role.UP: (slice(None), slice(rank))}
    return {name: tensor[kept[role(name)]] if role(name) in kept else tensor for name, tensor in params.items()}


def pad_rank(params: Params, like: Params) -> dict[str, Tensor]:
    """Every DOWN (r, in) and UP (out, r) padded with zeros to its rank in ``like``, so B A stays the same (no client
    axis). A rank that is already larger stays; refusing it is the caller's job.

    >>> import torch
    >>> from rondo.params import pad_rank
    >>> server = {"query.A": torch.ones(8, 5), "query.B": torch.ones(7, 8)}
    >>> client = {"query.A": torch.ones(2, 5), "query.B": torch.ones(7, 2)}
    >>> padded = pad_rank(client, like=server)
    >>> [tuple(tensor.shape) for tensor in padded.values()]
    [(8, 5), (7, 8)]
    >>> torch.equal(padded["query.B"] @ padded["query.A"], client["query.B"] @ client["query.A"])
    True
    """
    result = dict(params)
    for name in pick(params, down | up):
        axis = 0 if role(name) is Role.DOWN else 1
        missing = max(0, like[name].shape[axis] - params[name].shape[axis]) if name in like else 0
        result[name] = torch.nn.functional.pad(params[name], (0, 0, 0, missing) if axis == 0 else (0, missing))
    return result


def kaiming(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """U(-1/sqrt(columns), 1/sqrt(columns)) in float64: Kaiming-uniform with a = sqrt(5), PEFT's start for A.

    >>> import torch
    >>> from rondo.params import kaiming
    >>> a = kaiming(2, 100, torch.Generator().manual_seed(0))
    >>> a.shape, a.dtype, bool(a.abs().max() <= 0.1)
    (torch.Size([2, 100]), torch.float64, True)
    """
    bound = 1 / math.sqrt(columns)
    return (torch.rand(rows, columns, generator=generator, dtype=torch.float64) * 2 - 1) * bound


def normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """N(0, 1) in float64.

    >>> import torch
    >>> from rondo.params import normal
    >>> normal(2, 100, torch.Generator().manual_seed(0)).dtype
    torch.float64
    """
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


FactorStart: TypeAlias = Literal[True, "gaussian", "orthogonal"]
"""The values of PEFT's ``init_lora_weights`` that :func:`fresh_factors` knows."""


def fresh_factors(
    shape: tuple[int, int], rank: int, start: FactorStart, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A (rank, in) and B (out, rank) in float64, whose product is zero, distributed as PEFT's for this start.

    ``shape``: (out, in).
    True: A by :func:`kaiming`, B zero.
    "gaussian": A ~ N(0, 1/rank^2), B zero.
    "orthogonal": neither is zero. Every second row of a random rotation takes part in A, the others in B. Raises
    ValueError for an odd rank.

    >>> import torch
    >>> from rondo.params import fresh_factors
    >>> a, b = fresh_factors((7, 5), 2, True, torch.Generator().manual_seed(0))
    >>> a.shape, b.shape, float((b @ a).norm())
    (torch.Size([2, 5]), torch.Size([7, 2]), 0.0)
    """
    out, inp = shape
    if start == "orthogonal":
        if rank % 2:
            raise ValueError(f"orthogonal factors have an even rank, got {rank}")
        rotation = torch.linalg.qr(normal(rank, rank, generator)).Q
        a = (normal(inp, rank // 2, generator) @ rotation[0::2]).mT / 10
        return a, normal(out, rank // 2, generator) @ rotation[1::2] / 10
    a = kaiming(rank, inp, generator) if start is True else normal(rank, inp, generator) / rank
    return a, torch.zeros(out, rank, dtype=torch.float64)


Layout: TypeAlias = tuple[tuple[str, torch.Size], ...]
"""Names and shapes of tensors that lie one after another, in order."""


class Packed(Mapping[str, Tensor]):
    """Tensors of one dtype that lie one after another in one vector, so an operation on all of them is one call, not
    one per tensor.

    ``vector``: all numbers, (n,).
    ``layout``: name and shape of each tensor.

    >>> import torch
    >>> from rondo.params import Packed
    >>> packed = Packed.of({"query.A": torch.ones(2, 5), "query.B": torch.zeros(7, 2)})
    >>> packed.vector.shape, packed["query.B"].shape
    (torch.Size([24]), torch.Size([7, 2]))
    """

    def __init__(self, vector: Tensor, layout: Layout) -> None:
        self.vector, self.layout = vector, layout

    @staticmethod
    def of(params: Params) -> Packed:
        """``params`` copied into a vector of their dtype, or of float64 if they have several (no client axis)."""
        types = {t.dtype for t in params.values()}
        flat = [t.reshape(-1) if len(types) == 1 else t.reshape(-1).double() for t in params.values()]
        return Packed(torch.cat(flat) if flat else torch.empty(0), tuple((n, t.shape) for n, t in params.items()))

    @functools.cached_property
    def _views(self) -> dict[str, Tensor]:
        parts = torch.split(self.vector, [shape.numel() for _, shape in self.layout])
        # view(*s) takes half the time of view(s); a tensor without axes has no sizes to pass.
        return {n: part.view(*s) if s else part.view(s) for (n, s), part in zip(self.layout, parts, strict=True)}

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.layout)

    def __len__(self) -> int:
        return len(self.layout)


def cast_like(params: Params, like: Params) -> Params:
    """``params``, each cast to the dtype of its name in ``like``. Tensors that were parts of one vector stay so if one
    dtype serves all.

    >>> import torch
    >>> from rondo.params import cast_like
    >>> mean = {"query.A": torch.ones(2, 5, dtype=torch.float64)}
    >>> cast_like(mean, {"query.A": torch.zeros(2, 5)})["query.A"].dtype
    torch.float32
    """
    types = {like[name].dtype for name in params}
    if isinstance(params, Packed) and len(types) == 1:
        return Packed(params.vector.to(types.pop()), params.layout)
    return {name: tensor.to(like[name].dtype) for name, tensor in params.items()}


def num_bytes(params: Params) -> int:
    """Payload in bytes: number of elements times element size, summed.

    >>> import torch
    >>> from rondo.params import num_bytes
    >>> num_bytes({"query.A": torch.ones(2, 5), "query.B": torch.zeros(7, 2)})  # 24 numbers of 4 bytes
    96
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in params.values())
