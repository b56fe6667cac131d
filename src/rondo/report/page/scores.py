"""The scores that runs have: on test sets, at the clients, of a model itself, and the training loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rondo.records.curve import FINE_TUNED_KINDS, OWN_KINDS, TEST_KINDS, score
from rondo.records.recorded import Recorded
from rondo.report.page.charts import Score, is_share, of_records
from rondo.report.page.groups import Group

_TEST, _OWN, _TUNED = "test set", "clients' own rows", "clients' own rows, after fine-tuning"
_AT_CLIENTS = {"mean": "mean over clients", "worst_tenth": "worst tenth of the clients"}


def scores(groups: Sequence[Group]) -> list[Score]:
    """Every score that a run has, the most telling one first: that of personal models where a method has such, else the
    primary one on the test set, else at the clients, else a measure of the model."""
    return scores_of([run for group in groups for run in group.runs])


def scores_of(runs: Sequence[Recorded]) -> list[Score]:
    """The same of runs."""
    found = [*_on_tests(runs), *_at_clients(runs), *_measures(runs), *_loss(runs)]
    names = list(dict.fromkeys(run.titles.get(run.primary, run.primary) for run in runs if run.primary is not None))
    personal = any("personal" in record["scores"] for run in runs for record in run.rounds)

    def rank(score: Score) -> tuple[int, int]:
        families = (_OWN, _TEST) if personal else (_TEST, _OWN)
        name = score.name.removesuffix(f", {_AT_CLIENTS['mean']}")
        if score.family not in families or name not in names:
            return len(names), 0
        return names.index(name), families.index(score.family)

    return sorted(found, key=rank)


def worst_tenth(found: Sequence[Score]) -> Score | None:
    """The primary score's mean over the worst tenth of the clients; None where no client is scored."""
    return next((score for score in found if score.name.endswith(_AT_CLIENTS["worst_tenth"])), None)


def primary_of(found: Sequence[Score], family: str) -> Score | None:
    """The primary score on the ``"test"`` set or at the ``"clients"``."""
    wanted = {"test": _TEST, "clients": _OWN}[family]
    return next((score for score in found if score.family == wanted), None)


def _on_tests(runs: Sequence[Recorded]) -> Iterator[Score]:
    for metric in _metrics(runs, TEST_KINDS):
        yield Score(_TEST, _title(runs, metric), of_records(_reading(TEST_KINDS, metric)), share=is_share(metric))
    more = {name for run in runs for record in run.rounds for name in record["scores"].get("more_tests", {})}
    for name in sorted(more):
        for metric in _metrics(runs, TEST_KINDS):
            points = of_records(_of_more(name, metric))
            yield Score(f"test set {name}", _title(runs, metric), points, share=is_share(metric))


def _at_clients(runs: Sequence[Recorded]) -> Iterator[Score]:
    for family, kinds in ((_OWN, OWN_KINDS), (_TUNED, FINE_TUNED_KINDS)):
        for metric in _metrics(runs, kinds):
            for part, said in _AT_CLIENTS.items():
                points = of_records(_reading(kinds, metric, part))
                score = Score(family, f"{_title(runs, metric)}, {said}", points, share=is_share(metric))
                if any(score.points(run) for run in runs):
                    yield score


def _measures(runs: Sequence[Recorded]) -> Iterator[Score]:
    for name in dict.fromkeys(n for run in runs for n in (*run.measures_before, *_of_last(run, "measures"))):
        points = of_records(lambda record, name=name: record.get("measures", {}).get(name))  # type: ignore[misc]
        log = all(value > 0 for run in runs for value in points(run).values())
        yield Score("the model itself", name.replace("_", " "), points, log)


def _loss(runs: Sequence[Recorded]) -> Iterator[Score]:
    points = of_records(lambda record: record.get("loss"))
    if any(points(run) for run in runs):
        yield Score("training", "training loss", points)


def _metrics(runs: Sequence[Recorded], kinds: Mapping[str, str]) -> list[str]:
    """The names of all scores of some kinds; whole numbers count rows and are none."""
    found: dict[str, None] = {}
    for run in runs:
        for scores in (run.before, *(record["scores"] for record in run.rounds)):
            for kind in kinds:
                values = scores.get(kind, {}).items()
                found |= {m: None for m, v in values if m != "per_client" and not isinstance(v, int)}
    return list(found)


def _title(runs: Sequence[Recorded], metric: str) -> str:
    return next((run.titles[metric] for run in runs if metric in run.titles), metric)


def _reading(kinds: Mapping[str, str], metric: str, part: str = "mean") -> Callable[[Mapping[str, Any]], Any]:
    """Reads a metric of the first of ``kinds`` in a record."""
    return lambda record: score(record["scores"], kinds, metric, part)


def _of_more(name: str, metric: str) -> Callable[[Mapping[str, Any]], Any]:
    """Reads a metric on the test set ``name`` in a record."""
    return lambda record: score(record["scores"].get("more_tests", {}), (name,), metric)


def _of_last(run: Recorded, key: str) -> Mapping[str, Any]:
    return run.rounds[-1].get(key) or {} if run.rounds else {}
