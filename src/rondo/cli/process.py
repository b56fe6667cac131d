"""The process of a command: exit codes, signals, warnings. Imports no torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.errors import ConfigError, PlanRefused, RunInterrupted, RunStopped, StopRequested, visible

FAILED, USER_ERROR, REFUSED = 1, 2, 3

LogJson = Annotated[bool, typer.Option("--log-json", help="each line of a federation's log as a JSON object")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn faults of the input into a plain message and exit code 2, a plan that a site refuses into code 3, a stopped
    run and a shortage of memory into code 1; no traceback."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(REFUSED if isinstance(error, PlanRefused) else USER_ERROR) from None
    except RunStopped as error:
        print(visible(f"stopped: {error}"), file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except PermissionError as error:  # of a file or folder that a command came upon, and no check before it named
        if error.filename is None:
            raise
        reason = f"{error.strerror}; give the user who runs this command access to it"
        print(ConfigError.at(repr(error.filename), reason, "rondo"), file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        remedy = "give it more memory, or lower evaluation.batch_size"
        print(visible(f"stopped: out of memory: {reason}; {remedy}"), file=sys.stderr)
        raise typer.Exit(FAILED) from None


@contextmanager
def written(path: str | Path, option: str, command: str = "config") -> Iterator[None]:
    """Within, an error of the system on writing ``path`` is a fault of ``option``."""
    try:
        yield
    except OSError as error:
        raise ConfigError.at(option, f"{str(path)!r} cannot be written: {error.strerror}", command) from None


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or "torch" not in sys.modules:  # torch is not imported for this
        return isinstance(error, MemoryError)
    from rondo.models.kernels.out_of_memory import is_out_of_memory

    return is_out_of_memory(error)


def _resuming(run_dir: Path) -> str:
    """The words that say how an interrupted run goes on."""
    from rondo.config.checks import own_names
    from rondo.records.directory import RunDirectory

    flag = " --allow-code" if own_names(RunDirectory(run_dir).config()) else ""
    return f"{RunInterrupted(run_dir)}\ngo on with: rondo resume {shlex.quote(str(run_dir))}{flag}"


def repeated(run_dir: Path) -> str:
    """The words of a command that makes several runs, and goes on where it was when it is repeated."""
    return "stopped; run the same command again to go on: finished runs are kept"


@contextmanager
def stoppable(interrupted: Callable[[Path], str] = _resuming) -> Iterator[Any]:
    """Yield an event that SIGINT (^C) or SIGTERM sets; a second signal ends the process at once. If a run ended by
    the first, or what waits for other programs did, raise the exit code of that signal: 128 plus its number.
    ``interrupted`` gives the words that say how to go on, by the run's folder."""
    import signal
    import threading

    stop, received = threading.Event(), []

    def handler(number: int, _: Any) -> None:
        if stop.is_set():
            os._exit(128 + number)  # committed rounds are safe on the disk
        stop.set()
        received.append(number)
        os.write(2, b"\nstopping after this step; once more to stop at once\n")

    old_handlers = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except RunInterrupted as error:
        print(interrupted(error.run_dir), file=sys.stderr)
        raise typer.Exit(128 + received[0]) from None
    except StopRequested:
        print("stopped; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(128 + received[0]) from None
    finally:
        for number, old in old_handlers.items():
            signal.signal(number, old)


def quiet_libraries() -> None:
    """Hide deprecation warnings inside other packages, and all progress bars but ours."""
    import logging
    import warnings

    # torchao and bitsandbytes, which transformers and peft import, name libraries that this machine has no use for.
    for name in ("torchao", "bitsandbytes", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|torch|pyarrow")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def shown(rounds: int, started: Callable[[Any, Any], Any], log: Any = None) -> Any:
    """The result of a run of so many rounds, which ``started`` runs given an observer and an event that stops it, with
    progress bars and a final table. ``log``: the :class:`rondo.federation.notify.Log` of a program that serves."""
    from rich.console import Console

    from rondo.report.clients import clients_table
    from rondo.report.terminal import plain_console, samples_table, summary_table

    console = plain_console()
    quiet_libraries()
    with console.status("loading") if console.is_terminal else nullcontext():
        from rondo.runs.runner import run as _  # noqa: F401  loaded here, since it takes seconds
        from rondo.runs.watching.progress import progress
    lines = None if log is None or log.is_plain else Console(file=log)
    with stoppable() as stop, progress(rounds, lines) as observer:
        result = started(observer, stop)
    console.print(summary_table(result.summary))
    if (clients := clients_table(result.summary, result.clients())) is not None:
        console.print(clients)
    if result.summary.get("samples"):
        console.print(samples_table(result.summary["samples"]))
    print(f"\nrun directory: {result.run_dir}\nresult:        {result.run_dir / 'adapter'}")
    return result
