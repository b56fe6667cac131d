"""Compare several algorithms on the same data, split, seeds and rounds. Imports no torch until a run starts.

::

    DIR/ALGORITHM-seed-N/    an ordinary run directory per algorithm, varied values and seed
    DIR/comparison.json      every run's numbers with its seed, and means and standard deviations over seeds
    DIR/comparison.csv       the same numbers, a row per run; comparison.tex: the table of means, for LaTeX
    DIR/comparison.png       score over rounds and over megabytes, and as comparison.svg
    DIR/varied.png           final score over the key that is varied, if its values are numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.config.load import Source, listed
from rondo.data.files.tables import Table
from rondo.records.recorded import trained as trained
from rondo.runs.assembling.given import Given
from rondo.study.compare.carrying import Observed, observed
from rondo.study.compare.carrying import carry_out as carry_out
from rondo.study.compare.comparison import Comparison as Comparison
from rondo.study.compare.numbers import Question as Question
from rondo.study.compare.variants import Vary
from rondo.study.compare.variants import plan as plan
from rondo.study.compare.variants import varied as varied

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    against: str | None = None,
    columns: Sequence[str] = (),
    out: str | Path | None = None,
    device: str = "auto",
    processes: int = 1,
    train: Table | None = None,
    test: Table | Mapping[str, Table] | None = None,
    clients: Mapping[str, Table] | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    observer: Observed | None = None,
) -> Comparison:
    """Run several algorithms on the same data, split, seeds and rounds, and compare them.

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
    ``against``: the method, or the label of one, that the differences of the others are to; by default the first.
    Differences are paired by seed, and have 95 % intervals and p, corrected by Holm.
    ``columns``: those of the table, by their keys: ``test``, ``difference``, ``p``, ``bytes_up`` ...; by default all.
    ``out``: by default ``runs/compare-<time>``. Runs that it already holds with an equal configuration are not
    repeated; an interrupted one is resumed.
    ``processes``: so many runs at a time, each in a process with as many threads as this one has; their results are
    those of runs one after the other, bit for bit. Rows, a model and an observer given here need one process.
    ``train``, ``test``, ``clients``, ``model``, ``tokenizer``: as for :func:`rondo.run`, for all runs.
    ``observer``: told of the progress of every run, one after the other; or a function that gives the observer of a
    run by its label and seed.

    Every algorithm gets the same hyperparameters, but for those in its table of ``[methods]``, and none is tuned: a
    score says how a method does at these settings. Each keeps its own head policy unless ``model.head`` is set, so some
    train fewer tensors. Seconds are measured on this machine, under its load at the time. If a method has personal
    models, or without test rows, all methods are compared by the scores of their clients' models on the clients' own
    rows, in the same rounds. The test score of a personal method is of its cold-start model.

    Raises :class:`ConfigError` for input that the user must fix, before a model is loaded where possible. A run that
    stops, for instance because it diverges, is listed in ``stopped``, and the others go on. Raises :class:`RunStopped`
    where the comparison itself cannot be written.

    >>> comparison = rondo.compare(["fedavg", "fedper"], digits, seeds=[0], out="runs/both")
    >>> sorted(comparison.algorithms)
    ['fedavg', 'fedper']
    """
    given = Given(train, test, clients, model, tokenizer)
    variants = plan(algorithms, config, sets=[*listed(sets, "sets"), *given.sets], vary=vary, seeds=seeds)
    asked = Question(last, target, at_mb, against, tuple(listed(columns, "columns")))
    return carry_out(variants, out, asked, device=device, processes=processes, given=given, watch=observed(observer))
