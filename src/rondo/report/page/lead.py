"""The head of a page in plain words: title, what was trained and how good it is, sizes, date and machine."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from rondo.config import task_kinds as tasks
from rondo.records.curve import TEST_KINDS
from rondo.records.recorded import Recorded
from rondo.report.numbers import number
from rondo.report.page.charts import last
from rondo.report.page.clients import final_scores, scored_rows
from rondo.report.page.groups import Group
from rondo.report.page.scores import scores

_TASKS = {
    "sequence-classification": "text classification",
    "sequence-regression": "numbers from texts",
    "causal-lm": "a language model",
    "seq2seq-lm": "texts from texts",
    "linear": "linear regression",
}
"""Kinds of tasks whose names are jargon, in plain words."""


def title(groups: Sequence[Group]) -> str:
    """The task and the data."""
    run = groups[0].runs[0]
    said = _task(run)
    return f"{said[0].upper()}{said[1:]}: {_data(run)}"


def lead(groups: Sequence[Group]) -> list[str]:
    """Sentences in plain words, then the sizes of the runs. What a guarantee hides is withheld."""
    return [f"{_trained(groups)} {' '.join(_quality(groups))}".strip(), _sizes(groups), _made(groups)]


def _trained(groups: Sequence[Group]) -> str:
    """What was trained, by which methods, on how many clients and rows."""
    runs = [run for group in groups for run in group.runs]
    models = list(dict.fromkeys(_name(run.config["model"]["name"]) for run in runs))
    held = [run.partition["clients"] for run in runs if run.partition.get("clients")]
    clients = f" on {_span({len(of) for of in held}, 'client')}" if held else ""
    rows = {sum(c["train"] + c.get("validation", 0) for c in of.values()) for of in held}
    if any(run.guarantee.hides_row_counts for run in runs):
        of_rows = ", whose numbers of rows are protected"
    else:
        of_rows = f" with {_span(rows, 'row')} in all" if held else ""
    methods = _listed([group.label for group in groups])
    was = "was" if len(models) == 1 else "were"
    return f"{_listed(models)} {was} trained for {_task(runs[0])}{clients}{of_rows}, by {methods}."


def _quality(groups: Sequence[Group]) -> Iterator[str]:
    """How good the best group is on the test rows, and at its worst client."""
    every = scores(groups)
    scored = [(group, spread.mean) for group in groups if every and (spread := last(group, every[0])) is not None]
    if not scored:
        yield "No round is scored yet."
        return
    best, _ = (max if groups[0].runs[0].higher_is_better else min)(scored, key=lambda pair: pair[1])
    run, name = best.runs[0], "" if len(groups) == 1 else f" of {best.label}, the best here,"
    rounds = _span({len(r.rounds) for r in best.runs}, "round")
    on_test = [_test(r) for r in best.runs]
    if (known := [value for value, _ in filter(None, on_test)]) and on_test[0] is not None:
        rows = number(on_test[0][1])
        yield f"After {rounds}, the model{name} {_said(run, statistics.fmean(known))} {rows} test rows."
    if any(r.guarantee.hides_scores for r in best.runs):
        yield "Scores of single clients are protected."
    elif of_clients := _means(best):
        sign = 1 if run.higher_is_better else -1
        client = min(of_clients, key=lambda name: (sign * of_clients[name], name))
        own = number(scored_rows(run).get(client))
        yield f"At the worst client, {client}, it {_said(run, of_clients[client])} that client's {own} rows."


def _said(run: Recorded, value: float) -> str:
    if run.primary == "accuracy":
        return f"is right on {100 * value:.3g} % of"
    return f"has a {run.titles.get(run.primary or '', run.primary)} of {number(value)} on"


def _means(group: Group) -> Mapping[str, float]:
    """The score of each client's model, the mean over seeds."""
    of_runs = [final_scores(run) for run in group.runs]
    return {name: statistics.fmean(of[name] for of in of_runs if name in of) for of in of_runs for name in of}


def _test(run: Recorded) -> tuple[float, int] | None:
    """The last primary score of a global model on the test set, and the rows of that."""
    found = [r["scores"][kind] for r in run.rounds for kind in TEST_KINDS if kind in r["scores"]]
    value = found[-1].get(run.primary) if found else None
    return None if value is None else (value, found[-1].get("examples"))


def _sizes(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    unfinished = sum(run.summary is None for run in runs)
    seeds = len({run.seed for run in runs})
    text = f"{_count(len(runs), 'run')}, {_span({run.planned for run in runs}, 'round')}, {_count(seeds, 'seed')}."
    return f"{text} {_count(unfinished, 'run')} not finished." if unfinished else text


def _made(groups: Sequence[Group]) -> str:
    """The days on which runs were started, and the machines."""
    manifests = [run.manifest for group in groups for run in group.runs]
    days = sorted({str(m["started"])[:10] for m in manifests if m.get("started")})
    machines = dict.fromkeys(", ".join(str(m[k]) for k in ("device", "processor") if m.get(k)) for m in manifests)
    return "; ".join(filter(None, [" to ".join(dict.fromkeys(map(_day, days[:1] + days[-1:]))), *machines]))


def _day(text: str) -> str:
    """A date in words; a text that is none, as it is."""
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{day.day} {day:%B %Y}"


def _task(run: Recorded) -> str:
    kind = str(run.config["task"]["kind"])
    return _TASKS.get(kind, kind.rpartition(":")[2].replace("-", " "))


def _data(run: Recorded) -> str:
    data, kind = run.config["data"], tasks.TABLE.get(str(run.config["task"]["kind"]))
    return _name(data.get("source") or data.get("clients_from") or (kind and kind.builtin) or "own data")


def _name(text: object) -> str:
    """The end of a path or of a name on a hub: the rest says how somebody's machine is laid out."""
    return re.split(r"[/\\]", str(text))[-1].removeprefix("builtin:")


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    *first, end = [*names[:most], *more]
    return f"{', '.join(first)} and {end}" if first else end


def _count(count: int, word: str) -> str:
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def _span(numbers: set[int], word: str) -> str:
    low, high = min(numbers), max(numbers)
    return _count(high, word) if low == high else f"{number(low)} to {_count(high, word)}"
