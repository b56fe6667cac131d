"""Progress of a run in a notebook, with a display in IPython's place."""

from __future__ import annotations

import builtins
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import rondo
from rondo.config import load
from rondo.models.kernels.quiet import quiet
from rondo.runs.runner import _watching
from rondo.runs.watching.notebook import NotebookBars, notebook_progress
from small_runs import WHOLE, reviews, save_tiny_bert, settings, write_rows

RECORD: dict[str, Any] = {
    "loss": 0.5,
    "bytes_up": 1000,
    "bytes_down": 500,
    "scores": {"global": {"accuracy": 0.75}},
}


class Screen:
    """All states of all outputs of a cell, by output."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Screen:
        assert raw
        assert display_id
        self.outputs.append([data])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1].append(data)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    module = types.ModuleType("IPython.display")
    module.display = screen.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return screen


class ZMQInteractiveShell:
    """The name by which a kernel's shell is known."""


@pytest.fixture
def kernel(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return screen


def test_bars_name_phase_rounds_and_clients() -> None:
    bars = NotebookBars("fedavg, seed 0", 3)
    bars.phase("loading")
    assert bars.shown()["text/plain"] == "fedavg, seed 0\nloading 0 of 3 rounds 0:00"
    bars.phase("training")
    bars.round_started(0, 2)
    bars.client_done("client-1", 0.25)
    bars.round_done(RECORD)
    assert bars.shown()["text/plain"].splitlines()[1:] == [
        "training 1 of 3 rounds training loss 0.500, test accuracy 0.750, 1.5 kB, 0:00, about 0:00 left",
        "1 of 2 clients client-1: loss 0.250",
    ]
    assert '<progress value="1" max="3"' in bars.shown()["text/html"]
    assert '<progress value="1" max="2"' in bars.shown()["text/html"]
    bars.client_failed("client-2")
    assert "2 of 2 clients client-2: failed" in bars.shown()["text/plain"]
    bars.client_done("client-3", None)  # its round took no training step
    assert bars.shown()["text/plain"].endswith("3 of 2 clients client-3")
    html = bars.shown()["text/html"]
    assert html.count("<div") == html.count("</div>") == 2
    bars.ended("stopped")  # with two rounds to go, for which no time is left
    assert bars.shown()["text/plain"].endswith(
        "stopped 1 of 3 rounds training loss 0.500, test accuracy 0.750, 1.5 kB, 0:00"
    )


def test_output_that_stays_tells_nothing_of_a_secret_turnout(kernel: Screen) -> None:
    private = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-3}
    clients = {"sampling": "full", "weighting": "uniform"}
    config = load({"rounds": 3, "algorithm": {"name": "rolora"}, "privacy": private, "clients": clients})
    with _watching(None, config) as bars:
        bars.round_started(0, 2)
        bars.client_done("client-1", None)
        bars.round_done(RECORD)
    left = kernel.outputs[0][-1]["text/plain"]
    assert left == "rolora, seed 0\ndone 1 of 3 rounds training loss 0.500, test accuracy 0.750"


def test_bars_count_from_the_resumed_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    bars = NotebookBars("", 10)
    bars.resumed(6, ["round 7 is damaged"])
    bars.round_started(6, 2)
    monkeypatch.setattr(time, "monotonic", lambda: 170.0)
    bars.round_done(RECORD)
    text = bars.shown()["text/plain"]
    assert "damaged, not used: round 7 is damaged\ngoing on after 6 committed rounds\n" in text
    assert "7 of 10 rounds" in text
    assert "1:10, about 3:30 left" in text


def test_names_are_no_html() -> None:
    evil = "<script>\x1b</script>"
    bars = NotebookBars(evil, 1)
    bars.prepared(WHOLE | {"warnings": [evil]})
    bars.round_started(0, 1)
    bars.client_done(evil, 0.1)
    html = bars.shown()["text/html"]
    assert html.count("&lt;script&gt;") == 3
    assert "<script>" not in html


def test_cell_keeps_one_output_with_one_bar(screen: Screen) -> None:
    with notebook_progress("fedavg, seed 0", 300) as observer:
        for index in range(300):
            observer.round_started(index, 1)
            observer.client_done("client-0", 0.5)
            observer.round_done(RECORD)
    (states,) = screen.outputs
    assert len(states) < 20
    assert (
        states[-1]["text/plain"]
        .splitlines()[1]
        .startswith("done 300 of 300 rounds training loss 0.500, test accuracy 0.750")
    )
    assert states[-1]["text/html"].count("<progress") == 1


def test_output_moves_while_a_phase_lasts(screen: Screen) -> None:
    with notebook_progress("", 2) as observer:
        observer.phase("evaluating")
        deadline = time.monotonic() + 10
        while len(screen.outputs[0]) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "evaluating" in screen.outputs[0][-1]["text/plain"]


def test_cell_is_not_drawn_to_after_the_run(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cell would have it."""
    began = threading.Event()

    def slow(data: dict[str, str], *, raw: bool) -> None:
        if threading.current_thread().name == "rondo-notebook":
            began.set()
            time.sleep(0.3)

    monkeypatch.setattr(screen, "update", slow)
    with notebook_progress("", 2) as observer:
        observer.phase("evaluating")
        assert began.wait(10)
    assert "rondo-notebook" not in {thread.name for thread in threading.enumerate()}


def test_failed_run_is_shown_as_stopped(screen: Screen) -> None:
    with pytest.raises(KeyboardInterrupt), notebook_progress("", 2):
        raise KeyboardInterrupt
    assert "stopped 0 of 2 rounds" in screen.outputs[0][-1]["text/plain"]


def test_run_in_a_kernel_shows_itself(kernel: Screen, tmp_path: Path) -> None:
    rows = str(write_rows(tmp_path / "rows.csv", reviews(24)))
    test = str(write_rows(tmp_path / "test.csv", reviews(8, seed=1)))
    config = settings(save_tiny_bert(tmp_path / "bert"), data={"source": rows, "test_source": test}, rounds=2)
    rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    (states,) = kernel.outputs
    title, bar = states[-1]["text/plain"].splitlines()
    assert title.endswith(", seed 0")
    assert bar.startswith("done 2 of 2 rounds")


_IMPORT = """
import sys, types, warnings
warnings.simplefilter("error")
sys.modules["ipykernel"] = types.ModuleType("ipykernel")
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
ipython = types.ModuleType("IPython")
ipython.get_ipython = object
sys.modules["IPython"] = ipython
sys.modules["ipywidgets"] = None
import rondo.runs
import tqdm.auto
"""


def test_kernel_without_widgets_gets_no_warning() -> None:
    """tqdm warns when it is first imported, so the import is in a process of its own."""
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_quiet_hides_announcements_of_libraries() -> None:
    def announce() -> None:
        warnings.warn_explicit("renamed", FutureWarning, "modeling_utils.py", 1, module="transformers.modeling_utils")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with quiet():
            announce()
        assert not caught
        announce()
        assert len(caught) == 1
