"""FLoRG's parameterisation, ``delta W = scale * L G^T G R``, and its aggregation in r x r algebra.

The first half of the module starts G (r, k), L (out, k) and R (k, in), k = min(in, out), and turns them into the A and
B that the network sees. The second half is the algebra of client and server: sketch, alignment, root. There A is G, as
in the paper, and R V its LQ factorisation. Source: FLoRG, eq. 1 and section 4.4; eqs. 6, 7 and 11 for the alignment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Shared, Weight
from rondo.lowrank import GrowingSum, LowRank, polar, row_basis
from rondo.params import Params, Role, adapted_modules, kaiming, module_of, normal, pick, role

Bases: TypeAlias = Literal["orthogonal", "kaiming", "svd"]
GramInit: TypeAlias = Literal["gaussian", "kaiming", "orthogonal"]


@dataclass(frozen=True)
class GramState:
    """The state of FLoRG's server."""

    params: Params
    """G, L and R of every module, and the head."""
    base: Mapping[str, GrowingSum]
    """The change of the frozen base at the start, by module path."""


@dataclass(frozen=True)
class Grams(Algorithm[GramState]):
    """The start of FLoRG with and without its alignment."""

    bases: Bases = "orthogonal"
    gram_init: GramInit = "gaussian"
    gram_std: float = 0.02
    offset: bool = False

    def __post_init__(self) -> None:
        kinds = (("bases", self.bases, get_args(Bases)), ("gram_init", self.gram_init, get_args(GramInit)))
        for field, value, known in kinds:
            if value not in known:
                raise ValueError(f"{field} is one of {', '.join(known)}; got {value!r}")
        if not 0 < self.gram_std < math.inf:
            why = "a zero matrix has a zero gradient"
            raise ValueError(f"gram_std must be positive and finite ({why}); got {self.gram_std}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> GramState:
        """G, L and R for every module that has A and B in ``params``; other tensors (the head) are kept.

        If ``params`` already carries an adapter (B not zero), the adapter becomes a change of the base. With
        ``offset``, so does ``-scale * L G^T G R``, which leaves the network's function as it was.
        """
        kept = {n: t for n, t in params.items() if role(n) not in (Role.DOWN, Role.UP)}
        base: dict[str, GrowingSum] = {}
        for path in adapted_modules(params):
            a, b = params[f"{path}.A"], params[f"{path}.B"]
            rank, scale = a.shape[0], weights[path].scale
            left, right = _bases(self.bases, weights[path], round.generator("bases", path))
            g = _gram(self.gram_init, rank, left.shape[1], self.gram_std, round.generator("gram", path))
            chunks = [LowRank(scale * b, a)] if bool(b.any()) else []
            if self.offset:
                chunks.append(LowRank(-scale * (left @ g.mT), g @ right).to(a.dtype))
            if chunks:
                base[path] = GrowingSum.of(sum(chunks[1:], chunks[0]))
            kept |= {f"{path}.G": g.to(a.dtype), f"{path}.L": left.to(a.dtype), f"{path}.R": right.to(a.dtype)}
        return GramState(kept, base)

    def broadcast(self, state: GramState, client: Client, round: Round) -> Shared:
        return Shared(state.params, state.base)

    def view(self, shared: Shared, local: Params) -> Params:
        return gram_view(shared.params)


def _bases(kind: Bases, weight: Weight, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """L (out, k) and R (k, in) in float64, semi-orthogonal (orthogonal if square) except for "kaiming"."""
    out, inp = weight.shape
    k = min(out, inp)
    if kind == "svd":
        u, _, vh = torch.linalg.svd(weight.matrix().double(), full_matrices=False)
        return u, vh
    if kind == "kaiming":
        return kaiming(out, k, generator), kaiming(k, inp, generator)
    return row_basis(normal(k, out, generator))[1].mT, row_basis(normal(k, inp, generator))[1]


def _gram(kind: GramInit, rank: int, k: int, std: float, generator: torch.Generator) -> Tensor:
    """G (r, k) in float64. "orthogonal" has a Gaussian's root-mean-square Frobenius norm, std * sqrt(r k)."""
    if kind == "kaiming":
        return kaiming(rank, k, generator)
    draw = normal(rank, k, generator)
    return std * draw if kind == "gaussian" else std * math.sqrt(k) * row_basis(draw)[1]


def gram_view(params: Params) -> dict[str, Tensor]:
    """A = G R and B = L G^T for every module with a G. L and R are dropped; all other tensors stay as they are.

    The network then applies ``(L G^T)((G R) x)``; L (G^T (G (R x))) would cost k / r times more.
    """
    seen = pick(params, lambda n: role(n) not in (Role.GRAM, Role.FIXED))
    for name in pick(params, lambda n: role(n) is Role.GRAM):
        path = module_of(name)
        seen[f"{path}.A"] = params[name] @ params[f"{path}.R"]
        seen[f"{path}.B"] = params[f"{path}.L"] @ params[name].mT
    return seen


def gram_sketch(anchor: Tensor, a: Tensor) -> Tensor:
    """``(V a^T) a``, (r, k): a FLoRG client's upload, given the anchor A_t = R V (LQ) that server and clients hold.

    The sketch is linear in the Gram matrix ``a^T a``, so the mean of the sketches is the sketch of the mean Gram
    matrix. Computed in float64, returned in ``a``'s dtype.
    """
    _, v = row_basis(anchor.double())
    wide = a.double()
    return ((v @ wide.mT) @ wide).to(a.dtype)


def gram_align(anchor: Tensor, sketch: Tensor) -> Tensor:
    """FLoRG's server step (its eqs. 6, 7 and 11) in r x r algebra. Returns A_{t+1} (r, k) in ``anchor``'s dtype.

    With A_t = R V (LQ), the mean sketch S = ``V Q`` and M = S V^T = V Q V^T, take C with C C^T = M. Then
    ``A_{t+1} = polar(R C) C^-1 S``, which equals the paper's eigendecomposition of Q followed by its Procrustes
    alignment. If M is not positive definite, C and its inverse come from M's positive eigenvalues (a pseudo-inverse),
    so directions that the mean Gram matrix lacks become zero.
    """
    r, v = row_basis(anchor.double())
    s = sketch.double()
    m = s @ v.mT
    m = (m + m.mT) / 2
    c, failed = torch.linalg.cholesky_ex(m)
    smallest, largest = c.diagonal(dim1=-2, dim2=-1).aminmax(dim=-1)
    if not bool(failed.any()) and bool((smallest > 1e-6 * largest).all()):
        aligned = polar(r @ c) @ torch.linalg.solve_triangular(c, s, upper=False)
    else:
        values, vectors = torch.linalg.eigh(m)
        keep = values > values.amax(-1, keepdim=True).clamp_min(0) * 1e-12
        root = torch.where(keep, values, torch.zeros_like(values)).sqrt()
        inverse = torch.where(keep, 1 / root.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(root))
        aligned = polar(r @ (vectors * root[..., None, :])) @ ((vectors * inverse[..., None, :]).mT @ s)
    result: Tensor = aligned.to(anchor.dtype)
    return result


def aligned(anchors: Params, sketches: Params) -> dict[str, Tensor]:
    """The next G of every name in ``sketches`` by :func:`gram_align`, batched over names of equal shape."""
    names_by_shape: dict[torch.Size, list[str]] = {}
    for name, sketch in sketches.items():
        names_by_shape.setdefault(sketch.shape, []).append(name)
    roots: dict[str, Tensor] = {}
    for names in names_by_shape.values():
        rows = gram_align(*(torch.stack([tensors[n] for n in names]) for tensors in (anchors, sketches)))
        roots |= {n: row.clone() for n, row in zip(names, rows, strict=True)}
    return roots


def gram_top(stack: Tensor, rank: int) -> Tensor:
    """The top ``rank`` rows of ``Lambda^(1/2) P``, where ``stack^T stack = P^T Lambda P``: (rank, k).

    ``stack``: (R, k), the rows ``sqrt(p_n) A_n`` of all clients. Computed by QR and a small SVD of the stack, never
    from the k x k Gram matrix. Each row's entry of largest magnitude is made positive, because the decomposition leaves
    signs open.
    """
    wide = stack.double()
    if wide.shape[0] < wide.shape[1]:
        q, r = torch.linalg.qr(wide.mT)
        _, s, vh = torch.linalg.svd(r.mT, full_matrices=False)
        rows = (s[:, None] * vh) @ q.mT
    else:
        _, s, vh = torch.linalg.svd(torch.linalg.qr(wide).R, full_matrices=False)
        rows = s[:, None] * vh
    rows = torch.nn.functional.pad(rows[:rank], (0, 0, 0, max(0, rank - rows.shape[0])))
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    signed: Tensor = rows * torch.where(largest < 0, -1.0, 1.0).to(rows.dtype)
    result: Tensor = signed.to(stack.dtype)
    return result
