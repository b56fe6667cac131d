"""Scores of a run's models: the server's on the common test set, each client's on its own test or validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rondo.algorithm import Algorithm, Client, Round, Shared
from rondo.config.schema import EvaluationConfig
from rondo.data.members import Member
from rondo.data.population import Population
from rondo.engine.client.fitting import Fitting
from rondo.models.networks.network import Base, Network
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params, add_client_axis, everything, head, on_device
from rondo.tasks.task import Example, Tally, Task

NEWCOMER = Client("cold start", 0)
"""The client whose model is scored on the common test set: one that has not taken part."""


@dataclass(frozen=True)
class Scorer:
    """Scores models of ``algorithm`` on ``population``."""

    algorithm: Algorithm[Any]
    network: Network
    task: Task
    population: Population
    kept: Mapping[str, Params]
    """Tensors that clients kept, by client id."""
    config: EvaluationConfig
    fitting: Fitting
    """Trains models of clients where scores ask for it."""
    prefix: Prefix | None
    """Layers whose output on the test sets is computed once."""
    least: int
    """Fewest rows that decide a metric; one that fewer decide is None."""

    def model(self, state: Any, client: Client, round: Round) -> tuple[Params, Base]:
        """The tensors that ``client``'s network sees before ``round``, without a client axis, and the base's change."""
        shared = self.algorithm.broadcast(state, client, round)
        return self.algorithm.view(shared, self._local(shared, client)), shared.base

    def newcomer(self, state: Any, round: Round) -> tuple[Params, Base]:
        """:meth:`model` of a client that has not taken part: the global model, or the cold-start model of a personal
        method."""
        return self.model(state, NEWCOMER, round)

    def on_test(self, state: Any, round: Round) -> dict[str, Any]:
        """Scores on the common test set, under "global", or under "cold_start" where models are personal; those on more
        test sets under "more_tests", by name."""
        if not self.population.test:
            return {}
        seen, base = self.newcomer(state, round)
        kind = "cold_start" if self.algorithm.traits.personal else "global"
        tests = self.population.tests.items()
        scored = {name: self.scores(seen, base, examples, test=name) for name, examples in tests}
        scores: dict[str, Any] = {kind: scored.pop("test")}
        return scores | ({"more_tests": scored} if scored else {})

    def at_clients(self, state: Any, round: Round) -> dict[str, Any]:
        """Scores of each client's model on its own rows (:meth:`rondo.data.population.Population.own_rows`), with the
        :func:`spread` of each metric over the clients. The key is "personal" where models are personal, else "clients"
        (the global model at each client). With ``fine_tune_epochs`` there are scores after fine-tuning too, under
        "fine_tuned"; where clients have validation rows beside test rows, those on them are under "validation"."""
        members = self.population.members.items()
        return self.summed_up(
            {
                name: self.of_client(self.algorithm.broadcast(state, member.client, round), member, round)
                for name, member in members
                if self.population.own_rows(member)
            }
        )

    def of_client(self, shared: Shared, member: Member, round: Round) -> dict[str, Any]:
        """The scores of ``member``'s model on its own rows, by kind. ``shared``: its broadcast."""
        seen, base = self._at_client(shared, member, round)
        rows = self.population.own_rows(member)
        scores = {self.kinds[0]: self.scores(seen, base, rows)}
        if self.config.fine_tune_epochs:
            train = head if self.config.fine_tune == "head" and any(map(head, seen)) else everything
            epochs = self.config.fine_tune_epochs
            tuned = self.fitting.tuned(seen, base, member.client, member.train, round, train=train, epochs=epochs)
            scores["fine_tuned"] = self.scores(tuned, base, rows)
        if self.population.tested_at_clients and member.validation:
            scores["validation"] = self.scores(seen, base, member.validation)
        return scores

    def summed_up(self, per_client: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Scores of :meth:`of_client` by client id, in the form of :meth:`at_clients`."""
        by_kind = {
            kind: {name: scores[kind] for name, scores in per_client.items() if kind in scores}
            for kind in (*self.kinds, "validation")
        }
        return {kind: {**self._spreads(scores), "per_client": scores} for kind, scores in by_kind.items() if scores}

    def _spreads(self, per_client: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The :func:`spread` of each metric, the primary one first; counts are no metrics."""
        named = [name for scores in per_client.values() for name, v in scores.items() if not isinstance(v, int)]
        metric, higher = self.task.primary, self.task.higher_is_better
        names = dict.fromkeys([metric, *named])
        return {n: spread(per_client, n, higher_is_better=higher if n == metric else None) for n in names}

    @property
    def kinds(self) -> tuple[str, ...]:
        first = "personal" if self.algorithm.traits.personal else "clients"
        return (first, "fine_tuned") if self.config.fine_tune_epochs else (first,)

    def _at_client(self, shared: Shared, member: Member, round: Round) -> tuple[Params, Base]:
        """The model that ``member`` uses. Some methods adapt it to the client's rows first."""
        local = self._local(shared, member.client)
        if self.algorithm.traits.scored_after_adapting:
            local = self.fitting.adapted(shared, local, member.client, member.train, round)
        return self.algorithm.view(shared, local), shared.base

    def _local(self, shared: Shared, client: Client) -> Params:
        local = self.kept.get(client.id) if client is not NEWCOMER else None  # by identity: a client may have any id
        return self.algorithm.local_init(shared, client) if local is None else local

    def scores(
        self, seen: Params, base: Base, examples: Sequence[Example], *, test: str | None = None
    ) -> dict[str, float | None]:
        """The task's metrics of the model ``seen`` (no client axis). ``test``: the name of the test set that
        ``examples`` are."""
        seen, base = on_device(seen, self.network.device), self.network.on_device(base)
        facts = (self.network, self.task, seen, base, examples)
        return scores(*facts, batch_size=self.config.batch_size, prefix=self.prefix, test=test, least=self.least)


@torch.no_grad()
def scores(
    network: Network,
    task: Task,
    seen: Params,
    base: Base,
    examples: Sequence[Example],
    *,
    batch_size: int,
    prefix: Prefix | None = None,
    test: str | None = None,
    tally: Tally | None = None,
    least: int = 1,
) -> dict[str, float | None]:
    """The task's metrics of the model ``seen`` (no client axis, on the network's device), its primary one first, in
    batches of examples of similar cost. One that is not finite is None: it is no number to compare, and none that JSON
    has. ``prefix``: keeps its output on the test set ``test``, if ``examples`` are one. ``tally``: scores in place of
    the task's. ``least``: fewest rows that decide a metric; one that fewer decide is None."""
    tally = task.tally() if tally is None else tally
    batched = add_client_axis(seen)
    scored = task.scored(examples)
    states = None if prefix is None or test is None else prefix.of_test(test, scored)
    ordered = sorted(scored, key=lambda e: e.cost)
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        inputs, targets = (on_device(part, network.device) for part in task.collate(batch))
        if prefix is None or states is None:
            tally.add(network(batched, base, inputs), targets)
            continue
        with prefix.replaced(states.padded(batch).to(network.device)):
            tally.add(network(batched, base, inputs), targets)
    few = {name for name, rows in tally.fewest().items() if rows < least} if least > 1 else ()
    in_order = sorted(tally.scores().items(), key=lambda score: score[0] != task.primary)
    told = {name: value for name, value in in_order if value is not None and math.isfinite(value) and name not in few}
    return {name: told.get(name) for name, _ in in_order}


def spread(
    per_client: Mapping[str, Mapping[str, Any]], metric: str, *, higher_is_better: bool | None = None
) -> dict[str, Any]:
    """``metric`` over the clients that have it:

    - ``mean``, in which every client counts the same;
    - ``weighted_mean``, in which every row does, as in PFLlib's averages (None where rows are not counted);
    - ``deviation``, the standard deviation over the clients, divided by their number, as PFLlib's;
    - ``worst_tenth``, the mean over the worst tenth of them, at least one, if ``higher_is_better`` says which is worse;
    - ``clients``, their number, and ``undefined``, that of the others.
    """
    scored = [s for s in per_client.values() if s.get(metric) is not None]
    values: list[float] = [s[metric] for s in scored]
    rows: list[Any] = [s.get("examples") for s in scored]
    counts = {"clients": len(values), "undefined": len(per_client) - len(values)}
    if not values:
        return {"mean": None, "weighted_mean": None, "deviation": None, "worst_tenth": None, **counts}
    mean, weighted = sum(values) / len(values), None
    if None not in rows and sum(rows):
        weighted = sum(value * count for value, count in zip(values, rows, strict=True)) / sum(rows)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    result = {"mean": mean, "weighted_mean": weighted, "deviation": deviation}
    if higher_is_better is not None:
        worst = sorted(values, reverse=not higher_is_better)[: max(1, math.ceil(len(values) / 10))]
        result["worst_tenth"] = sum(worst) / len(worst)
    return {**result, **counts}
