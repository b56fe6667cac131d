"""The table of a comparison: means over seeds, with standard deviations of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from rondo.records.recorded import WITHHELD, promise
from rondo.report.table import Table
from rondo.report.terminal import human_bytes

_LEGEND = (
    "Scores are of the global model where no other is named; down includes the first contact; server s are per "
    "aggregation, FLOPs per client and round."
)
_Cell: TypeAlias = Callable[[Mapping[str, Any]], str]
"""The text of an algorithm's numbers in a column."""


def comparison_table(content: Mapping[str, Any]) -> Table:
    """A row per algorithm. ``content``: as in ``comparison.json``. A score names its model unless that is the global
    one."""
    seeds, columns = content["seeds"], list(_columns(content))
    several = f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}"
    over = f"seed {seeds[0]}" if len(seeds) == 1 else several
    counts = ", ".join(f"{content[what]} {what}" for what in ("rounds", "clients") if content[what] is not None)
    rows = [
        (name, stats["head"] or "-", *(cell(stats) for _, cell in columns))
        for name, stats in content["algorithms"].items()
    ]
    title, notes = f"{counts}; {over}" if counts else over, (_LEGEND, *_notes(content))
    return Table(title, ("algorithm", "head", *(name for name, _ in columns)), rows, notes, words=(0, 1), plain=True)


def _columns(content: Mapping[str, Any]) -> Iterator[tuple[str, _Cell]]:
    """Each column of numbers with its cells. One of scores without any is left out, but for the test's."""
    numbers, title = content["algorithms"].values(), content["title"]
    named = {"score": title} if any(n["score"]["model"] == "personal" for n in numbers) else {}
    named |= {"test": f"test {title}", "own_rows": "at the clients", "fine_tuned": "fine-tuned"}
    always = () if any(n["measures"] for n in numbers) else ("test", "own_rows")
    for key, name in named.items():
        if key in always or any(n[key]["count"] for n in numbers):
            yield name, lambda stats, key=key: _of_model(stats[key])  # type: ignore[misc]
    for test in dict.fromkeys(test for n in numbers for test in n["more_tests"]):
        yield f"{test} {title}", lambda stats, test=test: _of_model(stats["more_tests"].get(test))  # type: ignore[misc]
    for measure in dict.fromkeys(measure for n in numbers for measure in n["measures"]):
        cell: _Cell = lambda stats, measure=measure: _measured(stats["measures"].get(measure))  # type: ignore[misc] # noqa: E731
        yield measure.replace("_", " "), cell
    yield from _answers(content)
    for key, name in (("bytes_up", "up"), ("bytes_down", "down"), ("bytes_first_contact", "first contact")):
        yield name, lambda stats, key=key: _bytes(stats[key])  # type: ignore[misc]
    yield "train s", lambda stats: _plain(stats["train_seconds"], ".0f")
    for key, name in (("server_seconds_per_round", "server s"), ("flops_per_client_round", "FLOPs")):
        yield name, lambda stats, key=key: _plain(stats[key], ".2g")  # type: ignore[misc]
    yield "interference", lambda stats: _plain(stats["interference"], ".2g")


def _answers(content: Mapping[str, Any]) -> Iterator[tuple[str, _Cell]]:
    """The columns of what is asked of each curve. Of a measure they name it, since there are several."""
    measure = next((run["curve_of"] for run in content["runs"] if run["curve_of"] != run["primary"]), None)
    of, shown = ("", _scored) if measure is None else (f"{measure.replace('_', ' ')} ", _measured)
    if content["last"] > 1:
        yield f"{of}mean of last {content['last']}", lambda stats: shown(stats["mean_of_last"])
    if (target := content["target"]) is not None:
        yield f"rounds to {of}{target:g}", _rounds_to
        yield f"sent to {of}{target:g}", lambda stats: _bytes(stats["bytes_to_target"])
    if content["at_mb"] is not None:
        yield f"{of}at {content['at_mb']:g} MB", lambda stats: shown(stats["score_at_mb"])


def _rounds_to(stats: Mapping[str, Any]) -> str:
    """Seeds that did not reach the target are counted, not averaged."""
    rounds, seeds = stats["rounds_to_target"], stats["mean_of_last"]["count"]
    some = "" if rounds["count"] in (0, seeds) else f" ({rounds['count']} of {seeds})"
    return f"{_plain(rounds, 'g')}{some}"


def _notes(content: Mapping[str, Any]) -> Iterator[str]:
    """The guarantees of private runs, and why costs are dashes."""
    guarantees = {name: stats["guarantee"] for name, stats in content["algorithms"].items() if stats["guarantee"]}
    for guarantee in dict.fromkeys(guarantees.values()):
        of = [name for name, own in guarantees.items() if own == guarantee]
        yield guarantee if len(of) == len(content["algorithms"]) else f"{', '.join(of)}: {guarantee}"
    if content.get("together") is not None:
        yield content["together"]
    if any(promise(run).secret_turnout for run in content["runs"]):
        yield f"bytes and seconds are {WITHHELD}"


def _plain(value: Mapping[str, Any], form: str) -> str:
    """Mean over seeds."""
    return "-" if value["mean"] is None else format(value["mean"], form)


def _bytes(value: Mapping[str, Any]) -> str:
    return "-" if value["mean"] is None else human_bytes(value["mean"])


def _measured(value: Mapping[str, Any] | None) -> str:
    """Mean over seeds, and standard deviation if there is one."""
    if value is None or value["mean"] is None:
        return "-"
    return f"{value['mean']:.3g}" + ("" if value["sd"] is None else f" ± {value['sd']:.2g}")


def _scored(score: Mapping[str, Any]) -> str:
    """The same of a score: "0.750 ± 0.010"."""
    if score["mean"] is None:
        return "-"
    return f"{score['mean']:.3f}" + ("" if score["sd"] is None else f" ± {score['sd']:.3f}")


def _of_model(score: Mapping[str, Any] | None) -> str:
    """The same with its model unless global: "0.750 ± 0.010 personal"."""
    if score is None or score["mean"] is None:
        return "-"
    return _scored(score) + ("" if score["model"] in ("global", "fine-tuned") else f" {score['model']}")
