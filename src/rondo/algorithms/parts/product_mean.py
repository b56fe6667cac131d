"""Server-side operations on the clients' products B A, for methods that need each upload by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from rondo.algorithm import Mean, Upload, weighted_mean
from rondo.lowrank import LowRank, mean_product, top_factors
from rondo.params import Params, adapted_modules, pick, whole

Split: TypeAlias = Literal["up", "both"]
"""The factor that carries the singular values, or their roots in both."""


def check_split(split: str) -> None:
    """Raises ValueError for an unknown ``split``."""
    if split not in get_args(Split):
        raise ValueError(f"split is one of {', '.join(get_args(Split))}; got {split!r}")


def pairs(uploads: Sequence[Upload], path: str) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """Every client's B (out, r_k) and A (r_k, in) of a module as uploaded, and its weight."""
    ups, downs = ([u.params[f"{path}.{part}"] for u in uploads] for part in "BA")
    return ups, downs, [u.weight for u in uploads]


def whole_mean(uploads: Sequence[Upload]) -> Mean:
    """The weighted mean of the whole tensors (head, body) alone."""
    return weighted_mean(replace(u, params=pick(u.params, whole)) for u in uploads)


def truncated_mean(params: Params, uploads: Sequence[Upload], *, balanced: bool) -> Mean:
    """The best approximation of the mean of products for every module of ``params``, as factors of the rank they have
    there (:func:`rondo.lowrank.top_factors`), and the mean of the whole tensors."""
    mean = whole_mean(uploads)
    products = ((path, mean_product(*pairs(uploads, path))) for path in adapted_modules(params))
    return replace(mean, params={**mean.params, **truncated(products, params, balanced=balanced)})


def truncated(products: Iterable[tuple[str, LowRank]], like: Params, *, balanced: bool) -> dict[str, Tensor]:
    """A and B of the best approximation of each module's product, of the rank that the module has in ``like``. Products
    are taken one at a time."""
    factors: dict[str, Tensor] = {}
    for path, matrix in products:
        best = top_factors(matrix, LowRank(like[f"{path}.B"], like[f"{path}.A"]), balanced=balanced)
        factors |= {f"{path}.A": best.down, f"{path}.B": best.up}
    return factors


def scaled(chunks: Iterable[tuple[str, LowRank]], scale: Mapping[str, float], like: Params) -> dict[str, LowRank]:
    """``chunks`` by module, each times its scale, in ``like``'s dtype. Chunks are taken one at a time, so a generator
    holds only one in float64."""
    return {p: (scale[p] * c).to(like[f"{p}.A"].dtype) for p, c in chunks}
