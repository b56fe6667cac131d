"""What a command means to its process: exit codes, signals, warnings, where modules are found. Imports no torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from rondo.errors import ConfigError, RunInterrupted, RunStopped

FAILED, USER_ERROR = 1, 2


@contextmanager
def user_errors() -> Iterator[None]:
    """Faults of the input as plain messages and exit code 2, a stopped run as exit code 1; no traceback."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    except RunStopped as error:
        print(f"stopped: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None


@contextmanager
def stoppable() -> Iterator[Any]:
    """An event that SIGINT (^C) or SIGTERM sets; a second one ends the process at once. Raises the exit code of the
    first where a run ended by it."""
    import signal
    import threading

    stop, received = threading.Event(), []

    def handler(number: int, _: Any) -> None:
        if stop.is_set():
            os._exit(128 + number)  # nothing that was committed is lost by that
        stop.set()
        received.append(number)
        os.write(2, b"\nstopping after this step; once more to stop at once\n")

    kept = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except RunInterrupted as error:
        print(f"{error}\ngo on with: rondo resume {shlex.quote(str(error.run_dir))}", file=sys.stderr)
        raise typer.Exit(128 + received[0]) from None
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


def own_modules() -> None:
    """A class of one's own may lie in the folder one works in."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def quiet_libraries() -> None:
    """No advertising of deprecations inside other packages, no progress bars but ours."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|torch|pyarrow")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
