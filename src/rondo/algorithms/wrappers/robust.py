"""Aggregation that a few dishonest clients cannot steer, around any algorithm whose server sees single uploads.

Rules work on the clients' changes ``d_k = x_k - x`` in float64, x being what was sent (on ``x_k`` itself where a method
puts uploads in other coordinates), all tensors of a client as one vector; every client counts the same, since a weight
that a client claims is one more thing to lie about. Distances are between the changes; where a client uploads both
factors of a product, between the products B A, by Gram matrices: ``(B G)(G^-1 A)`` is the same model, however far its
factors are from B and A. With n uploads, f of them dishonest:

- ``clip``: changes longer than the median one are scaled down to it; then the mean.
- ``median``: coordinate by coordinate.
- ``trimmed-mean``: coordinate by coordinate without the f largest and the f smallest.
- ``krum``: the change with the least sum of squared distances to its n - f nearest (itself among them).
- ``multi-krum``: the mean of the n - f such changes.
- ``geometric-median``: of the smoothed Weiszfeld algorithm, three steps from zero, distances below 0.1 taken as 0.1.
- ``nnm-trimmed-mean``: each change becomes the mean of its n - f nearest (itself among them); then the trimmed mean.

The first and the krums choose or scale uploads, and go with every such algorithm; the others make a mean, and go with
linear ones. Sources: Blanchard et al. 2017 (Krum), Yin et al. 2018 (median, trimmed mean), Pillutla et al. 2022
(geometric median), Allouah et al. 2023 (nearest-neighbour mixing); numbers of neighbours as in the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from rondo.algorithm import Mean, Round, Upload
from rondo.algorithms.table import RULES, Rule
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules

MEANS = ("median", "trimmed-mean", "geometric-median", "nnm-trimmed-mean")
"""Rules that make a mean of coordinates, which only a linear algorithm takes."""

_SMOOTHING, _STEPS = 0.1, 3


@final
@dataclass(frozen=True)
class Robust(Wrapper[Any]):
    """``algorithm`` with ``rule`` against ``byzantine`` dishonest clients a round, which must be fewer than half.

    It is neither linear nor exact. Raises ValueError for a rule that ``algorithm`` does not go with.
    """

    rule: Rule
    byzantine: int
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}; got {self.rule!r}")
        if self.byzantine < 0:
            raise ValueError(f"byzantine is a number of clients; got {self.byzantine}")
        if self.rule in MEANS and not self.algorithm.linear:
            others = ", ".join(rule for rule in RULES if rule not in MEANS)
            raise ValueError(f"{self.rule} makes a mean, and this method works on single uploads; take {others}")

    def aggregate(self, state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The next state; the same one where dishonest clients may be half of the uploads or more."""
        each = [self.algorithm.expand(state, u) for u in uploads]
        if len(each) <= 2 * self.byzantine:
            return state
        changes = _changes(each, state.params if self.algorithm.same_coordinates else {})
        if not self.algorithm.linear:
            return self.algorithm.aggregate(state, self._chosen(each, changes), round)
        names = list(each[0].params)
        flat = torch.stack([torch.cat([c[n].flatten() for n in names]) for c in changes])
        result = combined(self.rule, flat, _distances(changes, each, flat), self.byzantine)
        start = state.params if self.algorithm.same_coordinates else {}
        mean, place = {}, 0
        for name in names:
            like = each[0].params[name]
            part = result[place : place + like.numel()].reshape(like.shape)
            mean[name] = start[name].double() + part if name in start else part
            place += like.numel()
        return self.algorithm.finish(state, Mean(mean, float(len(each)), len(each)), round)

    def _chosen(self, each: Sequence[Upload], changes: Sequence[Params]) -> list[Upload]:
        """The uploads, all of one weight, that a rule leaves, or as it leaves them."""
        flat = torch.stack([torch.cat([t.flatten() for t in c.values()]) for c in changes])
        if self.rule == "clip":
            factors = clip_factors(flat).tolist()
            return [_scaled(u, c, f) for u, c, f in zip(each, changes, factors, strict=True)]
        count = 1 if self.rule == "krum" else len(each) - self.byzantine
        order = krum_scores(_distances(changes, each, flat), self.byzantine).argsort(stable=True)[:count]
        return [replace(each[i], weight=1.0) for i in sorted(order.tolist())]


def _changes(each: Sequence[Upload], start: Params) -> list[dict[str, Tensor]]:
    """What every upload changes, in float64."""
    return [
        {n: t.double() - start[n].double() if n in start else t.double() for n, t in u.params.items()} for u in each
    ]


def _scaled(upload: Upload, change: Params, factor: float) -> Upload:
    """``upload`` with its change times ``factor``, and weight 1."""
    params = {n: t - ((1 - factor) * change[n]).to(t.dtype) for n, t in upload.params.items()}
    return replace(upload, params=params if factor < 1 else upload.params, weight=1.0)


def _distances(changes: Sequence[Params], each: Sequence[Upload], flat: Tensor) -> Tensor:
    """Squared distances (n, n): of products, where all of a module's factors are uploaded, else of the changes."""
    own = [u.params for u in each]
    paths = [p for p in adapted_modules(own[0]) if f"{p}.A" in own[0] and f"{p}.B" in own[0]]
    if not paths:
        return squared_distances(flat)
    total = flat.new_zeros(len(own), len(own))
    for path in paths:
        products = [LowRank(o[f"{path}.B"].double(), o[f"{path}.A"].double()) for o in own]
        inner = _inner(products)
        total += inner.diagonal()[:, None] + inner.diagonal() - 2 * inner
    inside = {f"{p}.{part}" for p in paths for part in "AB"}
    rest = [torch.cat([t.flatten() for n, t in c.items() if n not in inside] or [flat.new_zeros(1)]) for c in changes]
    return total.clamp_min(0) + squared_distances(torch.stack(rest))


def _inner(products: Sequence[LowRank]) -> Tensor:
    """<P_i, P_j> (n, n) = tr((B_i^T B_j)(A_j A_i^T)), no product being formed."""
    lefts, rights = torch.cat([p.up for p in products], 1), torch.cat([p.down for p in products])
    blocks = (lefts.mT @ lefts) * (rights @ rights.mT)
    sizes = [p.down.shape[0] for p in products]
    rows = torch.stack([block.sum(0) for block in torch.split(blocks, sizes)])
    return torch.stack([block.sum(1) for block in torch.split(rows, sizes, 1)], 1)


def squared_distances(x: Tensor) -> Tensor:
    """|x_i - x_j|^2 of the rows of x (n, d): shape (n, n)."""
    return torch.stack([(x - row).square().sum(1) for row in x])


def krum_scores(squared: Tensor, f: int) -> Tensor:
    """Of each its sum of squared distances (n, n) to its n - f nearest, itself among them: shape (n,)."""
    return squared.sort(1).values[:, : len(squared) - f].sum(1)


def clip_factors(x: Tensor) -> Tensor:
    """What brings the rows of x (n, d) down to their median norm: shape (n,), at most 1."""
    norms = x.norm(dim=1)
    factors: Tensor = _median(norms[:, None]) / norms.clamp_min(torch.finfo(x.dtype).tiny)
    return factors.clamp_max(1.0)


def combined(rule: Rule, x: Tensor, squared: Tensor, f: int) -> Tensor:
    """What ``rule`` makes of the rows of x (n, d), float64, ``squared`` (n, n) being their squared distances and f the
    number of dishonest ones: shape (d,)."""
    count = len(x) - f
    match rule:
        case "clip":
            return (clip_factors(x)[:, None] * x).mean(0)
        case "median":
            return _median(x)
        case "trimmed-mean":
            return _trimmed_mean(x, f)
        case "krum":
            return x[int(krum_scores(squared, f).argmin())]
        case "multi-krum":
            return x[krum_scores(squared, f).argsort(stable=True)[:count].sort().values].mean(0)
        case "geometric-median":
            return _geometric_median(x)
        case "nnm-trimmed-mean":
            nearest = squared.argsort(dim=1, stable=True)[:, :count].sort(1).values
            return _trimmed_mean(torch.stack([x[i].mean(0) for i in nearest]), f)


def _median(x: Tensor) -> Tensor:
    """Of each column; of an even number the mean of the two in the middle."""
    ordered, middle = x.sort(0).values, len(x) // 2
    return ordered[middle] if len(x) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _trimmed_mean(x: Tensor, f: int) -> Tensor:
    left: Tensor = x.sort(0).values[f : len(x) - f]
    return left.mean(0)


def _geometric_median(x: Tensor) -> Tensor:
    point = torch.zeros_like(x[0])
    for _ in range(_STEPS):
        weights = 1 / (x - point).norm(dim=1).clamp_min(_SMOOTHING)
        point = (weights[:, None] * x).sum(0) / weights.sum()
    return point
