"""The commands on many runs: compare, tune and reproduce."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rondo.cli.app import Against, Device, Processes, entries, listed_methods, reproducible, settings
from rondo.cli.process import FAILED, USER_ERROR, quiet_libraries, repeated, stoppable, user_errors, written
from rondo.errors import ConfigError, Problem, headed, visible

if TYPE_CHECKING:
    from rondo.study.claims.trials import Trials

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


_TUNE = "rondo tune"


def tune(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="a configuration, an entry of rondo reproduce, or an entry's name",
            autocompletion=entries,
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Argument(
            help="of a configuration: names separated by commas; default: the methods of the file",
            autocompletion=listed_methods,
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="of a configuration: KEY.PATH=VALUE,VALUE; repeated: all combinations", autocompletion=settings
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="of a configuration: numbers separated by commas, of no other run; default: 100")
    ] = None,
    held_out: Annotated[
        float | None, typer.Option(help="of a configuration: share of each client's training rows; default: 0.2")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="of a configuration: points per method, chosen by optuna; default: all")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="of a configuration: the file to write")] = None,
    data: Annotated[Path, typer.Option(help="of an entry: the folder of the data sets")] = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(help="where trials are kept; default: runs/tune, for entries runs/reproduce"),
    ] = None,
    device: Device = "auto",
    processes: Processes = 1,
) -> None:
    """Search one grid for several methods, on rows held out of the training rows, and write the values of each."""
    with user_errors(), headed(_TUNE):
        from rondo.study.parallel import check_processes
        from rondo.study.tune.methods import Asked, Methods

        check_processes(processes, _TUNE)
        if (entry := _entry(target)) is not None:
            options = {"METHODS": methods, "--grid": grid, "--seeds": seeds, "--held-out": held_out, "--trials": trials}
            _check_unused({**options, "--to": to})
            _tune_entry(target, entry, data, out or Path("runs/reproduce"), device, processes)
            return
        file = _new_file(to)
        asked = Asked(target, listed(methods), grid or [], numbers(seeds, _TUNE) or [100], held_out, trials)
        work = Methods(asked, out or Path("runs/tune"))
        chosen = _searched(work, device, processes)
        _write(file, work.file(chosen).encode())
        _report(chosen, work.tuning, file)
        print(f"all methods with their values: rondo compare --config {file}")


def _entry(target: str) -> Any:
    """The entry ``target``; None for a configuration."""
    from rondo.config import toml_file
    from rondo.study.claims import entry as entries

    if target in entries.names() or not (target.endswith(".toml") or Path(target).exists()):
        return entries.read(target)
    raw = toml_file.read(Path(target), _TUNE, "rondo init writes a configuration; rondo reproduce list shows entries")
    return entries.parsed(raw, target) if "arms" in raw or "product" in raw else None


def _check_unused(options: Mapping[str, Any]) -> None:
    message = "an entry has its own, in [arms] and [tuning], and keeps its values beside its runs: leave it out"
    if problems := [Problem(option, message) for option, value in options.items() if value is not None]:
        raise ConfigError(problems, _TUNE)


def _new_file(path: Path | None) -> Path:
    """The file ``--to``, which must be none yet."""
    if path is None:
        raise ConfigError.at("--to", "is missing: name the file to write", _TUNE)
    if path.exists():
        raise ConfigError.at("--to", f"{str(path)!r} already exists; name another file", _TUNE)
    if not path.parent.is_dir():
        raise ConfigError.at("--to", f"{str(path.parent)!r} is not a folder; make it, or name another", _TUNE)
    return path


def _tune_entry(target: str, entry: Any, data: Path, out: Path, device: str, processes: int) -> None:
    from rondo.study.claims.trials import Trials

    if entry.tuning is None:
        raise ConfigError.at("tuning", "the entry has no such table, so it has no grid to search", target)
    work = Trials(target, entry, out, data)
    chosen = _searched(work, device, processes)
    file = work.folder / "tuned.json"
    _write(file, work.tuned_file())
    _report(chosen, entry.tuning, file)


def _searched(work: Any, device: str, processes: int) -> Any:
    """Make the trials that are missing; return the point of each arm. Raises :class:`rondo.ConfigError` for an arm of
    which no trial came to its end."""
    quiet_libraries()
    work.check_done(work.here(), device, _TUNE)
    with stoppable(repeated) as stop:
        while missing := work.missing_of_tuning():
            for trial, seconds in work.make_all(missing, device, processes=processes, stop=stop):
                print(visible(f"{trial}: {seconds:.0f} s"), flush=True)
    chosen = work.chosen()
    message = (
        "not even at its best point did all trials come to their end, so search other values; one stopped because:"
    )
    if failed := [arm for arm, of_arm in chosen.items() if any(isinstance(s, str) for s in of_arm.tried[0].scores)]:
        reason = next(reversed(work.stopped.values()), "no score is a finite number; the metric may be another")
        raise ConfigError([Problem(f"grid, {arm}", f"{message} {reason}") for arm in failed], _TUNE)
    return chosen


def _write(file: Path, content: bytes) -> None:
    from rondo.records import durable

    with written(file, str(file), _TUNE):
        durable.write(file, content)


def _report(chosen: Mapping[str, Any], tuning: Any, file: Path) -> None:
    """Print the chosen values, and which of them lie at an edge of the grid."""
    for arm, of_arm in chosen.items():
        values = ", ".join(f"{key} = {value}" for key, value in of_arm.values.items())
        print(visible(f"{arm}: {values}; scores {_shown(of_arm.tried[0].scores)}; {of_arm.trials} trials"))
        if edge := tuning.at_edge(of_arm.values):
            print(visible(f"{arm}: {_shown(edge)} at an edge of the grid; a wider one may suit it better"))
    print(f"written: {file}")


def _shown(values: Any) -> str:
    return ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)


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
