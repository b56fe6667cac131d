"""The command line. Every command imports what it needs when it runs, so that help and lists come at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.process import FAILED, own_modules, quiet_libraries, stoppable, user_errors

app = typer.Typer(
    help="Federated low-rank fine-tuning: many parties fine-tune one model, only small factors travel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Sets = Annotated[list[str] | None, typer.Option("--set", help="override: KEY.PATH=VALUE, for instance adapter.r=8")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
ClientId = Annotated[str | None, typer.Option("--client", help="this client's model; left out: the global one")]


def main() -> None:
    """Entry point of ``rondo``. Exit codes: 0 done, 1 a run or a check failed, 2 the input must be mended, 130 and 143
    interrupted (SIGINT, which is ^C, and SIGTERM)."""
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="a TOML file; rondo init writes one to start from")],
    sets: Sets = None,
    run_dir: Annotated[str | None, typer.Option(help="where to write; left out: runs/ALGORITHM-TIME")] = None,
    device: Device = "auto",
) -> None:
    """Fine-tune: run a configuration and write its run directory."""
    with user_errors():
        from rondo import config as configs

        _run(configs.load(config, sets or []), run_dir, device)


@app.command()
def resume(
    run_dir: str,
    device: Annotated[str, typer.Option(help="auto (the one that it ran on), cpu or cuda")] = "auto",
    allow_nondeterministic: Annotated[
        bool, typer.Option("--allow-nondeterministic", help="go on although threads, versions, model or data differ")
    ] = False,
) -> None:
    """Go on with a run after its last committed round."""
    with user_errors():
        from rondo.record import RunDirectory

        directory = RunDirectory.open(run_dir)
        settings = directory.config()
        if directory.finished:
            print(f"{run_dir} is finished; nothing is left to do")
        else:
            _run(settings, run_dir, device, resumed=True, whatever=allow_nondeterministic)


@app.command()
def demo(sets: Sets = None, run_dir: str | None = None, device: Device = "auto") -> None:
    """Twelve homes teach one model to understand commands; no home shows what was said."""
    with user_errors():
        from rondo import config as configs

        settings = configs.load(_starter(), sets or [])
        print("Twelve homes fine-tune one sentence model to understand spoken commands (38 intents of a real voice")
        print("assistant). Each trains on its own sentences; only low-rank factors and the head travel.\n")
        summary = _run(settings, run_dir, device)
        print()
        folder = summary.run_dir / "export"
        if not _exported(summary.run_dir, folder, client=None, merged=False, rank=None, verify=True):
            raise typer.Exit(FAILED)
        print(f"Learning curve: {summary.run_dir / 'curve.png'}")


def _run(settings: Any, run_dir: str | None, device: str, *, resumed: bool = False, whatever: bool = False) -> Any:
    """Run, or go on, with progress and a final table."""
    from rich.console import Console

    console = Console()
    own_modules()
    quiet_libraries()
    with console.status("loading model and data") if console.is_terminal else _nothing():
        from rondo import api
        from rondo.record import RunDirectory
        from rondo.report.terminal import TerminalProgress, summary_table
    metric = "accuracy" if settings.task.kind == "sequence-classification" else "loss"
    with stoppable() as stop, TerminalProgress(console, settings.rounds, metric) as progress:
        if resumed:
            assert run_dir is not None
            result = api.resume(run_dir, device=device, allow_nondeterministic=whatever, observer=progress, stop=stop)
        else:
            result = api.run(settings, run_dir=run_dir, device=device, observer=progress, stop=stop)
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


@app.command()
def compare(
    algorithms: Annotated[
        str | None, typer.Argument(metavar="ALGORITHMS", help="names with commas between, or package.module:Class")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="the whole table")] = False,
    config: Annotated[str | None, typer.Option(help="a TOML file; left out: the demo's")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="override: KEY.PATH=VALUE for all, NAME.KEY.PATH=VALUE for one algorithm"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="numbers with commas between; left out: the file's")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="where to write; left out: runs/compare-TIME. Runs that it holds are not run again but finished"
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Several algorithms on the same data, split, seeds and rounds: a table and a picture."""
    with user_errors():
        from rondo import comparison

        own_modules()
        configs = comparison.plan(_named(algorithms, every), config, sets=sets or [], seeds=_numbers(seeds))
        found = _compared(configs, out, device)
    if found.stopped:
        raise typer.Exit(FAILED)


def _named(algorithms: str | None, every: bool) -> tuple[str, ...]:
    from rondo import algorithms as table
    from rondo.config import ConfigError, Problem

    if every and algorithms is not None:
        raise ConfigError([Problem("--all", "names are given too; leave out one of the two")], "rondo compare")
    return table.names() if every else tuple(n.strip() for n in (algorithms or "").split(",") if n.strip())


def _numbers(seeds: str | None) -> list[int]:
    from rondo.config import ConfigError, Problem

    try:
        return [int(text) for text in seeds.split(",")] if seeds is not None else []
    except ValueError:
        words = f"{seeds!r} should be whole numbers with commas between, for instance 0,1,2"
        raise ConfigError([Problem("--seeds", words)], "rondo compare") from None


def _compared(configs: Any, out: str | None, device: str) -> Any:
    """Compare with progress and a final table."""
    from rich.console import Console

    from rondo import comparison
    from rondo.report.terminal import TerminalProgress, comparison_table

    console = Console()
    quiet_libraries()
    print(f"{len(configs)} runs of {configs[0].rounds} rounds", flush=True)
    metric = "accuracy" if configs[0].task.kind == "sequence-classification" else "loss"

    @contextmanager
    def watched(planned: Any) -> Iterator[Any]:
        began = time.perf_counter()
        if planned.state == "finished":
            yield None
            print(f"{planned}: finished before, not run again ({planned.run_dir})", flush=True)
            return
        with TerminalProgress(console, planned.config.rounds, metric) as progress:
            yield progress
        print(f"{planned}: {time.perf_counter() - began:.0f} s ({planned.run_dir})", flush=True)

    with stoppable() as stop:
        found = comparison.carry_out(configs, out, device=device, watch=watched, stop=stop)
    for one in found.stopped:
        print(f"{one['algorithm']}, seed {one['seed']} stopped: {one['reason']}", file=sys.stderr)
    if found.runs:
        print()
        # Off a terminal a line an algorithm, for grep and the like.
        (console if console.is_terminal else Console(width=200)).print(comparison_table(vars(found)))
        print(f"\ncomparison: {found.out / 'comparison.json'}\npicture:    {found.out / 'comparison.png'}")
    return found


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@app.command()
def init(file: Annotated[str, typer.Argument(help="where to write it")] = "rondo.toml") -> None:
    """Write a commented configuration to start from."""
    with user_errors():
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
    with user_errors():
        import inspect

        cls = _algorithm_class(name)
        print(f"{name}\n{'=' * len(name)}\n\n{inspect.getdoc(cls)}")


def _algorithm_class(name: str) -> Any:
    from rondo import algorithms
    from rondo.config import ConfigError, Problem

    own_modules()
    try:
        return algorithms.load(name)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError([Problem("NAME", str(error))], "rondo") from None


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="names, or package.module:Class; left out: all")] = None,
) -> None:
    """Run the public laws on algorithms, ours or one of your own."""
    with user_errors():
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
    rank: Annotated[int | None, typer.Option(help="truncate to this rank; what is lost is printed")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="load it with stock PEFT and compare logits")] = False,
) -> None:
    """Write a run's result as a stock PEFT adapter of the rank it needs, or merged into the model."""
    with user_errors():
        own_modules()
        quiet_libraries()
        if not _exported(run_dir, to, client=client, merged=merged, rank=rank, verify=verify):
            raise typer.Exit(FAILED)


def _exported(
    run_dir: str | Path, to: str | Path, *, client: str | None, merged: bool, rank: int | None, verify: bool
) -> bool:
    """Export and say what came of it; False if what was loaded again is not equal."""
    from rondo import api

    done = api.export(run_dir, to, client=client, merged=merged, rank=rank, verify=verify)
    print(f"wrote {to}, rank {done.rank}")
    if rank is not None:
        print(f"truncated to rank {rank}: {done.relative_error:.2%} of the change (Frobenius norm) is lost")
    if done.verification is None:
        return True
    loader = "transformers alone" if merged else "stock PEFT"
    verdict = "verified" if done.verification.passed else "NOT EQUAL"
    print(f"{verdict}: reloaded by {loader}, largest difference of a logit {done.verification.max_difference:.1e}")
    return done.verification.passed


@app.command()
def evaluate(
    path: Annotated[str, typer.Argument(metavar="RUN_DIR|ADAPTER_DIR")],
    client: ClientId = None,
    device: Device = "auto",
) -> None:
    """Score a run, or an adapter of one, on the run's test set."""
    with user_errors():
        import json

        own_modules()
        quiet_libraries()
        from rondo import api

        print(json.dumps(api.evaluate(path, client=client, device=device), indent=2))


if __name__ == "__main__":
    main()
