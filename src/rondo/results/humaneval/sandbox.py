"""Trials of code: a function under test in one sandbox of bubblewrap (``bwrap``), its tests in another, and a pipe each
way between them.

The tests' sandbox gives the verdict. The code under test can influence it only by the values that it returns
(:mod:`rondo.results.humaneval.parts`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


class Unavailable(Exception):
    """This machine has no sandbox; the message says why."""


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


def attempt(trial: Trial, limits: Limits | None = None) -> str | None:
    """Run the tests: None if they pass, else the reason. Raises :class:`Unavailable`."""
    limits = limits or Limits()
    with ExitStack() as stack:
        calls, answers = (tuple(map(stack.enter_context, _pipe())) for _ in range(2))
        tester = stack.enter_context(_started("tester", trial, limits, answers[0], calls[1], stack))
        stack.callback(tester.kill)
        solver = stack.enter_context(_started("solver", trial, limits, calls[0], answers[1], stack))
        stack.callback(solver.kill)
        for end in (*calls, *answers):
            end.close()  # a part that ends is then the end of the other's input
        return _verdict(tester, solver, limits)


def _verdict(tester: subprocess.Popen[bytes], solver: subprocess.Popen[bytes], limits: Limits) -> str | None:
    try:
        _, said = tester.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        return f"no verdict within {limits.seconds:g} s"
    solver.kill()
    _, failure = solver.communicate()  # bubblewrap alone can write there: a part has its errors taken away
    if not said.startswith(b"{"):
        failure = said + failure
    if failure.strip():
        raise Unavailable(failure.decode(errors="replace").strip().split("\n")[-1])
    if not said:
        return "the tests gave no verdict: they ended, or went over a limit of time or memory"
    reason = json.loads(said)["verdict"]
    return None if reason is None else str(reason)


def _pipe() -> tuple[Any, Any]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb", buffering=0)


def _started(
    part: Literal["tester", "solver"], trial: Trial, limits: Limits, into: Any, out: Any, stack: ExitStack
) -> subprocess.Popen[bytes]:
    """A process of bubblewrap that plays ``part``."""
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("bubblewrap is not installed: apt install bubblewrap (0.8 or later)")
    bounds = asdict(limits)
    columns = ("prompt", "test", "entry_point") if part == "tester" else ("code", "entry_point")
    task = {"part": part, "limits": {k: int(v) for k, v in bounds.items()}, **{k: getattr(trial, k) for k in columns}}
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    file.write(json.dumps(task).encode())
    file.seek(0)
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c"]
    source = Path(__file__).with_name("parts.py").read_text(encoding="utf-8")
    try:
        return subprocess.Popen(
            [program, *_walls(limits), "--", *python, source, str(file.fileno())],
            stdin=into,
            stdout=out,
            stderr=subprocess.PIPE,
            pass_fds=[file.fileno()],
            env={"PYTHONHASHSEED": "0", "HOME": "/work", "TMPDIR": "/work"},
            cwd="/",
        )
    except OSError as error:
        raise Unavailable(f"no process can be started: {error}") from None


def _walls(limits: Limits) -> list[str]:
    """Namespaces without a network, and a root of Python's libraries, read-only, and an empty folder in memory."""
    places = {os.path.dirname(os.__file__), os.path.join(sys.base_prefix, "lib"), os.path.realpath(sys.executable)}
    places |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"}
    folders = {str(parent) for place in (*places, "/dev/null") for parent in Path(place).parents}
    made = [word for folder in sorted(folders, key=len) for word in ("--perms", "0755", "--dir", folder)]
    bound = [word for place in sorted(places, key=len) for word in ("--ro-bind-try", place, place)]
    if os.geteuid() == 0:  # in a user namespace it could become nobody else, and no limit of processes holds for root
        user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        user = ["--unshare-user", "--disable-userns"]
    return [
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", *user),
        *("--die-with-parent", "--new-session"),
        *made,
        *bound,
        *("--dev-bind", "/dev/null", "/dev/null"),
        *("--perms", "1777", "--size", str(limits.folder), "--tmpfs", "/work"),
        *("--remount-ro", "/", "--chdir", "/work"),
    ]


def check() -> None:
    """Run one trial that is known to pass. Raises :class:`Unavailable` with the reason."""
    code = "import hashlib, math, random\ndef one():\n    return math.isqrt(1)\n"
    reason = attempt(Trial(code, "import math\n", "def check(one):\n    assert one() == 1\n", "one"))
    if reason is not None:
        raise Unavailable(f"it fails a function that is known to be right: {reason}")
