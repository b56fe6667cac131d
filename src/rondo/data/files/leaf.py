"""The JSON of LEAF (Caldas et al. 2018), which has the rows of many clients in one file.

``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rondo.data.files.tables import Rows

REMEDY = "name it, or its folder, in data.source, and set partition.kind = 'natural' and partition.column = 'user'"


def is_leaf(tree: Mapping[str, Any]) -> bool:
    """Whether the object in a JSON file has LEAF's form."""
    return isinstance(tree.get("users"), list) and isinstance(tree.get("user_data"), dict)


def rows(tree: Mapping[str, Any]) -> Rows:
    """The rows of ``users``, with the columns ``user``, ``x`` and ``y``. A list of floats (FEMNIST's pixels) is an
    array in ``x``; a list of texts (Sent140) has a column each, ``x0``, ``x1`` and so on. Raises ValueError with the
    fault of a user."""
    return [row for user in tree["users"] for row in _of_user(user, tree["user_data"].get(user))]


def _of_user(user: Any, data: Any) -> Iterator[dict[str, Any]]:
    x, y = (data.get(name) if isinstance(data, dict) else None for name in ("x", "y"))
    if not (isinstance(x, list) and isinstance(y, list)):
        raise ValueError(f"user_data has no lists x and y of user {user!r}")
    if len(x) != len(y):
        raise ValueError(f"user {user!r} has {len(x)} values in x and {len(y)} in y")
    for value, answer in zip(x, y, strict=True):
        yield {"user": user, **_columns(value), "y": answer}


def _columns(value: Any) -> dict[str, Any]:
    if isinstance(value, list) and any(isinstance(part, str) for part in value):
        return {f"x{place}": part for place, part in enumerate(value)}
    if isinstance(value, list) and any(isinstance(part, float) for part in value):
        return {"x": np.asarray(value, np.float32)}  # a quarter of the memory
    return {"x": value}
