"""Names and keys that a shell completes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rondo.cli import main
from rondo.cli.app import _keys, values
from rondo.config import ConfigError, load

VARIABLE = "_RONDO_COMPLETE"
KINDS = ["iid", "dirichlet", "shards", "classes", "natural", "lognormal"]
RONDO = [sys.executable, "-c", "from rondo.cli import main; main()"]


Ask = Callable[..., list[str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The completions of a line whose last word is unfinished, as a shell asks for them."""

    def ask(line: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv(VARIABLE, f"complete_{shell}")
        if shell == "bash":
            given = line.split(" ")
            monkeypatch.setenv("COMP_WORDS", "\n".join(given))
            monkeypatch.setenv("COMP_CWORD", str(len(given) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setattr(sys, "argv", ["rondo"])  # which would be pytest's
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out.splitlines()

    return ask


def test_completed_values_are_of_the_type_of_their_key() -> None:
    """Other rules may refuse them, as long as the configuration lacks other keys."""
    refused = {}
    for key, of_key in _keys().items():
        for value in values(of_key):
            try:
                load({}, [f"{key}={value}"])
            except ConfigError as error:
                refused |= {f"{key}={value}": p.message for p in error.problems if p.path == key}
    assert {setting: why for setting, why in refused.items() if "should be" in why} == {}


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("rondo doc", ["doctor"]),
        ("rondo show fed-", ["fed-sb", "fed-plora", "fed-mtl"]),
        ("rondo show con", ["config"]),
        ("rondo show config train.lo", ["train.local_epochs", "train.local_steps"]),
        ("rondo show config priv", None),
        ("rondo check rol", ["rolora", "rolora-linear"]),
        ("rondo list --compat rol", ["rolora", "rolora-linear"]),
        ("rondo compare fedit,rolora,ffa-", ["fedit,rolora,ffa-lora", "fedit,rolora,ffa-linear"]),
        ("rondo compare rolora,rolo", ["rolora,rolora-linear"]),
        ("rondo init --paper rolora/sst2", None),
        ("rondo init --scale s", ["small"]),
        ("rondo reproduce exact", ["exact-equal-bytes"]),
        ("rondo reproduce al", ["all"]),
        ("rondo tune exact", ["exact-equal-bytes"]),
        ("rondo run x.toml --device m", ["mps"]),
        ("rondo export runs/x --dtype b", ["bfloat16"]),
        ("rondo run x.toml --set partition.k", ["partition.kind=", *(f"partition.kind={kind}" for kind in KINDS)]),
        ("rondo run x.toml --set adapter.r", ["adapter.r=", "adapter.rank_pattern="]),
        ("rondo run x.toml --set train.lr", ["train.lr=", "train.lr_ratio="]),
        ("rondo run x.toml --set task.prompt", ["task.prompt=", "task.prompt=VALUE"]),
        ("rondo run ", []),  # bash goes on with files
        ("rondo report runs", []),
        ("rondo run x.toml --set nothing.like", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bash_completes(line: str, completed: list[str] | None, asked: Ask) -> None:
    found = [word for word in asked(line) if word]
    if completed is None:
        assert found
        assert [word for word in found if not word.startswith(line.rpartition(" ")[2])] == []
    else:
        assert found == completed


@pytest.mark.parametrize(
    ("line", "completed"),
    [("rondo show fed-", "fed-sb"), ("rondo run x.toml --set partition.kind=d", "partition.kind=dirichlet")],
)
def test_zsh_and_fish_complete(line: str, completed: str, asked: Ask) -> None:
    assert completed in asked(line, "fish")
    assert f'"{completed}"' in " ".join(asked(line, "zsh"))


@pytest.mark.slow
def test_nothing_heavy_is_imported_for_a_completion() -> None:
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); " + RONDO[2]
    line = ["rondo", "run", "x.toml", "--set", "partition.k"]
    environment = {**os.environ, VARIABLE: "complete_bash", "COMP_WORDS": "\n".join(line), "COMP_CWORD": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "partition.kind=" in done.stdout
    loaded = {module.partition(".")[0] for module in done.stderr.split()}
    assert loaded & {"torch", "datasets", "transformers", "matplotlib"} == set()


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed(shell: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), VARIABLE: f"source_{shell}"}
    done = subprocess.run(RONDO, env=environment, capture_output=True, text=True, timeout=60)
    assert f"{VARIABLE}=complete_{shell}" in done.stdout
    assert done.returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("rondo show fed-s", "rondo show fed-sb "),
        ("rondo run x.toml --set partition.k", "rondo run x.toml --set partition.kind="),
    ],
)
@pytest.mark.slow
def test_tab_in_bash(line: str, completed: str, tmp_path: Path) -> None:
    """A bash at a terminal, whose line is printed after Tab by a key of its own."""
    program = tmp_path / "rondo"
    program.write_text(f'#!/bin/sh\nexec \'{sys.executable}\' -c "{RONDO[2]}" "$@"\n')
    program.chmod(0o755)
    source = {**os.environ, VARIABLE: "source_bash"}
    script = subprocess.run(RONDO, env=source, capture_output=True, text=True, timeout=60).stdout
    (tmp_path / "rc").write_text(f'{script}\nshow() {{ echo "<<$READLINE_LINE>>"; }}\nbind -x \'"\\C-o": show\'\n')
    import pty

    process, terminal = pty.fork()
    if process == 0:
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb"}
        os.execvpe("bash", ["bash", "--rcfile", str(tmp_path / "rc"), "-i"], environment)
    try:
        os.write(terminal, line.encode() + b"\t\x0f")
        printed = b""
        while b">>" not in printed:
            printed += os.read(terminal, 4096)
    finally:
        os.write(terminal, b"\x03exit\n")
        os.close(terminal)
        os.waitpid(process, 0)
    assert re.findall(r"<<(.*?)>>", printed.decode()) == [completed]
