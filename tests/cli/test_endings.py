"""What ends a command: faults of the input, of the program, a shortage of memory, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
import typer

import rondo
from rondo.cli import app, federate_site, process
from rondo.cli.federate_site import by_hand
from rondo.cli.process import stoppable, user_errors
from rondo.errors import ConfigError, RunStopped, StopRequested
from rondo.federation.site.contract.document import Term


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError.at("train.lr", "should be a number"), 2, "train.lr: should be a number"),
        (RunStopped("the disk is full"), 1, "stopped: the disk is full"),
        (MemoryError("too\nmuch"), 1, "stopped: out of memory: too; give it more memory"),
        (MemoryError(), 1, "stopped: out of memory: MemoryError; give it more memory"),
        (torch.OutOfMemoryError("on the card"), 1, "stopped: out of memory: on the card; give"),
    ],
)
def test_fault_ends_in_one_line(error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, user_errors():
        raise error
    assert ended.value.exit_code == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("a fault of ours"), RuntimeError("shapes differ")])
def test_fault_of_the_program_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), user_errors():
        raise error


def test_warning_is_a_line_without_its_place_in_our_code(tmp_path: Path) -> None:
    """One of a library keeps its place."""
    (tmp_path / "rows.csv").write_text("text ,label\n" + "a,pos\nb,neg\n" * 4, encoding="utf-8")
    code = "import warnings; warnings.warn('theirs'); from rondo.cli import main; main()"
    task = '[task]\nkind = "sequence-classification"\ntext = "text"\nlabel = "label"'
    (tmp_path / "c.toml").write_text(f'data.source = "rows.csv"\npartition.clients = 2\n{task}', encoding="utf-8")
    call = [sys.executable, "-c", code, "data", "c.toml"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    told = "warning: data.source: names of columns are read without blanks at their ends: 'text ' as 'text'"
    assert told in done.stderr.splitlines()
    assert "UserWarning: theirs" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_stops_and_the_second_one_ends(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The handlers of before come back, and the exit code is the shell's for the signal."""
    ended: list[int] = []
    monkeypatch.setattr(process.os, "_exit", ended.append)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(typer.Exit) as caught, stoppable() as stop:  # noqa: PT012
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.is_set()
        assert ended == []
        os.kill(os.getpid(), number)
        assert ended == [128 + number]
        raise StopRequested
    assert caught.value.exit_code == 128 + number
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    told = capfd.readouterr().err
    assert "stopping after this step; once more to stop at once" in told
    assert "run the same command again" in told


def test_libraries_are_quiet_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    process.quiet_libraries()
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "info"
    assert os.environ.pop("HF_HUB_DISABLE_PROGRESS_BARS") == "1"


@pytest.mark.parametrize(
    ("terminal", "line", "consents"),
    [(True, "y\n", True), (True, " YES \n", True), (True, "n\n", False), (True, "\n", False), (False, "y\n", False)],
)
def test_owner_is_asked_at_a_terminal_only(
    terminal: bool, line: str, consents: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = SimpleNamespace(isatty=lambda: terminal, readline=lambda: line)
    monkeypatch.setattr(federate_site.sys, "stdin", stdin)
    monkeypatch.setattr(federate_site.select, "select", lambda readers, *_: (readers, [], []))
    terms = [
        Term("rank", "9", "8 at most", kept=False),
        Term("client-level epsilon", "within it", "8 at most", own="3 of 8 spent"),
    ]
    offer = SimpleNamespace(plan=SimpleNamespace(run="r1"), terms=terms, leaving=["factors of ann"])
    assert by_hand(threading.Event())(offer) == consents
    told = capsys.readouterr()
    assert "REFUSED" in told.out
    assert "3 of 8 spent" in told.out
    assert "within it" not in told.out
    assert "factors of ann" in told.out
    assert ("take part in this run" in told.out) == terminal
    assert ("nobody can be asked" in told.err) == (not terminal)


def test_question_ends_where_the_site_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federate_site.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(federate_site.select, "select", lambda *_: ([], [], []))
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        by_hand(stop)(SimpleNamespace(plan=SimpleNamespace(run="r1"), terms=[], leaving=[]))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (("--humaneval", "x.jsonl", "--data", "y.csv"), "--data"),
        (("--humaneval", "x.jsonl", "--generate"), "--generate"),
        (("--lm-eval", "boolq", "--data", "y.csv"), "--data"),
        (("--lm-eval", "boolq", "--humaneval", "x.jsonl"), "--humaneval"),
        (("--lm-eval-tasks", "tasks"), "--lm-eval-tasks"),
        (("--allow-execution",), "--allow-execution"),
        (("--to", "x.csv"), "--to"),
    ],
)
def test_options_that_exclude_or_need_each_other(
    options: tuple[str, ...], path: str, invoke: Callable[..., tuple[int, str]]
) -> None:
    code, output = invoke("evaluate", "run", *options)
    assert code == 2
    assert f"{path}: " in output


def test_nothing_is_allowed_unless_it_is_said() -> None:
    """Every flag of every command is off: code of one's own, changed files, execution, a line without TLS, consent."""

    def flags(command: click.Command, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(command, click.Group):
            for inner, each in command.commands.items():
                yield from flags(each, f"{name} {inner}")
        for option in command.params:
            if getattr(option, "is_flag", False):
                yield f"{name} {option.name}", option.default

    known = dict(flags(typer.main.get_command(app), "rondo"))
    assert "rondo evaluate allow_code" in known
    assert "rondo federate server insecure" in known
    assert {name for name, default in known.items() if default not in (False, None)} == set()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("evaluate", ()),
        ("predict", ("--data", "rows.csv")),
        ("export", ("--to", "adapter")),
        ("adapt", ("--data", "rows.csv")),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--allow-code",), ("--allow-changed",)], ids=str)
def test_command_allows_what_was_said_and_nothing_else(
    function: str,
    arguments: tuple[str, ...],
    flags: tuple[str, ...],
    invoke: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def stopped(*_: Any, **options: Any) -> None:
        asked.update(options)
        raise RunStopped("it was asked")

    monkeypatch.setattr(rondo, function, stopped)
    assert invoke(function, "run", *arguments, *flags) == (1, "stopped: it was asked\n")
    given = {f"--{key.replace('_', '-')}": asked[key] for key in ("allow_code", "allow_changed")}
    assert given == {flag: flag in flags for flag in ("--allow-code", "--allow-changed")}
