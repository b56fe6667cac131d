"""The command compare."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Against, Device, Processes, listed_methods, settings
from rondo.cli.process import FAILED, quiet_libraries, repeated, stoppable, user_errors
from rondo.errors import ConfigError, visible

Columns = Annotated[
    str | None, typer.Option(help="of the table, with commas: test,difference,p,bytes_up; default: all")
]
Out = Annotated[
    str | None,
    typer.Option(
        help="where to write; default: runs/compare-TIME. Finished runs in it are kept, interrupted ones resumed"
    ),
]


def compare(
    algorithms: Annotated[
        str | None,
        typer.Argument(
            metavar="ALGORITHMS",
            help="names separated by commas, or package.module:Class; default: the methods of the file",
            autocompletion=listed_methods,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="all algorithms of the table")] = False,
    config: Annotated[str | None, typer.Option(help="a TOML file; default: the demo's")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="override a setting: KEY.PATH=VALUE for all, NAME.KEY.PATH=VALUE for one algorithm",
            autocompletion=settings,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            help="run with each of several values: KEY.PATH=VALUE,VALUE; repeated: all combinations",
            autocompletion=settings,
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="numbers separated by commas; default: the file's seed")] = None,
    last: Annotated[int, typer.Option(help="also the mean of so many last scores of each run")] = 1,
    target: Annotated[float | None, typer.Option(help="a score: also the rounds and bytes to reach it")] = None,
    at_mb: Annotated[float | None, typer.Option(help="also the score after so many MB of traffic")] = None,
    against: Against = None,
    columns: Columns = None,
    out: Out = None,
    device: Device = "auto",
    processes: Processes = 1,
) -> None:
    """Compare several algorithms on the same data, split, seeds and rounds: a table and a picture."""
    with user_errors():
        from rondo.study import compare

        axes, names = compare.varied(vary or []), _named(algorithms, every)
        variants = compare.plan(names, config, sets=sets or [], vary=axes, seeds=numbers(seeds))
        question = compare.Question(last, target, at_mb, against, listed(columns))
        comparison = _compared(variants, out, question, device, processes)
    if comparison.stopped:
        raise typer.Exit(FAILED)


def _named(algorithms: str | None, every: bool) -> tuple[str, ...]:
    from rondo import algorithms as table

    if every and algorithms is not None:
        raise ConfigError.at("--all", "names are given too; leave out one of the two", "rondo compare")
    return table.names() if every else listed(algorithms)


def listed(names: str | None) -> tuple[str, ...]:
    """The names in a text with commas between."""
    return tuple(n.strip() for n in (names or "").split(",") if n.strip())


def numbers(seeds: str | None, source: str = "rondo compare") -> list[int]:
    """The seeds in a text with commas between. Raises :class:`rondo.ConfigError`, headed by ``source``."""
    try:
        return [int(text) for text in seeds.split(",")] if seeds is not None else []
    except ValueError:
        message = f"{seeds!r} should be whole numbers with commas between, for instance 0,1,2"
        raise ConfigError.at("--seeds", message, source) from None


def _compared(variants: Any, out: str | None, question: Any, device: str, processes: int) -> Any:
    """Run the comparison with progress bars and a final table."""
    from rondo.report.terminal import plain_console
    from rondo.runs.watching.progress import progress
    from rondo.study import compare
    from rondo.study.compare.table import comparison_table

    told = set[str]()  # all runs have the same rows, so their account is given once
    quiet_libraries()
    print(f"{len(variants)} runs of {' or '.join(str(n) for n in sorted({v.config.rounds for v in variants}))} rounds")
    for line in dict.fromkeys(f"{variant.method} {compare.trained(variant.config)}" for variant in variants):
        print(visible(line), flush=True)

    @contextmanager
    def watched(trial: Any) -> Iterator[Any]:
        began = time.perf_counter()
        if trial.finished:
            yield None
            print(f"{trial}: finished before, not run again ({trial.folder})", flush=True)
            return
        with progress(trial.config.rounds, told=told, name=str(trial)) as observer:
            yield observer
        print(f"{trial}: {time.perf_counter() - began:.0f} s ({trial.folder})", flush=True)

    def repeat(run_dir: Path) -> str:
        named = "" if out is not None else f" with --out {shlex.quote(str(run_dir.parent))}"
        return repeated(run_dir).replace(" to go", f"{named} to go")

    with stoppable(repeat) as stop:
        comparison = compare.carry_out(
            variants, out, question, device=device, processes=processes, watch=watched, stop=stop
        )
    for run in comparison.stopped:
        print(visible(f"{run['algorithm']}, seed {run['seed']} stopped: {run['reason']}"), file=sys.stderr)
    if comparison.runs:
        print()
        plain_console(width=200).print(comparison_table(vars(comparison)))
        files = [comparison.out / f"comparison.{ending}" for ending in ("json", "csv", "tex", "png", "svg")]
        print("\ncomparison: " + "\n            ".join(map(str, files)))
        if (comparison.out / "varied.png").is_file():
            print(f"            {comparison.out / 'varied.png'}")
    return comparison
