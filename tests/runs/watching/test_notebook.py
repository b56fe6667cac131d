"""Progress of a run in a notebook, with a display in IPython's place."""

from __future__ import annotations

import builtins
import subprocess
import sys
import types
import warnings
from typing import Any, ClassVar

import pytest

from rondo.config import load
from rondo.models.kernels.quiet import quiet
from rondo.runs.runner import _watching
from rondo.runs.watching.progress import Bars, Quiet

RECORD: dict[str, Any] = {"loss": 0.5, "bytes_up": 1000, "bytes_down": 500, "scores": {"global": {"accuracy": 0.75}}}


class ZMQInteractiveShell:
    """The name by which a kernel's shell is known."""


class Output:
    """A widget of ipywidgets."""

    made: ClassVar[list[Output]] = []

    def __init__(self) -> None:
        self.closed, self.drawn_into = False, False
        Output.made.append(self)

    def __enter__(self) -> None:
        self.drawn_into = True

    def __exit__(self, *error: object) -> None:
        self.drawn_into = False

    def clear_output(self, wait: bool) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A notebook's kernel without ipywidgets; its cell's output."""
    shown: list[Any] = []
    display = types.ModuleType("IPython.display")
    display.display = lambda what: any(w.drawn_into for w in Output.made) or shown.append(what)  # type: ignore
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shown


@pytest.fixture
def widgets(monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    module = types.ModuleType("ipywidgets")
    module.Output = Output  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "ipywidgets", module)
    Output.made.clear()
    return Output.made


PRIVATE = {
    "privacy": {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-3},
    "clients": {"sampling": "full", "weighting": "uniform"},
}


@pytest.mark.parametrize("more", [{}, PRIVATE])
def test_bars_of_a_notebook_go_when_the_run_ends(
    kernel: list[Any], widgets: list[Output], more: dict[str, Any]
) -> None:
    """Nothing of a secret turnout is left in the cell."""
    config = load({"rounds": 3, "algorithm": {"name": "rolora"}, **more})
    with _watching(None, config) as observer:
        assert isinstance(observer, Bars)
        observer.phase("training")
        observer.round_started(0, 2)
        observer.client_done("client-1", 0.25)
        observer.round_done(RECORD)
    assert "".join(shown.text for shown in kernel if not isinstance(shown, Output)) == ""
    assert [widget.closed for widget in widgets] == [True]


@pytest.mark.parametrize(("more", "quiet"), [({}, False), (PRIVATE, True)])
def test_lines_of_a_notebook_tell_nothing_of_a_secret_turnout(
    kernel: list[Any], more: dict[str, Any], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ipywidgets a line stays in the cell."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with _watching(None, load({"rounds": 3, "algorithm": {"name": "rolora"}, **more})) as observer:
        assert (type(observer) is Quiet) == quiet


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
