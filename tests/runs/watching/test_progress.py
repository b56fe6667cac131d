"""Progress of a run: bars in a terminal, lines elsewhere, and the result in a notebook."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import sys
import time
import types
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rondo
from rondo.config import load
from rondo.engine.transport import Phase
from rondo.errors import RunInterrupted, StopRequested
from rondo.records.directory import to_toml
from rondo.runs.watching import progress as watching
from rondo.runs.watching.progress import Bars, Lines, Quiet, logged, progress, round_line
from rondo.runs.watching.result import RunResult
from small_runs import WHOLE, copy_of, reviews, save_tiny_bert, settings, write_rows

RECORD: dict[str, Any] = {
    "round": 0,
    "clients": 2,
    "failed": [],
    "skipped": None,
    "loss": 0.5,
    "bytes_up": 1000,
    "bytes_down": 500,
    "seconds": 1.25,
    "scores": {"global": {"accuracy": 0.75}},
}
SKIPPED = {**RECORD, "loss": None, "scores": {}, "failed": [{}], "skipped": "1 uploads, min_clients is 2"}


def shown(client: str, *, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with progress(2, console) as observer:
        observer.phase("training")
        observer.round_started(0, 2)
        observer.client_done(client, 0.25)
        if isinstance(observer, Bars):
            observer.progress.refresh()
        observer.client_failed(client)
        observer.round_done(SKIPPED)
        observer.round_done(RECORD)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_terminal_shows_bars_with_the_phase() -> None:
    text = shown("client-1", terminal=True)
    for part in ("training", "client-1", "accuracy 0.750", "3.0 kB"):
        assert part in text


def test_bars_count_rounds_and_clients() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress(2, console) as bars:
        assert isinstance(bars, Bars)
        rounds, clients = bars.progress.tasks
        bars.round_started(0, 3)
        for client, loss, note in (("ann", 0.25, "ann  loss 0.250"), ("bob", None, "bob")):  # bob took no step
            bars.client_done(client, loss)
            assert clients.fields["note"] == note
        bars.client_failed("cid")
        bars.round_done(RECORD)
    assert (clients.completed, clients.total, clients.fields["note"]) == (3, 3, "cid  failed")
    assert (rounds.completed, rounds.total, rounds.fields["note"]) == (
        1,
        2,
        "training loss 0.500  test accuracy 0.750  1.5 kB",
    )


def test_quiet_observer_warns_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="all 9 training rows are of class") as caught:
        Quiet().prepared(WHOLE | {"warnings": ["all 9 training rows are of class 'a'"]})
    assert [warning.filename for warning in caught] == [__file__]  # the line that told of it
    Quiet().round_done(RECORD)
    assert capfd.readouterr() == ("", "")


def test_clients_have_no_bar_before_their_number_is_known() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress(2, console) as observer:
        observer.phase("loading")
        observer.progress.refresh()  # type: ignore[attr-defined]
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "loading" in text
    assert "None" not in text
    assert "clients" not in text


@pytest.mark.parametrize("client", ["[/site]", "[site]", "[red]x[/red]"])
def test_client_may_have_any_name(client: str) -> None:
    """Client ids come from the user's files and columns; no id is markup."""
    assert client in shown(client, terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_names_do_not_reach_the_terminal_as_control(terminal: bool) -> None:
    evil = "[red]x\x1b]0;owned\x07\x9b31m\u202ey"
    console, told = Console(file=io.StringIO(), force_terminal=terminal, width=120), set[str]()
    partition = WHOLE | {"clients_too_small": {evil: 1}, "warnings": [f"{evil} alone"]}
    for _ in range(2):
        with progress(2, console, told) as observer:
            observer.prepared(partition)
            observer.resumed(1, [evil])
            observer.client_failed(evil)
            observer.round_done(RECORD | {"skipped": evil})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    escaped = r"[red]x\x1b]0;owned\x07\x9b31m\u202ey"
    assert text.count(f"left out for too few examples: {escaped}\n") == 1
    assert text.count(f"warning: {escaped} alone\n") == 1
    assert text.count(f"damaged, not used: {escaped}\n") == 2
    for character in ("\x1b]", "\x07", "\x9b", "\u202e"):
        assert character not in text


def test_skipped_round_says_why_most_clients_failed() -> None:
    failed = [
        {"client": c, "reason": "refused", "detail": d} for c, d in zip("abc", ("two", "one", "two"), strict=True)
    ]
    assert "min_clients is 2 (refused: two), 1.0 kB up" in round_line({**SKIPPED, "failed": failed}, 2)


def test_no_terminal_gets_a_line_per_round() -> None:
    assert shown("client-1", terminal=False).splitlines() == [
        "round 1 of 2: 2 clients, 1 failed, skipped: 1 uploads, min_clients is 2, 1.0 kB up, 500 B down, 1.2 s",
        "round 1 of 2: 2 clients, training loss 0.500, test accuracy 0.750, 1.0 kB up, 500 B down, 1.2 s",
    ]


def test_long_phases_before_the_first_round_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    lines = Lines(stream, 2, set(), name="fedit, seed 3")
    lines.phase("reading")  # for less than two seconds
    monkeypatch.setattr(watching, "_PATIENCE", 0.01)
    for phase, line in (("loading", "loading the model"), ("training", "training")):
        lines.phase(phase)  # type: ignore[arg-type]
        deadline = time.monotonic() + 10
        while not stream.getvalue().endswith(f"fedit, seed 3: {line}\n") and time.monotonic() < deadline:
            time.sleep(0.01)
    lines.round_done(RECORD)
    lines.phase("training")
    time.sleep(0.05)
    said = [line.removeprefix("fedit, seed 3: ") for line in stream.getvalue().splitlines()]
    assert said[:-1] == ["loading the model", "training"]
    assert said[-1].startswith("round 1 of 2: ")


def test_program_hears_the_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rondo"):
        rondo.run(small_run(tmp_path, rounds=2), run_dir=tmp_path / "run", device="cpu")
    said = [record.getMessage() for record in caplog.records if record.name == "rondo"]
    assert [line.partition(":")[0] for line in said[-2:]] == ["round 1 of 2", "round 2 of 2"]


def test_program_without_logging_hears_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("rondo")
    monkeypatch.setattr(logger, "propagate", False)
    stream = io.StringIO()
    with redirect_stderr(stream), logged(2, "fedit") as observer:
        observer.round_done(RECORD)
    assert stream.getvalue().startswith("fedit: round 1 of 2: ")
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)
    logger.setLevel(logging.WARNING)
    with redirect_stderr(stream), logged(2) as observer:
        before = stream.getvalue()
        observer.round_done(RECORD)
        assert stream.getvalue() == before
    logger.setLevel(logging.NOTSET)


def test_terminal_that_moves_no_cursor_gets_a_line_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would show no bar at all."""
    monkeypatch.setenv("TERM", "dumb")
    assert shown("client-1", terminal=True) == shown("client-1", terminal=False)


def small_run(folder: Path, **changes: Any) -> dict[str, Any]:
    rows = str(write_rows(folder / "rows.csv", reviews(24)))
    data = {"source": rows, "test_source": copy_of(rows)}
    return settings(save_tiny_bert(folder / "bert"), data=data, **{"rounds": 3, **changes})


@pytest.mark.parametrize(("test_rows", "every"), [(24, 1), (400, 17)])
def test_automatic_scores_take_a_fifth_of_the_time(test_rows: int, every: int, tmp_path: Path) -> None:
    """24 rows train for two epochs: twice 48 passes. Scores may take a fourth of that."""
    test = str(write_rows(tmp_path / "test.csv", reviews(test_rows)))
    config = small_run(tmp_path, rounds=1, evaluation={"every": "auto"})
    config["data"] |= {"test_source": test, "validation_fraction": 0.0}
    config["train"] |= {"local_epochs": 2, "local_steps": None}
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["scores_every"] == every == math.ceil(4 * test_rows / 96)
    assert load(result.run_dir / "config.toml").evaluation.every == "auto"


@pytest.mark.parametrize(("evaluation", "test"), [({"every": 0}, True), ({}, False)])
def test_patience_without_scores_is_refused(evaluation: dict[str, int], test: bool, tmp_path: Path) -> None:
    config = small_run(tmp_path, evaluation={"patience": 2, **evaluation})
    if not test:
        del config["data"]["test_source"]
    with pytest.raises(rondo.ConfigError, match=r"evaluation\.patience.*set evaluation\.(clients_)?every"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


PREPARING = ["reading", "dealing", "opening", "tokenising", "loading", "trying"]


class Phases(rondo.Observer):
    def __init__(self) -> None:
        self.names: list[Phase] = []

    def phase(self, name: Phase) -> None:
        if self.names[-1:] != [name]:
            self.names.append(name)


def test_run_tells_its_phases_and_writes_a_log(tmp_path: Path) -> None:
    watch, began = Phases(), time.perf_counter()
    result = rondo.run(small_run(tmp_path), run_dir=tmp_path / "run", device="cpu", observer=watch)
    assert 0 < sum(r["seconds"] for r in result.history) < time.perf_counter() - began
    assert watch.names == [*PREPARING, "evaluating", *["training", "evaluating"] * 3, "writing"]
    lines = (tmp_path / "run" / "run.log").read_text().splitlines()
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d ")
    assert [stamp.sub("", line) for line in lines] == [round_line(r, 3) for r in result.history]
    seconds = result.summary["seconds"]
    assert 0 < seconds["evaluation"] < seconds["all"]
    assert seconds["evaluation"] == sum(r["evaluation_seconds"] for r in result.history)


class Stopped(rondo.Observer):
    def round_started(self, index: int, clients: int) -> None:
        raise StopRequested


def test_scores_before_the_first_round_are_taken_once(tmp_path: Path) -> None:
    """A run that was stopped in its first round has them."""
    with pytest.raises(RunInterrupted):
        rondo.run(small_run(tmp_path), run_dir=tmp_path / "run", device="cpu", observer=Stopped())
    watch = Phases()
    rondo.resume(tmp_path / "run", device="cpu", observer=watch)
    assert watch.names[:8] == [*PREPARING, "training", "evaluating"]


def test_result_becomes_a_frame_and_a_table(tmp_path: Path) -> None:
    result = rondo.run(small_run(tmp_path), run_dir=tmp_path / "run", device="cpu")
    frame = result.to_frame()
    assert list(frame.index) == [0, 1, 2]
    assert list(frame["loss"]) == [r["loss"] for r in result.history]
    assert list(frame["global.accuracy"]) == [r["scores"]["global"]["accuracy"] for r in result.history]
    assert not [column for column in frame if "per_client" in column]
    assert list(frame)[:2] == ["loss", "global.accuracy"]
    html = result._repr_html_()
    assert '<td style="text-align:left">global model, test set: accuracy</td>' in html
    clients = result.clients_frame()
    per_client = result.metrics["clients"]["per_client"]
    assert list(clients.index) == sorted(per_client)
    assert list(clients["clients.accuracy"]) == [per_client[name]["accuracy"] for name in clients.index]
    assert clients["train"].sum() + clients["validation"].sum() == 24
    assert "3 clients, the worst first" in html
    hostile = RunResult(result.history, Path("<script>"), result.metrics, result.summary)
    assert "<script>" not in hostile._repr_html_()


def test_tensorboard_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in docs/run-directory.md, with a writer in TensorBoard's place."""
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None: ...

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.chdir(tmp_path)
    Path("rondo.toml").write_text(to_toml(load(small_run(tmp_path, rounds=2))))
    page = Path(__file__).parents[3] / "docs" / "run-directory.md"
    example = re.search(r"```python\nimport rondo\n.*?```", page.read_text(), re.S)
    assert example is not None
    space: dict[str, Any] = {}
    exec(example[0].removeprefix("```python\n").removesuffix("```"), space)
    history = space["result"].history
    accuracies = [(v, s) for n, v, s in written if n == "global/accuracy"]
    assert accuracies == [(r["scores"]["global"]["accuracy"], r["round"] + 1) for r in history]
