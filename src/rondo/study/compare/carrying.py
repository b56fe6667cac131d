"""The runs of a comparison, made or taken from its folder. Imports no torch until a run starts."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from rondo.errors import ConfigError, Problem
from rondo.records.directory import RunDirectory, as_written
from rondo.runs.given import NOTHING, Given
from rondo.runs.taken import OTHER_FOLDER, check_taken
from rondo.study.compare.comparison import Comparison
from rondo.study.compare.numbers import Question, numbers
from rondo.study.compare.places import Planned, Settled, check_dealt, folder_of, place
from rondo.study.compare.variants import Variant
from rondo.study.compare.written import written
from rondo.study.reason import reason

if TYPE_CHECKING:
    from rondo.algorithm import Algorithm
    from rondo.engine.transport import Observer

Watch: TypeAlias = Callable[[Planned], "AbstractContextManager[Observer | None]"]
"""Entered around every run, finished ones included, to show progress. The observer that it yields observes the run."""
Observed: TypeAlias = Union["Observer", Callable[[str, int], "Observer"]]
"""An observer of all runs, or a function of a run's label and seed that gives its own."""
_SOURCE = "rondo compare"
_SCORES = 20
"""Most scores of personal models in a run whose scores on the test set are spaced by time."""


def observed(observer: Observed | None) -> Watch | None:
    """The watch that tells ``observer`` of every run that is made. Without one, a notebook shows bars, and elsewhere
    the logger ``rondo`` has lines that name the run."""
    from rondo.engine.transport import Observer
    from rondo.runs.watching.logger import logged
    from rondo.runs.watching.notebook import in_notebook

    if observer is None:
        return None if in_notebook() else lambda planned: logged(planned.config.rounds, str(planned))

    def of(planned: Planned) -> AbstractContextManager[Observer | None]:
        return nullcontext(
            observer if isinstance(observer, Observer) else observer(planned.variant.label, planned.config.seed)
        )

    return of


def carry_out(
    variants: Sequence[Variant],
    out: str | Path | None,
    question: Question,
    *,
    device: str = "auto",
    processes: int = 1,
    given: Given = NOTHING,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> Comparison:
    """Run ``variants``, except runs that ``out`` holds finished, and write the comparison. Raises as :func:`compare`
    does, and :class:`rondo.RunInterrupted` once ``stop`` is set.

    ``processes``: so many runs at a time; then ``watch`` is not entered, and each run writes its lines to stderr.
    """
    from rondo import errors
    from rondo.runs.device import find_device
    from rondo.study.parallel import check_processes

    variants = [_with_personal_scores(variant, _made(variant)) for variant in _checked(variants)]
    check_processes(processes, _SOURCE)
    if processes > 1 and given.sets:
        message = "rows and a model that are given in Python stay in its process: name files, or leave processes out"
        raise ConfigError.at("processes", message, _SOURCE)
    find_device(device)
    folder = folder_of(out)
    runs, stopped = [], []
    partitions: dict[str, tuple[str, Any]] = {}
    settled = Settled(given)
    everything = list[Planned]()
    for variant in variants:
        everything.append(place(folder, variant, settled, {planned.run_dir for planned in everything}))
    finished = ((planned.run_dir, planned.config) for planned in everything if planned.state == "finished")
    check_taken(finished, device, OTHER_FOLDER, _SOURCE, given)
    reasons = _side_by_side(everything, processes, device, stop) if processes > 1 else {}
    for planned in everything:
        if (why := reasons.get(planned.run_dir)) is not None:
            stopped.append({**planned.identity, "run_dir": planned.run_dir.name, "reason": why})
            continue
        with watch(planned) if watch is not None and processes == 1 else nullcontext() as observer:
            try:
                if processes == 1:
                    make(planned, device, given, observer, stop)
            except errors.RunStopped as error:
                why = reason(str(error), planned.config, planned.run_dir)
                stopped.append({**planned.identity, "run_dir": planned.run_dir.name, "reason": why})
                continue
        gc.collect()  # hooks keep a model in a cycle; free it before the next one is loaded
        with as_written(planned.run_dir):
            partition = RunDirectory(planned.run_dir).read("partition.json")
            of_run = numbers(planned, question)
        check_dealt(partitions, planned, partition)
        runs.append(of_run)
    return written(folder, variants, question, runs, stopped)


def _side_by_side(
    runs: Sequence[Planned], processes: int, device: str, stop: threading.Event | None
) -> dict[Path, str]:
    """Make all ``runs`` that are not finished. Returns the reasons of those that could not finish, by their folders."""
    from rondo.study.parallel import Job, in_processes

    left = [run for run in runs if run.state != "finished"]
    jobs = [Job(str(run), run.config, run.run_dir, resumes=run.state == "unfinished") for run in left]
    reasons = {}
    for ended in in_processes(jobs, processes, device, _SOURCE, stop=stop, shows_rounds=True):
        if ended.stopped is not None:
            reasons[ended.job.run_dir] = reason(ended.stopped, ended.job.config, ended.job.run_dir)
        elif ended.died is not None:
            reasons[ended.job.run_dir] = ended.died
    return reasons


def make(
    planned: Planned,
    device: str,
    given: Given = NOTHING,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run ``planned``, or what is left of it. Raises as :func:`rondo.run` does."""
    from rondo.runs import again, runner

    objects = {
        "train": given.train,
        "test": given.test,
        "clients": given.clients,
        "model": given.model,
        "tokenizer": given.tokenizer,
    }
    common: dict[str, Any] = {"device": device, "observer": observer, "stop": stop, **objects}
    if planned.state == "new":
        runner.run(planned.config, run_dir=planned.run_dir, **common)
    elif planned.state == "unfinished":
        # The user has named the code again, in the same configuration.
        with again.one_of_many(planned.run_dir):
            runner.resume(planned.run_dir, allow_code=True, **common)


def _checked(variants: Sequence[Variant]) -> Sequence[Variant]:
    """``variants``, of which every algorithm can be made: a bad one is refused now, not after hours of the others.
    Raises :class:`ConfigError`."""
    problems = []
    for variant in variants:
        try:
            _made(variant)
        except ConfigError as error:
            name = variant.method
            messages = [p.message if name in p.message else f"{name}: {p.message}" for p in error.problems]
            problems += [Problem(p.path, message) for p, message in zip(error.problems, messages, strict=True)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), _SOURCE)
    return variants


def _made(variant: Variant) -> Algorithm[Any]:
    from rondo.runs.wrapping import make_algorithm

    return make_algorithm(variant.config)


def _with_personal_scores(variant: Variant, algorithm: Algorithm[Any]) -> Variant:
    """``variant``, whose personal models, if it has some, are scored as often as the test set is, so that its curve is
    theirs."""
    config, scores = variant.config, variant.config.evaluation
    head = config.model.head or algorithm.traits.default_head
    if scores.clients_every or not (algorithm.traits.personal or head == "local"):
        return variant
    every = max(1, config.rounds // _SCORES) if scores.every == "auto" else scores.every
    evaluation = scores.model_copy(update={"clients_every": every})
    return replace(variant, config=config.model_copy(update={"evaluation": evaluation}))
