"""Means and standard deviations of one algorithm's runs over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.records.curve import Spread, score
from rondo.records.paired import against
from rondo.records.recorded import weakest_guarantee


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
