"""Pictures of many runs, whose lines are means over seeds with their intervals, as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rondo.records.curve import Spread
from rondo.report import drawing
from rondo.report.drawing import styles
from rondo.study.compare.table import score_name

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart. Its yellow is left out: too pale for a line."""
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))
_MARKERS = "osD"
"""Each pass through the palette has another dash and marker, so 21 lines can be told apart."""
_FAR_APART = 4
"""Above this ratio of the most to the fewest bytes of a run, the axis of megabytes is logarithmic. On a linear one all
frugal algorithms would be a single upright line."""


def comparison(content: Mapping[str, Any]) -> Any:
    """Draw the score over rounds and over bytes, one line per algorithm: the mean over seeds, with its 95 % interval as
    a band. Bytes that are a secret have no line, and where all
    are, there are rounds alone. ``content``: as in ``comparison.json``."""
    totals = [r["curve"][-1]["bytes"] for r in content["runs"] if r["curve"] and r["curve"][-1]["bytes"] is not None]
    figure, panels = drawing.canvas(12, 5, panels=2) if totals else drawing.canvas(7, 5)
    left, right = panels if totals else (panels, None)
    drawn, lines = [p["score"] for r in content["runs"] for p in r["curve"]], []
    numbers = styles(content["algorithms"])
    for name in content["algorithms"]:
        runs = [r for r in content["runs"] if r["algorithm"] == name]
        # Seeds are scored after the same rounds, so their points match by position.
        columns = list(zip(*(r["curve"] for r in runs), strict=False))
        if not columns:
            continue
        scores = [[p["score"] for p in column] for column in columns]
        means = [sum(s) / len(s) for s in scores]
        style, label = _style(numbers[name]), drawing.label(name) + _whose(runs[0])
        rounds = [column[0]["round"] for column in columns]
        places = [(left, rounds)]
        if right is not None and columns[-1][0]["bytes"] is not None:
            places.append((right, [sum(p["bytes"] for p in column) / len(column) / 1e6 for column in columns]))
        for axes, x in places:
            _band(axes, x, scores, style["color"], positive=_are_measures(content))
            (line,) = axes.plot(x, means, label=label, **style)
        lines.append((means[-1], line))
    _scale(left, content, drawn)
    left.set_ylabel(drawing.shown(score_name(content)))
    drawing.over_rounds(left)
    if right is not None:
        _over_megabytes(right, totals, "by all clients, first contact included")
    left.set_title(_shared_settings(content), loc="left")
    _legend(figure, lines)
    return figure


def varied(content: Mapping[str, Any]) -> Any | None:
    """Draw the final score over the key that is varied, one line per method and combination of the other varied values:
    the mean over seeds, with its 95 % interval as a band. A method without the key is a level, dashed line.
    None unless the values of just one key are numbers. ``content``: as in ``comparison.json``."""
    keys = [key for key, values in content["varied"].items() if all(type(v) in (int, float) for v in values)]
    if len(keys) != 1 or len(content["varied"][keys[0]]) < 2:
        return None
    (key,) = keys
    places = sorted(content["varied"][key])
    figure, axes = drawing.canvas(9, 5)
    by_line: dict[str, list[Mapping[str, Any]]] = {}
    for run in (run for run in content["runs"] if run["curve"]):
        rest = [f"{k.rpartition('.')[2]}={v}" for k, v in run["values"].items() if k != key]
        by_line.setdefault(" ".join([run["method"], *rest]), []).append(run)
    drawn, lines = [run["curve"][-1]["score"] for runs in by_line.values() for run in runs], []
    numbers = styles(by_line)
    for name, runs in by_line.items():
        finals = {
            place: [run["curve"][-1]["score"] for run in runs if run["values"].get(key, place) == place]
            for place in places
        }
        finals = {place: scores for place, scores in finals.items() if scores}
        means = [sum(scores) / len(scores) for scores in finals.values()]
        has_key = key in runs[0]["values"]
        style = _style(numbers[name]) | ({} if has_key else {"marker": "", "ls": _DASHES[1]})
        if has_key:
            _band(axes, list(finals), list(finals.values()), style["color"], positive=_are_measures(content))
        (line,) = axes.plot(list(finals), means, label=drawing.label(name) + _whose(runs[0]), **style)
        lines.append((means[-1], line))
    _scale(axes, content, drawn)
    if places[0] > 0 and places[-1] > _FAR_APART * places[0]:
        from matplotlib import ticker

        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel(key)
    axes.set_ylabel(drawing.shown(f"final {score_name(content)}"))
    axes.set_title(_shared_settings(content), loc="left")
    _legend(figure, lines)
    return figure


Band: TypeAlias = Sequence[tuple[int, float, float, float, float]]
"""Points of a line: round, megabytes per client until then, value, and the ends of its interval."""


def over_bytes(lines: Mapping[str, Band]) -> bool:
    """Whether :func:`bands` draws a second panel, over bytes: where lines are at other bytes after the same round."""
    by_round: dict[int, set[float]] = {}
    for points in lines.values():
        for done, megabytes, *_ in points:
            by_round.setdefault(done, set()).add(megabytes)
    return any(len(points) > 1 for points in lines.values()) and any(len(sent) > 1 for sent in by_round.values())


def over_nothing(lines: Mapping[str, Band]) -> bool:
    """Whether each line is a point, so that names stand beside values."""
    return all(len(points) == 1 for points in lines.values())


def bands(lines: Mapping[str, Band], score: str, limits: Sequence[tuple[str, Sequence[tuple[int, float]]]] = ()) -> Any:
    """Draw ``score`` over rounds, and over bytes if :func:`over_bytes`, a line with a band for each name.

    Where each has one point (:func:`over_nothing`), names stand beside it, with its ends.

    ``limits``: names, and the points of a dashed line over rounds in the colour of each.
    """
    if over_nothing(lines):
        return _points({name: point for name, (point,) in lines.items()}, score)
    panels = 1 + over_bytes(lines)
    figure, _ = drawing.canvas(4 + 4 * panels, 4.5, panels)
    left, *right = figure.axes
    drawn, numbers = [], styles(lines)
    for name, points in lines.items():
        *places, values, low, high = zip(*points, strict=True)
        style = _style(numbers[name]) | {"marker": "o" if len(points) == 1 else ""}
        for axes, x in zip(figure.axes, places, strict=False):
            axes.fill_between(x, low, high, color=style["color"], alpha=0.12, lw=0)
            (line,) = axes.plot(x, values, label=drawing.label(name), **style)
        drawn.append((values[-1], line))
    for name, limit in limits:
        colour = _style(numbers[name])["color"]
        left.plot(*zip(*limit, strict=True), color=colour, ls="--", lw=0.9)
    drawing.over_rounds(left)
    for axes in right:
        _over_megabytes(axes, [points[-1][1] for points in lines.values()], "per client")
    left.set_ylabel(drawing.shown(score))
    _legend(figure, drawn)
    return figure


def _points(points: Mapping[str, tuple[int, float, float, float, float]], score: str) -> Any:
    """Draw one value with its ends for each name, from the top."""
    figure, axes = drawing.canvas(8, 1 + 0.22 * len(points))
    numbers = styles(points)
    for place, (name, (*_, value, low, high)) in enumerate(points.items()):
        colour = _style(numbers[name])["color"]
        axes.plot([low, high], [place, place], color=colour, lw=1.2)
        axes.plot([value], [place], "o", color=colour, ms=4)
    axes.set_yticks(range(len(points)), [drawing.label(name) for name in points])
    axes.invert_yaxis()
    axes.set_xlabel(drawing.shown(score))
    axes.grid(alpha=0.25, lw=0.5)
    return figure


def _are_measures(content: Mapping[str, Any]) -> bool:
    """Whether curves are of measures, which fall over orders of magnitude, and not of scores."""
    return any(run["curve_of"] != run["primary"] for run in content["runs"])


def _band(axes: Any, x: Sequence[float], scores: Sequence[Sequence[float]], colour: str, *, positive: bool) -> None:
    """The 95 % interval of the mean at each place of ``x``. ``scores``: those of the seeds at each place. On the
    logarithmic axis of ``positive`` ones, an interval that reaches zero ends at the smallest of them."""
    ends = [Spread.of(values).ends or (values[0], values[0]) for values in scores]
    low = [min(values) if positive and end <= 0 else end for values, (end, _) in zip(scores, ends, strict=True)]
    axes.fill_between(x, low, [end for _, end in ends], color=colour, alpha=0.12, lw=0)


def _scale(axes: Any, content: Mapping[str, Any], drawn: Sequence[float]) -> None:
    """The axis of ``drawn``, once all lines are there: logarithmic for measures; for scores without the parts of bands
    where no seed has one, since the interval of two or three seeds can be many times as wide."""
    if _are_measures(content):
        axes.set_yscale("log", nonpositive="mask")
        drawing.plain_ticks(axes.yaxis)
    elif len(set(drawn)) > 1:
        low, high = min(drawn), max(drawn)
        room, inside = 0.06 * (high - low), low >= 0 and high <= 1
        axes.set_ylim(*((max(0, low - room), min(1, high + room)) if inside else (low - room, high + room)))


def _over_megabytes(axes: Any, totals: Sequence[float], whose: str) -> None:
    """Name the axis of megabytes, once all lines are drawn. ``totals``: how much each sends in all, in any unit."""
    axes.set_xlabel(f"MB sent up and down {whose}")
    if max(totals, default=0) > _FAR_APART * min(totals, default=0) > 0:
        axes.set_xscale("log", nonpositive="mask")  # leaves out the score before the first round, at 0 bytes
        drawing.plain_ticks(axes.xaxis)


def _style(number: int) -> dict[str, Any]:
    """The look of a line."""
    turn, place = divmod(number, len(_COLOURS))
    return {"color": _COLOURS[place], "ls": _DASHES[turn % 3], "marker": _MARKERS[turn % 3], "ms": 3.5, "lw": 1.5}


def _whose(run: Mapping[str, Any]) -> str:
    """The model that a run's curve is of, unless it is the global one."""
    model = (run["score"] or {"model": "global"})["model"]
    return "" if model == "global" or run["curve_of"] != run["primary"] else f" ({model})"


def _shared_settings(content: Mapping[str, Any]) -> str:
    """The title of a comparison: what all runs share, and the seeds."""
    counts = [f"{content[what]} {what}" for what in ("rounds", "clients") if content[what] is not None]
    seeds = content["seeds"]
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over {len(seeds)} seeds, bands are 95 % intervals of it"
    return ", ".join([*counts, over])


def _legend(figure: Any, lines: Sequence[tuple[float, Any]]) -> None:
    """List the lines as they end, from the top, beside axes with a grid."""
    for axes in figure.axes:
        axes.grid(alpha=0.25, lw=0.5)
    ordered = [line for _, line in sorted(lines, key=lambda pair: -pair[0])]
    figure.legend(handles=ordered, loc="outside right upper", frameon=False, handlelength=3)
