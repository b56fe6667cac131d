"""Pictures of a run, as the bytes of PNG files, one also as SVG. They are drawn without pyplot, which belongs to the
user's program: its backend draws the plots of a notebook."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any, Literal, TypeAlias

from rondo.report.student import interval

_MANY_LABELS = 12
"""Above this number of classes the legend is left out: it would hide the bars."""
_SHOWN_LABELS = 19
"""Number of classes with a colour each. The rarer ones share one bar, "other"."""
_MANY_CLIENTS = 200
"""Above this number a histogram of sizes is drawn: bars would be thinner than a pixel."""


def _axes(width: float, height: float, panels: int = 1) -> Any:
    """A figure and its axes. Several panels stand side by side with one y axis; their axes are an array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, sharey=True)
    for panel in figure.axes:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    return figure, axes


Form: TypeAlias = Literal["png", "svg"]


def _drawn(figure: Any, form: Form) -> bytes:
    """The bytes of a picture; those of an SVG file have no date and no random names."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "rondo"}):
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # long names in a small picture
        figure.savefig(content, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    return content.getvalue()


def _png(figure: Any) -> bytes:
    return _drawn(figure, "png")


def _plain(name: str) -> str:
    """A name as a tick label, cut to 24 characters."""
    shown = _drawable(name)
    return _text(shown if len(shown) <= 24 else shown[:23] + "…")


def _text(text: str) -> str:
    """A text as it can be drawn, dollar signs escaped, so that no formula is."""
    return _drawable(text).replace("$", r"\$")


def _drawable(text: str) -> str:
    """``text``, with letters that the fonts lack as Python escapes. Matplotlib would draw a box for each, so that names
    could not be told apart."""
    from matplotlib import rcParams

    letters = _letters(tuple(rcParams["font.family"]))
    return "".join(c if ord(c) in letters else c.encode("ascii", "backslashreplace").decode() for c in text)


@cache
def _letters(families: tuple[str, ...]) -> Set[int]:
    """The code points that the fonts of these families have, and the line break."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in families]
    return frozenset({ord("\n")}).union(*(font.get_charmap() for font in fonts))


def partition(report: Mapping[str, Any]) -> bytes:
    """Draw every client's rows as a bar, stacked by label if there are labels. For many clients, draw a histogram of
    sizes instead."""
    clients = report["clients"]
    sizes = [c["train"] + c["validation"] for c in clients.values()]
    figure, axes = _axes(min(14, max(6, 0.35 * len(clients) + 3)), 4)
    axes.set_title(f"{len(clients)} clients", loc="left")
    if len(clients) > _MANY_CLIENTS:
        axes.hist(sizes, bins=40)
        axes.set_xlabel("rows")
        axes.set_ylabel("clients")
    else:
        _bars(axes, clients, sizes)
    return _png(figure)


def _bars(axes: Any, clients: Mapping[str, Any], sizes: Sequence[int]) -> None:
    from matplotlib import colormaps

    counts: Counter[str] = Counter()
    for c in clients.values():
        counts.update(c["labels"] or {})
    shown = sorted(label for label, _ in counts.most_common(_SHOWN_LABELS))
    positions = range(len(clients))
    if counts:
        colours = colormaps["tab20" if len(counts) > 10 else "tab10"]
        bottom = [0] * len(clients)
        for i, label in enumerate(shown):
            heights = [c["labels"].get(label, 0) for c in clients.values()]
            axes.bar(positions, heights, bottom=bottom, color=colours(i), label=_plain(label), width=0.8)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        if len(counts) > len(shown):
            rest = [s - b for s, b in zip(sizes, bottom, strict=True)]
            axes.bar(positions, rest, bottom=bottom, color="0.8", label="other", width=0.8)
        if len(counts) <= _MANY_LABELS:
            axes.legend(title="label", frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left")
    else:
        axes.bar(positions, sizes, width=0.8)
    axes.set_ylabel(f"rows, coloured by label ({len(counts)} labels)" if counts else "rows")
    if len(clients) <= 40:
        axes.set_xticks(positions, [_plain(n) for n in clients], rotation=60, ha="right", fontsize=8)
    else:
        axes.set_xlabel("client")


def contact_sheet(clients: Mapping[str, Sequence[tuple[Any, str]]]) -> bytes:
    """Draw some pictures that clients hold, a row per client: arrays (height, width, channels) of uint8, each with its
    caption."""
    from matplotlib.figure import Figure

    columns = max(map(len, clients.values()))
    figure = Figure(figsize=(1.6 + 0.8 * columns, 0.3 + len(clients)), layout="constrained")
    axes = figure.subplots(len(clients), columns, squeeze=False)
    for row, (name, pictures) in zip(axes, clients.items(), strict=True):
        for panel in row:
            panel.axis("off")
        row[0].text(-0.15, 0.5, _plain(name), transform=row[0].transAxes, ha="right", va="center", fontsize=8)
        for panel, (pixels, caption) in zip(row, pictures, strict=False):
            grey = pixels.shape[2] == 1
            shown = pixels[:, :, 0] if grey else pixels
            panel.imshow(shown, cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
            panel.set_title(_plain(caption), fontsize=7, pad=2)
    return _png(figure)


def curve(before: Mapping[str, Any], history: Sequence[Mapping[str, Any]], metric: str, title: str) -> bytes:
    """Draw the metric on the test set over rounds, starting before the first, and the training loss: on the same axis
    where the metric is a loss too, else on one of its own."""
    figure, axes = _axes(7, 4)
    points = [(0, before.get(metric))]
    for record in history:
        for kind in ("global", "cold_start"):
            if kind in record.get("scores", {}):
                points.append((record["round"] + 1, record["scores"][kind].get(metric)))
    points = [(x, y) for x, y in points if y is not None]
    (line,) = axes.plot([x for x, _ in points], [y for _, y in points], marker="o", ms=3, color="tab:blue")
    _over_rounds(axes)
    titles = history[-1].get("titles", {}) if history else {}
    name = _text(f"test {titles.get(metric, metric)}")
    axes.set_ylabel(name, color="tab:blue")
    if metric == "accuracy":
        axes.set_ylim(0, 1)
    losses = [(r["round"] + 1, r["loss"]) for r in history if r.get("loss") is not None]
    dashed = {"color": "tab:orange", "ls": "--", "lw": 1}
    if losses and metric == "loss":
        (other,) = axes.plot([x for x, _ in losses], [y for _, y in losses], **dashed)
        axes.set_ylabel("loss", color="black")
        axes.legend([line, other], [name, "training loss"], frameon=False)
    elif losses:
        right = axes.twinx()
        right.spines["top"].set_visible(False)
        right.plot([x for x, _ in losses], [y for _, y in losses], **dashed)
        right.set_ylabel("training loss", color="tab:orange")
        right.set_ylim(bottom=0)
    axes.set_title(_text(title), loc="left")
    return _png(figure)


def measure(before: Mapping[str, float], history: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """Draw the first of the task's measures over rounds, starting before the first, on a logarithmic axis. It is the
    first that the last round has too."""
    figure, axes = _axes(7, 4)
    last = history[-1]["measures"] if history else before
    name = next((n for n in before if n in last), next(iter(before)))
    measured = [(0, before), *((r["round"] + 1, r["measures"]) for r in history)]
    points = [(x, values[name]) for x, values in measured if name in values]
    axes.plot([x for x, _ in points], [y for _, y in points], marker="o", ms=3, color="tab:blue")
    axes.set_yscale("log", nonpositive="mask")
    _plain_ticks(axes.yaxis)
    _over_rounds(axes)
    axes.set_ylabel(_text(name.replace("_", " ")))
    axes.set_title(_text(title), loc="left")
    return _png(figure)


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart. Its yellow is left out: too pale for a line."""
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))
_MARKERS = "osD"
"""Each pass through the palette has another dash and marker, so 21 lines can be told apart."""
_FAR_APART = 4
"""Above this ratio of the most to the fewest bytes of a run, the axis of megabytes is logarithmic. On a linear one all
frugal algorithms would be a single upright line."""


def comparison(content: Mapping[str, Any], form: Form = "png") -> bytes:
    """Draw the score over rounds and over bytes, one line per algorithm: the mean over seeds, with its 95 % interval as
    a band. A personal method has the score of its personal models. Bytes that are a secret have no line, and where all
    are, there are rounds alone. ``content``: as in ``comparison.json``."""
    totals = [r["curve"][-1]["bytes"] for r in content["runs"] if r["curve"] and r["curve"][-1]["bytes"] is not None]
    figure, panels = _axes(12, 5, panels=2) if totals else _axes(7, 5)
    left, right = panels if totals else (panels, None)
    lines = []
    for i, name in enumerate(content["algorithms"]):
        runs = [r for r in content["runs"] if r["algorithm"] == name]
        # Seeds are scored after the same rounds, so their points match by position.
        columns = list(zip(*(r["curve"] for r in runs), strict=False))
        if not columns:
            continue
        scores = [[p["score"] for p in column] for column in columns]
        means = [sum(s) / len(s) for s in scores]
        style, label = _style(i), _plain(name) + _whose(runs[0])
        rounds = [column[0]["round"] for column in columns]
        places = [(left, rounds)]
        if right is not None and columns[-1][0]["bytes"] is not None:
            places.append((right, [sum(p["bytes"] for p in column) / len(column) / 1e6 for column in columns]))
        for axes, x in places:
            _band(axes, x, scores, style["color"])
            (line,) = axes.plot(x, means, label=label, **style)
        lines.append((means[-1], line))
    _as_high_as_scores(left, [p["score"] for r in content["runs"] for p in r["curve"]])
    left.set_ylabel(_score_name(content["runs"]))
    if any(r["curve_of"] != r["primary"] for r in content["runs"]):
        left.set_yscale("log", nonpositive="mask")
        _plain_ticks(left.yaxis)
    _over_rounds(left)
    if right is not None:
        _over_megabytes(right, totals, "by all clients, first contact included")
    for axes in figure.axes:
        axes.grid(alpha=0.25, lw=0.5)
    left.set_title(_shared_settings(content), loc="left")
    _legend(figure, lines)
    return _png(figure) if form == "png" else _drawn(figure, form)


def _band(axes: Any, x: Sequence[float], scores: Sequence[Sequence[float]], colour: str) -> None:
    """The 95 % interval of the mean at each place of ``x``. ``scores``: those of the seeds at each place."""
    ends = [interval(values) or (values[0], values[0]) for values in scores]
    axes.fill_between(x, [low for low, _ in ends], [high for _, high in ends], color=colour, alpha=0.12, lw=0)


def _as_high_as_scores(axes: Any, scores: Sequence[float]) -> None:
    """Cut bands off where no seed has a score: the interval of two or three seeds can be many times as wide."""
    if len(set(scores)) > 1 and axes.get_yscale() == "linear":
        low, high = min(scores), max(scores)
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def _plain_ticks(axis: Any) -> None:
    """Plain numbers at the ticks of a logarithmic axis, once all lines are drawn. Matplotlib's own would read
    9.8 x 10^-1 where the axis spans less than a decade."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    subs = (1,) if high > 1000 * low else (1, 2, 5)
    axis.set_major_locator(ticker.LogLocator(subs=subs) if high > 10 * low else ticker.MaxNLocator(6))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def _over_rounds(axes: Any) -> None:
    axes.set_xlabel("rounds")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _over_megabytes(axes: Any, totals: Sequence[float], whose: str) -> None:
    """Name the axis of megabytes, once all lines are drawn. ``totals``: how much each sends in all, in any unit."""
    axes.set_xlabel(f"MB sent up and down {whose}")
    if max(totals, default=0) > _FAR_APART * min(totals, default=0) > 0:
        axes.set_xscale("log", nonpositive="mask")  # leaves out the score before the first round, at 0 bytes
        _plain_ticks(axes.xaxis)


def _style(number: int) -> dict[str, Any]:
    """The look of a line."""
    turn, place = divmod(number, len(_COLOURS))
    return {"color": _COLOURS[place], "ls": _DASHES[turn % 3], "marker": _MARKERS[turn % 3], "ms": 3.5, "lw": 1.5}


def _whose(run: Mapping[str, Any]) -> str:
    """The model that a run's curve is of, unless it is the global one."""
    model = (run["score"] or {"model": "global"})["model"]
    return "" if model == "global" or run["curve_of"] != run["primary"] else f" ({model})"


def _score_name(runs: Sequence[Mapping[str, Any]]) -> str:
    """The name of the score that curves are of."""
    if runs[0]["curve_of"] != runs[0]["primary"]:
        return _text(runs[0]["curve_of"].replace("_", " "))
    title = _text(runs[0]["title"])
    if any(run["score"] and run["score"]["model"] == "personal" for run in runs):
        return f"{title} on the test set; of personal models on own rows"
    return f"{'test' if any(r['test'] for r in runs) else 'own rows'} {title}"


def _shared_settings(content: Mapping[str, Any]) -> str:
    """The title of a comparison: what all runs share, and the seeds."""
    counts = [f"{content[what]} {what}" for what in ("rounds", "clients") if content[what] is not None]
    seeds = content["seeds"]
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over {len(seeds)} seeds, bands are 95 % intervals of it"
    return ", ".join([*counts, over])


def _legend(figure: Any, lines: Sequence[tuple[float, Any]]) -> None:
    """List the lines as they end, from the top."""
    ordered = [line for _, line in sorted(lines, key=lambda pair: -pair[0])]
    figure.legend(handles=ordered, loc="outside right upper", frameon=False, handlelength=3)


Band: TypeAlias = Sequence[tuple[int, float, float, float, float]]
"""Points of a line: round, megabytes per client until then, value, and the ends of its interval."""


def over_bytes(lines: Mapping[str, Band]) -> bool:
    """Whether :func:`bands` draws a second panel, over bytes: where lines are at other bytes after the same round."""
    by_round: dict[int, set[float]] = {}
    for points in lines.values():
        for done, megabytes, *_ in points:
            by_round.setdefault(done, set()).add(megabytes)
    return any(len(points) > 1 for points in lines.values()) and any(len(sent) > 1 for sent in by_round.values())


def bands(
    lines: Mapping[str, Band], score: str, limits: Sequence[tuple[str, Sequence[tuple[int, float]]]] = ()
) -> bytes:
    """Draw ``score`` over rounds, and over bytes if :func:`over_bytes`, a line with a band for each name.

    Where each has one point, names stand beside it, with its ends.

    ``limits``: names, and the points of a dashed line over rounds in the colour of each.
    """
    if all(len(points) == 1 for points in lines.values()):
        return _points({name: point for name, (point,) in lines.items()}, score)
    panels = 1 + over_bytes(lines)
    figure, _ = _axes(4 + 4 * panels, 4.5, panels)
    left, *right = figure.axes
    drawn = []
    for i, (name, points) in enumerate(lines.items()):
        *places, values, low, high = zip(*points, strict=True)
        style = _style(i) | {"marker": "o" if len(points) == 1 else ""}
        for axes, x in zip(figure.axes, places, strict=False):
            axes.fill_between(x, low, high, color=style["color"], alpha=0.12, lw=0)
            (line,) = axes.plot(x, values, label=_plain(name), **style)
        drawn.append((values[-1], line))
    for name, limit in limits:
        colour = _style([*lines].index(name))["color"]
        left.plot(*zip(*limit, strict=True), color=colour, ls="--", lw=0.9)
    _over_rounds(left)
    for axes in right:
        _over_megabytes(axes, [points[-1][1] for points in lines.values()], "per client")
    left.set_ylabel(_text(score))
    for axes in figure.axes:
        axes.grid(alpha=0.25, lw=0.5)
    _legend(figure, drawn)
    return _png(figure)


def _points(points: Mapping[str, tuple[int, float, float, float, float]], score: str) -> bytes:
    """Draw one value with its ends for each name, from the top."""
    figure, axes = _axes(8, 1 + 0.22 * len(points))
    for place, (*_, value, low, high) in enumerate(points.values()):
        axes.plot([low, high], [place, place], color=_style(0)["color"], lw=1.2)
        axes.plot([value], [place], "o", color=_style(0)["color"], ms=4)
    axes.set_yticks(range(len(points)), [_plain(name) for name in points])
    axes.invert_yaxis()
    axes.set_xlabel(_text(score))
    axes.grid(alpha=0.25, lw=0.5)
    return _png(figure)


def varied(content: Mapping[str, Any]) -> bytes | None:
    """Draw the final score over the key that is varied, one line per method and combination of the other varied values:
    the mean over seeds, with its 95 % interval as a band. A method without the key is a level, dashed line.
    None unless the values of just one key are numbers. ``content``: as in ``comparison.json``."""
    keys = [key for key, values in content["varied"].items() if all(type(v) in (int, float) for v in values)]
    if len(keys) != 1 or len(content["varied"][keys[0]]) < 2:
        return None
    (key,) = keys
    places = sorted(content["varied"][key])
    figure, axes = _axes(9, 5)
    by_line: dict[str, list[Mapping[str, Any]]] = {}
    for run in (run for run in content["runs"] if run["curve"]):
        rest = [f"{k.rpartition('.')[2]}={v}" for k, v in run["values"].items() if k != key]
        by_line.setdefault(" ".join([run["method"], *rest]), []).append(run)
    lines = []
    for i, (name, runs) in enumerate(by_line.items()):
        finals = {
            place: [run["curve"][-1]["score"] for run in runs if run["values"].get(key, place) == place]
            for place in places
        }
        finals = {place: scores for place, scores in finals.items() if scores}
        means = [sum(scores) / len(scores) for scores in finals.values()]
        has_key = key in runs[0]["values"]
        style = _style(i) | ({} if has_key else {"marker": "", "ls": _DASHES[1]})
        if has_key:
            _band(axes, list(finals), list(finals.values()), style["color"])
        (line,) = axes.plot(list(finals), means, label=_plain(name) + _whose(runs[0]), **style)
        lines.append((means[-1], line))
    _as_high_as_scores(axes, [run["curve"][-1]["score"] for runs in by_line.values() for run in runs])
    if places[0] > 0 and places[-1] > _FAR_APART * places[0]:
        from matplotlib import ticker

        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xticks(places, [f"{place:g}" for place in places])
    if any(r["curve_of"] != r["primary"] for r in content["runs"]):
        axes.set_yscale("log", nonpositive="mask")
        _plain_ticks(axes.yaxis)
    axes.set_xlabel(key)
    axes.set_ylabel(f"final {_score_name(content['runs'])}")
    axes.set_title(_shared_settings(content), loc="left")
    axes.grid(alpha=0.25, lw=0.5)
    _legend(figure, lines)
    return _png(figure)
