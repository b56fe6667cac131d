"""The command reproduce."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Device, Processes
from rondo.cli.completion import reproducible
from rondo.cli.process import quiet_libraries, repeated, stoppable, user_errors
from rondo.errors import headed

_UNITS = {"s": 1, "m": 60, "h": 3600}


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="an entry, a file of one, all, or list", autocompletion=reproducible)
    ] = "list",
    data: Annotated[Path, typer.Option(help="the folder of the data sets")] = Path("data"),
    out: Annotated[Path, typer.Option(help="where runs are kept; those that it holds are not repeated")] = Path(
        "runs/reproduce"
    ),
    pages: Annotated[Path | None, typer.Option(help="where pages are written; default: OUT/pages")] = None,
    budget: Annotated[str | None, typer.Option(help="start no run after this time: 90s, 30m, 2h")] = None,
    device: Device = "auto",
    processes: Processes = 1,
) -> None:
    """Decide claims of the papers: make the runs that are missing, cheapest entry first, and write the verdicts."""
    with user_errors(), headed("rondo reproduce"):
        from rondo.reproduce import entry as entries
        from rondo.runs.parallel import check_processes

        if name == "list":
            for one in entries.names():
                entry = entries.read(one)
                print(f"{one:24} {entry.paper}, {entry.item}: {entry.title}")
            return
        end = math.inf if budget is None else time.monotonic() + _seconds(budget)
        check_processes(processes, "rondo reproduce")
        quiet_libraries()
        names = entries.names() if name == "all" else [name]
        _decide(names, data, out, pages or out / "pages", device, processes, end)


def _seconds(text: str) -> float:
    from rondo.errors import ConfigError

    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        seconds = math.nan
    if not seconds >= 0:
        raise ConfigError.at("--budget", f"{text!r} is no time: give 90s, 30m or 2h")
    return seconds


def _decide(names: list[str], data: Path, out: Path, pages: Path, device: str, processes: int, end: float) -> None:
    from rondo.errors import ConfigError, visible
    from rondo.reproduce import entry as entries
    from rondo.reproduce import page
    from rondo.reproduce.trials import Trials
    from rondo.runs.storage import durable

    for option, folder in (("--out", out), ("--pages", pages)):
        if (why := durable.no_folder(folder)) is not None:
            raise ConfigError.at(option, f"{str(folder)!r} is no folder to write into: {why}; name another")
    work: list[Any] = []
    for name in names:
        try:
            work.append(Trials(name, entries.read(name), out, data))
        except ConfigError as error:
            if len(names) == 1:
                raise
            print(visible(f"{name} is left out: {error.problems[0].message}"), flush=True)
    with stoppable(repeated) as stop:
        for trials in sorted(work, key=lambda trials: trials.seconds()):
            try:
                trials.check_done(trials.here(), device, "rondo reproduce")
            except ConfigError as error:
                if len(names) == 1:
                    raise
                print(visible(f"{trials.name} is left out: {error}"), flush=True)
                continue
            if stale := [arm for arm in trials.entry.tuned if trials.entry.kept(arm) is None]:
                others = "are of another grid, score or configuration, so it is searched again"
                print(visible(f"{trials.name}: the tuned values of {', '.join(stale)} {others}"), flush=True)
            while time.monotonic() < end and (missing := trials.missing()):
                for trial, seconds in trials.make_all(missing, device, processes=processes, stop=stop, end=end):
                    print(f"{trials.name}: {trial}, {seconds:.0f} s", flush=True)
            for finding in page.write(trials, pages):
                print(f"{trials.name}: {finding.of.claim}: {page.at_end(finding, trials)}, {finding.verdict.word}")
                if (of_bytes := finding.equal_bytes) is not None:
                    shown = f"{page.here(finding.of, of_bytes, trials)}, {of_bytes.verdict.word}"
                    print(f"{trials.name}: {finding.of.claim}, at equal bytes per client: {shown}")
            print(f"{trials.name}: {pages / trials.name}.md", flush=True)
