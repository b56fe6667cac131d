"""What a round did to the model, measured by the server on the uploads: always on factors, in float64.

Over all adapted modules together, norms Frobenius, squared and summed over modules; every matrix is a change of the
frozen weights since the run's start, (out, in), the base's change included:

- G, N: the model that the server sent before the round, and the one that it sends after it (to a newcomer: at full
  rank; for personal methods the cold-start model);
- D_k: the model that client k sent back, that is what the network sees with the upload in place of the broadcast;
  p_k its weight, the p_k summing to 1;  M = sum_k p_k D_k;
- P = sum_k p_k * scale * B_k A_k, the mean of products alone, without the base.

Numbers of a round (:func:`measure`); each is None where it has no meaning:

- ``interference`` = |M - N| / |M - G|: what the server lost of, or put beside, the clients' mean update. Relative to
  the update and not to M, which grows with the run and would hide it. 0: exact. 1: as far off as if the server had
  stayed where it was; a server that truncates to G's rank or above is never beyond 1 (Eckart-Young), others can be
  (FedLoRU's momentum restart, a server optimizer).
- ``truncation_error`` = |P - P_r| / |P|, P_r the best approximation of the run's rank r, module by module: for methods
  that truncate the mean of products, what they drop; for the others how much of it an adapter could not hold.
- ``drift_A``, ``drift_B`` = |X' - X| / |X|, X all factors A (or B) before and X' after the round. A server that
  expresses the same product by other factors drifts too: so do the coordinates in which clients go on.
- ``alignment_mean``, ``alignment_min``: over clients, cos(D_k - G, N - G): FedLoRU's Figure 8. Clients that did not
  move have no direction and are left out.
- ``stable_rank`` = |N|^2 / |N|_2^2 of each module, the mean over modules that changed at all.

The first, second and fourth need each client's model. ``reason`` says why where the server cannot know it.

No number is a difference of squared norms. B_k A_k - B A is written as (B_k - B) A_k + B (A_k - A), which does not
cancel, so a client that did not move is exactly where it was. All factors of a module are first put in orthonormal
bases of their own columns and rows, by one QR each; what is multiplied out after that has at most (K + 1) r rows and
columns beside those of the step, and never more than the weight itself. Memory: the uploads of the round, all at once,
up to ``HELD_BYTES``; a round without diagnostics holds one at a time where the algorithm is linear.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.lowrank import LowRank, total
from rondo.models.adapted_layer import Site
from rondo.params import Params, add_client_axis, down, gram, head, pick, up

HELD_BYTES = 256 * 2**20
"""Above this the uploads of a round are not held for its diagnostics, so that no cohort is too large for the server."""

Diagnostics: TypeAlias = dict[str, float | str | None]

KEYS = (
    "interference",
    "truncation_error",
    "drift_A",
    "drift_B",
    "alignment_mean",
    "alignment_min",
    "stable_rank",
    "reason",
)

_NEWCOMER = Client("newcomer", 0)
_factors = down | up | gram


def diagnose(
    algorithm: Algorithm[Any],
    sites: Mapping[str, Site],
    before: Any,
    after: Any,
    uploads: Sequence[Upload],
    round: Round,
) -> Diagnostics:
    """:func:`measure`, but nothing that goes wrong in it stops a run: the error is warned of and is the reason. No
    uploads: there were too many to hold."""
    if not uploads:
        return {**dict.fromkeys(KEYS), "reason": f"the round's uploads have more than {HELD_BYTES >> 20} MiB"}
    try:
        return measure(algorithm, sites, before, after, uploads, round)
    except Exception as error:  # a factorisation that fails, no memory, a third party's view: the round stands
        words = f"{type(error).__name__}: {error}"
        warnings.warn(f"round {round.index} has no diagnostics: {words}", RuntimeWarning, stacklevel=2)
        return {**dict.fromkeys(KEYS), "reason": words}


@torch.no_grad()
def measure(
    algorithm: Algorithm[Any],
    sites: Mapping[str, Site],
    before: Any,
    after: Any,
    uploads: Sequence[Upload],
    round: Round,
) -> Diagnostics:
    """The numbers above, for the round that took the server's state from ``before`` to ``after`` by ``uploads``."""
    if not sites:
        return {**dict.fromkeys(KEYS), "reason": "no layer is adapted"}
    old, new = _sent(algorithm, before, round), _sent(algorithm, after, _next(round))
    found: Diagnostics = dict.fromkeys(KEYS)
    found |= {"drift_A": _drift(old, new, sites, "A"), "drift_B": _drift(old, new, sites, "B")}
    found["stable_rank"] = _stable_rank(new, sites)
    expanded = [algorithm.expand(before, u) for u in uploads]
    found["reason"] = _unknown(algorithm, old.shared, expanded)
    if found["reason"] is not None:
        return found
    clients = _clients(algorithm, before, old.shared, expanded, round)
    weights = torch.tensor([u.weight for u in uploads], dtype=torch.float64)
    p = weights / weights.sum()
    each = [_Squares.of(old, new, _product(clients, site), p, site) for site in sites.values()]
    squares = _Squares(*(sum(parts[1:], parts[0]) for parts in zip(*(s.parts for s in each), strict=True)))
    return found | squares.ratios()


@dataclass(frozen=True)
class _Sent:
    """A model that the server sends: the broadcast, in float64, what the network sees of it, and the broadcast's own
    rounding unit."""

    shared: Shared
    seen: Params
    eps: float


def _sent(algorithm: Algorithm[Any], state: Any, round: Round) -> _Sent:
    shared = algorithm.broadcast(state, _NEWCOMER, round)
    eps = max(torch.finfo(t.dtype).eps for t in shared.params.values() if t.is_floating_point())
    shared = replace(shared, params=_wide(shared.params))
    return _Sent(shared, algorithm.view(shared, algorithm.local_init(shared, _NEWCOMER)), eps)


def _clients(
    algorithm: Algorithm[Any],
    state: Any,
    shared: Shared,
    uploads: Sequence[Upload],
    round: Round,
) -> Params:
    """What the network of each client saw after training, with a client axis; ``uploads`` are expanded."""
    own = [u.params for u in uploads]
    if not algorithm.readable:
        alone = (algorithm.aggregate(state, [u], round) for u in uploads)
        own = [algorithm.broadcast(s, _NEWCOMER, _next(round)).params for s in alone]
    # Tensor by tensor, so that there is no copy of all clients' in their own type beside the one in float64.
    factors = {n: torch.stack([params[n] for params in own]).double() for n in pick(own[0], _factors)}
    return algorithm.view(replace(shared, params={**add_client_axis(shared.params, len(own)), **factors}), {})


def _unknown(algorithm: Algorithm[Any], shared: Shared, expanded: Iterable[Upload]) -> str | None:
    """Why the server cannot know its clients' models, if it cannot."""
    kept = _kinds(pick(algorithm.local_init(shared, _NEWCOMER), ~head))
    if kept:
        return f"clients keep {kept} of their own, so the server does not know their models"
    sent = _kinds(n for u in expanded for n in u.params if not (_factors | head)(n))
    return f"clients send {sent}, which are not low-rank factors" if sent else None


def _kinds(names: Iterable[str]) -> str:
    """The last parts of adapters' names, each once: ``"pA, pB"``."""
    return ", ".join(sorted({n.rpartition(".")[2] for n in names}))


@dataclass(frozen=True)
class _Squares:
    """Squared norms and inner products, of one module or summed over all; ``moved`` and ``inner`` have shape (K,)."""

    gap: Tensor  #: |M - N|^2
    update: Tensor  #: |M - G|^2
    tail: Tensor  #: |P - P_r|^2
    product: Tensor  #: |P|^2
    step: Tensor  #: |N - G|^2
    moved: Tensor  #: |D_k - G|^2
    inner: Tensor  #: <D_k - G, N - G>
    rounding: Tensor  #: what a change must exceed to be one: the size of rounding B and A in their own type

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(vars(self).values())

    @staticmethod
    def of(old: _Sent, new: _Sent, clients: LowRank, p: Tensor, site: Site) -> _Squares:
        """One module. ``clients``: up (K, out, r), down (K, r, in); ``p``: (K,)."""
        g, n = _product(old.seen, site), _product(new.seen, site)
        change = total([_change(g, n), *_added(old.shared, new.shared, site.path)])
        lift, b, up = _coordinates([clients.up - g.up, g.up, change.up])
        rows = [(clients.down - g.down).mT, g.down.mT, change.down.mT]
        shift, a, down = (part.mT for part in _coordinates(rows))
        step, trained = up @ down, a + shift
        # sum_k p_k (B_k - B) A_k + B (mean of A_k - A)
        update = torch.tensordot(p[:, None, None] * lift, trained, ([0, 2], [0, 1])) + b @ torch.tensordot(p, shift, 1)
        product = update + b @ a
        moved = LowRank(torch.cat([lift, b.expand_as(lift)], -1), torch.cat([trained, shift], -2))
        values = torch.linalg.svdvals(product[product.any(1)][:, product.any(0)]).square()
        return _Squares(
            gap=(update - step).square().sum(),
            update=update.square().sum(),
            tail=values[site.rank :].sum(),
            product=values.sum(),
            step=step.square().sum(),
            moved=moved.inner(moved).clamp_min(0),
            inner=((lift.mT @ step) * trained + (b.mT @ step) * shift).sum((1, 2)),
            rounding=(16 * old.eps * g.up.norm() * g.down.norm()).square(),
        )

    def ratios(self) -> Diagnostics:
        cosines = []
        if self.step > self.rounding:
            there = self.moved > self.rounding
            each = self.inner[there] / (self.moved[there] * self.step).sqrt()
            cosines = [c for c in each.clamp(-1, 1).tolist() if math.isfinite(c)]
        return {
            "interference": _root(self.gap, self.update, self.rounding),
            "truncation_error": _root(self.tail, self.product),
            "alignment_mean": sum(cosines) / len(cosines) if cosines else None,
            "alignment_min": min(cosines, default=None),
        }


def _root(above: Tensor | float, below: Tensor | float, least: Tensor | float = 0.0) -> float | None:
    """sqrt(above / below); None where ``below`` is not more than ``least`` or the root is not finite."""
    if not below > least:
        return None
    root = math.sqrt(float(above) / float(below))
    return root if math.isfinite(root) else None


def _drift(old: _Sent, new: _Sent, sites: Mapping[str, Site], part: str) -> float | None:
    """Of the factors that the server holds, or where it holds others (a Gram matrix's root), of those seen."""
    moved = size = 0.0
    for site in sites.values():
        before, after = (_held(s).get(f"{site.path}.{part}") for s in (old, new))
        if before is None or after is None or before.shape != after.shape:
            return None
        moved += float((after - before).square().sum())
        size += float(before.square().sum())
    return _root(moved, size)


def _held(sent: _Sent) -> Params:
    given = sent.shared.params
    if any(map(gram, given)):
        given = sent.seen
    return pick(given, down | up)


def _stable_rank(sent: _Sent, sites: Mapping[str, Site]) -> float | None:
    found = []
    for site in sites.values():
        chunks = (c.to(torch.float64) for c in sent.shared.base.get(site.path, ()))
        values = torch.linalg.svdvals(_core(total([_product(sent.seen, site), *chunks]))).square()
        ratio = float(values.sum() / values[0])
        if math.isfinite(ratio):
            found.append(ratio)
    return sum(found) / len(found) if found else None


def _product(seen: Params, site: Site) -> LowRank:
    """scale * B A, in W's units; a client axis may lead."""
    return LowRank(site.scale * seen[f"{site.path}.B"], seen[f"{site.path}.A"])


def _change(before: LowRank, after: LowRank) -> LowRank:
    """``after - before`` of twice the rank, exactly zero where nothing changed."""
    if before.rank != after.rank:
        return after - before
    up = torch.cat([after.up - before.up, before.up], -1)
    return LowRank(up, torch.cat([after.down, after.down - before.down], -2))


def _added(old: Shared, new: Shared, path: str) -> list[LowRank]:
    """What the base's change grew by: chunks are only ever appended, and those there already are the same tensors."""
    before, after = old.base.get(path, ()), new.base.get(path, ())
    same = 0
    while same < min(len(before), len(after)) and before[same].up is after[same].up:
        same += 1
    return [c.to(torch.float64) for c in (*after[same:], *(-c for c in before[same:]))]


def _coordinates(parts: Sequence[Tensor]) -> list[Tensor]:
    """The columns of all ``parts`` in one orthonormal basis of them: fewer rows, the same inner products. A client axis
    may lead. Columns of zeros, as of a factor that no client trained, cost nothing."""
    flat = [part if part.dim() == 2 else part.movedim(0, 1).flatten(1) for part in parts]
    columns = torch.cat(flat, 1)
    used = columns.any(0)
    small = _triangle(columns[:, used])
    coordinates = columns.new_zeros(small.shape[0], columns.shape[1])
    coordinates[:, used] = small
    split = torch.split(coordinates, [f.shape[1] for f in flat], 1)
    return [
        s if part.dim() == 2 else s.reshape(len(s), part.shape[0], part.shape[2]).movedim(1, 0)
        for s, part in zip(split, parts, strict=True)
    ]


def _core(matrix: LowRank) -> Tensor:
    """A matrix with the singular values of ``matrix``, and as small as its factors allow."""
    return _triangle(matrix.up) @ _triangle(matrix.down.mT).mT


def _triangle(tall: Tensor) -> Tensor:
    """``tall`` in an orthonormal basis of its columns; itself where that is no smaller."""
    return torch.linalg.qr(tall, mode="r").R if tall.shape[-2] > tall.shape[-1] else tall


def _wide(params: Params) -> dict[str, Tensor]:
    """In float64, but for positions."""
    return {n: t.double() if t.is_floating_point() else t for n, t in params.items()}


def _next(round: Round) -> Round:
    return replace(round, index=round.index + 1)
