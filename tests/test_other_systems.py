"""Rondo where POSIX is not: as far as Linux can play another system. macOS and Windows themselves were not tried."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.records import durable
from small_runs import reviews, save_tiny_bert, settings

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src").rglob("*.py"))

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, socket, sys
# What others import comes first: their own ways for other systems are theirs.
import datasets, flwr_datasets, matplotlib.pyplot, peft, torch, transformers  # noqa: F401
for name in {others}:
    __import__(name)
for name in ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
for holder, names in {{
    os: ("fork", "forkpty", "killpg", "getuid", "geteuid", "getgid", "setsid", "statvfs", "uname", "getppid",
         "sched_getaffinity", "register_at_fork", "fchmod", "fchown", "chown", "O_DIRECTORY", "O_CLOEXEC", "sysconf"),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGCHLD", "alarm"),
    socket: ("AF_UNIX",),
}}.items():
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
"""

EVERY_MODULE = """
import rondo
LINUX = "rondo.results.humaneval"  # programs of a model run on Linux alone
refused = {}
for module in pkgutil.walk_packages(rondo.__path__, "rondo.", onerror=lambda name: None):
    if module.name.startswith(LINUX):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        refused[module.name] = str(error)
print(refused)
"""

RUN = """
import rondo
result = rondo.run(sys.argv[1], run_dir=sys.argv[2], device="cpu")
assert len(result.to_frame()) == 2
rondo.resume(sys.argv[2], rounds=3, device="cpu")
rondo.export(sys.argv[2], sys.argv[3], verify=True)
print("accuracy", rondo.evaluate(sys.argv[2]))
"""


def without_posix(code: str, *arguments: str, others: tuple[str, ...] = ()) -> str:
    """What a program prints in which modules and functions of POSIX are missing."""
    command = [sys.executable, "-c", WITHOUT_POSIX.format(others=others) + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_module_is_imported_without_posix() -> None:
    others = tuple(name for name in ("flwr", "cryptography.x509", "ray") if pytest.importorskip(name))
    assert without_posix(EVERY_MODULE, others=others).splitlines()[-1] == "{}"


@pytest.mark.slow
def test_run_without_posix(tmp_path: Path) -> None:
    """In a folder with blanks and letters outside of ASCII, from a configuration and rows with line ends of Windows."""
    folder = tmp_path / "Eigene Daten, Müller"
    folder.mkdir()
    bert = save_tiny_bert(folder / "ein Modell")
    for name, of_file in (("Zeilen ä.csv", reviews(24)), ("Prüfung.csv", reviews(6, seed=1))):
        rows = "text,label\r\n" + "".join(f"{row['text']},{row['label']}\r\n" for row in of_file)
        (folder / name).write_bytes(rows.encode())
    data = {"source": str(folder / "Zeilen ä.csv"), "test_source": str(folder / "Prüfung.csv")}
    from rondo.config import load
    from rondo.records.directory import to_toml

    config = load(settings(bert, data=data, rounds=2))
    (folder / "läuft.toml").write_bytes(to_toml(config).replace("\n", "\r\n").encode())
    printed = without_posix(RUN, str(folder / "läuft.toml"), str(folder / "ein Lauf"), str(folder / "Ergebnis"))
    assert re.fullmatch(r"accuracy .*'accuracy': [01]\.\d+.*", printed.splitlines()[-1])


def text_files(source: str) -> list[str]:
    """Calls of ``os.open`` that write and do not say that the file is binary: Windows would end its lines anew."""
    calls = [call for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call)]
    opened = [ast.unparse(call) for call in calls if ast.unparse(call.func) == "os.open"]
    return [call for call in opened if "O_RDONLY" not in call and "BINARY" not in call]


def test_files_are_opened_as_binary() -> None:
    assert [(file, call) for file in FILES for call in text_files(file.read_text(encoding="utf-8"))] == []


def test_the_rule_sees() -> None:
    assert text_files("os.open(p, os.O_WRONLY)\nos.open(p, os.O_RDONLY)\nos.open(p, os.O_WRONLY | BINARY)\n") == [
        "os.open(p, os.O_WRONLY)"
    ]


def test_file_that_another_program_reads_is_replaced_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to replace a file while it is open anywhere."""
    replace, refusals = os.replace, [PermissionError(13, "in use")] * 3

    def busy(source: Path, target: Path) -> None:
        if refusals:
            raise refusals.pop()
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(PermissionError):
        durable.write(tmp_path / "a", b"1")
    monkeypatch.setattr(sys, "platform", "win32")
    durable.write(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert refusals == []
    refusals.extend([PermissionError(13, "in use")] * 10_000)
    monkeypatch.setattr(durable, "_PATIENCE", 0.1)
    with pytest.raises(PermissionError):
        durable.write(tmp_path / "a", b"3")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
