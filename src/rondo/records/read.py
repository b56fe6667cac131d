"""Runs read from their files for people, while another process may write them. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pydantic

from rondo.config import task_kinds as tasks
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory
from rondo.records.recorded import Claim, Recorded
from rondo.records.words import trained

_KEY = "RUN_DIR"
_OF_A_RUN = ("manifest.json", "config.toml")


class _Shape(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore")


_Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
_Seconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class _Failure(_Shape):
    client: str
    reason: str
    detail: str


class _Round(_Shape):
    round: _Count
    sampled: _Count
    clients: _Count
    failed: list[_Failure]
    rejected: dict[str, _Count]
    skipped: str | None
    loss: float | None
    bytes_up: _Count
    bytes_down: _Count
    bytes_first_contact: _Count
    seconds: _Seconds
    scores: dict[str, dict[str, float | dict[str, Any] | None]]
    measures: dict[str, float | None] = {}
    diagnostics: dict[str, Any] | None = None
    titles: dict[str, str] = {}
    epsilon: float | None = None
    epsilon_valid: bool = True
    guarantee: str | None = None


class _Client(_Shape):
    train: _Count
    validation: _Count = 0
    test: _Count = 0
    labels: dict[str, _Count] | None = None


class _Partition(_Shape):
    clients: dict[str, _Client]
    warnings: list[str] = []


class _Sample(_Shape):
    prompt: str
    expected: str
    before: str
    after: str


class _Summary(_Shape):
    primary: str
    before: dict[str, dict[str, Any]]
    after: dict[str, dict[str, Any]]
    measures: dict[str, dict[str, float]]
    samples: list[_Sample] = []


class _Claim(_Shape):
    claim: str
    paper: str
    here: str = "-"
    seeds: int = 0
    verdict: str = "open"
    equal_bytes_per_client: str = "-"


class _Facts(_Shape):
    paper: str
    item: str
    claims: list[_Claim]


def folders(paths: Sequence[str | Path]) -> list[tuple[Path, str | None]]:
    """The run directories at ``paths``, each once, with their names in a comparison. A path is a run directory, or a
    folder of some: a comparison's, or that of an entry of ``rondo reproduce``. Raises :class:`ConfigError`."""
    found: dict[Path, str | None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ConfigError.at(_KEY, f"{str(path)!r} is no folder; name a run directory, or a folder of some")
        if any((path / name).exists() for name in _OF_A_RUN):
            found.setdefault(path, None)
            continue
        runs = sorted(child for child in path.iterdir() if all((child / name).is_file() for name in _OF_A_RUN))
        if not runs:
            message = "holds no run: name a run directory, which has a manifest.json, or a folder of some"
            raise ConfigError.at(_KEY, f"{str(path)!r} {message}")
        comparison = _comparison(path)
        labels = {run.run_dir: run.algorithm for run in (*comparison.runs, *comparison.stopped)}
        found |= {run: labels.get(run.name, _arm(run.name)) for run in runs if run not in found}
    return list(found.items())


def _arm(name: str) -> str | None:
    """The method or arm by which a comparison, tuning or entry names a folder."""
    named = re.fullmatch(r"(.+)-seed-\d+(-\d+|-[0-9a-f]{8})?", name)
    return None if named is None else named[1]


class _Run(_Shape):
    algorithm: str
    seed: int
    run_dir: str
    reason: str = ""


class _Comparison(_Shape):
    runs: list[_Run]
    stopped: list[_Run] = []


def _comparison(folder: Path) -> _Comparison:
    """A comparison's runs and those that stopped; none where it is not written yet."""
    content = _optional(folder, "comparison.json", _Comparison)
    return _Comparison(runs=[]) if content is None else _Comparison.model_validate(content)


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
    for name in _OF_A_RUN:
        if not (path / name).is_file():
            message = f"{str(path)!r} is not a run directory: it has no {name}; name the folder of a run"
            raise ConfigError.at(_KEY, message)
    config = RunDirectory(path).config()
    summary = _optional(path, "summary.json", _Summary)
    before, measures = (
        (summary["before"], summary["measures"].get("before", {})) if summary is not None else _first_scores(path)
    )
    records = list(rounds(path))
    recorded = Recorded(
        name=path.resolve().name,
        label=label,
        config=config.model_dump(mode="json", exclude=None if config.has_factors else {"adapter"}),
        travels=trained(config),
        higher_is_better=True,
        manifest=_checked(path, "manifest.json", (path / "manifest.json").read_bytes(), None),
        partition=_optional(path, "partition.json", _Partition) or {},
        summary=summary,
        before=before,
        measures_before=measures,
        rounds=list(_lean(records)),
        sites=_optional(path, "sites.json", None) or {},
    )
    kind, primary = tasks.TABLE.get(config.task.kind), recorded.primary or ""
    # A task of one's own is not imported for a page: the run directory may be anybody's.
    higher = kind.metrics.get(primary, False) if kind is not None else primary != "loss"
    return replace(recorded, higher_is_better=higher)


def rounds(path: Path) -> Iterator[dict[str, Any]]:
    """The rounds in ``metrics.jsonl``, none where it is not there yet. A last line without its end is being written,
    and is left out. Raises :class:`ConfigError` for any other line that is no record."""
    file = path / "metrics.jsonl"
    try:
        content = file.read_bytes() if file.is_file() else b""
    except OSError as error:
        raise _damaged(path, file.name, str(error.strerror)) from None
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        record = _checked(path, f"{file.name}, line {number}", line, _Round)
        if record["round"] != number - 1:
            raise _damaged(path, f"{file.name}, line {number}", f"it is of round {record['round']}")
        yield record


def claims(paths: Sequence[Path]) -> list[Claim]:
    """The claims that ``rondo reproduce`` has decided by the runs at ``paths``: each entry's page beside its folder."""
    decided: list[Claim] = []
    for folder in dict.fromkeys(path.resolve().parent for path in paths):
        facts = folder.parent / "pages" / "facts" / f"{folder.name}.json"
        if facts.is_file():
            content = _checked(facts.parent, facts.name, facts.read_bytes(), _Facts)
            source = f"{content['paper']}, {content['item']}"
            for claim in map(_Claim.model_validate, content["claims"]):
                numbers = (claim.paper, claim.here, claim.seeds, claim.verdict, claim.equal_bytes_per_client)
                decided.append(Claim(folder.name, source, claim.claim, *numbers))
    return decided


def _lean(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records, of which only the last that has scores per client keeps them."""
    last = max((i for i, r in enumerate(records) if any("per_client" in s for s in r["scores"].values())), default=-1)
    for i, record in enumerate(records):
        kept = {k: {m: v for m, v in s.items() if m != "per_client"} for k, s in record["scores"].items()}
        yield record if i == last else {**record, "scores": kept}


def _first_scores(path: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Scores and measures before the first round, of a run that is not finished: its newest checkpoint has them."""
    manifests = sorted(path.glob("checkpoint/round-*/manifest.json"))
    try:
        scores = json.loads(manifests[-1].read_text(encoding="utf-8"))["content"]["scores"]
        return dict(scores["before"]), dict(scores["measures"]["before"])
    except (IndexError, OSError, ValueError, KeyError, TypeError):  # not written yet, or just replaced
        return {}, {}


def _optional(path: Path, name: str, shape: type[_Shape] | None) -> dict[str, Any] | None:
    """A JSON file of a run, None if it is not there."""
    if not (path / name).is_file():
        return None
    try:
        return _checked(path, name, (path / name).read_bytes(), shape)
    except OSError as error:
        raise _damaged(path, name, str(error.strerror)) from None


def _checked(path: Path, name: str, content: bytes, shape: type[_Shape] | None) -> dict[str, Any]:
    """JSON of ``shape``. Raises :class:`ConfigError`."""
    try:
        tree = json.loads(content)
        if not isinstance(tree, dict):
            raise ValueError("it is no table")
        if shape is not None:
            shape.model_validate(tree)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _damaged(path, name, f"{place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, name, str(error)) from None
    return tree


def _damaged(path: Path, name: str, reason: str) -> ConfigError:
    message = f"{str(path)!r}: {name} is not as a run writes it ({reason}): bring it back, or leave this run out"
    return ConfigError.at(_KEY, message)
