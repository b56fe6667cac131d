"""A client that never took part: its own tensors are fitted to its rows, everything shared stays.

Source: FedRep, section 4 and figures 4 and 6 ("new users").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rondo.algorithm import Client, ClientFailed
from rondo.data.client_rows import other_rows
from rondo.data.files.tables import Rows, Table
from rondo.data.partition.deal import sample
from rondo.engine.client.fitting import Fitting
from rondo.engine.scoring import NEWCOMER
from rondo.errors import ConfigError, headed
from rondo.params import everything
from rondo.results.export import GATED, check_target, write
from rondo.results.reopen import Reopened, reopen
from rondo.tasks.row_checks import RowLabels
from rondo.tasks.task import Example, Scores

_SOURCE, _DATA, _TEST = "rondo adapt", "--data", "--test"
_HELD_OUT = 0.2
"""Share of a new client's rows that its models are scored on."""


@dataclass(frozen=True)
class Shot:
    """The scores of models fitted to so many rows.

    >>> shots = rondo.adapt("runs/digits", new_client, shots=[5, 20]).shots
    >>> [shot.rows for shot in shots]
    [5, 20]
    """

    rows: int
    adapted: Scores
    """Scores of the model whose personal tensors were fitted; everything shared stayed."""
    alone: Scores
    """Scores of a model trained from the run's start on the same rows, without the federation."""


@dataclass(frozen=True)
class Adapted:
    """The result of :func:`adapt`: scores on rows of the new client that no model was fitted to.

    >>> adapted = rondo.adapt("runs/digits", new_client)
    >>> adapted.primary, adapted.scored_rows
    ('accuracy', 20)
    """

    primary: str
    """The metric to show."""
    title: str
    """Its name in tables, which says the class whose F1 it is."""
    scored_rows: int
    cold_start: Scores
    """Scores of the model that a client has before its first row."""
    shots: tuple[Shot, ...]


@headed(_SOURCE)
def adapt(
    run_dir: str | Path,
    data: str | Path | Table,
    *,
    shots: Sequence[int] = (),
    test: str | Path | Table | None = None,
    to: str | Path | None = None,
    epochs: int = 10,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
) -> Adapted:
    """Fit the personal tensors of a run's method to the rows of a client that never took part.

    ``data``: its rows, a file or a table with the run's columns. A fifth of them is held out for the scores.
    ``shots``: numbers of rows to fit to, one model each; left out, all of them.
    ``test``: rows for the scores, in place of the fifth.
    ``to``: an empty or new folder for the model that is fitted to all rows.
    ``epochs``: passes over the rows.
    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: go on even if the base model, the settings or that code are not those of the run.

    Raises :class:`ConfigError`.

    >>> adapted = rondo.adapt("runs/digits", new_client, shots=[10, 50])  # the head, fitted to rows of a new client
    >>> adapted.shots[1].adapted["accuracy"] > adapted.cold_start["accuracy"]
    True
    """
    target = None if to is None else check_target(to)
    if epochs < 1 or any(n < 1 for n in shots):
        raise ConfigError.at("--shots" if epochs > 0 else "--epochs", "must be at least 1")
    opened = reopen(run_dir, device, source=_SOURCE, allow_code=allow_code, allow_changed=allow_changed)
    assembly = opened.assembly
    if not assembly.algorithm.traits.personal:
        message = f"{assembly.config.algorithm.name} keeps nothing at its clients, so a new one has the global model: "
        raise ConfigError.at("RUN_DIR", message + "score it with rondo evaluate --data, or train a personal method")
    if assembly.config.train.trainer is not None:
        message = "its clients train by train.trainer, and a new one would by Rondo's own: train it with the others"
        raise ConfigError.at("RUN_DIR", message)
    if target is not None and assembly.algorithm.traits.gated:
        raise ConfigError.at("--to", f"{GATED}; leave it out for the scores alone")
    rows = other_rows(assembly.config, data, assembly.labels, key=_DATA)
    held_out = other_rows(assembly.config, test, assembly.labels, key=_TEST) if test is not None else None
    if held_out is None:
        if len(rows) < 2:
            raise ConfigError.at(_DATA, "one row cannot be fitted to and scored: give more, or name --test")
        rows, held_out = _divided(opened, rows, max(1, round(_HELD_OUT * len(rows))))
    sizes = tuple(shots) or (len(rows),)
    if max(sizes) > len(rows):
        message = f"{max(sizes)} of {len(rows)} rows that are not held out: lower it, or give more rows"
        raise ConfigError.at("--shots", message)
    newcomer = _Newcomer(opened, _encoded(opened, held_out, _DATA if test is None else _TEST), epochs)
    cold_start = newcomer.cold_start()
    results = tuple(newcomer.shot(_chosen(opened, rows, n)) for n in sizes)
    if target is not None:
        note = f"Its personal tensors are fitted to {len(rows)} rows of a client that took no part in the run."
        fitted, bare = newcomer.fitted(_encoded(opened, rows, _DATA)), f"the {len(rows)} rows that it is fitted to"
        write(target, opened, assembly.model, *fitted, (note,), bare=bare)
    primary = assembly.task.primary
    return Adapted(primary, assembly.task.titles.get(primary, primary), len(held_out), cold_start, results)


@dataclass(frozen=True)
class _Newcomer:
    """A new client, and the rows that its models are scored on."""

    opened: Reopened
    held_out: Sequence[Example]
    epochs: int

    def cold_start(self) -> Scores:
        return self._scores(*self.opened.model(None))

    def shot(self, examples: Sequence[Example]) -> Shot:
        """The scores of both models that are fitted to ``examples``."""
        client, round = self._client(examples), self.opened.round
        initial = self.opened.assembly.model.network.initial
        with _told():
            alone = self._fitting.tuned(initial, {}, client, examples, round, train=everything)
        rows = len(self.opened.assembly.task.row_sizes(examples))
        return Shot(rows, self._scores(*self.fitted(examples)), self._scores(alone, {}))

    def fitted(self, examples: Sequence[Example]) -> tuple[Any, Any]:
        """The tensors that the network sees after fitting to ``examples``, and the base's change."""
        algorithm, client, round = self.opened.assembly.algorithm, self._client(examples), self.opened.round
        shared = algorithm.broadcast(self.opened.point.state, client, round)
        local = algorithm.local_init(shared, client)
        with _told():
            local = self._fitting.adapted(shared, local, client, examples, round)
        return algorithm.view(shared, local), shared.base

    @property
    def _fitting(self) -> Fitting:
        assembly = self.opened.assembly
        train = assembly.config.train.model_copy(update={"local_epochs": self.epochs, "local_steps": None})
        return Fitting(assembly.algorithm, assembly.model.network, assembly.task, train, assembly.config.clients)

    def _client(self, examples: Sequence[Example]) -> Client:
        ranks = [c.rank for c in self.opened.assembly.population.clients if c.rank is not None]
        return replace(NEWCOMER, num_examples=len(examples), rank=max(ranks, default=None))

    def _scores(self, seen: Any, base: Any) -> Scores:
        return self.opened.scorer.scores(seen, base, self.held_out)


@contextmanager
def _told() -> Iterator[None]:
    """Report a fit that fails as bad input."""
    try:
        yield
    except ClientFailed as failure:
        message = f"the rows cannot be fitted to: {failure.reason}, {failure.detail}"
        raise ConfigError.at(_DATA, message) from None


def _divided(opened: Reopened, rows: Rows, count: int) -> tuple[Rows, Rows]:
    """The rows without a random sample of ``count`` that keeps the labels' shares, and the sample."""
    chosen = set(_sample(opened, rows, count, "held out"))
    return [r for i, r in enumerate(rows) if i not in chosen], [r for i, r in enumerate(rows) if i in chosen]


def _chosen(opened: Reopened, rows: Rows, count: int) -> Sequence[Example]:
    return _encoded(opened, [rows[i] for i in _sample(opened, rows, count, "shot")], _DATA)


def _sample(opened: Reopened, rows: Rows, count: int, tag: str) -> Sequence[int]:
    labels = RowLabels.of(opened.assembly.config.task).strata(rows)
    return sample(count, len(rows), labels, None, opened.assembly.round(0).generator("adapt", tag, count))


def _encoded(opened: Reopened, rows: Rows, key: str) -> Sequence[Example]:
    examples = opened.assembly.task.encode(rows)
    if not examples:
        raise ConfigError.at(key, "nothing is left of the rows within task.max_length: name others")
    return examples
