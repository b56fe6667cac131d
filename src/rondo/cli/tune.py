"""The command tune."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Device, Processes, entries, listed_methods, settings
from rondo.cli.process import quiet_libraries, repeated, stoppable, user_errors, written
from rondo.errors import ConfigError, Problem, headed, visible

_SOURCE = "rondo tune"


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
    with user_errors(), headed(_SOURCE):
        from rondo.cli.compare import listed, numbers
        from rondo.study.parallel import check_processes
        from rondo.study.tune.methods import Asked, Methods

        check_processes(processes, _SOURCE)
        if (entry := _entry(target)) is not None:
            options = {"METHODS": methods, "--grid": grid, "--seeds": seeds, "--held-out": held_out, "--trials": trials}
            _check_unused({**options, "--to": to})
            _tune_entry(target, entry, data, out or Path("runs/reproduce"), device, processes)
            return
        file = _new_file(to)
        asked = Asked(target, listed(methods), grid or [], numbers(seeds, _SOURCE) or [100], held_out, trials)
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
    raw = toml_file.read(Path(target), _SOURCE, "rondo init writes a configuration; rondo reproduce list shows entries")
    return entries.parsed(raw, target) if "arms" in raw or "product" in raw else None


def _check_unused(options: Mapping[str, Any]) -> None:
    message = "an entry has its own, in [arms] and [tuning], and keeps its values beside its runs: leave it out"
    if problems := [Problem(option, message) for option, value in options.items() if value is not None]:
        raise ConfigError(problems, _SOURCE)


def _new_file(path: Path | None) -> Path:
    """The file ``--to``, which must be none yet."""
    if path is None:
        raise ConfigError.at("--to", "is missing: name the file to write", _SOURCE)
    if path.exists():
        raise ConfigError.at("--to", f"{str(path)!r} already exists; name another file", _SOURCE)
    if not path.parent.is_dir():
        raise ConfigError.at("--to", f"{str(path.parent)!r} is not a folder; make it, or name another", _SOURCE)
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
    work.check_done(work.here(), device, _SOURCE)
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
        raise ConfigError([Problem(f"grid, {arm}", f"{message} {reason}") for arm in failed], _SOURCE)
    return chosen


def _write(file: Path, content: bytes) -> None:
    from rondo.records import durable

    with written(file, str(file), _SOURCE):
        durable.write(file, content)


def _report(chosen: Mapping[str, Any], tuning: Any, file: Path) -> None:
    """Print the chosen values, and which of them lie at an edge of the grid."""
    for arm, of_arm in chosen.items():
        values = ", ".join(f"{key} = {value}" for key, value in of_arm.values.items())
        print(visible(f"{arm}: {values}; scores {_listed(of_arm.tried[0].scores)}; {of_arm.trials} trials"))
        if edge := tuning.at_edge(of_arm.values):
            print(visible(f"{arm}: {_listed(edge)} at an edge of the grid; a wider one may suit it better"))
    print(f"written: {file}")


def _listed(values: Any) -> str:
    return ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
