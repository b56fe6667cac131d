"""HTML whose every text is escaped, and numbers as a page shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Html:
    """Markup that is already escaped. A plain text among the children of :func:`tag` is escaped there."""

    text: str


Child: TypeAlias = "Html | str | Iterable[Html | str]"

_LINES = str.maketrans(dict.fromkeys(map(chr, (*range(9), 11, 12, *range(14, 32), 127)), "\N{REPLACEMENT CHARACTER}"))
"""Characters that no HTML text may have."""


def tag(name: str, *children: Child, **attributes: str | bool) -> Html:
    """An element. An attribute that is True stands without a value, one that is False or "" is left out; an underscore
    in its name is a hyphen, one at its end is dropped."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(str(value))}"')
        for key, value in attributes.items()
        if value not in (False, "")
    )
    return Html(f"<{name}{shown}>{joined(*children).text}</{name}>")


def joined(*children: Child) -> Html:
    """Children one after the other."""
    return Html("".join(map(_markup, children)))


def _markup(child: Child) -> str:
    if isinstance(child, Html):
        return child.text
    return _escaped(child) if isinstance(child, str) else "".join(map(_markup, child))


def _escaped(text: str) -> str:
    """``text`` between tags or in an attribute, each lone surrogate and control character replaced."""
    return escape(text.translate(_LINES).encode("utf-8", "replace").decode("utf-8"), quote=True)


def script_json(content: Any) -> str:
    """JSON within a script element: no sequence of characters in it ends the element, opens a comment, or ends a line
    of JavaScript. The separators are short, numbers that are not finite are null."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Html]],
    *,
    caption: str,
    numbers: bool = True,
    words: Collection[int] = (),
) -> Html:
    """A table within a box that scrolls sideways. The first cell of each row heads it.

    ``numbers``: whether the other columns are set to the right, but for the ``words`` among them.
    """

    def kind(place: int) -> str:
        return "word" if place in words else ""

    head = tag("tr", [tag("th", column, scope="col", class_=kind(i)) for i, column in enumerate(columns)])
    body = [
        tag(
            "tr", tag("th", row[0], scope="row"), [tag("td", cell, class_=kind(i)) for i, cell in enumerate(row[1:], 1)]
        )
        for row in rows
    ]
    content = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    box = "scroll numbers" if numbers else "scroll"
    return tag("div", content, class_=box, tabindex="0", role="region", aria_label=caption)


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
