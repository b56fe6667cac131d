"""Names and keys that a shell completes.

After a change of the schema, the tables, the papers or the entries, ``PYTHONPATH=src:tests python
tests/cli/test_completion.py`` writes ``words.tsv`` anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rondo
from rondo import algorithms
from rondo.cli import completion, main
from rondo.config import ConfigError, load
from rondo.config.papers import writer
from rondo.config.reference import Key, sections
from rondo.study.claims import entry

FILE = Path(completion.__file__).with_name("words.tsv")
KINDS = ["iid", "dirichlet", "shards", "classes", "natural", "lognormal"]
RONDO = [sys.executable, "-c", "from rondo.cli import main; main()"]


def lines() -> Iterator[str]:
    """Everything that can be completed, in the order in which it is shown."""
    for kind, names in {"method": algorithms.TABLE, "paper": writer.names(), "entry": entry.names()}.items():
        yield from (f"{kind}\t{name}" for name in names)
    for section in sections():
        if section.name:
            yield f"section\t{section.name}"
        yield from ("\t".join(["key", key.path, *values(key)]) for key in section.keys)


def values(key: Key) -> list[str]:
    """The values of a key as ``--set`` takes them: its choices, or its default."""
    if key.path == "algorithm.name":
        return list(algorithms.TABLE)
    choices = [] if key.values.startswith("list of") else re.findall(r'"([^"]+)"', key.values)
    truths = ["true", "false"] if "true or false" in key.values else ["true"] if key.values.startswith("true,") else []
    if choices or truths:
        return [*truths, *choices]
    default = json.loads(key.default) if key.default else None
    return [] if default in (None, [], {}) else [str(default)]


Ask = Callable[..., list[str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The completions of a line whose last word is unfinished, as a shell asks for them."""

    def ask(line: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv(completion.VARIABLE, f"complete_{shell}")
        if shell == "bash":
            given = broken(line)
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


def broken(line: str) -> list[str]:
    """The words of a line as bash breaks them: ``=`` is one of its own, and the last one if the line ends there."""
    parts = [part for word in line.split(" ") for part in (re.split("(=)", word) if "=" in word else [word])]
    last = parts[-1] if not line.endswith("=") else None
    return [part for part in parts[:-1] if part] + ([last] if last is not None else [])


def test_words_are_those_of_the_tables() -> None:
    assert FILE.read_text(encoding="utf-8").splitlines() == list(lines())


def test_completed_values_are_of_the_type_of_their_key() -> None:
    """Other rules may refuse them, as long as the configuration lacks other keys."""
    refused = {}
    for key, of_key in completion.words("key").items():
        for value in of_key:
            try:
                load({}, [f"{key}={value}"])
            except ConfigError as error:
                refused |= {f"{key}={value}": p.message for p in error.problems if p.path == key}
    assert {setting: why for setting, why in refused.items() if "should be" in why} == {}


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("rondo doc", ["doctor"]),
        ("rondo show fed-", ["fed-sb", "fed-mtl"]),
        ("rondo show con", ["config"]),
        ("rondo show config train.l", ["train.lr", "train.local_epochs", "train.local_steps", "train.length_grouping"]),
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
        ("rondo run x.toml --set train.lr", ["train.lr=", "train.lr=0.001"]),
        ("rondo run x.toml --set task.prompt", ["task.prompt=", "task.prompt=VALUE"]),
        ("rondo run x.toml --set partition.kind=", KINDS),
        ("rondo run x.toml --set partition.kind=d", ["dirichlet"]),
        ("rondo run x.toml --set=partition.kind=d", ["dirichlet"]),
        ("rondo run x.toml --set=train.lr", ["train.lr=", "train.lr=0.001"]),
        ("rondo run x.toml --set rounds=3 --set adapter.use_rslora=t", ["true"]),
        ("rondo compare --vary algorithm.name=flo", ["florg", "florg-unaligned", "flora"]),
        ("rondo resume runs/x --set simulation.engine=r", ["ray"]),
        ("rondo run ", []),  # bash goes on with files
        ("rondo report runs", []),
        ("rondo run x.toml --set nothing.like", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bash_completes(line: str, completed: list[str] | None, asked: Ask) -> None:
    found = asked(line)
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
    environment = {**os.environ, completion.VARIABLE: "complete_bash", "COMP_WORDS": "\n".join(line), "COMP_CWORD": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "partition.kind=" in done.stdout
    loaded = {module.partition(".")[0] for module in done.stderr.split()}
    assert loaded & {"torch", "numpy", "pydantic", "datasets", "transformers", "matplotlib"} == set()
    ours = [module for module in done.stderr.split() if module.startswith("rondo.")]
    assert [module for module in ours if not module.startswith(("rondo.cli", "rondo.errors"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed(shell: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), completion.VARIABLE: f"source_{shell}"}
    done = subprocess.run(RONDO, env=environment, capture_output=True, text=True, timeout=60)
    assert f"{completion.VARIABLE}=complete_{shell}" in done.stdout
    assert done.returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("rondo show fed-s", "rondo show fed-sb "),
        ("rondo run x.toml --set partition.k", "rondo run x.toml --set partition.kind="),
        ("rondo run x.toml --set partition.kind=d", "rondo run x.toml --set partition.kind=dirichlet "),
        ("rondo run x.toml --set partition.kind=di", "rondo run x.toml --set partition.kind=dirichlet "),
    ],
)
@pytest.mark.slow
def test_tab_in_bash(line: str, completed: str, tmp_path: Path) -> None:
    """A bash at a terminal, whose line is printed after Tab by a key of its own."""
    program = tmp_path / "rondo"
    program.write_text(f'#!/bin/sh\nexec \'{sys.executable}\' -c "{RONDO[2]}" "$@"\n')
    program.chmod(0o755)
    source = {**os.environ, completion.VARIABLE: "source_bash"}
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


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
    print(f"wrote {FILE.relative_to(Path(rondo.__file__).parents[2])}")
