"""The commands run, resume, demo and init."""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import AllowCode, Device, Sets, kinds, one_of, papers
from rondo.cli.process import FAILED, LogJson, quiet_libraries, shown, user_errors, written
from rondo.cli.results import exported
from rondo.errors import ConfigError, headed


def run(
    config: Annotated[str, typer.Argument(help="a TOML file; rondo init writes one to start from")],
    sets: Sets = None,
    run_dir: Annotated[str | None, typer.Option(help="where to write; default: runs/ALGORITHM-TIME")] = None,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run that --run-dir holds")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show its bytes, time and memory, from a few steps; write nothing")
    ] = False,
) -> None:
    """Fine-tune: run a configuration and write its run directory."""
    with user_errors():
        from rondo.config.load import load

        settings = load(config, sets or [])
        if dry_run:
            _estimated(settings, device)
        else:
            _run(settings, run_dir, device, overwrite=overwrite)


def _estimated(settings: Any, device: str) -> None:
    """Print the expected cost of a run."""
    quiet_libraries()
    from rondo.report.terminal import plain_console
    from rondo.runs.estimate import estimate

    console = plain_console()
    with console.status("trying a few steps") if console.is_terminal else nullcontext():
        expected = estimate(settings, device)
    for line in expected.lines():
        console.print(line)


def resume(
    run_dir: str,
    rounds: Annotated[int | None, typer.Option(help="more rounds than the run has")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="simulation.engine or simulation.workers: where clients train",
            autocompletion=one_of("simulation.engine=process", "simulation.engine=ray", "simulation.workers="),
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto (the device it ran on), cpu, cuda, cuda:1 or mps")] = "auto",
    allow_nondeterministic: Annotated[
        bool, typer.Option("--allow-nondeterministic", help="continue even if threads, versions, model or data differ")
    ] = False,
    allow_code: AllowCode = False,
    roster_changed: Annotated[
        bool, typer.Option("--roster-changed", help="continue a federation with the roster as it is now")
    ] = False,
    log_json: LogJson = False,
) -> None:
    """Continue a run after its last committed round."""
    with user_errors(), headed("rondo resume"):
        from rondo.records.directory import RunDirectory

        directory = RunDirectory.open(run_dir)
        before, federated = directory.config(), (directory.path / "federation.json").is_file()
        sets = [*(sets or ()), *([] if rounds is None else [f"rounds={rounds}"])]
        if sets:
            from rondo.runs.launch import check_changes

            check_changes(sets)
        if federated and sets:
            message = "a federation's clients train at its sites, which consented to its rounds: leave it out"
            raise ConfigError.at("--set" if rounds is None else "--rounds", message)
        settings = directory.config(sets)
        if directory.finished and settings.rounds == before.rounds:
            print(f"{run_dir} is finished; nothing is left to do")
            return
        options = {"device": device, "allow_nondeterministic": allow_nondeterministic, "allow_code": allow_code}
        if federated:
            from rondo.federation.notify import Log

            _go_on(settings, run_dir, {**options, "roster_changed": roster_changed}, Log(log_json))
        elif roster_changed:
            raise ConfigError.at("--roster-changed", "this run is a simulation, which has no roster: leave it out")
        else:
            _go_on(settings, run_dir, {**options, "sets": sets})


def _go_on(settings: Any, run_dir: str, options: dict[str, Any], log: Any = None) -> None:
    """Continue a run, or with a ``log`` a federation's, with progress bars and a final table."""

    def started(observer: Any, stop: Any) -> Any:
        if log is None:
            from rondo.runs import runner

            return runner.resume(run_dir, observer=observer, stop=stop, **options)
        from rondo.federation.server import run as federation

        return federation.resume(run_dir, observer=observer, stop=stop, told=log, **options)

    shown(settings.rounds, started, log)


def demo(sets: Sets = None, run_dir: str | None = None, device: Device = "auto") -> None:
    """Twelve homes teach one model to understand commands, without sharing what was said."""
    with user_errors():
        from rondo.config.load import load
        from rondo.data.demo import STARTER

        settings = load(STARTER, sets or [])
        print("Twelve homes fine-tune one sentence model to understand spoken commands (38 intents of a real voice")
        print("assistant). Each trains on its own sentences; only low-rank factors and the head travel.\n")
        summary = _run(settings, run_dir, device)
        print()
        folder = summary.run_dir / "export"
        if not exported(summary.run_dir, folder, client=None, merged=False, rank=None, verify=True):
            raise typer.Exit(FAILED)
        print(f"Learning curve: {summary.run_dir / 'curve.png'}")


def _run(settings: Any, run_dir: str | None, device: str, *, overwrite: bool = False) -> Any:
    """Start a run, with progress bars and a final table."""
    from rondo.records.directory import RunDirectory

    ways = f"go on with it by rondo resume {shlex.quote(str(run_dir))}, replace it by --overwrite"
    RunDirectory.check(run_dir, remedy=f"{ways}, or name another folder", held=overwrite)

    def started(observer: Any, stop: Any) -> Any:
        from rondo.runs import runner

        options: dict[str, Any] = {"run_dir": run_dir, "device": device, "overwrite": overwrite}
        return runner.run(settings, observer=observer, stop=stop, **options)

    return shown(settings.rounds, started)


def schema() -> None:
    """Print the JSON schema of a configuration, by which editors complete keys and mark errors."""
    with user_errors():
        from rondo.config.reference import json_schema

        print(json.dumps(json_schema(), indent=1))


def init(
    file: Annotated[str, typer.Argument(help="where to write it")] = "rondo.toml",
    paper: Annotated[
        str | None,
        typer.Option(help='a paper\'s setting, such as rolora/sst2; "list" shows them all', autocompletion=papers),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help='"paper"; "small": the same row on few cores, with a small model and fewer rows; "official": with the '
            "values of the paper's official code, if they differ",
            autocompletion=one_of("paper", "small", "official"),
        ),
    ] = "paper",
    task: Annotated[str | None, typer.Option(help="a kind of task, such as embedding", autocompletion=kinds)] = None,
) -> None:
    """Write a commented configuration to start from: of ``rondo demo``, of a kind of task, or of a paper."""
    with user_errors():
        from rondo.config.papers import writer
        from rondo.config.reference import HEADING
        from rondo.config.task_kinds import unknown
        from rondo.data.demo.starters import KINDS, starter

        if paper == "list":
            for name, row in writer.names().items():
                print(f"{name:24} {row}")
            return
        if scale != "paper" and paper is None:
            raise ConfigError.at("--scale", "is the scale of a paper's setting: name one by --paper", "rondo init")
        if task is not None and (paper is not None or task not in KINDS):
            fault = unknown(task) if paper is None else "a paper has its own: leave one out"
            raise ConfigError.at("--task", fault, "rondo init")
        rows_file = Path(file).with_suffix(".rows.jsonl")
        text, rows = starter(task or KINDS[0], str(rows_file))
        if paper is not None:
            text = f"{HEADING}\n{writer.text(paper, scale)}"
        files = {Path(file): text} | ({} if rows is None else {rows_file: rows})
        for path in files:
            if path.exists():
                raise ConfigError.at(str(path), "already exists; name another file", "rondo init")
        with written(file, file, "rondo init"):
            for path, content in files.items():
                path.write_text(content, encoding="utf-8")
        made_up = "" if rows is None else f", and made-up rows in {rows_file}"
        print(f"wrote {file}{made_up}; run it with: rondo run {shlex.quote(file)}")
