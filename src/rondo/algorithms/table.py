"""Robust rules, server optimizers and methods, by name. Imports no torch."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from rondo.algorithms.entries import Entry as Entry
from rondo.algorithms.factors.entries import ENTRIES as FACTORS
from rondo.algorithms.linear.entries import ENTRIES as LINEAR
from rondo.algorithms.whole.entries import ENTRIES as WHOLE

Rule: TypeAlias = Literal[
    "clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "nnm-trimmed-mean"
]
"""A rule of robust aggregation; :mod:`rondo.algorithms.wrappers.robust` defines each."""

RULES: tuple[Rule, ...] = get_args(Rule)
"""Every :data:`Rule`, in its order."""

SERVER_OPTIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "sgd": ("lr",),
    "momentum": ("lr", "beta1"),
    "adam": ("lr", "beta1", "beta2", "tau"),
    "yogi": ("lr", "beta1", "beta2", "tau"),
    "adagrad": ("lr", "beta1", "tau"),
}
"""The server optimizers, and the keys of ``[server]`` that each one takes."""

TABLE: dict[str, Entry] = {**FACTORS, **WHOLE, **LINEAR}
"""Every method."""
