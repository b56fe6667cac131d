"""Aggregation that a few dishonest clients cannot steer, around any algorithm whose server sees single uploads.

Rules work on the clients' changes ``d_k = x_k - x`` in float64, x being the broadcast tensors (on ``x_k`` itself if the
method's uploads are in other coordinates). All tensors of a client form one vector. Every client counts the same,
because a claimed weight is one more thing to lie about. Distances are between the changes. If clients upload both
factors of a product, distances are between the products B A, computed by Gram matrices: ``(B G)(G^-1 A)`` is the same
model, however far its factors are from B and A. With n uploads, f of them dishonest:

- ``clip``: changes longer than the median length are scaled down to it; then the mean.
- ``median``: coordinate by coordinate.
- ``trimmed-mean``: coordinate by coordinate, without the f largest and the f smallest.
- ``krum``: the change with the least sum of squared distances to its n - f nearest (itself among them).
- ``multi-krum``: the mean of the n - f such changes.
- ``geometric-median``: three steps of the smoothed Weiszfeld algorithm from zero, distances below 0.1 taken as 0.1.
- ``nnm-trimmed-mean``: each change becomes the mean of its n - f nearest (itself among them); then the trimmed mean.

``clip``, ``krum`` and ``multi-krum`` choose or scale uploads, so they go with every such algorithm. The others make a
mean, so they go with linear ones only. Sources: Blanchard et al. 2017 (Krum), Yin et al. 2018 (median, trimmed mean),
Pillutla et al. 2022 (geometric median), Allouah et al. 2023 (nearest-neighbour mixing; also the numbers of neighbours).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from rondo.algorithm import Mean, Round, Upload
from rondo.algorithms.table import RULES, Rule
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules
from rondo.traits import Traits

MEANS = ("median", "trimmed-mean", "geometric-median", "nnm-trimmed-mean")
"""Rules that make a new mean instead of choosing or scaling uploads; only a linear algorithm takes one."""

_SMOOTHING, _STEPS = 0.1, 3


@final
@dataclass(frozen=True)
class Robust(Wrapper[Any]):
    """``algorithm`` with ``rule`` against ``byzantine`` dishonest clients per round, fewer than half of the uploads.

    The wrapper is neither linear nor exact. Raises ValueError for an unknown rule, a rule that does not go with
    ``algorithm``, or a negative ``byzantine``.
    """

    rule: Rule
    byzantine: int

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}; got {self.rule!r}")
        if self.byzantine < 0:
            raise ValueError(f"byzantine is a number of clients; got {self.byzantine}")
        if self.rule in MEANS and not self.algorithm.linear:
            others = ", ".join(rule for rule in RULES if rule not in MEANS)
            raise ValueError(f"{self.rule} makes a mean, and this method works on single uploads; take {others}")

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return replace(self.algorithm.traits, exact=False)

    def aggregate(self, state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The next state, or the same one if dishonest clients may be half of the uploads or more."""
        expanded = [self.algorithm.expand(state, u) for u in uploads]
        if len(expanded) <= 2 * self.byzantine:
            return state
        changes = _changes(expanded, state.params if self.algorithm.traits.same_coordinates else {})
        if not self.algorithm.linear:
            return self.algorithm.aggregate(state, self._chosen(expanded, changes), round)
        names = list(expanded[0].params)
        flat = _flat(changes, names)
        result = combined(self.rule, flat, _distances(changes, expanded, flat), self.byzantine)
        start = state.params if self.algorithm.traits.same_coordinates else {}
        mean, offset = {}, 0
        for name in names:
            like = expanded[0].params[name]
            part = result[offset : offset + like.numel()].reshape(like.shape)
            mean[name] = start[name].double() + part if name in start else part
            offset += like.numel()
        return self.algorithm.finish(state, Mean(mean, float(len(expanded)), len(expanded)), round)

    def _chosen(self, uploads: Sequence[Upload], changes: Sequence[Params]) -> list[Upload]:
        """The uploads that the rule chooses or scales, all with weight 1."""
        flat = _flat(changes, list(changes[0]))
        if self.rule == "clip":
            factors = clip_factors(flat).tolist()
            return [_scaled(u, c, f) for u, c, f in zip(uploads, changes, factors, strict=True)]
        count = 1 if self.rule == "krum" else len(uploads) - self.byzantine
        order = krum_scores(_distances(changes, uploads, flat), self.byzantine).argsort(stable=True)[:count]
        return [replace(uploads[i], weight=1.0) for i in sorted(order.tolist())]


def _changes(uploads: Sequence[Upload], start: Params) -> list[dict[str, Tensor]]:
    """Each upload's change, in float64."""
    return [
        {n: t.double() - start[n].double() if n in start else t.double() for n, t in u.params.items()} for u in uploads
    ]


def _flat(changes: Sequence[Params], names: Sequence[str]) -> Tensor:
    """The tensors ``names`` of each change end to end, (n, d), in one order for all."""
    return torch.stack([torch.cat([change[name].flatten() for name in names]) for change in changes])


def _scaled(upload: Upload, change: Params, factor: float) -> Upload:
    """``upload`` with its change times ``factor``, and weight 1."""
    params = {n: t - ((1 - factor) * change[n]).to(t.dtype) for n, t in upload.params.items()}
    return replace(upload, params=params if factor < 1 else upload.params, weight=1.0)


def _distances(changes: Sequence[Params], uploads: Sequence[Upload], flat: Tensor) -> Tensor:
    """Squared distances (n, n): between products where clients upload all factors of a module, plus between the changes
    of all other tensors."""
    params = [u.params for u in uploads]
    paths = [p for p in adapted_modules(params[0]) if f"{p}.A" in params[0] and f"{p}.B" in params[0]]
    if not paths:
        return squared_distances(flat)
    total = flat.new_zeros(len(params), len(params))
    for path in paths:
        products = [LowRank(tensors[f"{path}.B"].double(), tensors[f"{path}.A"].double()) for tensors in params]
        inner = _inner(products)
        total += inner.diagonal()[:, None] + inner.diagonal() - 2 * inner
    factors = {f"{p}.{part}" for p in paths for part in "AB"}
    rest = [name for name in changes[0] if name not in factors]
    return total.clamp_min(0) + (squared_distances(_flat(changes, rest)) if rest else 0)


def _inner(products: Sequence[LowRank]) -> Tensor:
    """<P_i, P_j> (n, n) = tr((B_i^T B_j)(A_j A_i^T)), without forming a product."""
    lefts, rights = torch.cat([p.up for p in products], 1), torch.cat([p.down for p in products])
    blocks = (lefts.mT @ lefts) * (rights @ rights.mT)
    sizes = [p.down.shape[0] for p in products]
    rows = torch.stack([block.sum(0) for block in torch.split(blocks, sizes)])
    return torch.stack([block.sum(1) for block in torch.split(rows, sizes, 1)], 1)


def squared_distances(x: Tensor) -> Tensor:
    """|x_i - x_j|^2 of the rows of x (n, d): shape (n, n)."""
    return torch.stack([(x - row).square().sum(1) for row in x])


def krum_scores(squared: Tensor, f: int) -> Tensor:
    """Each row's sum of squared distances (n, n) to its n - f nearest, itself among them: shape (n,)."""
    return squared.sort(1).values[:, : len(squared) - f].sum(1)


def clip_factors(x: Tensor) -> Tensor:
    """Factors that bring the rows of x (n, d) down to their median norm: shape (n,), at most 1."""
    norms = x.norm(dim=1)
    factors: Tensor = _median(norms[:, None]) / norms.clamp_min(torch.finfo(x.dtype).tiny)
    return factors.clamp_max(1.0)


def combined(rule: Rule, x: Tensor, squared: Tensor, f: int) -> Tensor:
    """The result of ``rule`` on the rows of x (n, d), float64: shape (d,).

    ``squared``: the rows' squared distances, (n, n).
    ``f``: the number of dishonest rows.
    """
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
    """The median of each column; for an even number of rows, the mean of the two in the middle."""
    ordered, middle = x.sort(0).values, len(x) // 2
    return ordered[middle] if len(x) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _trimmed_mean(x: Tensor, f: int) -> Tensor:
    kept: Tensor = x.sort(0).values[f : len(x) - f]
    return kept.mean(0)


def _geometric_median(x: Tensor) -> Tensor:
    point = torch.zeros_like(x[0])
    for _ in range(_STEPS):
        weights = 1 / (x - point).norm(dim=1).clamp_min(_SMOOTHING)
        point = (weights[:, None] * x).sum(0) / weights.sum()
    return point
