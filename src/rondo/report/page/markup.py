"""What a page's script reads: JSON, finite numbers, and nested keys by their paths."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def script_json(content: Any) -> str:
    """JSON within a script element: no sequence of characters in it ends the element, opens a comment, or ends a line
    of JavaScript. The separators are short, numbers that are not finite are null."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(value: Any) -> float | None:
    """A number that a chart can show; None for anything else that a file may hold in its place."""
    try:
        number = float(value) if isinstance(value, float | int) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def compact(value: float | None) -> float | int | None:
    """A number of a chart with five digits that count, as an integer where it is one; None where it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of nested mappings by their key paths."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        place = f"{path}.{key}" if path else str(key)
        found |= flat(value, place) if isinstance(value, Mapping) and value else {place: value}
    return found
