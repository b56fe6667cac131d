"""One self-contained page: it loads nothing, and forbids itself to.

A policy in its head allows its own script and style by their SHA-256 and nothing else: no picture, font, frame, form or
request. Data stand in a script element of JSON, which no browser runs. The same runs give the same bytes. Its head is
in plain words: title, what was trained and how good it is, sizes, date and machine.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from rondo.config import task_kinds as tasks
from rondo.errors import ConfigError
from rondo.records import durable, read
from rondo.records.curve import TEST_KINDS
from rondo.records.recorded import Claim, Recorded
from rondo.report.numbers import number
from rondo.report.page.charts import last
from rondo.report.page.clients import final_scores, scored_rows
from rondo.report.page.groups import Group, grouped
from rondo.report.page.scores import scores
from rondo.report.page.sections import build

UPLOT = {
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""The files of uPlot 1.6.32, with the SHA-256 of each."""


MARK = '<meta name="generator" content="Rondo">'
"""The line by which a file is known as such a page."""


def page(
    runs: Sequence[Recorded],
    claims: Sequence[Claim] = (),
    stopped: Sequence[tuple[str, str]] = (),
    *,
    title: str | None = None,
    against: str | None = None,
) -> str:
    """The page of ``runs``, as HTML.

    ``claims``: what papers claim of these runs.
    ``stopped``: runs of a comparison that could not be finished, and the reason of each.
    ``title``: the page's; by default the task and the data.
    ``against``: the name on the page of the runs that the differences of the others are to; by default the first.

    Raises :class:`ConfigError` if there are no such runs.
    """
    groups = grouped(runs)
    built = build(groups, claims, stopped, _reference(groups, against))
    text = _template().render(
        heading=_heading(groups) if title is None else title,
        lead=_lead(groups),
        groups=groups,
        sections=built.sections,
        data=script_json(built.data),
        script=_script(),
        style=_style(),
        mark=MARK,
    )
    return text.translate(_NONE).encode("utf-8", "replace").decode("utf-8") + "\n"


def _reference(groups: Sequence[Group], against: str | None) -> Group:
    found = next((group for group in groups if against in (None, group.label)), None)
    if found is None:
        names = ", ".join(group.label for group in groups)
        raise ConfigError.at("--against", f"{against!r} is not on the page; name one of: {names}")
    return found


_NONE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "\N{REPLACEMENT CHARACTER}")
"""Characters that no HTML text may have."""


@cache
def _template() -> jinja2.Template:
    """The page's template, in which every text is escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["sha256"] = _hash
    return environment.from_string(_asset("page.html"))


@cache
def _script() -> str:
    """The page's script with uPlot before it, under its licence."""
    licence = _asset("uplot/LICENSE").replace("*/", "* /")
    return f"/*! uPlot 1.6.32\n{licence}*/\n{_uplot('uplot/uPlot.iife.min.js')}\n{_asset('page.js')}"


@cache
def _style() -> str:
    return f"{_uplot('uplot/uPlot.min.css')}\n{_asset('page.css')}"


def _asset(name: str) -> str:
    return files("rondo.report.page").joinpath(name).read_text(encoding="utf-8")


def _uplot(name: str) -> str:
    """A file of uPlot as it was published. Raises :class:`ValueError` for another."""
    text = _asset(name)
    if hashlib.sha256(text.encode()).hexdigest() != UPLOT[name]:
        raise ValueError(f"{name} is not the file of uPlot 1.6.32 that this page was made for: install Rondo again")
    return text


def script_json(content: Any) -> str:
    """JSON within a script element: no sequence of characters in it ends the element, opens a comment, or ends a line
    of JavaScript. The separators are short, numbers that are not finite are null."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_TASKS = {
    "sequence-classification": "text classification",
    "sequence-regression": "numbers from texts",
    "causal-lm": "a language model",
    "seq2seq-lm": "texts from texts",
    "linear": "linear regression",
}
"""Kinds of tasks whose names are jargon, in plain words."""


def _heading(groups: Sequence[Group]) -> str:
    """The task and the data."""
    run = groups[0].runs[0]
    said = _task(run)
    return f"{said[0].upper()}{said[1:]}: {_data(run)}"


def _lead(groups: Sequence[Group]) -> list[str]:
    """Sentences in plain words, then the sizes of the runs. What a guarantee hides is withheld."""
    return [f"{_trained(groups)} {' '.join(_quality(groups))}".strip(), _sizes(groups), _made(groups)]


def _trained(groups: Sequence[Group]) -> str:
    """The sentence that names the task, the methods, and the numbers of clients and rows."""
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
        rows = _count(on_test[0][1], "test row")
        yield f"After {rounds}, the model{name} {_said(run, statistics.fmean(known))} {rows}."
    if any(r.guarantee.hides_scores for r in best.runs):
        yield "Scores of single clients are protected."
    elif of_clients := _means(best):
        sign = 1 if run.higher_is_better else -1
        client = min(of_clients, key=lambda name: (sign * of_clients[name], name))
        own = _count(scored_rows(run).get(client), "row")
        yield f"At the worst client, {client}, it {_said(run, of_clients[client])} that client's {own}."


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


def _count(count: int | None, word: str) -> str:
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def _span(numbers: set[int], word: str) -> str:
    low, high = min(numbers), max(numbers)
    return _count(high, word) if low == high else f"{number(low)} to {_count(high, word)}"


def html(paths: Sequence[str | Path], *, title: str | None = None, against: str | None = None) -> str:
    """The page of the runs at ``paths``: run directories, or folders of some. ``title``, ``against``: of
    :func:`page`.

    Raises :class:`ConfigError` for a path without a run, and for a file that is not as a run writes it.
    """
    found = read.folders(paths)
    runs = [read.read(path, label) for path, label in found]
    claims = read.claims([path for path, _ in found])
    return page(runs, claims, read.stopped(paths), title=title, against=against)


def write(paths: Sequence[str | Path], out: str | Path, *, title: str | None = None, against: str | None = None) -> int:
    """Write the page to the file ``out``; return its bytes. An earlier page there is replaced, and no other file.

    Raises :class:`ConfigError` as :func:`html` does, and where the file cannot be written.
    """
    out = Path(out)
    if out.is_dir() or (out.exists() and not _is_page(out)):
        message = f"{str(out)!r} is there and is no page of runs; name another file"
        raise ConfigError.at("--out", message, "rondo report")
    content = html(paths, title=title, against=against).encode()
    try:
        durable.write(out, content)
    except OSError as error:
        message = f"{str(out)!r} cannot be written: {error.strerror}; name another file"
        raise ConfigError.at("--out", message, "rondo report") from None
    return len(content)


def _is_page(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return MARK.encode() in stream.read(4096)
    except OSError:
        return False
