"""A round's effect on the model, measured by the server on the uploads: in float64, and on factors where there are.

Norms are Frobenius norms of all modules together, squared and summed over modules. The modules are the adapted ones and
the tensors that are trained whole: the head's too, unless clients keep them, or it is all that is trained whole beside
factors. So methods that train all weights are compared on all of them, whichever are factors (FedLoRU's Figure 8 has
all weights as one vector). Statistics do not count. Every matrix is a change of the frozen weights since the run's
start, of shape (out, in), and includes the change of the base:

- G, N: the models that the server sends before and after the round, to a newcomer (at full rank; for personal methods,
  the cold-start model).
- D_k: the model that client k sent back: the network's view with the upload in place of the broadcast.
- p_k: client k's weight. The p_k sum to 1.
- M = sum_k p_k D_k.
- P = sum_k p_k * scale * B_k A_k: the mean of products alone, without the base.

:func:`measure` computes a round's numbers. A number that has no meaning is None:

- ``interference`` = |M - N| / |M - G|: the part of the clients' mean update that the server lost or put beside it. It
  is relative to the update and not to M, because M grows with the run and would hide it. 0 is exact; 1 is as far off
  as if the server had not moved. A server that truncates to G's rank or above never exceeds 1 (Eckart-Young); others
  can (FedLoRU's momentum restart, a server optimizer).
- ``truncation_error`` = |P - P_r| / |P|, with P_r the best approximation of the run's rank r, module by module. Methods
  that truncate the mean of products drop this part; for other methods it is the part that an adapter could not hold.
- ``drift_A``, ``drift_B`` = |X' - X| / |X|, with X all factors A (or B) before the round and X' after it. A server that
  expresses the same product by other factors drifts too, because the coordinates in which clients go on have changed
  (FLoRG's decomposition drift). ``drift_whole``: the same of the tensors that are trained whole.
- ``angle_A``, ``angle_B``: the sine of the largest principal angle between the row spaces of A (column spaces of B)
  before and after the round, averaged over modules (:func:`rondo.engine.server.spectra.angle`). Other factors of the
  same product have drift, but no angle.
- ``alignment_mean``, ``alignment_min``: cos(D_k - G, N - G) over clients, FedLoRU's Figure 8. A client that did not
  move has no direction and is left out.
- ``stable_rank`` = |N|^2 / |N|_2^2 of each module, averaged over the modules that changed at all (FedLoRU, section
  3.1); ``update_stable_rank``: the same of the round's update N - G. Tensors without a second axis are no matrices.
- ``singular_values``: those of N by module, largest first, at most 32.

Interference, truncation error and alignment need each client's model. Where the server cannot know the models,
``reason`` says why.

No number is a difference of squared norms. B_k A_k - B A is written as (B_k - B) A_k + B (A_k - A), which does not
cancel, so a client that did not move is exactly where it was. First, all factors of a module are put in orthonormal
bases of their own columns and rows, with one QR each. Matrices multiplied out after that have at most (K + 1) r rows
and columns beside those of the step, and never more than the weight itself. The uploads of the round are in memory all
at once, up to ``HELD_BYTES``; a round without diagnostics holds one at a time where the algorithm is linear.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.engine.server import spectra
from rondo.lowrank import LowRank
from rondo.models.networks.adapted_layer import Site
from rondo.params import (
    Params,
    add_client_axis,
    auxiliary,
    body,
    buffer,
    core,
    down,
    gram,
    head,
    magnitude,
    packed,
    pick,
    router,
    up,
    whole,
)

HELD_BYTES = 256 * 2**20
"""Uploads of a round beyond this size are not held for its diagnostics, so no cohort is too large for the server."""

Diagnostics: TypeAlias = dict[str, float | str | dict[str, list[float]] | None]

KEYS = (
    "interference",
    "truncation_error",
    "drift_A",
    "drift_B",
    "drift_whole",
    "angle_A",
    "angle_B",
    "alignment_mean",
    "alignment_min",
    "stable_rank",
    "update_stable_rank",
    "singular_values",
    "reason",
)

_NEWCOMER = Client("newcomer", 0)
_factors = down | up | gram | core


def diagnose(
    algorithm: Algorithm[Any],
    sites: Mapping[str, Site],
    before: Any,
    after: Any,
    uploads: Sequence[Upload],
    round: Round,
    initial: Params,
) -> Diagnostics:
    """:func:`measure`, except that an error does not stop the run: it becomes a warning and the ``reason``. Empty
    ``uploads`` mean that there were too many to hold."""
    if not uploads:
        return {**dict.fromkeys(KEYS), "reason": f"the round's uploads have more than {HELD_BYTES >> 20} MiB"}
    try:
        return measure(algorithm, sites, before, after, uploads, round, initial)
    except Exception as error:  # a failed factorisation, no memory, a third party's view: the round still counts
        message = f"{type(error).__name__}: {error}"
        warnings.warn(f"round {round.attempt} has no diagnostics: {message}", RuntimeWarning, stacklevel=2)
        return {**dict.fromkeys(KEYS), "reason": message}


@torch.no_grad()
def measure(
    algorithm: Algorithm[Any],
    sites: Mapping[str, Site],
    before: Any,
    after: Any,
    uploads: Sequence[Upload],
    round: Round,
    initial: Params,
) -> Diagnostics:
    """The numbers above, for the round in which ``uploads`` took the server's state from ``before`` to ``after``.
    ``initial``: the tensors that clients train, at the run's start; those trained whole are compared with them."""
    old, new = _sent(algorithm, before, round), _sent(algorithm, after, _next(round))
    own_head = pick(algorithm.local_init(old.shared, _NEWCOMER), head)
    whole_names = tuple(n for n in pick(old.shared.params, whole & ~buffer) if n in initial and n not in own_head)
    if sites and not any(map(body, whole_names)):
        whole_names = ()
    numbers: Diagnostics = dict.fromkeys(KEYS)
    if any(map(magnitude, old.shared.params)):
        return {**numbers, "reason": "with magnitudes (adapter.use_dora) B A is not a layer's change"}
    if any(map(router, old.seen)):
        return {**numbers, "reason": "a router weighs several pairs of factors per token, so no matrix is the change"}
    numbers |= {f"drift_{part}": _drift(*_of_part(old, new, sites, part)) for part in "AB"}
    numbers |= {f"angle_{part}": _angle(*_of_part(old, new, sites, part), part) for part in "AB"}
    numbers["drift_whole"] = _drift(*(pick(sent.seen, whole_names.__contains__) for sent in (old, new)))
    numbers |= _spectra(old, new, sites, {name: initial[name] for name in whole_names})
    expanded = [algorithm.expand(before, u) for u in uploads]
    numbers["reason"] = _unknown(algorithm, old.shared, expanded)
    if numbers["reason"] is None and not sites and not whole_names:
        numbers["reason"] = "the server has no tensor of the model"
    if numbers["reason"] is not None:
        return numbers
    clients = _clients(algorithm, before, old.shared, expanded, round, whole_names)
    weights = torch.tensor([u.weight for u in uploads], dtype=torch.float64)
    p = weights / weights.sum()
    by_module = [_Squares.of(old, new, _product(clients, site), p, site) for site in sites.values()]
    by_module += [_Squares.of_whole(old, new, clients[name], p, name) for name in whole_names]
    squares = _Squares(*(sum(parts[1:], parts[0]) for parts in zip(*(s.parts for s in by_module), strict=True)))
    return numbers | squares.ratios()


@dataclass(frozen=True)
class _Sent:
    """A model that the server sends."""

    shared: Shared  #: the broadcast, in float64
    seen: Params  #: the network's view of it
    eps: float  #: rounding unit of the broadcast's own type


def _sent(algorithm: Algorithm[Any], state: Any, round: Round) -> _Sent:
    shared = algorithm.broadcast(state, _NEWCOMER, round)
    eps = max(torch.finfo(t.dtype).eps for t in shared.params.values() if t.is_floating_point())
    wide = {n: t.double() if t.is_floating_point() else t for n, t in shared.params.items()}
    shared = replace(shared, params=wide)
    return _Sent(shared, algorithm.view(shared, algorithm.local_init(shared, _NEWCOMER)), eps)


def _clients(
    algorithm: Algorithm[Any],
    state: Any,
    shared: Shared,
    uploads: Sequence[Upload],
    round: Round,
    whole_names: Collection[str],
) -> Params:
    """The tensors that each client's network saw after training, with a client axis; ``uploads`` are expanded."""
    uploaded = [u.params for u in uploads]
    if not algorithm.traits.readable:
        states = (algorithm.aggregate(state, [u], round) for u in uploads)
        uploaded = [algorithm.broadcast(s, _NEWCOMER, _next(round)).params for s in states]
    # Stack tensor by tensor, so that no copy of all clients in their own type exists beside the float64 one.
    names = [n for n in uploaded[0] if _factors(n) or n in whole_names]
    trained = {n: torch.stack([params[n] for params in uploaded]).double() for n in names}
    return algorithm.view(replace(shared, params={**add_client_axis(shared.params, len(uploaded)), **trained}), {})


def _unknown(algorithm: Algorithm[Any], shared: Shared, expanded: Iterable[Upload]) -> str | None:
    """The reason why the server cannot know its clients' models; None if it can."""
    local = algorithm.local_init(shared, _NEWCOMER)
    kept = _kinds(pick(local, ~(whole | auxiliary | packed)))
    if not kept and any(map(body & ~buffer, local)):
        kept = "whole tensors"
    if kept:
        return f"clients keep {kept} of their own, so the server does not know their models"
    others = _kinds(n for u in expanded for n in u.params if not (_factors | whole | auxiliary)(n))
    return f"clients send {others}, which are not low-rank factors" if others else None


def _kinds(names: Iterable[str]) -> str:
    """The last parts of adapter names, sorted, each once: ``"pA, pB"``."""
    return ", ".join(sorted({n.rpartition(".")[2] for n in names}))


@dataclass(frozen=True)
class _Squares:
    """Squared norms and inner products, of one module or summed over all. ``moved`` and ``inner`` have shape (K,)."""

    gap: Tensor  #: |M - N|^2
    update: Tensor  #: |M - G|^2
    tail: Tensor  #: |P - P_r|^2
    product: Tensor  #: |P|^2
    step: Tensor  #: |N - G|^2
    moved: Tensor  #: |D_k - G|^2
    inner: Tensor  #: <D_k - G, N - G>
    rounding: Tensor  #: rounding error of B and A in their own type; a smaller change counts as none

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(vars(self).values())

    @staticmethod
    def of(old: _Sent, new: _Sent, clients: LowRank, p: Tensor, site: Site) -> _Squares:
        """The squares of one module. ``clients`` has up (K, out, r) and down (K, r, in); ``p`` has shape (K,)."""
        g, n = _product(old.seen, site), _product(new.seen, site)
        change = sum(_added(old.shared, new.shared, site.path), _change(g, n))
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

    @staticmethod
    def of_whole(old: _Sent, new: _Sent, clients: Tensor, p: Tensor, name: str) -> _Squares:
        """The squares of the tensor ``name``, which is trained whole; ``clients`` (K, ...)."""
        before = old.seen[name]
        moved, step = (clients - before).flatten(1), (new.seen[name] - before).flatten()
        update, nothing = p @ moved, p.new_zeros(())
        return _Squares(
            gap=(update - step).square().sum(),
            update=update.square().sum(),
            tail=nothing,
            product=nothing,
            step=step.square().sum(),
            moved=moved.square().sum(1),
            inner=moved @ step,
            rounding=(16 * old.eps * before.norm()).square(),
        )

    def ratios(self) -> Diagnostics:
        cosines = []
        if self.step > self.rounding:
            moved = self.moved > self.rounding
            ratios = self.inner[moved] / (self.moved[moved] * self.step).sqrt()
            cosines = [c for c in ratios.clamp(-1, 1).tolist() if math.isfinite(c)]
        return {
            "interference": _root(self.gap, self.update, self.rounding),
            "truncation_error": _root(self.tail, self.product),
            "alignment_mean": sum(cosines) / len(cosines) if cosines else None,
            "alignment_min": min(cosines, default=None),
        }


def _root(above: Tensor | float, below: Tensor | float, least: Tensor | float = 0.0) -> float | None:
    """sqrt(above / below), or None where ``below`` is not more than ``least`` or the root is not finite."""
    if not below > least:
        return None
    root = math.sqrt(float(above) / float(below))
    return root if math.isfinite(root) else None


def _of_part(old: _Sent, new: _Sent, sites: Mapping[str, Site], part: str) -> tuple[Params, Params]:
    """The factors A (or B) that the server holds, before and after the round. Where it holds others (a Gram matrix's
    root), those that the network sees. Empty where a factor is missing or has changed its shape."""
    before, after = ({p: held.get(f"{p}.{part}") for p in sites} for held in map(_held, (old, new)))
    if any(x is None or y is None or x.shape != y.shape for x, y in zip(before.values(), after.values(), strict=True)):
        return {}, {}
    return before, after  # type: ignore[return-value]


def _drift(before: Params, after: Params) -> float | None:
    moved = sum(float((after[n] - t).square().sum()) for n, t in before.items())
    return _root(moved, sum(float(t.square().sum()) for t in before.values()))


def _angle(before: Params, after: Params, part: str) -> float | None:
    spaces = [(t, after[n]) if part == "B" else (t.mT, after[n].mT) for n, t in before.items()]
    sines = [sine for pair in spaces if (sine := spectra.angle(*pair)) is not None]
    return sum(sines) / len(sines) if sines else None


def _held(sent: _Sent) -> Params:
    params = sent.shared.params
    if any(map(gram | core, params)):
        params = sent.seen
    return pick(params, down | up)


def _spectra(old: _Sent, new: _Sent, sites: Mapping[str, Site], start: Params) -> Diagnostics:
    """The numbers from singular values. ``start``: the tensors that are trained whole, at the run's start."""
    learned: dict[str, Tensor] = {}
    updates = []
    for path, site in sites.items():
        g, n = _product(old.seen, site), _product(new.seen, site)
        updates.append(spectra.singular_values(sum(_added(old.shared, new.shared, path), _change(g, n))))
        if path in new.shared.base:
            n += new.shared.base[path].factors().to(torch.float64)
        learned[path] = spectra.singular_values(n)
    for name, tensor in start.items():
        if tensor.dim() > 1:
            after = new.seen[name]
            updates.append(spectra.singular_values(after - old.seen[name]))
            learned[name] = spectra.singular_values(after - tensor.double())
    return {
        "stable_rank": spectra.mean_stable_rank(list(learned.values())),
        "update_stable_rank": spectra.mean_stable_rank(updates),
        "singular_values": {
            name: values[: spectra.VALUES].tolist() for name, values in learned.items() if values.isfinite().all()
        },
    }


def _product(seen: Params, site: Site) -> LowRank:
    """scale * B A, in W's units; both factors may have a client axis."""
    return LowRank(site.scale * seen[f"{site.path}.B"], seen[f"{site.path}.A"])


def _change(before: LowRank, after: LowRank) -> LowRank:
    """``after - before``, with twice the rank, and exactly zero where nothing changed."""
    if before.rank != after.rank:
        return after - before
    up = torch.cat([after.up - before.up, before.up], -1)
    return LowRank(up, torch.cat([after.down, after.down - before.down], -2))


def _added(old: Shared, new: Shared, path: str) -> list[LowRank]:
    """The growth of the base's change: the chunks that were added, or the difference of two dense sums."""
    before, after = old.base.get(path), new.base.get(path)
    if after is None:
        return []
    grown = after.since(before.count if before is not None else 0)
    if len(grown) == 2:
        return [LowRank(*grown).to(torch.float64)]
    growth = grown[0].double()
    if before is not None:
        growth = growth - before.factors().to(torch.float64).dense()
    return [LowRank.whole(growth)]


def _coordinates(parts: Sequence[Tensor]) -> list[Tensor]:
    """The columns of all ``parts`` in one orthonormal basis: fewer rows, the same inner products. Parts may have a
    client axis. Columns of zeros, as in a factor that no client trained, cost nothing."""
    flat = [part if part.dim() == 2 else part.movedim(0, 1).flatten(1) for part in parts]
    columns = torch.cat(flat, 1)
    used = columns.any(0)
    small = spectra.triangle(columns[:, used])
    coordinates = columns.new_zeros(small.shape[0], columns.shape[1])
    coordinates[:, used] = small
    split = torch.split(coordinates, [f.shape[1] for f in flat], 1)
    return [
        s if part.dim() == 2 else s.reshape(len(s), part.shape[0], part.shape[2]).movedim(1, 0)
        for s, part in zip(split, parts, strict=True)
    ]


def _next(round: Round) -> Round:
    return replace(round, index=round.index + 1)
