"""One row of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Keys = Mapping[str, Any]
"""Values by their place in a configuration, such as ``train.lr``."""


@dataclass(frozen=True)
class Setting:
    """One row of a paper.

    ``source``: the paper, then the row and its tables, then remarks.
    ``keys``: the values that the paper states, and those that its data set and model need.
    ``open``: the values that it does not state, with a reason or a remark for each.
    """

    source: tuple[str, ...]
    keys: Keys
    open: Mapping[str, tuple[Any, str]]
