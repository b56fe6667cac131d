"""Numbers as a page shows them, and as its script reads them."""

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


def number(value: Any) -> str:
    """Four digits that count; "-" without a value."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{THIN SPACE}") if abs(value) >= 10_000 else str(value)
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e5 or value == 0 else f"{value:.2e}"


def interval(mean: float | None, half: float | None) -> str:
    """A mean, and half its 95 % interval where there is one."""
    if mean is None:
        return "-"
    return number(mean) if half is None else f"{number(mean)} ± {float(f'{half:.2g}'):g}"


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
