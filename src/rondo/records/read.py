"""Runs read from their files for people, while another process may write them. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from rondo.config import task_kinds as tasks
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory, as_written
from rondo.records.recorded import Claim, Recorded, trained

_KEY = "RUN_DIR"
_OF_A_RUN = ("manifest.json", "config.toml")


class _Listed(pydantic.BaseModel):
    """A run of ``comparison.json``."""

    algorithm: str
    seed: int
    run_dir: str
    reason: str = ""


class _Comparison(pydantic.BaseModel):
    runs: list[_Listed] = []
    stopped: list[_Listed] = []


class _Facts(pydantic.BaseModel):
    paper: str
    item: str
    claims: list[Claim]


def folders(paths: Sequence[str | Path]) -> list[tuple[Path, str | None]]:
    """The run directories at ``paths``, each once, with their names in a comparison. A path is a run directory, or a
    folder of some: a comparison's, or that of an entry of ``rondo reproduce``. Raises :class:`ConfigError`."""
    found: dict[Path, str | None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ConfigError.at(_KEY, f"{str(path)!r} is not a folder; name a run directory, or a folder of some")
        if any((path / name).exists() for name in _OF_A_RUN):
            found.setdefault(path, None)
            continue
        runs = sorted(child for child in path.iterdir() if all((child / name).is_file() for name in _OF_A_RUN))
        if not runs:
            message = "holds no run: name a run directory, which has a manifest.json, or a folder of some"
            raise ConfigError.at(_KEY, f"{str(path)!r} {message}")
        comparison = _comparison(path)
        labels = {run.run_dir: run.algorithm for run in (*comparison.runs, *comparison.stopped)}
        order = list(labels)
        runs.sort(key=lambda run: order.index(run.name) if run.name in labels else len(order))
        found |= {run: labels.get(run.name, _arm(run.name)) for run in runs if run not in found}
    return list(found.items())


def _arm(name: str) -> str | None:
    """The method or arm by which a comparison, tuning or entry names a folder."""
    named = re.fullmatch(r"(.+)-seed-\d+(-\d+|-[0-9a-f]{8})?", name)
    return None if named is None else named[1]


def _comparison(folder: Path) -> _Comparison:
    """A comparison's runs and those that stopped; none where it is not written yet."""
    return _beside(folder / "comparison.json", _Comparison) or _Comparison()


def stopped(paths: Sequence[str | Path]) -> list[tuple[str, str]]:
    """The runs of comparisons at ``paths`` that could not be finished, with the reasons."""
    return [
        (f"{run.algorithm}, seed {run.seed}", run.reason)
        for path in map(Path, paths)
        if not (path / "manifest.json").exists()
        for run in _comparison(path).stopped
    ]


def read(path: Path, label: str | None = None) -> Recorded:
    """The run in ``path``. Raises :class:`ConfigError` if it has none, or if a file is not as a run writes it."""
    directory = RunDirectory(path)
    for name in _OF_A_RUN:
        if not (path / name).is_file():
            message = f"{str(path)!r} is not a run directory: it has no {name}; name the folder of a run"
            raise ConfigError.at(_KEY, message)
    config = directory.config()

    def there(name: str) -> Any:
        return directory.read(name) if (path / name).is_file() else None

    with as_written(path, _KEY, "bring it back, or leave this run out"):
        summary, sites, records = there("summary.json"), there("sites.json") or {}, directory.rounds()
        if not isinstance(sites, dict):
            raise ValueError("sites.json is no table")
        scores = summary or _first_scores(path)
        recorded = Recorded(
            name=path.resolve().name,
            label=label,
            config=config.model_dump(mode="json", exclude=None if config.has_factors else {"adapter"}),
            travels=trained(config),
            higher_is_better=True,
            manifest=directory.manifest(),
            partition=there("partition.json") or {},
            summary=summary,
            before=scores["before"],
            measures_before=scores["measures"].get("before", {}),
            rounds=list(_lean(records)),
            sites=sites,
        )
    known, primary = tasks.metrics_of(config.task), recorded.primary or ""
    # A task of one's own is not imported for a page: the run directory may be anybody's.
    higher = known.get(primary, False) if known else primary != "loss"
    return replace(recorded, higher_is_better=higher)


def claims(paths: Sequence[Path]) -> list[Claim]:
    """The claims that ``rondo reproduce`` has decided by the runs at ``paths``: each entry's page beside its folder."""
    decided: list[Claim] = []
    for folder in dict.fromkeys(path.resolve().parent for path in paths):
        facts = _beside(folder.parent / "pages" / "facts" / f"{folder.name}.json", _Facts)
        if facts is not None:
            source = f"{facts.paper}, {facts.item}"
            decided += [claim.model_copy(update={"source": source}) for claim in facts.claims]
    return decided


def _lean(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records, of which only the last that has scores per client keeps them."""
    last = max((i for i, r in enumerate(records) if any("per_client" in s for s in r["scores"].values())), default=-1)
    for i, record in enumerate(records):
        kept = {k: {m: v for m, v in s.items() if m != "per_client"} for k, s in record["scores"].items()}
        yield record if i == last else {**record, "scores": kept}


def _first_scores(path: Path) -> dict[str, Any]:
    """Scores and measures before the first round, of a run that is not finished: its newest checkpoint has them."""
    manifests = sorted(path.glob("checkpoint/round-*/manifest.json"))
    try:
        scores = json.loads(manifests[-1].read_text(encoding="utf-8"))["content"]["scores"]
        return {"before": dict(scores["before"]), "measures": {"before": dict(scores["measures"]["before"])}}
    except (IndexError, OSError, ValueError, KeyError, TypeError):  # not written yet, or just replaced
        return {"before": {}, "measures": {}}


_Beside = TypeVar("_Beside", bound=pydantic.BaseModel)


def _beside(file: Path, shape: type[_Beside]) -> _Beside | None:
    """A file that a study writes beside its runs; None where there is none."""
    with as_written(file.parent, _KEY, "bring it back, or leave this run out"):
        try:
            return shape.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise ConfigError.at(_KEY, f"{file.name} is not as a run writes it ({why})") from None
