"""The view of a run that goes on."""

from __future__ import annotations

import io

from rich.console import Console

from page_runs import HOSTILE, hostile, recorded
from rondo.results.watch import curve, title, view


def shown(*arguments: object, **options: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=150, no_color=True, legacy_windows=False)
    console.print(view(*arguments, **options))  # type: ignore[arg-type]
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_view_has_bar_curve_rounds_and_failures_on_lines_of_their_own() -> None:
    lines = shown(recorded(rounds=20, failing=True), "finished")
    assert lines[0] == "run: fedit, seed 0, finished, 20 of 20 rounds"
    assert set(lines[1].strip()) == {"━"}
    assert lines[2].partition(" ")[2].startswith("accuracy 0.1 to 0.")
    assert lines[4].split()[:3] == ["round", "clients", "failed"]
    assert [line.split()[0] for line in lines[5:15]] == [str(done) for done in range(11, 21)]
    assert lines[-1] == "round 20: ann: nonfinite_loss: loss is nan"


def test_terminal_without_blocks_has_no_curve() -> None:
    assert not any("█" in line for line in shown(recorded(), "finished", blocks=False))


def test_time_that_is_left_is_that_of_the_last_rounds() -> None:
    assert title(recorded(rounds=6, finished=False), "running").endswith("running, 2 of 6 rounds, about 10 s left")
    assert title(recorded(rounds=60, finished=False), "running").endswith("about 2 min left")


def test_curve_goes_from_the_lowest_to_the_highest() -> None:
    assert curve([0.0, 0.5, 1.0]) == "▁▅█"
    assert curve([1.0, 1.0]) == "▁▁"
    assert len(curve([float(i) for i in range(1000)])) == 60


def test_hostile_names_cannot_steer_the_terminal() -> None:
    lines = shown(hostile()[0], "running")
    assert not any(control in line for line in lines for control in ("\x07", "\u202e", "\u2028"))
    assert HOSTILE[:20] in "\n".join(lines)
