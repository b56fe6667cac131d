"""The application, its entry point, and the options that commands share."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rondo.cli.completion import one_of, settings

app = typer.Typer(
    help="Federated low-rank fine-tuning: many parties fine-tune one model, and only trained tensors travel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a setting: KEY.PATH=VALUE, for instance adapter.r=8", autocompletion=settings),
]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda, cuda:1 or mps", autocompletion=one_of("auto", "cpu", "cuda", "mps")),
]
Processes = Annotated[int, typer.Option(help="runs at a time, in so many processes")]
ClientId = Annotated[str | None, typer.Option("--client", help="use this client's model; default: the global one")]

AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="import code of one's own (package.module:Class) that the run names")
]
AllowChanged = Annotated[
    bool, typer.Option("--allow-changed", help="go on even if model, data, settings or code are not those of the run")
]


def _version(asked: bool) -> None:
    if asked:
        from rondo import __version__

        print(f"rondo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of ``rondo`` itself."""


@contextmanager
def _full_disk_told() -> Iterator[None]:
    """Within, output that a full disk does not take ends the process with a line and exit code 1."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed by who started the process
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with open(os.devnull, "wb") as nothing:  # else Python tells at its end that it could not write the rest
            os.dup2(nothing.fileno(), 1)
        print(f"stopped: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def main() -> None:
    """Entry point of ``rondo``.

    Exit codes:

    - 0: done
    - 1: a run or a check failed
    - 2: the input must be fixed
    - 130: interrupted by SIGINT (^C)
    - 143: interrupted by SIGTERM
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may have characters that the terminal's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _full_disk_told():
            app(prog_name="rondo")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
