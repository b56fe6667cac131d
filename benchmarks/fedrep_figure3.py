"""FedRep's Figure 3 and more: the principal angle over rounds, over numbers of clients and of rows.

    python benchmarks/fedrep_figure3.py [--seeds 5] [--out benchmarks/results] [--images docs/images] [--set ...]

A curve is the median over seeds, its band the quartiles. The setting is `benchmarks/runs/fedrep-figure3.toml` (d = 10,
k = 2, a tenth of the clients in a round). The paper's figure has m = 5, four numbers of clients, and FedRep, GD-GD and
10GD-GD. FedAvg, which averages representation and head, is added, and so are numbers of rows m at n = 100. The rounds
are those of a run, without its files.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rondo.config import load
from rondo.runs.assemble import assemble

RUN = Path(__file__).parent / "runs" / "fedrep-figure3.toml"
METHODS = {
    "FedRep": ("algorithm.head_steps=0",),
    "10GD-GD": ("algorithm.head_steps=10",),
    "GD-GD": ("algorithm.head_steps=1",),
    "FedAvg": ('algorithm.name="fedavg"', "algorithm.start_rounds=", "train.local_steps=1"),
}
CLIENTS, ROWS = (20, 50, 100, 500), (3, 5, 10, 20)
SETTINGS = (*((n, 5) for n in CLIENTS), *((100, m) for m in ROWS if m != 5))
EVERY = 5
"""Rounds between the points of a curve."""


def angles(method: str, clients: int, rows: int, seed: int, sets: Sequence[str]) -> Iterator[float]:
    """The principal angle before the first round and after each."""
    sizes = [f"problem.clients={clients}", f"problem.rows={rows}", f"train.batch_size={rows}"]
    config = load(RUN, [*METHODS[method], *sizes, f"clients.per_round={clients // 10}", *sets, f"seed={seed}"])
    assembly = assemble(config, "cpu")
    federation = assembly.federation(assembly.start(), {})
    server, scorer = federation.server, federation.scorer
    for done in range(config.rounds + 1):
        if done:
            server.run_round(done - 1)
        model = partial(scorer.newcomer, server.state, server.round(done))
        yield assembly.task.measures(model, {})["principal_angle"]


def draw(curves: dict[tuple[str, int, int], list[list[float]]], file: Path) -> None:
    """One panel per setting, one line per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.4), layout="constrained")
    panels = figure.subplots(2, 4, sharey=True, sharex=True)
    top, bottom = [(n, 5) for n in CLIENTS], [(100, m) for m in ROWS]
    for axes, (clients, rows) in zip(panels.flat, [*top, *bottom], strict=True):
        for method, colour in zip(METHODS, ("#0072B2", "#009E73", "#D55E00", "#000000"), strict=True):
            rounds = list(zip(*curves[method, clients, rows], strict=True))
            low, middle, high = zip(*(statistics.quantiles(values, n=4) for values in rounds), strict=True)
            x = range(0, EVERY * len(rounds), EVERY)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
            axes.plot(x, middle, color=colour, label=method, lw=1.4)
        axes.set_yscale("log")
        axes.set_title(f"n = {clients} clients, m = {rows} rows", fontsize=10)
        axes.grid(alpha=0.25, lw=0.5)
    for axes in panels[:, 0]:
        axes.set_ylabel("principal angle (sine)")
    for axes in panels[1]:
        axes.set_xlabel("rounds, the first ten for moments")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(file, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--images", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    curves: dict[tuple[str, int, int], list[list[float]]] = defaultdict(list)
    with (args.out / "fedrep-figure3.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("method", "clients", "rows", "seed", "round", "principal_angle"))
        for clients, rows in SETTINGS:
            for method in METHODS:
                for seed in range(args.seeds):
                    curve = list(angles(method, clients, rows, seed, args.sets))[::EVERY]
                    curves[method, clients, rows].append(curve)
                    table.writerows(
                        (method, clients, rows, seed, EVERY * i, f"{angle:.4g}") for i, angle in enumerate(curve)
                    )
                ends = [curve[-1] for curve in curves[method, clients, rows]]
                print(f"n = {clients}, m = {rows}, {method}: {statistics.median(ends):.3g} at the end", flush=True)
    draw(curves, args.images / "fedrep-figure3.png")


if __name__ == "__main__":
    main()
