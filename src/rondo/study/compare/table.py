"""The table of a comparison: means over seeds, with standard deviations of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from rondo.records.paired import Paired
from rondo.records.recorded import WITHHELD, promise
from rondo.report.numbers import difference, plus_minus, probability, told_of_differences
from rondo.report.table import Table
from rondo.report.terminal import human_bytes

_LEGEND = (
    "Scores are of the global model where no other is named; down includes the first contact; server s are per "
    "aggregation, FLOPs per client and round."
)
COLUMNS = (
    *("head", "test", "own_rows", "fine_tuned", "more_tests", "measures", "difference", "p", "mean_of_last", "target"),
    *("score_at_mb", "bytes_up", "bytes_down", "bytes_first_contact", "train_seconds", "server_seconds_per_round"),
    *("flops_per_client_round", "interference"),
)
"""The keys of all columns behind the first."""
_Cell: TypeAlias = Callable[[Mapping[str, Any]], str]
"""The text of an algorithm's numbers in a column."""


def comparison_table(content: Mapping[str, Any]) -> Table:
    """A row per algorithm. ``content``: as in ``comparison.json``. A score names its model unless that is the global
    one."""
    seeds = content["seeds"]
    chosen = content["columns"] or COLUMNS
    columns = sorted((column for column in _columns(content) if column[0] in chosen), key=lambda c: chosen.index(c[0]))
    several = f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}"
    over = f"seed {seeds[0]}" if len(seeds) == 1 else several
    counts = ", ".join(f"{content[what]} {what}" for what in ("rounds", "clients") if content[what] is not None)
    rows = [(name, *(cell(stats) for *_, cell in columns)) for name, stats in content["algorithms"].items()]
    words = [0, *(place for place, column in enumerate(columns, 1) if column[0] == "head")]
    title, notes = f"{counts}; {over}" if counts else over, (_LEGEND, *_notes(content))
    return Table(title, ("algorithm", *(name for _, name, _ in columns)), rows, notes, words=words, plain=True)


def score_name(content: Mapping[str, Any]) -> str:
    """The name of the score that all runs are compared by."""
    run = content["runs"][0]
    if run["curve_of"] != run["primary"]:
        return str(run["curve_of"]).replace("_", " ")
    return f"test {run['title']}" if run["on_test"] else f"{run['title']} on the clients' own rows"


def _columns(content: Mapping[str, Any]) -> Iterator[tuple[str, str, _Cell]]:
    """Each column: its key, name and cells. One of scores without any is left out, but for the test's."""
    numbers, title = content["algorithms"].values(), content["title"]
    yield "head", "head", lambda stats: stats["head"] or "-"
    named = {"test": f"test {title}", "own_rows": "at the clients", "fine_tuned": "fine-tuned"}
    always = () if any(n["measures"] for n in numbers) else ("test", "own_rows")
    for key, name in named.items():
        if key in always or any(n[key]["count"] for n in numbers):
            yield key, name, lambda stats, key=key: _of_model(stats[key])  # type: ignore[misc]
    for test in dict.fromkeys(test for n in numbers for test in n["more_tests"]):
        cell: _Cell = lambda stats, test=test: _of_model(stats["more_tests"].get(test))  # type: ignore[misc] # noqa: E731
        yield "more_tests", f"{test} {title}", cell
    for measure in dict.fromkeys(measure for n in numbers for measure in n["measures"]):
        cell = lambda stats, measure=measure: _spread(stats["measures"].get(measure))  # type: ignore[misc] # noqa: E731
        yield "measures", measure.replace("_", " "), cell
    yield from _differences(content)
    yield from _answers(content)
    for key, name in (("bytes_up", "up"), ("bytes_down", "down"), ("bytes_first_contact", "first contact")):
        yield key, name, lambda stats, key=key: _bytes(stats[key])  # type: ignore[misc]
    yield "train_seconds", "train s", lambda stats: _plain(stats["train_seconds"], ".0f")
    for key, name in (("server_seconds_per_round", "server s"), ("flops_per_client_round", "FLOPs")):
        yield key, name, lambda stats, key=key: _plain(stats[key], ".2g")  # type: ignore[misc]
    yield "interference", "interference", lambda stats: _plain(stats["interference"], ".2g")


def _differences(content: Mapping[str, Any]) -> Iterator[tuple[str, str, _Cell]]:
    """The columns of paired differences, if any run has a pair."""
    found = [n["difference"] for n in content["algorithms"].values() if n["difference"] is not None]
    if not found:
        return
    to, *others = dict.fromkeys(one["to"] for one in found)
    if others:  # one with each of the varied values
        to = next(run["method"] for run in content["runs"] if run["algorithm"] == to)
    yield "difference", f"difference to {to}", _difference
    if any(one["p"] is not None for one in found):
        yield "p", "Holm's p", lambda stats: probability((stats["difference"] or {}).get("p"))


def _difference(stats: Mapping[str, Any]) -> str:
    one = stats["difference"]
    return "-" if one is None else difference(Paired.of(list(one["by_seed"].values())))


def _answers(content: Mapping[str, Any]) -> Iterator[tuple[str, str, _Cell]]:
    """The columns of what is asked of each curve. Of a measure they name it, since there are several."""
    measure = next((run["curve_of"] for run in content["runs"] if run["curve_of"] != run["primary"]), None)
    of = "" if measure is None else f"{measure.replace('_', ' ')} "
    if content["last"] > 1:
        yield "mean_of_last", f"{of}mean of last {content['last']}", lambda stats: _spread(stats["mean_of_last"])
    if (target := content["target"]) is not None:
        yield "target", f"rounds to {of}{target:g}", _rounds_to
        yield "target", f"sent to {of}{target:g}", lambda stats: _bytes(stats["bytes_to_target"])
    if content["at_mb"] is not None:
        yield "score_at_mb", f"{of}at {content['at_mb']:g} MB", lambda stats: _spread(stats["score_at_mb"])


def _rounds_to(stats: Mapping[str, Any]) -> str:
    """Seeds that did not reach the target are counted, not averaged."""
    rounds, seeds = stats["rounds_to_target"], stats["mean_of_last"]["count"]
    some = "" if rounds["count"] in (0, seeds) else f" ({rounds['count']} of {seeds})"
    return f"{_plain(rounds, 'g')}{some}"


def _notes(content: Mapping[str, Any]) -> Iterator[str]:
    """The subject of the differences, the guarantees of private runs, and the reason why costs are dashes."""
    if found := [stats["difference"] for stats in content["algorithms"].values() if stats["difference"]]:
        yield told_of_differences(score_name(content), seeds=any(one["interval"] for one in found))
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


def _spread(value: Mapping[str, Any] | None) -> str:
    """Mean over seeds, and standard deviation if there is one."""
    return "-" if value is None else plus_minus(value["mean"], value["sd"])


def _of_model(score: Mapping[str, Any] | None) -> str:
    """The same with its model unless global: "0.750 ± 0.010 personal"."""
    if score is None or score["mean"] is None:
        return "-"
    return _spread(score) + ("" if score["model"] in ("global", "fine-tuned") else f" {score['model']}")
