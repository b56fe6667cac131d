"""Figures, texts that the fonts have, ticks, the bytes of a picture, and the number of each method's colour. Without
pyplot, which belongs to the user's program: its backend draws the plots of a notebook."""

from __future__ import annotations

import io
import itertools
import warnings
import zlib
from collections.abc import Iterable, Set
from contextlib import suppress
from functools import cache
from typing import Any, Literal, TypeAlias

from rondo import algorithms

Form: TypeAlias = Literal["png", "svg"]
"""Formats of pictures."""


def canvas(width: float, height: float, panels: int = 1) -> Any:
    """A figure and its axes. Several panels stand side by side with one y axis; their axes are an array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, sharey=True)
    for panel in figure.axes:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    return figure, axes


def drawn(figure: Any, form: Form) -> bytes:
    """The bytes of a picture; those of an SVG file have no date and no random names."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        others = dict.fromkeys(filter(None, map(_other_font, _lacking(text.get_text()))))
        text.set_fontfamily([*text.get_fontfamily(), *others])
    content = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "rondo"}):
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # long names in a small picture
        figure.savefig(content, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    return content.getvalue()


def png(figure: Any) -> bytes:
    """The bytes of a PNG file."""
    return drawn(figure, "png")


def label(name: str) -> str:
    """A name as a tick label, cut to 24 characters."""
    letters = _drawable(name)
    return shown(letters if len(letters) <= 24 else letters[:23] + "…")


def shown(text: str) -> str:
    """A text as it can be drawn, dollar signs escaped, so that no formula is."""
    return _drawable(text).replace("$", r"\$")


def _drawable(text: str) -> str:
    """``text``, with letters that no font has as Python escapes. Matplotlib would draw a box for each, so that names
    could not be told apart."""
    if undrawn := [c for c in _lacking(text) if _other_font(c) is None]:
        _tell()
    return "".join(c.encode("ascii", "backslashreplace").decode() if c in undrawn else c for c in text)


def _lacking(text: str) -> list[str]:
    """The letters of ``text`` that the fonts of matplotlib's settings lack."""
    from matplotlib import rcParams

    letters = _letters(tuple(rcParams["font.family"]))
    return [c for c in dict.fromkeys(text) if ord(c) not in letters]


@cache
def _other_font(letter: str) -> str | None:
    """The first font of this machine that draws ``letter``; None without one."""
    from matplotlib.font_manager import fontManager, get_font

    for entry in fontManager.ttflist:
        if (entry.style, entry.weight) == ("normal", 400) and not entry.name.startswith(("Last Resort", "cm")):
            with suppress(OSError, RuntimeError):  # it has gone, or is made of pictures
                font = get_font(entry.fname)
                font.set_size(10, 120)
                if font.get_char_index(ord(letter)):
                    font.load_char(ord(letter))
                    return str(entry.name)
    return None


@cache
def _tell() -> None:
    message = "in pictures, letters that no font of this machine has are shown by their numbers, such as \\u5317"
    warnings.warn(f"{message}: install a font that has them, such as Noto Sans CJK", stacklevel=2)


@cache
def _letters(families: tuple[str, ...]) -> Set[int]:
    """The code points that the fonts of these families have, and the line break."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in families]
    return frozenset({ord("\n")}).union(*(font.get_charmap() for font in fonts))


def plain_ticks(axis: Any) -> None:
    """Plain numbers at the ticks of a logarithmic axis, once all lines are drawn. Matplotlib's own would read
    9.8 x 10^-1 where the axis spans less than a decade."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    subs = (1,) if high > 1000 * low else (1, 2, 5)
    axis.set_major_locator(ticker.LogLocator(subs=subs) if high > 10 * low else ticker.MaxNLocator(6))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def over_rounds(axes: Any) -> None:
    """Name the axis of rounds, whose ticks are whole numbers."""
    axes.set_xlabel("rounds")
    axes.xaxis.get_major_locator().set_params(integer=True)


COLOURS = 7
"""Colours that can be told apart; further numbers have them again, with other dashes."""


def styles(labels: Iterable[str]) -> dict[str, int]:
    """The number of each label, whatever their order. A label begins with its method, which has its place in the table
    of methods; one whose colour another one has takes the next that is free."""
    found: dict[str, int] = {}
    firsts: dict[str, str] = {}
    ordered = sorted(set(labels), key=lambda label: (_place(label), label))
    for label in ordered:
        firsts.setdefault(_method(label), label)
    for label in dict.fromkeys((*firsts.values(), *ordered)):
        wanted = itertools.chain([_place(label) % COLOURS], itertools.count())
        found[label] = next(number for number in wanted if number not in found.values())
    return found


def _method(label: str) -> str:
    return label.split(" ")[0]


def _place(label: str) -> int:
    name = _method(label)
    names = list(algorithms.TABLE)
    return names.index(name) if name in names else len(names) + zlib.crc32(name.encode())
