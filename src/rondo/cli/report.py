"""The commands report and watch."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from rondo.cli.process import FAILED, user_errors
from rondo.errors import headed, visible


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUNS...", help="run directories, or folders of some")],
    out: Annotated[str | None, typer.Option(help="the file to write; default: report.html")] = None,
) -> None:
    """Show runs on one page: scores, clients, traffic, failures, differences. It needs no network."""
    with user_errors(), headed("rondo report"):
        from rondo.report.terminal import human_bytes
        from rondo.results.page import write

        file = out or "report.html"
        size = write(runs, file)
        print(visible(f"wrote {file}, {human_bytes(size)}"))


def watch(run_dir: Annotated[str, typer.Argument(help="a run directory")]) -> None:
    """Watch a run that another process carries out, until it ends."""
    with user_errors(), headed("rondo watch"):
        from rondo.results import watch as watching

        state = watching.watch(run_dir)
        if state == "not running":
            print(f"it is not running; go on with: rondo resume {shlex.quote(run_dir)}")
            raise typer.Exit(FAILED)
