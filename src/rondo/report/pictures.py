"""Pictures of a run as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MANY_LABELS = 12
"""Above this number of classes the legend would hide the bars, so there is none."""


def _axes(width: float, height: float) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def partition(report: Mapping[str, Any], path: Path) -> None:
    """Rows of every client as a bar, stacked by label where there are labels."""
    from matplotlib import colormaps

    clients = report["clients"]
    names = list(clients)
    figure, axes = _axes(min(14, max(6, 0.35 * len(names) + 3)), 4)
    positions = range(len(names))
    labels = sorted({label for c in clients.values() for label in (c["labels"] or {})})
    if labels:
        colours = colormaps["tab20" if len(labels) > 10 else "tab10"]
        bottom = [0] * len(names)
        for i, label in enumerate(labels):
            heights = [clients[n]["labels"].get(label, 0) for n in names]
            axes.bar(positions, heights, bottom=bottom, color=colours(i % colours.N), label=label, width=0.8)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        if len(labels) <= _MANY_LABELS:
            axes.legend(title="label", frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left")
    else:
        axes.bar(positions, [clients[n]["train"] + clients[n]["validation"] for n in names], width=0.8)
    what = f"rows, coloured by label ({len(labels)} labels)" if labels else "rows"
    axes.set_ylabel(what)
    axes.set_title(f"{len(names)} clients", loc="left")
    if len(names) <= 40:
        axes.set_xticks(positions, names, rotation=60, ha="right", fontsize=8)
    else:
        axes.set_xlabel("client")
    _save(figure, path)


def curve(before: Mapping[str, Any], history: Sequence[Mapping[str, Any]], metric: str, title: str, path: Path) -> None:
    """The metric on the test set over rounds, from before the first round on, and the training loss beside it."""
    figure, axes = _axes(7, 4)
    points = [(0, before.get(metric))]
    for record in history:
        for kind in ("global", "cold_start"):
            if kind in record.get("scores", {}):
                points.append((record["round"] + 1, record["scores"][kind].get(metric)))
    points = [(x, y) for x, y in points if y is not None]
    axes.plot([x for x, _ in points], [y for _, y in points], marker="o", ms=3, color="tab:blue")
    axes.set_xlabel("rounds")
    axes.set_ylabel(f"test {metric}", color="tab:blue")
    if metric == "accuracy":
        axes.set_ylim(0, 1)
    losses = [(r["round"] + 1, r["loss"]) for r in history if r.get("loss") is not None]
    if losses:
        right = axes.twinx()
        right.spines["top"].set_visible(False)
        right.plot([x for x, _ in losses], [y for _, y in losses], color="tab:orange", ls="--", lw=1)
        right.set_ylabel("training loss", color="tab:orange")
        right.set_ylim(bottom=0)
    axes.set_title(title, loc="left")
    _save(figure, path)
