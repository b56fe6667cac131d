"""Trials of code: a function under test in one jail, its tests in another, and the calls between them.

The tests' jail gives the verdict. The code under test can influence it only by the values that it returns
(:mod:`rondo.results.humaneval.parts`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["namespaces", "weak"]
_LARGEST_LINE = 16 * 2**20
"""Bytes of one call, or of one answer."""
_START_SECONDS = 60
"""Seconds that a jail may take to start. They do not count against the code under test."""


class Unavailable(Exception):
    """This machine does not lock code up; the message says why."""


@dataclass(frozen=True)
class Limits:
    """Limits of each of the two processes of a trial."""

    processor_seconds: int = 5
    memory: int = 512 * 2**20
    """Bytes of address space."""
    folder: int = 16 * 2**20
    """Bytes of its empty folder, and of one file in it."""
    seconds: float = 20.0
    """Time for the whole trial."""


@dataclass(frozen=True)
class Trial:
    """A function under test and its tests."""

    code: str
    """The source that defines the function."""
    prompt: str
    """Source that the tests may use: the function without its body, and what stands before it."""
    test: str
    """Source that defines ``check(candidate)``."""
    entry_point: str
    """The function's name."""


def attempt(trial: Trial, mode: Mode, limits: Limits | None = None) -> str | None:
    """Run the tests: None if they pass, else the reason. Raises :class:`Unavailable`."""
    limits = limits or Limits()
    with ExitStack() as stack:
        tester, solver = (stack.enter_context(_jailed(part, mode, limits)) for part in ("tester", "solver"))
        tester.ready()
        solver.ready()
        deadline = time.monotonic() + limits.seconds
        try:
            task = asdict(trial)
            tester.send({k: task[k] for k in ("prompt", "test", "entry_point")}, deadline)
            solver.send({k: task[k] for k in ("code", "entry_point")}, deadline)
            return _verdict(tester, solver, deadline)
        except TimeoutError:
            return f"no verdict within {limits.seconds:g} s"
        except OSError as error:
            return f"no verdict: {error}"


def _verdict(tester: _Jail, solver: _Jail, deadline: float) -> str | None:
    """Pass calls from the tests to the code and answers back, until the tests have a verdict."""
    while True:
        try:
            said = json.loads(tester.line(deadline))
        except (EOFError, ValueError) as error:
            return f"the tests gave no verdict: {error}"
        if "call" not in said:
            reason = said.get("verdict", "the tests gave no verdict")
            return None if reason is None else str(reason)
        try:
            solver.send(said["call"], deadline)
            answer = solver.line(deadline)
        except (EOFError, ValueError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            return f"no answer: {error}"
        tester.write(answer, deadline)


class _Jail:
    """A process that plays a part, seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.rest = process, bytearray()
        self.into, self.out = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self.into, False)

    def ready(self) -> None:
        """Wait until it has locked itself up. Raises :class:`Unavailable`."""
        try:
            if self.line(time.monotonic() + _START_SECONDS) == b"ready\n":
                return
        except TimeoutError:
            raise Unavailable(f"a process did not start within {_START_SECONDS} s") from None
        except EOFError:
            pass
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        reason = (self.process.stderr.read() or b"").decode(errors="replace").strip().split("\n")[-1]
        raise Unavailable(reason or "the process ended before it was locked up")

    def send(self, content: object, deadline: float) -> None:
        """Write JSON. Raises OSError, as :meth:`write` does."""
        self.write(json.dumps(content).encode() + b"\n", deadline)

    def write(self, data: bytes, deadline: float) -> None:
        """Write a line. Raises TimeoutError, and OSError where nobody reads it."""
        while data:
            _, free, _ = select.select([], [self.into], [], _left(deadline))
            if free:
                data = data[os.write(self.into, data[:65536]) :]

    def line(self, deadline: float) -> bytes:
        """The next line. Raises TimeoutError, EOFError at its end, ValueError for one that is too long."""
        searched = 0
        while (end := self.rest.find(b"\n", searched)) < 0:
            searched = len(self.rest)
            if searched > _LARGEST_LINE:
                raise ValueError(f"more than {_LARGEST_LINE >> 20} MiB")
            some, _, _ = select.select([self.out], [], [], _left(deadline))
            if some:
                chunk = os.read(self.out, 1 << 20)
                if not chunk:
                    raise EOFError("the process ended, or went over a limit of time or memory")
                self.rest += chunk
        line = bytes(self.rest[: end + 1])
        del self.rest[: end + 1]
        return line


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@contextmanager
def _jailed(part: str, mode: Mode, limits: Limits) -> Iterator[_Jail]:
    """A process that locks itself up and plays ``part``. At the end it is killed, with all that it started."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="rondo-", ignore_cleanup_errors=True) as root:
        if os.geteuid() == 0:
            os.chmod(root, 0o755)
            if mode == "weak":
                os.chown(root, 65534, 65534)
        settings = {
            "part": part,
            "parts": str(here / "parts.py"),
            "root": root,
            "weak": mode == "weak",
            "limits": {k: int(v) for k, v in asdict(limits).items()},
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", str(here / "jail.py"), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"no process can be started: {error}") from None
        with process:
            try:
                yield _Jail(process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def check(mode: Mode) -> None:
    """Run one trial that is known to pass. Raises :class:`Unavailable` with the reason."""
    code = "import hashlib, math, random\ndef one():\n    return math.isqrt(1)\n"
    trial = Trial(code, "import math\n", "def check(one):\n    assert one() == 1\n", "one")
    reason = attempt(trial, mode)
    if reason is not None:
        raise Unavailable(f"it fails a function that is known to be right: {reason}")
