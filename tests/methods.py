"""Tests of every method: the default run has one of each kind, and the slow tests have all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rondo import algorithms

KINDS = (
    "fedit",  # an average
    "rolora",  # turns
    "fedsa-lora",  # personal factors
    "florg",  # Gram matrices
    "flora",  # fresh factors, a base that grows
    "fedex-lora",  # a residual
    "lora-a2",  # ranks of the clients
    "fedloru",  # merges
    "slora",  # stages
    "fedrep",  # a personal head, whole tensors
    "scaffold",  # tensors beside the model
)


def every_method(names: Sequence[str] = tuple(algorithms.names()), default: Sequence[str] = KINDS) -> list[Any]:
    """``names``, of which those that are not in ``default`` are slow."""
    return [pytest.param(n, marks=() if n in default else pytest.mark.slow) for n in names]
