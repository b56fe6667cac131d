"""The command line. Every command imports what it needs when it runs, so that help and lists come at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Federated low-rank fine-tuning: many parties fine-tune one model, only small factors travel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Sets = Annotated[list[str] | None, typer.Option("--set", help="override: KEY.PATH=VALUE, for instance adapter.r=8")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
ClientId = Annotated[str | None, typer.Option("--client", help="this client's model; left out: the global one")]

OK, FAILED, USER_ERROR = 0, 1, 2


def main() -> None:
    """Entry point of ``rondo``. Exit codes: 0 done, 1 a run or a check failed, 2 the input must be mended, 130 ^C."""
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


@contextmanager
def _user_errors() -> Iterator[None]:
    """Faults of the input as plain messages and exit code 2, a stopped run as exit code 1; no traceback."""
    from rondo.config import ConfigError

    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    except RuntimeError as error:
        raise error
    except Exception as error:
        # The engine, and with it torch, is loaded only where something ran.
        stopped = getattr(sys.modules.get("rondo.engine.simulation"), "RunStopped", ())
        if not isinstance(error, stopped):
            raise
        print(f"stopped: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="a TOML file; rondo init writes one to start from")],
    sets: Sets = None,
    run_dir: Annotated[str | None, typer.Option(help="where to write; left out: runs/ALGORITHM-TIME")] = None,
    device: Device = "auto",
) -> None:
    """Fine-tune: run a configuration and write its run directory."""
    with _user_errors():
        from rondo import config as configs

        _run(configs.load(config, sets or []), run_dir, device)


@app.command()
def demo(sets: Sets = None, run_dir: str | None = None, device: Device = "auto") -> None:
    """Twelve homes teach one model to understand commands; no home shows what was said."""
    with _user_errors():
        from rondo import config as configs

        settings = configs.load(_starter(), sets or [])
        print("Twelve homes fine-tune one sentence model to understand spoken commands (38 intents of a real voice")
        print("assistant). Each trains on its own sentences; only low-rank factors and the head travel.\n")
        summary = _run(settings, run_dir, device)
        print()
        if not _verified_export(summary.run_dir, summary.run_dir / "export", client=None, merged=False):
            raise typer.Exit(FAILED)
        print(f"Learning curve: {summary.run_dir / 'curve.png'}")


def _run(settings: Any, run_dir: str | None, device: str) -> Any:
    """Run with progress and a final table."""
    from rich.console import Console

    console = Console()
    _own_modules()
    _quiet_libraries()
    with console.status("loading model and data") if console.is_terminal else _nothing():
        from rondo import api
        from rondo.record import RunDirectory
        from rondo.report.terminal import TerminalProgress, summary_table
    metric = "accuracy" if settings.task.kind == "sequence-classification" else "loss"
    with TerminalProgress(console, settings.rounds, metric) as progress:
        result = api.run(settings, run_dir=run_dir, device=device, observer=progress)
    partition = RunDirectory(result.run_dir).read("partition.json")
    bad, without, cut = (partition[k] for k in ("rows_bad", "rows_without_client", "rows_cut"))
    if bad + without + cut:
        why = f"{bad} bad, {without} given to no client, {cut} with no response left within max_length"
        print(f"{bad + without + cut} of {partition['rows']} rows were not used: {why}\n")
    if partition["clients_too_small"]:
        print(f"left out for too few examples: {', '.join(partition['clients_too_small'])}\n")
    console.print(summary_table(result.summary))
    print(f"\nrun directory: {result.run_dir}\nadapter:       {result.run_dir / 'adapter'}")
    return result


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@app.command()
def init(file: Annotated[str, typer.Argument(help="where to write it")] = "rondo.toml") -> None:
    """Write a commented configuration to start from."""
    with _user_errors():
        from rondo.config import ConfigError, Problem

        path = Path(file)
        if path.exists():
            raise ConfigError([Problem(file, "already exists; name another file")], "rondo init")
        try:
            path.write_text(_starter().read_text())
        except OSError as error:
            raise ConfigError([Problem(file, f"cannot be written: {error.strerror}")], "rondo init") from None
        print(f"wrote {file}; run it with: rondo run {file}")


def _starter() -> Path:
    return Path(__file__).with_name("starter.toml")


@app.command("list")
def list_() -> None:
    """The algorithms: name, what it does, exact, linear, personal, paper."""
    from rich.console import Console
    from rich.table import Table

    from rondo import algorithms

    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does", "exact", "linear", "personal", "up, numbers a module", "paper"):
        table.add_column(column, overflow="fold")
    for name, e in algorithms.TABLE.items():
        flags = ["yes" if flag else "no" for flag in (e.exact, e.linear, e.personal)]
        table.add_row(name, e.summary, *flags, e.up, e.paper)
    # Off a terminal a line an algorithm, for grep and the like.
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


@app.command()
def show(name: str) -> None:
    """The paper card of an algorithm: equations, symbols, bytes, head, deviations, reference."""
    with _user_errors():
        import inspect

        cls = _algorithm_class(name)
        print(f"{name}\n{'=' * len(name)}\n\n{inspect.getdoc(cls)}")


def _algorithm_class(name: str) -> Any:
    from rondo import algorithms
    from rondo.config import ConfigError, Problem

    _own_modules()
    try:
        return algorithms.load(name)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError([Problem("NAME", str(error))], "rondo") from None


def _own_modules() -> None:
    """A class of one's own may lie in the folder one works in."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="names, or package.module:Class; left out: all")] = None,
) -> None:
    """Run the public laws on algorithms, ours or one of your own."""
    with _user_errors():
        from rondo import algorithms, testing
        from rondo import config as configs

        failed = 0
        for name in names or algorithms.names():
            cls = _algorithm_class(name)
            entry = algorithms.TABLE.get(name)
            formulas = (entry.up_numbers, entry.down_numbers) if entry is not None else None
            print(name)
            try:
                algorithm = cls()
            except Exception as error:  # someone's class: a field without default, an abstract method left open
                words = f"{name} cannot be made without arguments: {error}"
                raise configs.ConfigError([configs.Problem("NAME", words)], "rondo") from None
            for result in testing.check_algorithm(algorithm, formulas=formulas):
                print(f"  {result.outcome:15} {result.law:20} {result.detail}".rstrip())
                failed += result.outcome == "failed"
        print(f"\n{failed} failed" if failed else "\nall laws hold")
    if failed:
        raise typer.Exit(FAILED)


@app.command()
def export(
    run_dir: str,
    to: Annotated[str, typer.Option(help="an empty or new folder")],
    client: ClientId = None,
    merged: Annotated[bool, typer.Option(help="fold the adapter into the whole model")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="load it with stock PEFT and compare logits")] = False,
) -> None:
    """Write a run's result as a stock PEFT adapter, or merged into the model."""
    with _user_errors():
        _own_modules()
        _quiet_libraries()
        if verify:
            if not _verified_export(run_dir, to, client=client, merged=merged):
                raise typer.Exit(FAILED)
            return
        from rondo import api

        api.export(run_dir, to, client=client, merged=merged)
        print(f"wrote {to}")


def _verified_export(run_dir: str | Path, to: str | Path, *, client: str | None, merged: bool) -> bool:
    from rondo import api

    found = api.export(run_dir, to, client=client, merged=merged, verify=True)
    assert found is not None
    loader = "transformers alone" if merged else "stock PEFT"
    verdict = "verified" if found.passed else "NOT EQUAL"
    print(f"wrote {to}")
    print(f"{verdict}: reloaded by {loader}, largest difference of a logit {found.max_difference:.1e}")
    return found.passed


@app.command()
def evaluate(
    path: Annotated[str, typer.Argument(metavar="RUN_DIR|ADAPTER_DIR")],
    client: ClientId = None,
    device: Device = "auto",
) -> None:
    """Score a run, or an adapter of one, on the run's test set."""
    with _user_errors():
        import json

        _own_modules()
        _quiet_libraries()
        from rondo import api

        print(json.dumps(api.evaluate(path, client=client, device=device), indent=2))


def _quiet_libraries() -> None:
    """No advertising of deprecations inside other packages, no progress bars but ours."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|torch|pyarrow")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


if __name__ == "__main__":
    main()
