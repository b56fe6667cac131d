"""The application, its entry point, the options that commands share, and the names and keys that a shell completes
(``rondo --install-completion``). A press of Tab starts a process, so each list imports what has it, and nothing imports
torch."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rondo.errors import visible

if TYPE_CHECKING:
    from rondo.config.reference import Key


def one_of(*choices: str, module: str = "", names: str = "") -> Callable[[str], list[str]]:
    """A completion by a few words, and by ``names`` in ``module``, which is imported once they are asked for: a table,
    or a function that gives one."""

    def complete(incomplete: str) -> list[str]:
        found = getattr(import_module(module), names) if module else ()
        return _starting([*choices, *(found() if callable(found) else found)], incomplete)

    return complete


methods = one_of(module="rondo.algorithms.table", names="TABLE")
shown = one_of("config", module="rondo.algorithms.table", names="TABLE")
papers = one_of("list", module="rondo.config.papers.writer", names="names")
kinds = one_of(module="rondo.config.task_kinds", names="TABLE")
entries = one_of(module="rondo.study.claims.entry", names="names")
reproducible = one_of("list", "all", module="rondo.study.claims.entry", names="names")


def listed_methods(incomplete: str) -> list[str]:
    """Methods with commas between."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in methods(last) if name not in taken]


def keys(incomplete: str) -> list[str]:
    """Keys and sections."""
    from rondo.config.reference import sections

    named = [section.name for section in sections() if section.name]
    return _starting([*named, *_keys()], incomplete)


def settings(incomplete: str) -> list[str]:
    """KEY.PATH=VALUE. A key that is the only one is given twice, bare and with values, so that shells add no blank."""
    known = _keys()
    if "=" in incomplete:
        key, _, value = incomplete.partition("=")
        return [f"{key}={of}" for of in _starting(values(known[key]) if key in known else [], value)]
    found = _starting(known, incomplete)
    if len(found) == 1:
        return [f"{found[0]}=", *(f"{found[0]}={value}" for value in values(known[found[0]]) or ["VALUE"])]
    return [f"{key}=" for key in found]


def values(key: Key) -> list[str]:
    """The values of a key as ``--set`` takes them: its choices, or its default."""
    if key.path == "algorithm.name":
        return methods("")
    choices = [] if key.values.startswith("list of") else re.findall(r'"([^"]+)"', key.values)
    truths = ["true", "false"] if "true or false" in key.values else ["true"] if key.values.startswith("true,") else []
    if choices or truths:
        return [*truths, *choices]
    default = json.loads(key.default) if key.default else None
    return [] if default in (None, [], {}) else [str(default)]


def _keys() -> dict[str, Key]:
    from rondo.config.reference import sections

    return {key.path: key for section in sections() for key in section.keys}


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in known if word.startswith(incomplete)]


app = typer.Typer(
    help="Federated low-rank fine-tuning: many parties fine-tune one model, and only trained tensors travel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a setting: KEY.PATH=VALUE, for instance adapter.r=8", autocompletion=settings),
]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda, cuda:1 or mps", autocompletion=one_of("auto", "cpu", "cuda", "mps")),
]
Against = Annotated[
    str | None, typer.Option(help="the method that differences, paired by seed, are to; default: the first")
]
Processes = Annotated[int, typer.Option(help="runs at a time, in so many processes")]
ClientId = Annotated[str | None, typer.Option("--client", help="use this client's model; default: the global one")]

AllowCode = Annotated[bool, typer.Option("--allow-code", help="import code that the run names (package.module:Class)")]
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


class _Pipe(io.FileIO):
    """Output whose rest goes nowhere once its reader has gone (``rondo list | head -1``): a command, and above all a
    run, ends as if all of it were read."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self.fileno())
            return memoryview(data).nbytes


def _unbroken(stream: Any) -> Any:
    """``stdout`` or ``stderr`` of this process, unaffected by a reader that has gone."""
    if not isinstance(stream, io.TextIOWrapper) or stream.isatty():
        return stream
    raw = _Pipe(stream.fileno(), "wb", closefd=False)
    buffer = raw if stream.write_through else io.BufferedWriter(raw)
    lines = stream.line_buffering
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, None, lines, stream.write_through)


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


def _line(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning as a line: one of ours has no place, which would be that of our own code."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"warning: {visible(str(message))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def main() -> None:
    """Entry point of ``rondo``.

    Exit codes:

    - 0: done
    - 1: a run or a check failed
    - 2: the input must be fixed
    - 3: a site refuses the plan
    - 130: interrupted by SIGINT (^C)
    - 143: interrupted by SIGTERM
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may have characters that the terminal's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is sys.__stdout__:
        sys.stdout, sys.stderr = _unbroken(sys.stdout), _unbroken(sys.stderr)
    warnings.formatwarning = _line
    try:
        with _full_disk_told():
            if "TORCHELASTIC_RUN_ID" in os.environ:
                from rondo.engine.client import torchrun

                torchrun.join()
            app(prog_name="rondo")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
