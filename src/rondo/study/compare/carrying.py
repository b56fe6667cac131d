"""The runs of a comparison, made or taken from its folder: where each lies, and what it holds already. Imports no torch
until a run starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from rondo.config.checks import BUILTINS, data_source
from rondo.config.load import located
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.records import durable
from rondo.records.directory import RunDirectory, as_written, to_toml
from rondo.runs.assembling.given import NOTHING, Given
from rondo.study.compare.comparison import Comparison, written
from rondo.study.compare.numbers import Question, numbers
from rondo.study.compare.variants import Variant, references
from rondo.study.runs import Trial, Watch, check_finished, made

if TYPE_CHECKING:
    from rondo.algorithm import Algorithm
    from rondo.data.sources import Source
    from rondo.engine.transport import Observer


def folder_of(out: str | Path | None) -> Path:
    """The folder ``out``, made if there is none; by default ``runs/compare-<time>``. Raises :class:`ConfigError`."""
    folder = Path(out) if out is not None else Path("runs", f"compare-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        durable.make_folder(folder)
    except OSError as error:
        message = f"{str(folder)!r} cannot be made: {error.strerror}; name another folder"
        raise ConfigError.at("--out", message, "rondo compare") from None
    return folder


class Settled:
    """Configurations with the keys that the data settle (columns, shapes, the kind of partition). The data are loaded
    once where they are the same."""

    def __init__(self, given: Given = NOTHING) -> None:
        self._given = given
        self._known: dict[str, Mapping[str, Any]] = {}

    def has_tests(self, variant: Variant) -> bool:
        """Whether there are test rows; built-in data have them, or measures in their place."""
        if variant.config.data.test_source is not None or data_source(variant.config) in BUILTINS:
            return True
        source = self._source(variant)
        return bool(source.test or source.test_clients)

    def _source(self, variant: Variant) -> Source:
        from rondo.data.sources import load

        return load(variant.config, self._given.train, self._given.test, self._given.clients)

    def __call__(self, variant: Variant) -> RunConfig:
        from rondo.data.client_rows import resolved

        if variant.data_keys not in self._known:
            settled = resolved(variant.config, self._source(variant))
            self._known[variant.data_keys] = {
                "task": settled.task,
                "partition": settled.partition,
                "data": settled.data,
            }
        return variant.config.model_copy(update=dict(self._known[variant.data_keys]))


def place(folder: Path, variant: Variant, settled: Settled, taken: Set[Path] = frozenset()) -> Path:
    """The folder of a run: the one that holds it already, with an equal configuration, or a new one. Nothing is ever
    deleted: if another configuration has the name, or a run that is to be made takes it (``taken``), the run takes the
    next free one."""
    stem = folder / variant.folder
    path, count = stem, 1
    while path in taken or (path.exists() and not _holds(path, variant, settled)):
        path, count = stem.with_name(f"{stem.name}-{count}"), count + 1
    return path


def _holds(path: Path, variant: Variant, settled: Settled) -> bool:
    """Whether ``path`` holds a run of ``variant``. Options that the user left open are in ``config.toml`` as the data
    and the day settled them, so its configuration is also compared after the data settled it, and to a run of any
    day. A run that scored its clients more often than is asked holds all that is asked."""
    try:
        there = RunDirectory.open(path).config()
    except ConfigError:
        return False
    if variant.config.task.today is None:
        there = there.changed("task", today=None)
    if not variant.config.evaluation.clients_every:
        there = there.changed("evaluation", clients_every=0)
    ran = to_toml(there)
    return ran == to_toml(located(variant.config)) or ran == to_toml(located(settled(variant)))


def check_dealt(partitions: dict[str, tuple[str, Any]], variant: Variant, name: str, partition: Any) -> None:
    """Raise :class:`ConfigError` unless all runs of the same data keys dealt the same clients the same rows, as the
    same model reads them. ``name``: the run's folder."""
    key = variant.data_keys + variant.config.model.model_dump_json()
    first, first_partition = partitions.setdefault(key, (name, partition))
    if partition != first_partition:
        message = f"{name} has another partition than {first}: the data changed between; name a new folder"
        raise ConfigError.at("--out", message, "rondo compare")


Observed: TypeAlias = Union["Observer", Callable[[str, int], "Observer"]]
"""An observer of all runs, or a function of a run's label and seed that gives its own."""
_SOURCE = "rondo compare"
_SCORES = 20
"""Most scores at the clients in a run whose scores on the test set are spaced by time."""


def observed(observer: Observed | None) -> Watch | None:
    """The watch that tells ``observer`` of every run that is made. Without one, a notebook shows bars, and elsewhere
    the logger ``rondo`` has lines that name the run."""
    from rondo.engine.transport import Observer
    from rondo.runs.watching.progress import in_notebook, logged

    if observer is None:
        return None if in_notebook() else lambda trial: logged(trial.config.rounds, str(trial))

    def of(trial: Trial) -> AbstractContextManager[Observer | None]:
        return nullcontext(observer if isinstance(observer, Observer) else observer(trial.arm, trial.seed))

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
    does, and :class:`rondo.RunInterrupted` once ``stop`` is set. ``processes``, ``watch``: of
    :func:`rondo.study.runs.made`.
    """
    from rondo.runs.assembling.device import find_device
    from rondo.study.parallel import check_processes

    references(variants, question.against)  # refuses an unknown name now
    settled = Settled(given)
    variants, at_clients = _scored_alike(_checked(variants), settled)
    check_processes(processes, _SOURCE)
    if processes > 1 and given.sets:
        message = "rows and a model that are given in Python stay in its process: name files, or leave processes out"
        raise ConfigError.at("processes", message, _SOURCE)
    find_device(device)
    folder = folder_of(out)
    places: dict[Path, Variant] = {}
    for variant in variants:
        places[place(folder, variant, settled, places.keys())] = variant
    trials = [Trial(v.label, v.config.seed, v.config, path, v.values) for path, v in places.items()]
    check_finished((trial for trial in trials if trial.finished), device, _SOURCE, given)
    partitions: dict[str, tuple[str, Any]] = {}
    runs, stopped = dict[Path, dict[str, Any]](), dict[Path, dict[str, Any]]()
    options: dict[str, Any] = {"processes": processes, "given": given, "watch": watch, "stop": stop}
    with closing(made(trials, device, _SOURCE, shows_rounds=True, **options)) as ends:  # ends processes on a fault
        for ended in ends:
            path, variant = ended.trial.folder, places[ended.trial.folder]
            if ended.reason is not None:
                identity = {"algorithm": variant.label, "seed": variant.config.seed}
                stopped[path] = {**identity, "run_dir": path.name, "reason": ended.reason}
                continue
            with as_written(path):
                partition = RunDirectory(path).read("partition.json")
                of_run = numbers(variant, path, question, at_clients=at_clients)
            check_dealt(partitions, variant, path.name, partition)
            runs[path] = of_run
    in_order = ([of[path] for path in places if path in of] for of in (runs, stopped))
    return written(folder, variants, question, *in_order)


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
    from rondo.runs.assembling.wrapping import make_algorithm

    return make_algorithm(variant.config)


def _scored_alike(variants: Sequence[Variant], settled: Settled) -> tuple[Sequence[Variant], bool]:
    """``variants``, and whether they are compared by scores on the clients' own rows: if a method has personal models,
    or without test rows. All of them then have these scores in the same rounds, unless a guarantee hides them."""
    if not any(map(_is_personal, variants)) and settled.has_tests(variants[0]):
        return variants, False
    return [_with_scores_at_clients(variant) for variant in variants], True


def _is_personal(variant: Variant) -> bool:
    traits = _made(variant).traits
    return traits.personal or (variant.config.model.head or traits.default_head) == "local"


def _with_scores_at_clients(variant: Variant) -> Variant:
    """``variant``, whose clients are scored as often as the test set is, unless it says otherwise."""
    config, scores = variant.config, variant.config.evaluation
    if scores.clients_every or config.guarantee.hides_scores:
        return variant
    every = max(1, config.rounds // _SCORES) if scores.every == "auto" else scores.every
    return replace(variant, config=config.changed("evaluation", clients_every=every))
