"""Attempts to break out of the sandbox, and to be found right without being right. Each is a solution as a model could
write it; ``solutions.txt`` and ``loads.txt`` have most of them."""

from __future__ import annotations

import ast
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rondo.results.humaneval.sandbox import Limits, Trial, Unavailable, attempt, check

TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n"
RIGHT = "def square(x):\n    return x * x\n"
SHORT = Limits(processor_seconds=1, seconds=8)
MARK = "two parts of a trial"
"""Words of the command line of a process of the sandbox."""
ROOT = "0\t0\t0\t0"
TOLD = """
import ctypes, os, resource, socket, sys, threading
def tell(expression):
    try:
        return str(eval(expression))
    except BaseException as e:
        return type(e).__name__
def square(expressions):
    return [tell(e) for e in expressions]
"""
"""A solution that tells what it finds: the text of each expression, or the name of the error that it raises."""


def reason(code: str, test: str = TEST, limits: Limits = SHORT) -> str | None:
    return attempt(Trial(code, "", test, "square"), limits)


def told(*expressions: str) -> list[str]:
    """What the inmate finds."""
    test = f"def check(candidate):\n    raise ValueError(ascii(candidate({list(expressions)!r})))\n"
    found = reason(TOLD, test)
    assert found is not None
    assert found.startswith("ValueError: "), found
    answer: list[str] = ast.literal_eval(found.removeprefix("ValueError: "))
    return answer


def cases(file: str, *fast: str) -> list[Any]:
    parts = Path(__file__).with_name(file).read_text().split("== ")[1:]
    named = [part.split("\n", 1) for part in parts]
    return [pytest.param(code, id=n, marks=() if n in fast else pytest.mark.slow) for n, code in named]


@pytest.fixture(scope="module", autouse=True)
def _sandbox_here() -> None:
    try:
        check()
    except Unavailable as why:
        pytest.skip(f"no sandbox here: {why}")


def test_right_solution_passes_and_a_wrong_one_does_not() -> None:
    assert reason(RIGHT) is None
    assert reason("def square(x):\n    return 4\n") == "AssertionError: "


@pytest.mark.slow
def test_reason_names_the_fault() -> None:
    assert "SyntaxError" in str(reason("def square(x) return"))
    assert "KeyError" in str(reason("def cube(x):\n    return 8\n"))
    assert "ZeroDivisionError" in str(reason("def square(x):\n    return x / 0\n"))


@pytest.mark.parametrize("code", cases("solutions.txt", "exit at once", "says passed"))
def test_fake_pass_does_not_count(code: str) -> None:
    assert reason(code) is not None


@pytest.mark.parametrize("code", cases("loads.txt"))
def test_load_ends_within_its_limits(code: str) -> None:
    began = time.monotonic()
    assert reason(code) is not None
    assert time.monotonic() - began < SHORT.seconds + 4


@pytest.mark.slow
def test_sleeping_solution_ends_with_its_time() -> None:
    code = "import time\ndef square(x):\n    time.sleep(600)\n"
    assert reason(code, limits=replace(SHORT, seconds=1.5)) == "no verdict within 1.5 s"


def test_no_process_and_no_thread_can_be_started() -> None:
    threads = "threading.Thread(target=print).start()"
    limit = "resource.setrlimit(resource.RLIMIT_NPROC, (99, 99))"
    assert told("os.fork()", threads, limit) == ["BlockingIOError", "RuntimeError", "ValueError"]


def test_users_files_are_not_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    paths = (secret, __file__, "/etc/passwd", "/proc/self/environ", "/proc/1/root", "/dev/mem", "/sys", "/run", "/tmp")
    assert set(told(*(f"os.stat({str(path)!r})" for path in paths))) == {"FileNotFoundError"}
    root, home, environment, here = told(
        "os.listdir('/')", f"os.listdir({os.path.expanduser('~')!r})", "dict(os.environ)", "os.listdir('.')"
    )
    python = set(Path(os.path.realpath(os.__file__)).parts)  # it may be installed in the home folder
    assert set(ast.literal_eval(root)) <= {"work", "dev", "etc", "lib", "lib64", "usr"} | python
    assert home == "FileNotFoundError" or set(ast.literal_eval(home)) <= python
    assert set(ast.literal_eval(environment)) <= {"HOME", "TMPDIR", "PWD", "PYTHONHASHSEED", "LC_CTYPE"}
    assert here == "[]"


@pytest.mark.slow
def test_nothing_is_written_outside_the_empty_folder() -> None:
    library = os.path.dirname(os.__file__)
    own, large = told("open('notes', 'w').write('a')", "open('large', 'wb').write(b'x' * (17 << 20))")
    assert (own, large) == ("1", "OSError")
    outside = [f"open({folder!r} + '/new', 'w')" for folder in ("/", library, "/usr/lib", os.path.expanduser("~"))]
    outside += [f"open({library!r} + '/os.py', 'a')", f"os.chmod({library!r} + '/os.py', 0o777)"]
    assert set(told(*outside)) <= {"OSError", "PermissionError", "FileNotFoundError"}
    assert not (Path(library) / "new").exists()


@pytest.fixture
def listener() -> Iterator[tuple[int, str, list[str]]]:
    """A port, and an abstract name, that somebody on this machine listens to, and who came."""
    came: list[str] = []
    name = f"\0rondo-test-{os.getpid()}"
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as named:
        port.bind(("127.0.0.1", 0))
        named.bind(name)

        def wait(kind: str, server: socket.socket) -> None:
            try:
                server.accept()
                came.append(kind)
            except OSError:
                pass

        for kind, server in (("port", port), ("name", named)):
            server.listen()
            server.settimeout(5)
            threading.Thread(target=wait, args=(kind, server), daemon=True).start()
        yield port.getsockname()[1], name, came


def test_there_is_no_network(listener: tuple[int, str, list[str]]) -> None:
    port, name, came = listener
    addresses = [("127.0.0.1", port), ("192.0.2.1", 80)]
    found = told(*(f"socket.create_connection({address!r}, 1)" for address in addresses))
    assert set(found) <= {"OSError", "ConnectionRefusedError"}
    assert told(f"socket.socket(socket.AF_UNIX).connect({name!r})", "socket.if_nameindex()") == [
        "ConnectionRefusedError",
        "[(1, 'lo')]",
    ]
    assert came == []


@pytest.mark.slow
def test_no_other_process_can_be_reached() -> None:
    """The first process of the sandbox takes no signal from within it."""
    assert told(f"os.kill({os.getpid()}, 9)", "os.kill(1, 9)", "os.getppid()")[::2] == ["ProcessLookupError", "1"]
    killer = "import os\ndef square(x):\n    os.kill(os.getppid(), 9)\n    os.kill(-1, 9)\n    return x\n"
    assert reason(killer) is not None
    assert reason(RIGHT) is None


def test_inmate_has_no_rights_and_gets_none() -> None:
    """Neither those of root nor, unless root started it, those that anybody has in a new user namespace."""
    library = "ctypes.CDLL(None)"
    errors = told("os.chroot('/work')", "os.mknod('/work/null', 0o020666, os.makedev(1, 3))", "socket.sethostname('x')")
    assert errors == ["PermissionError"] * 3
    calls = ["mount(b't', b'/work', b'tmpfs', 0, None)", "prctl(39, 0, 0, 0, 0)"]
    assert told(*(f"{library}.{call}" for call in calls)) == ["-1", "1"]  # no new privileges
    assert os.geteuid() == 0 or told(f"{library}.unshare(0x10000000)") == ["-1"]
    assert told("os.setuid(1)", "os.setgroups([])")[1] == "PermissionError"


def test_code_of_root_is_run_as_nobody() -> None:
    """As the kernel tells it from outside."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    seen: dict[str, tuple[str, ...]] = {}  # the last look at each process: it gives up its rights one after the other
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for folder in Path("/proc").glob("[0-9]*"):
                status = _read(folder / "status") if MARK in _read(folder / "cmdline") else ""
                lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
                if lines.get("NoNewPrivs") == "1" and lines["Uid"] != ROOT:
                    keys = ("Uid", "Gid", "Groups", "CapPrm", "CapEff")
                    seen[folder.name] = tuple(lines[key] for key in keys)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert reason("import time\ndef square(x):\n    time.sleep(0.4)\n    return x * x\n") is None
    stop.set()
    watcher.join()
    ids, none = "\t".join(["65534"] * 4), "0" * 16
    last = {(uid, gid, groups.strip(), *caps) for uid, gid, groups, *caps in seen.values()}
    assert last == {(ids, ids, "", none, none)}


@pytest.mark.slow
def test_nothing_is_left_behind() -> None:
    before, mounts = set(os.listdir("/tmp")), _read(Path("/proc/self/mounts"))
    reason("import os\nopen('left', 'w').write('x')\nos.setsid()\ndef square(x):\n    return x * x\n")
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("rondo-")]
    assert _read(Path("/proc/self/mounts")) == mounts
    own = [f for f in Path("/proc").glob("[0-9]*") if f"\nPPid:\t{os.getpid()}\n" in _read(f / "status")]
    assert not [folder for folder in own if MARK in _read(folder / "cmdline")]


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""
