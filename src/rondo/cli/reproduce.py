"""The command reproduce."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rondo.cli.app import Device, Processes, reproducible
from rondo.cli.process import USER_ERROR, quiet_libraries, repeated, stoppable, user_errors
from rondo.errors import ConfigError, headed, visible

if TYPE_CHECKING:
    from rondo.study.claims.trials import Trials

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
        from rondo.study.claims import entry as entries
        from rondo.study.parallel import check_processes

        if name == "list":
            for one in entries.names():
                entry = entries.read(one)
                needs = f"; needs {', '.join(entry.files)}" if entry.files else ""
                print(f"{one:26} {entry.hours:5.2f} h  {entry.paper}, {entry.item}: {entry.title}{needs}")
            return
        end = math.inf if budget is None else time.monotonic() + _seconds(budget)
        check_processes(processes, "rondo reproduce")
        quiet_libraries()
        names = entries.names() if name == "all" else [name]
        _decide(names, data, out, pages or out / "pages", device, processes, end)


def _seconds(text: str) -> float:
    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        seconds = math.nan
    if not seconds >= 0:
        raise ConfigError.at("--budget", f"{text!r} is not a time: give 90s, 30m or 2h")
    return seconds


def _decide(names: list[str], data: Path, out: Path, pages: Path, device: str, processes: int, end: float) -> None:
    """Decide entries, the cheapest first. Of several, one that cannot be is left out with a line; unless its data are
    not there, the command then ends as for a fault of the input."""
    from rondo.records import durable
    from rondo.study.claims import entry as entries
    from rondo.study.claims.trials import Trials

    for option, folder in (("--out", out), ("--pages", pages)):
        if (why := durable.no_folder(folder)) is not None:
            raise ConfigError.at(option, f"{str(folder)!r} is not a folder to write into: {why}; name another")
    work: list[tuple[float, Trials]] = []
    faulty = False

    @contextmanager
    def left_out(name: str) -> Iterator[None]:
        nonlocal faulty
        try:
            yield
        except ConfigError as error:
            if len(names) == 1:
                raise
            faulty |= any(problem.path != "--data" for problem in error.problems)
            print(visible(f"{name} is left out: {'; '.join(map(str, error.problems))}"), flush=True)

    for name in names:
        with left_out(name):
            trials = Trials(name, entries.read(name), out, data)
            work.append((trials.seconds(), trials))
    with stoppable(repeated) as stop:
        for _, trials in sorted(work, key=lambda pair: pair[0]):
            with left_out(trials.name):
                _decide_one(trials, pages, device, processes, stop, end)
    if faulty:
        raise typer.Exit(USER_ERROR)


def _decide_one(trials: Trials, pages: Path, device: str, processes: int, stop: Any, end: float) -> None:
    from rondo.study.claims import page

    trials.check_done(trials.here(), device, "rondo reproduce")
    if stale := trials.stale():
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
