"""Pictures of a run, as figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.report import drawing

_MANY_LABELS = 12
"""Above this number of classes the legend is left out: it would hide the bars."""
_SHOWN_LABELS = 19
"""Number of classes with a colour each. The rarer ones share one bar, "other"."""
_MANY_CLIENTS = 200
"""Above this number a histogram of sizes is drawn: bars would be thinner than a pixel."""


def partition(report: Mapping[str, Any]) -> Any:
    """Draw every client's rows as a bar, stacked by label if there are labels. For many clients, draw a histogram of
    sizes instead."""
    clients = report["clients"]
    sizes = [c["train"] + c["validation"] for c in clients.values()]
    figure, axes = drawing.canvas(min(14, max(6, 0.35 * len(clients) + 3)), 4)
    axes.set_title(f"{len(clients)} clients", loc="left")
    if len(clients) > _MANY_CLIENTS:
        axes.hist(sizes, bins=40)
        axes.set_xlabel("rows")
        axes.set_ylabel("clients")
    else:
        _bars(axes, clients, sizes)
    return figure


def _bars(axes: Any, clients: Mapping[str, Any], sizes: Sequence[int]) -> None:
    from matplotlib import colormaps

    counts: Counter[str] = Counter()
    for c in clients.values():
        counts.update(c["labels"] or {})
    if any(sum((c["labels"] or {}).values()) > size for c, size in zip(clients.values(), sizes, strict=True)):
        counts.clear()  # rows with several labels: a stack would be higher than the rows
    shown = sorted(label for label, _ in counts.most_common(_SHOWN_LABELS))
    positions = range(len(clients))
    if counts:
        colours = colormaps["tab20" if len(counts) > 10 else "tab10"]
        bottom = [0] * len(clients)
        for i, label in enumerate(shown):
            heights = [c["labels"].get(label, 0) for c in clients.values()]
            axes.bar(positions, heights, bottom=bottom, color=colours(i), label=drawing.label(label), width=0.8)
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
        axes.set_xticks(positions, [drawing.label(n) for n in clients], rotation=60, ha="right", fontsize=8)
    else:
        axes.set_xlabel("client")


def contact_sheet(clients: Mapping[str, Sequence[tuple[Any, str]]]) -> Any:
    """Draw some pictures that clients hold, a row per client: arrays (height, width, channels) of uint8, each with its
    caption."""
    from matplotlib.figure import Figure

    columns = max(map(len, clients.values()))
    figure = Figure(figsize=(1.6 + 0.8 * columns, 0.3 + len(clients)), layout="constrained")
    axes = figure.subplots(len(clients), columns, squeeze=False)
    for row, (name, pictures) in zip(axes, clients.items(), strict=True):
        for panel in row:
            panel.axis("off")
        row[0].text(-0.15, 0.5, drawing.label(name), transform=row[0].transAxes, ha="right", va="center", fontsize=8)
        for panel, (pixels, caption) in zip(row, pictures, strict=False):
            grey = pixels.shape[2] == 1
            shown = pixels[:, :, 0] if grey else pixels
            panel.imshow(shown, cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
            panel.set_title(drawing.label(caption), fontsize=7, pad=2)
    return figure


def curve(before: Mapping[str, Any], history: Sequence[Mapping[str, Any]], metric: str, title: str) -> Any:
    """Draw the metric on the test set over rounds, starting before the first, and the training loss: on the same axis
    where the metric is a loss too, else on one of its own."""
    figure, axes = drawing.canvas(7, 4)
    points = [(0, before.get(metric))]
    for record in history:
        for kind in ("global", "cold_start"):
            if kind in record.get("scores", {}):
                points.append((record["round"] + 1, record["scores"][kind].get(metric)))
    points = [(x, y) for x, y in points if y is not None]
    (line,) = axes.plot([x for x, _ in points], [y for _, y in points], marker="o", ms=3, color="tab:blue")
    drawing.over_rounds(axes)
    titles = history[-1].get("titles", {}) if history else {}
    name = drawing.shown(f"test {titles.get(metric, metric)}")
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
    axes.set_title(drawing.shown(title), loc="left")
    return figure


def measure(before: Mapping[str, float], history: Sequence[Mapping[str, Any]], title: str) -> Any:
    """Draw the first of the task's measures over rounds, starting before the first, on a logarithmic axis. It is the
    first that the last round has too."""
    figure, axes = drawing.canvas(7, 4)
    last = history[-1]["measures"] if history else before
    name = next((n for n in before if n in last), next(iter(before)))
    measured = [(0, before), *((r["round"] + 1, r["measures"]) for r in history)]
    points = [(x, values[name]) for x, values in measured if name in values]
    axes.plot([x for x, _ in points], [y for _, y in points], marker="o", ms=3, color="tab:blue")
    axes.set_yscale("log", nonpositive="mask")
    drawing.plain_ticks(axes.yaxis)
    drawing.over_rounds(axes)
    axes.set_ylabel(drawing.shown(name.replace("_", " ")))
    axes.set_title(drawing.shown(title), loc="left")
    return figure
