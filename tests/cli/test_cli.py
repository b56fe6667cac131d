"""The command line: exit codes, plain messages, and no import that a command does not need."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from rondo import algorithms
from rondo.algorithms.compatible import refused
from rondo.algorithms.table import TABLE
from rondo.config import load, reference
from rondo.engine.scoring import Scorer
from rondo.records.directory import to_toml
from small_runs import copy_of, files, reviews, save_tiny_bert, settings, write_rows

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration that runs in a second."""
    folder = tmp_path_factory.mktemp("tiny")
    source = files(folder, reviews(24), reviews(6, seed=1))
    return settings(save_tiny_bert(folder / "bert"), data=source, rounds=1)


@pytest.fixture(scope="session")
def run_dir(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rondo.runs import runner

    return runner.run(tiny, run_dir=tmp_path_factory.mktemp("cli") / "run", device="cpu").run_dir


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("run", "missing"), "missing: no such file; write one with: rondo init"),
        (("run", "god.toml"), "did you mean 'good.toml'?"),
        (("run", "."), "this is a folder; name a .toml file"),
        (("run", "data.csv"), "not TOML"),
        (("run", "good.toml", "--set", "rounds"), "expected KEY.PATH=VALUE"),
        (("run", "good.toml", "--set", "rounds=x", "--set", "adapter.q=1"), "2 problems"),
        (("run", "good.toml", "--set", "algorithm.name=rolra"), "did you mean 'rolora'"),
        (("run", "good.toml", "--device", "gpu"), "rondo: 1 problem\n  --device: 'gpu' is unknown; use auto, cpu"),
        (("run", "good.toml", "--run-dir", "old"), "already holds a run"),
        (("run", "good.toml", "--run-dir", "data.csv"), "cannot be made"),
        (("run",), "Missing argument"),
        (("demo", "--set", "rounds=x"), "rounds: should be an integer"),
        (("init", "good.toml"), "already exists; name another file"),
        (("init", "no/such/folder.toml"), "cannot be written"),
        (("show", "rolra"), "did you mean 'rolora'"),
        (("show", "zzz"), "known: fedit, ffa-lora, fed-sb, rolora"),
        (("show", "fedit", "mu"), "KEY: only config takes a key; remove it"),
        (("show", "config", "train.rl"), "did you mean 'train.lr'?"),
        (("show", "no_such_module:X"), "cannot load 'no_such_module:X'"),
        (("check", "fedsa"), "did you mean 'fedsa-lora'"),
        (("check", "no_such_module:X"), "(modules are looked for in the folder you work in and on PYTHONPATH)"),
        (("check", "json:dumps"), "is not a frozen dataclass derived from rondo.algorithm.Algorithm"),
        (("check", "json:"), "cannot load 'json:'"),
        (("check", ":X"), "cannot load ':X'"),
        (("check", ".json:X"), "cannot load '.json:X'"),
        (
            ("export", ".", "--to", "new"),
            "rondo export: 1 problem\n  RUN_DIR: '.' is not a run directory: it has no config",
        ),
        (("export", "nowhere", "--to", "new"), "is not a run directory"),
        (("export", "old"), "Missing option '--to'"),
        (("evaluate", "nowhere"), "rondo evaluate: 1 problem\n  RUN_DIR: 'nowhere' is not a run directory"),
        (("resume", "nowhere"), "rondo resume: 1 problem\n  RUN_DIR: 'nowhere' is not a run directory"),
        (("evaluate", "data.csv"), "is not a run directory"),
        (("evaluate", "."), "is not a run directory"),
        (("predict", "nowhere", "--data", "data.csv"), "rondo predict: 1 problem\n  RUN_DIR: 'nowhere' is not a run"),
        (("predict", "nowhere"), "Missing option '--data'"),
        (("frobnicate",), "No such command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_exits_with_code_2_and_message(
    invoke: Invoke, tiny: dict[str, Any], arguments: tuple[str, ...], fragment: str
) -> None:
    Path("good.toml").write_text(to_toml(load(tiny)))
    Path("data.csv").write_text("text,label\n")
    Path("old").mkdir()
    Path("old/manifest.json").write_text("{}")
    code, output = invoke(*arguments)
    assert code == 2
    assert fragment in output
    assert not Path("runs").exists()
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (
            ("export", "RUN", "--to", "full"),
            "rondo export: 1 problem\n  --to: 'full' is not empty; name another folder",
        ),
        (("export", "RUN", "--to", "full/file"), "'full/file'"),
        (("export", "RUN", "--to", "new", "--client", "client-9"), "did you mean 'client-"),
        (("export", "RUN", "--to", "new", "--client", "zzz"), "there are: client-0, client-1, client-2"),
        (("evaluate", "RUN", "--client", "zzz"), "rondo evaluate: 1 problem\n  --client: no client 'zzz'"),
        (("evaluate", "RUN", "--device", "gpu"), "'gpu' is unknown; use auto, cpu"),
        (("evaluate", "RUN/adapter", "--client", "client-0"), "name the run directory instead"),
        (
            ("evaluate", "RUN", "--data", "x.csv"),
            "rondo evaluate: 1 problem\n  --data: 'x.csv' cannot be read: No such",
        ),
        (("evaluate", "RUN", "--data", "full/file"), "--data: 'full/file': unknown ending; known: .csv"),
        (("predict", "RUN", "--data", "x.csv"), "rondo predict: 1 problem\n  --data: 'x.csv' cannot be read: No such"),
        (("predict", "RUN", "--data", "x.csv", "--to", "x.txt"), "--to: 'x.txt' ends neither in .csv nor in .jsonl"),
        (("predict", "RUN", "--data", "x.csv", "--to", "full/a.csv"), "--to: 'full/a.csv' already exists"),
        (("predict", "RUN", "--data", "x.csv", "--to", "new/a.csv"), "--to: 'new/a.csv' is in no folder; name another"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_about_a_run_exits_with_code_2(
    invoke: Invoke, run_dir: Path, arguments: tuple[str, ...], fragment: str
) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("x")
    Path("full/a.csv").write_text("x")
    code, output = invoke(*(a.replace("RUN", str(run_dir)) for a in arguments))
    assert code == 2
    assert fragment in output
    assert "config: " not in output
    assert not Path("new").exists()


@pytest.mark.parametrize("sets", [(), ("data.source=./pipe.csv",), ("data.test_source=./pipe.csv",)], ids=" ".join)
def test_pipe_is_refused(invoke: Invoke, tiny: dict[str, Any], sets: tuple[str, ...]) -> None:
    """A pipe that nobody writes to never ends."""
    Path("good.toml").write_text(to_toml(load(tiny)))
    for name in ("pipe.toml", "pipe.csv"):
        os.mkfifo(name)
    code, output = invoke("run", "good.toml" if sets else "pipe.toml", *(a for s in sets for a in ("--set", s)))
    assert code == 2
    assert "a pipe or a device" in output


@pytest.mark.parametrize("content", ["x = " + "[" * 100_000, " " * 2**24 + "#"], ids=["deep", "large"])
def test_configuration_without_bounds_is_refused(invoke: Invoke, content: str) -> None:
    Path("x.toml").write_text(content)
    code, output = invoke("run", "x.toml")
    assert code == 2
    assert "x.toml: " in output


def test_library_in_the_working_folder_is_not_run(invoke: Invoke, tiny: dict[str, Any]) -> None:
    Path("good.toml").write_text(to_toml(load(tiny)))
    Path("colorsys.py").write_text("raise SystemExit(99)\n")
    sys.modules.pop("colorsys", None)
    assert invoke("run", "good.toml", "--device", "cpu")[0] == 0
    assert importlib.import_module("colorsys").__file__ != str(Path("colorsys.py").absolute())


def test_stopped_run_exits_with_code_1(invoke: Invoke, tiny: dict[str, Any]) -> None:
    Path("x.toml").write_text(to_toml(load(tiny)))
    code, output = invoke("run", "x.toml", "--set", "train.optimizer=sgd", "--set", "train.lr=1e30")
    assert code == 1
    assert "stopped: 1 rounds in a row were skipped" in output


@pytest.mark.parametrize(
    "shortage", [lambda *_, **__: torch.empty(2**50), lambda *_, **__: bytes(2**60)], ids=["torch", "Python"]
)
def test_command_out_of_memory_exits_with_code_1(
    shortage: Callable[..., object], invoke: Invoke, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, exports and predictions have no rounds to go back to; nothing of them is written."""
    monkeypatch.setattr(Scorer, "scores", shortage)
    code, output = invoke("evaluate", str(run_dir), "--device", "cpu")
    assert code == 1
    assert output.startswith("stopped: out of memory: ")
    assert output.endswith("; give it more memory, or lower evaluation.batch_size\n")


# --- good input ----------------------------------------------------------------------------------------------------


def test_init_writes_a_loadable_configuration(invoke: Invoke) -> None:
    code, output = invoke("init")
    assert code == 0
    assert "rondo run rondo.toml" in output
    assert load("rondo.toml").algorithm.name in algorithms.TABLE
    assert "rondo run 'other file.toml'" in invoke("init", "other file.toml")[1]
    assert load("other file.toml", ["adapter.r=4"]).adapter.r == 4


def test_run_export_and_evaluate(invoke: Invoke, tiny: dict[str, Any]) -> None:
    Path("x.toml").write_text(to_toml(load(tiny)))
    code, output = invoke(
        "run", "x.toml", "--run-dir", "first", "--device", "cpu", "--set", "algorithm.name=fedsa-lora"
    )
    assert code == 0
    assert "fedsa-lora: 1 rounds, 3 clients" in output
    assert "result:        first/adapter" in output
    assert "\x1b" not in output

    code, output = invoke("export", "first", "--to", "out", "--client", "client-1", "--verify")
    assert code == 0
    assert "wrote out, rank 2\nverified: reloaded by stock PEFT" in output
    code, output = invoke("export", "first", "--to", "merged", "--merged", "--verify")
    assert code == 0
    assert "verified: reloaded by transformers alone" in output
    assert invoke("export", "first", "--to", "plain") == (0, "wrote plain, rank 2\n")
    code, output = invoke("export", "first", "--to", "small", "--rank", "1", "--verify")
    assert code == 0
    assert re.search(
        r"wrote small, rank 1\ntruncated to rank 1: \d+\.\d\d% of the change \(Frobenius norm\) is lost", output
    )

    code, output = invoke("evaluate", "first", "--client", "client-1", "--device", "cpu")
    assert code == 0
    assert set(json.loads(output)) == {"test", "titles", "validation"}


def test_predictions_are_printed_or_written(invoke: Invoke, run_dir: Path) -> None:
    data = str(write_rows(Path("rows.csv"), reviews(4, seed=1)))
    code, output = invoke("predict", str(run_dir), "--data", data, "--device", "cpu")
    assert code == 0
    printed = [json.loads(line) for line in output.splitlines()]
    assert [set(p) for p in printed] == [{"label", "probability"}] * 4
    assert invoke("predict", str(run_dir), "--data", data, "--to", "out.jsonl") == (0, "wrote out.jsonl, 4 rows\n")
    assert Path("out.jsonl").read_text() == output
    assert invoke("predict", str(run_dir / "adapter"), "--data", data, "--to", "out.csv")[0] == 0
    with Path("out.csv").open(newline="") as file:
        assert [{**row, "probability": float(row["probability"])} for row in csv.DictReader(file)] == printed


def test_evaluation_on_another_file(invoke: Invoke, run_dir: Path) -> None:
    data = str(write_rows(Path("rows.csv"), reviews(4, seed=1)))
    code, output = invoke("evaluate", str(run_dir), "--data", data, "--device", "cpu")
    assert code == 0
    assert json.loads(output)["test"]["examples"] == 4


def test_unused_rows_are_reported(invoke: Invoke, tiny: dict[str, Any]) -> None:
    rows = reviews(24)
    rows[3]["text"] = ""
    write_rows(Path("bad.csv"), rows)
    changes = ("--set", "data.source=./bad.csv", "--set", "data.bad_rows=drop", "--device", "cpu")
    Path("x.toml").write_text(to_toml(load(tiny)))
    code, output = invoke("run", "x.toml", *changes)
    assert code == 0
    assert "1 of 24 training rows are not used: 1 bad\n" in output


@pytest.mark.slow
def test_names_from_files_are_escaped(invoke: Invoke, tiny: dict[str, Any]) -> None:
    """A column, a client or a label cannot clear the screen, move the cursor or look like markup."""
    evil = "[red]\x1b[2J\x9b1m\u202e\n:bomb:"
    rows = [{**row, "who": evil if i < 12 else f"{evil}{i}", evil: "x"} for i, row in enumerate(reviews(24))]
    test = [row | {"label": evil} for row in reviews(2)]
    copied = copy_of(write_rows(Path("rows.jsonl"), rows))
    write_rows(Path("test.jsonl"), test)
    Path("x.toml").write_text(to_toml(load(tiny)))
    sets = ["data.source=rows.jsonl", f"data.test_source={copied}", "partition.kind=natural", "partition.column=who"]
    sets += ["data.min_examples=2", "clients.per_round=1"]
    arguments = [a for text in sets for a in ("--set", text)]
    Path("x.toml").write_text(to_toml(load({**tiny, "partition": {"kind": "natural", "column": "who"}})))
    escaped = r"[red]\x1b[2J\x9b1m\u202e :bomb:"  # one space for blanks of any kind
    code, output = invoke("run", "x.toml", *arguments, "--device", "cpu")
    assert code == 0
    assert f"left out for too few examples: {escaped}12, {escaped}13" in output
    for change in ("task.text=txt", "data.test_source=test.jsonl", "task.label=who"):
        code, refusal = invoke("run", "x.toml", *arguments, "--set", change)
        assert code == 2
        assert escaped.partition(" ")[0] in refusal
        output += refusal
    code, stopped = invoke("run", "x.toml", *arguments, "--set", "train.optimizer=sgd", "--set", "train.lr=1e30")
    assert code == 1
    assert escaped in stopped
    assert [c for c in output + stopped if not c.isprintable() and c != "\n"] == []


@pytest.mark.slow
def test_account_of_rows_comes_before_training(invoke: Invoke, tiny: dict[str, Any]) -> None:
    rows = reviews(24)
    rows[3]["text"] = "film " * 40
    copied = copy_of(write_rows(Path("rows.csv"), rows))
    Path("x.toml").write_text(to_toml(load(tiny)))
    sets = ("--set", "data.source=./rows.csv", "--set", f"data.test_source=./{copied}", "--set", "data.max_test_rows=1")
    code, output = invoke("run", "x.toml", *sets, "--run-dir", "first", "--device", "cpu")
    assert code == 0
    account, _, table = output.partition("fedit: 1 rounds")
    assert "1 of 24 training rows (4.2 %) are cut to task.max_length" in account
    assert "1 of 24 test rows are taken, a random sample, which keeps the shares of label" in account
    assert "warning: all 1 test rows are of class " in output
    assert "warning: 1 of 1 test rows are training rows too" in output
    assert "cut to" not in table
    code, output = invoke("compare", "fedit,rolora", "--config", "x.toml", *sets, "--device", "cpu")
    assert code == 0
    assert output.count("are cut to task.max_length") == 1
    assert output.count("warning: all 1 test rows") == output.count("are training rows too") == 1


def test_list_has_a_line_per_algorithm(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "80")
    code, output = invoke("list")
    assert code == 0
    lines = output.splitlines()
    for name, entry in algorithms.TABLE.items():
        (line,) = (text for text in lines if text.split()[:1] == [name])
        assert entry.summary in line
        assert entry.paper in line


def test_list_fits_a_narrow_terminal(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight columns would share 80 characters, and each name and word would be broken."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    code, output = invoke("list")
    assert code == 0
    assert len(output.splitlines()) < 3 * len(algorithms.TABLE)
    assert {line.split(" ")[0] for line in output.splitlines()} >= set(algorithms.TABLE)
    assert "rondo show NAME" in output
    assert "linear, one rank" not in output
    monkeypatch.setenv("COLUMNS", "200")
    _, output = invoke("list")
    assert "linear, one rank" in output
    assert "exact, whole: exact if whole tensors are trained alone" in output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hetlora", "pruning is off by default"),
        ("lora-a2", "without client ranks they keep all"),
        ("fslora", "without client ranks they train all"),
        ("fed-plora", "without client ranks they train all"),
        ("florist", "keeps the leading part of each layer's stack"),
        ("flexlora", "scores are of the truncated model"),
        ("fedhm", "scores are of the truncated model"),
        ("florg", "starts off the pre-trained model unless offset"),
        ("pfedlora", "in units of the scale"),
        ("slora", "in units of the scale"),
    ],
)
def test_list_says_what_defaults_leave_out(invoke: Invoke, name: str, words: str) -> None:
    """The table of docs/methods.md has the same words, and the card says more."""
    _, output = invoke("list")
    (line,) = (text for text in output.splitlines() if text.split()[:1] == [name])
    assert words in line
    assert "clients with different ranks train at the run's scale, alpha / r" in output


@pytest.mark.parametrize("name", algorithms.names())
def test_show_prints_the_card_and_the_keys(invoke: Invoke, name: str) -> None:
    code, output = invoke("show", name)
    assert code == 0
    assert output.startswith(f"{name}\n{'=' * len(name)}\n\n")
    assert "Reference:" in output
    assert "\n\nStart: nothing is sent at a client's first contact but what rounds have changed." in output
    lines = output.partition("Seen by each party (docs/privacy.md):\n")[2].splitlines()[:4]
    seen = dict(line.split(": ", 1) for line in lines)
    masked = "secure aggregation: their sum alone" in seen["server"]
    assert masked == ("secure aggregation" not in refused(TABLE[name].traits, linear=TABLE[name].linear))
    assert ("no letter holds" in seen["stays with the client"]) == (TABLE[name].traits.personal and name != "local")
    defaults = dataclasses.asdict(algorithms.get(name))
    assert tomllib.loads(output.partition("Keys of [algorithm], with their defaults:\n")[2]) == defaults


def test_show_config_prints_the_reference(invoke: Invoke) -> None:
    assert invoke("show", "config") == (0, reference.text(width=100) + "\n")
    assert invoke("show", "config", "train") == (0, reference.text("train") + "\n")
    assert invoke("show", "config", "train.lr") == (
        0,
        "train.lr = 0.001\n    number > 0 and <= 1e+30\n    Learning rate.\n",
    )


def test_version(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"rondo {rondo.__version__}\n")


@pytest.mark.sweep(2)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("command", [("reproduce", "list"), ("list",), ("--version",), ("--help",)])
def test_output_that_a_full_disk_does_not_take_is_told(command: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        call = [sys.executable, "-c", "from rondo.cli import main; main()", *command]
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, check=False, text=True, encoding="utf-8")
    assert done.stderr == "stopped: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="pipes of Windows break in other ways")
@pytest.mark.parametrize("arguments", [("schema",), ("list",), ("show", "config"), ("--version",), ("show", "nothing")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.sweep(5)
def test_reader_that_has_gone_changes_no_exit_code(arguments: tuple[str, ...], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        call = [sys.executable, "-c", "from rondo.cli import main; main()", *arguments]
        variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(call, stdout=pipe, stderr=subprocess.PIPE, check=False, text=True, env=variables)
        unread = subprocess.run(call, stdout=pipe, stderr=pipe, check=False, env=variables)
    expected = 2 if "nothing" in arguments else 0
    assert (done.returncode, unread.returncode) == (expected, expected)
    assert ("nothing" in done.stderr) == (expected == 2)
    assert "pipe" not in done.stderr.lower()


@pytest.mark.sweep(2)
@pytest.mark.skipif(
    not hasattr(os, "getuid") or (os.getuid() == 0 and not shutil.which("setpriv")), reason="root reads all"
)
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("run", "closed/run.toml"), "closed/run.toml: cannot be read: Permission denied"),
        (("run", "rows.toml"), "data.source: 'closed/rows.csv' cannot be read: Permission denied; mend the path"),
        (("resume", "closed/run"), "'closed/run/config.toml': Permission denied; give the user who runs this command"),
        (("report", "closed/run"), "'closed/run': Permission denied; give the user who runs this command access to it"),
    ],
)
def test_closed_folder_is_told(arguments: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    """Root, as in containers, is without the rights to read everything."""
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "rows.toml").write_text("""
        data.source = "closed/rows.csv"
        task = { text = "text", label = "label" }
        partition.clients = 2
    """)
    code = "import sys; sys.argv[0] = 'rondo'; from rondo.cli import main; main()"
    rights = "-dac_override,-dac_read_search"
    bare = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"] if os.getuid() == 0 else []
    call = [*bare, sys.executable, "-c", code, *arguments]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert fault in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_closed_output_is_no_fault() -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], '--version'])"
    call = [sys.executable, "-c", code, "from rondo.cli import main; main()"]
    done = subprocess.run(call, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_shell_completion_completes_commands() -> None:
    """The variables that bash sets; without an answer, bash completes file names."""
    code = "import sys; sys.argv = ['rondo']; from rondo.cli import main; main()"
    for words, completed in (("rondo ev", ["evaluate"]), ("rondo run my", [])):
        variables = {"_RONDO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, **variables}
        )
        assert done.stdout.split() == completed, done.stderr


def test_help_of_every_command(invoke: Invoke) -> None:
    for command in ("run", "compare", "demo", "init", "list", "show", "check", "export", "evaluate", "predict"):
        code, output = invoke(command, "--help")
        assert code == 0
        assert "Usage:" in output
        assert command in invoke("--help")[1]


def test_help_and_list_load_no_torch() -> None:
    code = """
        import sys
        from rondo.cli import app
        commands = ["--help"], ["--version"], ["list"], ["run", "--help"], ["run", "nope.toml"], ["init", "/no/x.toml"]
        commands += ["show", "config"], ["demo", "--set", "rounds=0"], ["federate", "keys", "make", "--help"]
        commands += ["federate", "site", "keys", "--help"], ["federate", "sites", "add", "--help"]
        for arguments in (*commands, ["compare", "fedit,rolra"]):
            try:
                app(arguments)
            except SystemExit as done:
                assert done.code in (0, 2), done.code
        libraries = {"torch", "transformers", "peft", "datasets", "matplotlib", "flwr", "cryptography"}
        loaded = libraries & set(sys.modules)
        assert not loaded, loaded
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "florg" in done.stdout


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ("keys", "make", "--clients", "x"),
        ("keys", "renew"),
        ("site", "keys", "x", "--ca", "x"),
        ("site", "keys", "x", "--renew"),
        ("sites", "add", "x"),
        ("sites", "renew", "x"),
        ("sites", "extend", "x"),
        ("sites", "revoke", "x"),
        ("sites", "show"),
    ],
    ids=" ".join,
)
def test_missing_federation_extra_is_named(arguments: tuple[str, ...]) -> None:
    code = """
        import sys
        sys.modules["cryptography"] = None
        from rondo.cli import app
        app(["federate", *sys.argv[1:]])
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    message = "needs the package cryptography, which is not installed: pip install 'flwr>=1.41,<1.43'"
    assert done.stderr == f"rondo federate: 1 problem\n  federation: {message}\n"


# --- custom classes ------------------------------------------------------------------------------------------------

OWN = '''
from __future__ import annotations

from dataclasses import dataclass

from rondo.algorithm import Algorithm, Mean, ServerState, Traits
from rondo.params import down, pick, up, whole


@dataclass(frozen=True)
class Good(Algorithm[ServerState]):
    """FedAvg of both factors."""

    traits = Traits(exact=False)

    def init(self, params, weights, round):
        return ServerState(params)

    def client_update(self, shared, local, trainer):
        fit = trainer.fit(shared.params, train=down | up | whole)
        return trainer.upload(pick(fit.params, down | up | whole)), local


@dataclass(frozen=True)
class LastOneWins(Good):
    """A planted fault: the upload that comes last is taken for the mean."""

    def aggregate(self, state, uploads, round):
        last = list(uploads)[-1]
        return self.finish(state, Mean(last.params, last.weight, 1), round)


@dataclass(frozen=True)
class NeedsAValue(Good):
    x: int


@dataclass(frozen=True)
class Unfinished(Algorithm[ServerState]):
    traits = Traits(exact=False)


@dataclass(frozen=True)
class Undeclared(Algorithm[ServerState]):
    pass
'''


@pytest.fixture
def own(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory that holds the classes above."""
    name = f"own_module_{abs(hash(Path.cwd()))}"
    Path(f"{name}.py").write_text(OWN)
    return name


def test_lawful_custom_class_passes_the_check(invoke: Invoke, own: str) -> None:
    code, output = invoke("check", f"{own}:Good")
    assert code == 0
    assert output.rstrip().endswith("all laws hold")
    assert "FedAvg of both factors." in invoke("show", f"{own}:Good")[1]


@pytest.mark.slow
def test_faulty_custom_class_fails_the_check(invoke: Invoke, own: str) -> None:
    code, output = invoke("check", f"{own}:LastOneWins")
    assert code == 1
    assert [line.split()[1] for line in output.splitlines() if line.startswith("  failed")]
    assert "all laws hold" not in output


@pytest.mark.parametrize(
    ("name", "fragment"),
    [("NeedsAValue", "x"), ("Unfinished", "abstract"), ("Undeclared", "traits = Traits(exact=...)")],
)
def test_custom_class_that_cannot_be_made_is_named(invoke: Invoke, own: str, name: str, fragment: str) -> None:
    code, output = invoke("check", f"{own}:{name}")
    assert code == 2
    assert fragment in output


def test_module_with_failing_import_is_named(invoke: Invoke, own: str) -> None:
    for name, content in (("syntax", "def ("), ("failing", "1 / 0")):
        Path(f"{own}_{name}.py").write_text(content)
        code, output = invoke("check", f"{own}_{name}:X")
        assert code == 2
        assert f"cannot load '{own}_{name}:X'" in output


def test_custom_class_in_the_working_directory_runs(invoke: Invoke, own: str, tiny: dict[str, Any]) -> None:
    Path("x.toml").write_text(to_toml(load(tiny)))
    code, output = invoke("run", "x.toml", "--set", f"algorithm.name={own}:Good", "--device", "cpu")
    assert code == 0, output
    assert f"{own}:Good: 1 rounds" in output


@pytest.mark.parametrize("command", [(), ("run",), ("federate", "site", "init"), ("privacy", "plan")])
def test_short_option_for_help(invoke: Invoke, command: tuple[str, ...]) -> None:
    assert invoke(*command, "-h") == invoke(*command, "--help")
    assert invoke(*command, "-h")[0] == 0
