"""Compare several algorithms on the same data, split, seeds and rounds. Imports no torch until a run starts.

::

    DIR/ALGORITHM-seed-N/    an ordinary run directory per algorithm, varied values and seed
    DIR/comparison.json      every run's numbers with its seed, and means and standard deviations over seeds
    DIR/comparison.png       score over rounds and over megabytes
    DIR/varied.png           final score over the key that is varied, if its values are numbers
"""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rondo.config.load import Source
from rondo.errors import ConfigError, Problem
from rondo.report.html import html_table
from rondo.report.over_seeds import over_seeds
from rondo.report.terminal import comparison_columns, comparison_rows, comparison_title
from rondo.runs.compare.numbers import Question, numbers, only
from rondo.runs.compare.places import Planned, Settled, check_dealt, folder_of, place
from rondo.runs.compare.variants import Variant, Vary
from rondo.runs.compare.variants import plan as plan
from rondo.runs.compare.variants import varied as varied
from rondo.runs.compare.words import trained as trained
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory

if TYPE_CHECKING:
    from rondo.engine.transport import Observer

Watch: TypeAlias = Callable[[Planned], "AbstractContextManager[Observer | None]"]
"""Entered around every run, finished ones included, to show progress. The observer that it yields observes the run."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison, which a notebook shows as a table; all but ``out`` is also in ``comparison.json``.

    ``title``: the name of ``primary`` in tables, which says the class whose F1 it is.
    ``rounds``, ``clients``: None where they are varied.
    ``varied``: the values of each key that is varied.
    ``last``, ``target``, ``at_mb``: what is asked of each curve.
    ``algorithms``: per label, means and standard deviations over seeds.
    ``runs``: one dict per run.
    ``stopped``: runs that could not finish, with the reason.
    """

    out: Path
    primary: str
    title: str
    rounds: int | None
    clients: int | None
    seeds: list[int]
    varied: dict[str, list[Any]]
    last: int
    target: float | None
    at_mb: float | None
    algorithms: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]
    stopped: list[dict[str, Any]]

    def _repr_html_(self) -> str:
        content = asdict(self)
        title = (comparison_title(content), str(self.out))
        return html_table(title, comparison_columns(content), comparison_rows(content))


def compare(
    algorithms: Sequence[str] = (),
    config: Source | None = None,
    *,
    sets: Sequence[str] = (),
    vary: Vary | None = None,
    seeds: Sequence[int] = (),
    last: int = 1,
    target: float | None = None,
    at_mb: float | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Comparison:
    """Run several algorithms on the same data, split, seeds and rounds, one after the other, and compare them.

    ``algorithms``: labels of the configuration's ``[methods]``, names of the table, or ``package.module:Class``; by
    default all labels. A label has its own values.
    ``config``: as for :func:`rondo.run`, by default the demo's. Its algorithm is replaced, and so is its seed if
    ``seeds`` are given.
    ``sets``: ``key.path=value`` for all algorithms, or ``NAME.key.path=value`` for one.
    ``vary``: values of keys, such as ``{"partition.alpha": [0.1, 1.0]}``: every algorithm runs with each, and with each
    combination where several keys are varied. A method that lacks the key (a field of ``[algorithm]``, or a section)
    runs once.
    ``last``: scores whose mean is taken, the last ones of each run.
    ``target``: a score; the rounds and bytes to the first one that reaches it are counted.
    ``at_mb``: megabytes of all clients, up and down, at which the score of each run is taken.
    ``out``: by default ``runs/compare-<time>``. Runs that it already holds with an equal configuration are not
    repeated; an interrupted one is resumed.

    Every algorithm gets the same hyperparameters, but for those in its table of ``[methods]``, and none is tuned: a
    score says how a method does at these settings. Each keeps its own head policy unless ``model.head`` is set, so some
    train fewer tensors. Seconds are measured on this machine, under its load at the time. For personal methods the test
    score belongs to the cold-start model, not to the personal ones.

    Raises :class:`ConfigError` for input that the user must fix, before a model is loaded where possible. A run that
    stops, for instance because it diverges, is listed in ``stopped``, and the others go on. Raises :class:`RunStopped`
    where the comparison itself cannot be written.
    """
    return carry_out(
        plan(algorithms, config, sets=sets, vary=vary, seeds=seeds), out, question(last, target, at_mb), device=device
    )


def question(last: int, target: float | None, at_mb: float | None) -> Question:
    """The question put to each curve. Raises :class:`ConfigError` for numbers that cannot be."""
    if last < 1:
        raise ConfigError.at("--last", f"should be a number of scores, 1 or more, got {last}", "rondo compare")
    if target is not None and not math.isfinite(target):
        raise ConfigError.at("--target", f"should be a score, got {target}", "rondo compare")
    if at_mb is not None and not 0 < at_mb < math.inf:
        raise ConfigError.at("--at-mb", f"should be a number of megabytes above 0, got {at_mb}", "rondo compare")
    return Question(last, target, at_mb)


def carry_out(
    variants: Sequence[Variant],
    out: str | Path | None,
    question: Question,
    *,
    device: str = "auto",
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> Comparison:
    """Run ``variants``, except runs that ``out`` holds finished, and write the comparison. Raises as :func:`compare`
    does, and :class:`rondo.RunInterrupted` once ``stop`` is set."""
    from rondo import errors
    from rondo.runs import runner
    from rondo.runs.assemble import find_device

    _check_classes(variants)
    find_device(device)
    folder = folder_of(out)
    runs, stopped = [], []
    partitions: dict[str, tuple[str, Any]] = {}
    settled = Settled()
    for planned in [place(folder, variant, settled) for variant in variants]:
        with watch(planned) if watch is not None else nullcontext() as observer:
            try:
                if planned.state == "new":
                    runner.run(planned.config, run_dir=planned.run_dir, device=device, observer=observer, stop=stop)
                elif planned.state == "unfinished":
                    # The user has named the code again, in the same configuration.
                    runner.resume(planned.run_dir, device=device, allow_code=True, observer=observer, stop=stop)
            except errors.RunStopped as error:
                stopped.append({**planned.identity, "run_dir": planned.run_dir.name, "reason": str(error)})
                continue
        gc.collect()  # hooks keep a model in a cycle; free it before the next one is loaded
        check_dealt(partitions, planned, RunDirectory(planned.run_dir).read("partition.json"))
        runs.append(numbers(planned, question))
    return _written(folder, variants, question, runs, stopped)


def _check_classes(variants: Sequence[Variant]) -> None:
    """Make every algorithm once, so that a bad one is refused now, not after hours of the others."""
    from rondo.runs.wrapping import make_algorithm

    problems = []
    for variant in variants:
        try:
            make_algorithm(variant.config)
        except ConfigError as error:
            name = variant.method
            messages = [p.message if name in p.message else f"{name}: {p.message}" for p in error.problems]
            problems += [Problem(p.path, message) for p, message in zip(error.problems, messages, strict=True)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), "rondo compare")


def _written(
    folder: Path,
    variants: Sequence[Variant],
    question: Question,
    runs: list[dict[str, Any]],
    stopped: list[dict[str, Any]],
) -> Comparison:
    first = {variant.label: variant for variant in variants}
    by_label = {label: [run for run in runs if run["algorithm"] == label] for label in first}
    values: dict[str, list[Any]] = {}
    for variant in variants:
        for key, value in variant.values.items():
            values.setdefault(key, []).extend([value] if value not in values.get(key, []) else [])
    comparison = Comparison(
        folder,
        primary=runs[0]["primary"] if runs else "",
        title=runs[0]["title"] if runs else "",
        rounds=only([variant.config.rounds for variant in variants]),
        clients=only([run["clients"] for run in runs]),
        seeds=list(dict.fromkeys(variant.config.seed for variant in variants)),
        varied=values,
        last=question.last,
        target=question.target,
        at_mb=question.at_mb,
        algorithms={
            label: {"trains": trained(first[label].config), **over_seeds(label_runs)}
            for label, label_runs in by_label.items()
            if label_runs
        },
        runs=runs,
        stopped=stopped,
    )
    content = {key: value for key, value in vars(comparison).items() if key != "out"}
    files = {"comparison.json": (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()}
    if runs:
        from rondo.report import pictures

        files["comparison.png"] = pictures.comparison(content)
        if (over := pictures.varied(content)) is not None:
            files["varied.png"] = over
    with durable.written(folder):
        durable.write_all(folder, files)
    return comparison
