"""The numbers of a finished run, as a comparison has them, and their means over seeds. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo import own_code
from rondo.config import task_kinds as tasks
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.records.curve import FINE_TUNED_KINDS, OWN_KINDS, TEST_KINDS, Spread, points, score
from rondo.records.directory import RunDirectory
from rondo.records.paired import against
from rondo.records.recorded import weakest_guarantee
from rondo.records.summary import costs
from rondo.study.compare.table import COLUMNS
from rondo.study.compare.variants import Variant


def score_of(scores: Mapping[str, Any], kinds: Mapping[str, str], primary: str) -> dict[str, Any] | None:
    """The score of the first of ``kinds`` that ``scores`` has, and its model; on own rows, the mean over clients."""
    for kind, model in kinds.items():
        if (value := score(scores, (kind,), primary)) is not None:
            return {"model": model, "score": value}
    return None


def mean_and_deviation(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean (None without values), sample standard deviation (None below two) and count. Leaves out values of None."""
    present = [v for v in values if v is not None]
    if not present:
        return {"mean": None, "sd": None, "count": 0}
    spread = Spread.of(present)
    return {"mean": spread.mean, "sd": spread.sd, "count": spread.count}


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The head policy, guarantee (that of the largest epsilon), scores and numbers of one algorithm's runs, over
    seeds."""
    result: dict[str, Any] = {
        "head": runs[0]["head"],
        "guarantee": weakest_guarantee(runs),
    }
    for key in ("score", "test", "own_rows", "fine_tuned"):
        result[key] = _of_model([r[key] for r in runs if r[key] is not None])
    tests = dict.fromkeys(name for run in runs for name in run["more_tests"])
    result["more_tests"] = {
        name: _of_model([r["more_tests"][name] for r in runs if name in r["more_tests"]]) for name in tests
    }
    best = [run["best"]["score"] for run in runs if run["best"] is not None]
    result["best"] = mean_and_deviation(best)
    result["measures"] = {
        name: mean_and_deviation([r["measures"].get(name) for r in runs]) for name in runs[0]["measures"]
    }
    return result | {key: mean_and_deviation([r[key] for r in runs]) for key in _NUMBERS}


def _of_model(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Scores over seeds, and the model that they are of."""
    model = scores[0]["model"] if scores else None
    return {"model": model, **mean_and_deviation([s["score"] for s in scores])}


def differences(runs: Sequence[Mapping[str, Any]], references: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The difference of the last score on each curve to that of the reference with the same seed, by label: the
    reference (``to``), the differences by seed, their mean, its 95 % interval, and p after Holm's correction."""
    finals: dict[str, dict[str, float]] = {}
    for run in (run for run in runs if run["curve"]):
        finals.setdefault(run["algorithm"], {})[str(run["seed"])] = run["curve"][-1]["score"]
    return {
        label: {
            "to": found.to,
            "by_seed": dict(found.by_pair),
            "mean": found.paired.middle,
            "interval": None if found.paired.interval is None else list(found.paired.interval),
            "p": found.p,
        }
        for label, found in against(finals, references).items()
    }


def run_rows(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A flat row per run, all with the same keys: label, method, seed, varied values, scores with their models, those
    on more test sets, measures, numbers, the difference to the reference (of this run, and the mean over seeds with its
    interval and p), and the guarantee of private runs. ``metric`` names the scores, and ``curve_of`` what the best, the
    mean of the last, the target, the score at some megabytes and the difference are of. ``content``: as in
    ``comparison.json``."""
    rows = []
    for run in content["runs"]:
        row = {key: run[key] for key in ("algorithm", "method", "seed", "run_dir", "rounds", "clients", "head")}
        row |= dict(run["values"])
        for key in ("score", "test", "own_rows", "fine_tuned"):
            scored = run[key] or {"score": None, "model": None}
            row |= {key: scored["score"], f"{key}_model": scored["model"]}
        for name, scored in run["more_tests"].items():
            row |= {f"more_tests.{name}": scored["score"], f"more_tests.{name}_model": scored["model"]}
        best = run["best"] or {"score": None, "round": None}
        row |= {"metric": run["title"], "curve_of": run["curve_of"], "best": best["score"], "best_round": best["round"]}
        own = weakest_guarantee([run])
        guarantee = {} if own is None else {"guarantee": f"this run by itself: {own}"}
        row |= dict(run["measures"]) | {key: run[key] for key in _NUMBERS}
        rows.append(row | _difference(content["algorithms"][run["algorithm"]]["difference"], run["seed"]) | guarantee)
    columns = dict.fromkeys(column for row in rows for column in row)
    return [{column: row.get(column) for column in columns} for row in rows]


def _difference(difference: Mapping[str, Any] | None, seed: int) -> dict[str, Any]:
    if difference is None:
        return {}
    low, high = difference["interval"] or (None, None)
    whole = {"mean": difference["mean"], "low": low, "high": high, "p": difference["p"]}
    own = {"difference_to": difference["to"], "difference": difference["by_seed"].get(str(seed))}
    return own | {f"difference_{key}": value for key, value in whole.items()}


_NUMBERS = (
    "mean_of_last",
    "rounds_to_target",
    "bytes_to_target",
    "score_at_mb",
    "bytes_up",
    "bytes_down",
    "bytes_first_contact",
    "train_seconds",
    "seconds",
    "server_seconds_per_round",
    "flops_per_client_round",
    "interference",
)
"""Numbers of a run that are taken over seeds."""


@dataclass(frozen=True)
class Question:
    """A comparison's question to the curve of each run. Raises :class:`ConfigError` for numbers and columns that cannot
    be."""

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

    def __post_init__(self) -> None:
        path, message = "", ""
        if unknown := [column for column in self.columns if column not in COLUMNS]:
            path, message = "--columns", f"{unknown[0]!r} is not a column; name some of {', '.join(COLUMNS)}"
        elif self.last < 1:
            path, message = "--last", f"should be a number of scores, 1 or more, got {self.last}"
        elif self.target is not None and not math.isfinite(self.target):
            path, message = "--target", f"should be a score, got {self.target}"
        elif self.at_mb is not None and not 0 < self.at_mb < math.inf:
            path, message = "--at-mb", f"should be a number of megabytes above 0, got {self.at_mb}"
        if path:
            raise ConfigError.at(path, message, "rondo compare")


def numbers(variant: Variant, run_dir: Path, question: Question, *, at_clients: bool = False) -> dict[str, Any]:
    """The numbers of a finished run, read from its directory. Bytes are summed over all clients and rounds; they and
    seconds are None where they would tell how many clients took part, and that is a secret.

    ``at_clients``: whether all runs of the comparison are compared by scores on the clients' own rows, if there are
    any."""
    config, directory = variant.config, RunDirectory(run_dir)
    summary, rounds = directory.read("summary.json"), directory.rounds()
    primary, traffic, after = summary["primary"], summary["bytes"], summary["after"]
    test, own_rows, fine_tuned = (score_of(after, of, primary) for of in (TEST_KINDS, OWN_KINDS, FINE_TUNED_KINDS))
    measures = summary["measures"]["after"]
    on_test = test is not None and not (at_clients and own_rows is not None)
    measure = None if test is not None else _first(summary["measures"]["before"], measures, own_rows is not None)
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
            for name, scores in after.get("more_tests", {}).items()
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


def _first(before: Mapping[str, float], after: Mapping[str, float], scored: bool) -> str | None:
    """The name of the first measure: one that was taken before the first round too, if there is any. Others are a
    method's own numbers, such as the error of its sketch, and do not count where clients' rows are ``scored``."""
    return next((name for name in before if name in after), None if scored else next(iter(after), None))


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
