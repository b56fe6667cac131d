"""The commands report and watch."""

from __future__ import annotations

import shlex
import threading
from contextlib import suppress
from typing import Annotated

import typer

from rondo.cli.process import FAILED, user_errors
from rondo.errors import ConfigError, headed, visible


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUNS...", help="run directories, or folders of some")],
    out: Annotated[str | None, typer.Option(help="the file to write; default: report.html")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="serve the page on this machine alone, up to date, in place of a file")
    ] = False,
    port: Annotated[int | None, typer.Option(help="with --serve: the port; default: a free one")] = None,
) -> None:
    """Show runs on one page: scores, clients, traffic, failures, differences. It needs no network."""
    with user_errors(), headed("rondo report"):
        if serve and out is not None:
            raise ConfigError.at("--out", "--serve writes no file: leave out one of the two")
        if port is not None and not serve:
            raise ConfigError.at("--port", "only --serve listens on a port: leave it out, or add --serve")
        if serve:
            _serve(runs, port or 0)
            return
        from rondo.report.terminal import human_bytes
        from rondo.results.page import write

        file = out or "report.html"
        size = write(runs, file)
        print(visible(f"wrote {file}, {human_bytes(size)}"))


def _serve(runs: list[str], port: int) -> None:
    from rondo.results.serving import serving

    with serving(runs, port) as address, suppress(KeyboardInterrupt):
        print(f"{address}\nfor browsers on this machine; ^C ends it", flush=True)
        threading.Event().wait()


def watch(run_dir: Annotated[str, typer.Argument(help="a run directory")]) -> None:
    """Watch a run that another process carries out, until it ends."""
    with user_errors(), headed("rondo watch"):
        from rondo.results import watch as watching

        state = watching.watch(run_dir)
        if state == "not running":
            print(f"it is not running; go on with: rondo resume {shlex.quote(run_dir)}")
            raise typer.Exit(FAILED)
