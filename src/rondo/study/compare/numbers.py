"""The numbers of a finished run, as a comparison has them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo import own_code
from rondo.config import task_kinds as tasks
from rondo.config.schema import RunConfig
from rondo.records.curve import FINE_TUNED_KINDS, OWN_KINDS, TEST_KINDS, points
from rondo.records.directory import RunDirectory
from rondo.records.summary import costs
from rondo.study.compare.over_seeds import mean_and_deviation, score_of
from rondo.study.compare.variants import Variant


@dataclass(frozen=True)
class Question:
    """A comparison's question to the curve of each run."""

    last: int = 1
    """The mean is taken over so many last scores."""
    target: float | None = None
    """The score to reach, in as few rounds and bytes as possible."""
    at_mb: float | None = None
    """Megabytes of all clients, up and down, at which methods are compared."""
    against: str | None = None
    """The method, or the label of one, that differences are to; None: the first."""
    columns: tuple[str, ...] = ()
    """The columns of the table, by their keys; none: all."""


def numbers(variant: Variant, run_dir: Path, question: Question, *, at_clients: bool = False) -> dict[str, Any]:
    """The numbers of a finished run, read from its directory. Bytes are summed over all clients and rounds; they and
    seconds are None where they would tell how many clients took part, and that is a secret.

    ``at_clients``: whether all runs of the comparison are compared by scores on the clients' own rows, if there are
    any."""
    config, directory = variant.config, RunDirectory(run_dir)
    summary, rounds = directory.read("summary.json"), directory.rounds()
    primary, traffic = summary["primary"], summary["bytes"]
    test, own_rows, fine_tuned = (
        score_of(summary["after"], kinds, primary) for kinds in (TEST_KINDS, OWN_KINDS, FINE_TUNED_KINDS)
    )
    measures = summary["measures"]["after"]
    on_test = test is not None and not (at_clients and own_rows is not None)
    measure = None if test is not None else _first(summary["measures"]["before"], measures)
    kinds = TEST_KINDS if on_test else OWN_KINDS

    def value(record: Mapping[str, Any]) -> Any:
        if measure is not None:
            return record.get("measures", {}).get(measure)
        found = score_of(record["scores"], kinds, primary)
        return None if found is None else found["score"]

    def told(cost: Any) -> Any:
        return None if config.guarantee.secret_turnout else cost

    places = points(rounds, value, summary["before"], summary["measures"]["before"])
    curve = [{"round": place.rounds, "bytes": told(place.bytes), "score": place.value} for place in places]
    interference = [(r.get("diagnostics") or {}).get("interference") for r in rounds]
    return {
        "algorithm": variant.label,
        "seed": config.seed,
        "method": variant.method,
        "values": dict(variant.values),
        "run_dir": run_dir.name,
        "clients": summary["clients"],
        "rounds": config.rounds,
        "primary": primary,
        "title": summary["titles"].get(primary, primary),
        "curve_of": primary if measure is None else measure,
        "head": summary["head"],
        "privacy": summary.get("privacy"),
        "on_test": on_test,
        "score": test if on_test else own_rows,
        "test": test,
        "own_rows": own_rows,
        "fine_tuned": fine_tuned,
        "more_tests": {
            name: {"model": test and test["model"], "score": scores.get(primary)}
            for name, scores in summary["after"].get("more_tests", {}).items()
        },
        "measures": measures,
        **answers(curve, question, higher_is_better=measure is None and higher_is_better(config, primary)),
        "bytes_up": told(traffic["up"]),
        "bytes_down": told(traffic["down"]),
        "bytes_first_contact": told(traffic["first_contact"]),
        "train_seconds": told(summary["seconds"]["train"]),
        "seconds": told(summary["seconds"]["all"]),
        **{key: told(costs(rounds)[key]) for key in ("server_seconds_per_round", "flops_per_client_round")},
        "interference": mean_and_deviation(interference)["mean"],
        "curve": curve,
    }


def answers(curve: Sequence[Mapping[str, Any]], question: Question, *, higher_is_better: bool) -> dict[str, Any]:
    """The best point of a curve after its start, the mean of its last scores, the rounds and bytes of the first score
    that reaches the target, and the last score within the megabytes, of a run that sent them all; None for what there
    is not."""
    sign = 1 if higher_is_better else -1
    trained = [point for point in curve if point["round"] > 0]
    best = max(trained, key=lambda point: sign * point["score"], default=None)
    reached = next(
        (p for p in curve if question.target is not None and sign * (p["score"] - question.target) >= 0), None
    )
    return {
        "best": None if best is None else {"round": best["round"], "score": best["score"]},
        "mean_of_last": mean_and_deviation([point["score"] for point in trained[-question.last :]])["mean"],
        "rounds_to_target": None if reached is None else reached["round"],
        "bytes_to_target": None if reached is None else reached["bytes"],
        "score_at_mb": _score_at(curve, question.at_mb),
    }


def _score_at(curve: Sequence[Mapping[str, Any]], at_mb: float | None) -> float | None:
    if at_mb is None or not curve or curve[-1]["bytes"] is None or curve[-1]["bytes"] < at_mb * 1e6:
        return None
    return next((point["score"] for point in reversed(curve) if point["bytes"] <= at_mb * 1e6), None)


def _first(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """The name of the first measure: one that was taken before the first round too, if there is any."""
    return next((name for name in before if name in after), next(iter(after), None))


def first_metric(config: RunConfig) -> str:
    """The metric by which rounds are chosen: the configuration's, else the first of its kind of task."""
    known = tasks.metrics_of(config.task)
    default = next(iter(known)) if known else own_code.load(config.task.kind).primary
    return config.task.metric or str(default)


def higher_is_better(config: RunConfig, metric: str) -> bool:
    """Whether a higher score is a better one."""
    if known := tasks.metrics_of(config.task):
        return known.get(metric, False)
    return bool(own_code.load(config.task.kind).higher_is_better)


def only(values: Sequence[Any]) -> Any:
    """The value that all of ``values`` have; None where they differ, or there are none."""
    return values[0] if values and all(value == values[0] for value in values) else None
