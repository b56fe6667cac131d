"""Several algorithms on the same data, split, seeds and rounds. Imports no torch until something is run.

::

    DIR/ALGORITHM-seed-N/    an ordinary run directory for every algorithm and seed
    DIR/comparison.json      every run's numbers with its seed, and mean and standard deviation over the seeds
    DIR/comparison.png       score over rounds and over megabytes
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rondo import algorithms as table
from rondo.config.load import STARTER, load
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.report.over_seeds import _OWN, _TEST, _over, _over_seeds, _score
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory, to_toml

if TYPE_CHECKING:
    from rondo.data.sources import Source
    from rondo.engine.transport import Observer

ConfigSource: TypeAlias = str | PathLike[str] | Mapping[str, Any] | RunConfig


_MAY_DIFFER = ("algorithm", "adapter", "train", "server")
"""Sections that ``NAME.SECTION.KEY=VALUE`` may set for one algorithm: all else is what makes runs comparable."""


@dataclass(frozen=True)
class Planned:
    """One run of a comparison. Where it is not new, ``run_dir`` already holds it, with an equal configuration."""

    config: RunConfig
    run_dir: Path
    state: Literal["new", "unfinished", "finished"]

    def __str__(self) -> str:
        return f"{self.config.algorithm.name}, seed {self.config.seed}"


Watch: TypeAlias = Callable[[Planned], "AbstractContextManager[Observer | None]"]
"""Entered around every run, the finished ones included, for progress: what it gives observes the run."""


@dataclass(frozen=True)
class Comparison:
    """What was compared. ``runs``: one dict a run; ``algorithms``: name to mean and standard deviation over seeds;
    ``stopped``: runs that could not be finished, with the reason. The same as in ``comparison.json``."""

    out: Path
    primary: str
    rounds: int
    clients: int
    seeds: list[int]
    algorithms: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]
    stopped: list[dict[str, Any]]


def compare(
    algorithms: Sequence[str],
    config: ConfigSource | None = None,
    *,
    sets: Sequence[str] = (),
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    device: str = "auto",
) -> Comparison:
    """Run several algorithms on the same data, split, seeds and rounds, one after the other, and compare them.

    ``algorithms``: names of the table or ``package.module:Class``; ``config``: as for :func:`rondo.run`, left out the
    demo's (its algorithm and, where ``seeds`` are given, its seed are replaced); ``sets``: ``key.path=value`` for all,
    or ``NAME.key.path=value`` for one algorithm's own settings; ``out``: left out, ``runs/compare-<time>``. Runs that
    ``out`` already holds, with an equal configuration, are not run again; one that was cut off is resumed.

    Every algorithm gets the same hyperparameters, tuned for none: a score says how a method does at these settings.
    Each keeps its own head policy unless ``model.head`` is set, so some train fewer tensors.
    Seconds are of this machine as it was during each run. For personal methods the score on the test set is of the
    cold-start model, not of the personal ones.

    Raises :class:`ConfigError` for what the user must mend, before a model is loaded where that can be known. A run
    that stops (as one that diverges) is listed in ``stopped``, and the others go on.
    """
    return carry_out(plan(algorithms, config, sets=sets, seeds=seeds), out, device=device)


def plan(
    names: Sequence[str], config: ConfigSource | None = None, *, sets: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[RunConfig]:
    """The configuration of every run, algorithm by algorithm. Raises :class:`ConfigError` with every fault found."""
    source = STARTER if config is None else config
    problems = [*_name_problems(names), *_seed_problems(seeds), *_set_problems(names, sets, seeds)]
    shared = [text for text in sets if not any(text.startswith(f"{name}.") for name in names)]
    found = []
    for name in names:
        own = [text.removeprefix(f"{name}.") for text in sets if text.startswith(f"{name}.")]
        try:
            found.append(load(source, [*shared, *own, f"algorithm.name={name}"]))
        except ConfigError as error:
            keys = {text.partition("=")[0].strip() for text in own}
            problems += [_told(p, p.path in keys) for p in error.problems if p.path != "algorithm.name"]
    if problems:
        # Each algorithm reports what is wrong for all of them.
        raise ConfigError(list(dict.fromkeys(problems)), "rondo compare")
    return [c.model_copy(update={"seed": seed}) for c in found for seed in seeds or (c.seed,)]


def _name_problems(names: Sequence[str]) -> Iterator[Problem]:
    if not names:
        yield Problem("ALGORITHMS", "none is named; name some with commas between, or give --all")
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield Problem("ALGORITHMS", f"{name!r} is named twice")
        if ":" not in name:  # a third party's class is checked when it is imported
            try:
                table.entry(name)
            except table.UnknownAlgorithm as error:
                yield Problem("ALGORITHMS", str(error))


def _seed_problems(seeds: Sequence[int]) -> Iterator[Problem]:
    for seed in dict.fromkeys(seeds):
        if not 0 <= seed < 2**63:
            yield Problem("--seeds", f"{seed} is out of range; seeds are from 0 to 2^63 - 1")
        if seeds.count(seed) > 1:
            yield Problem("--seeds", f"{seed} is named twice")


def _set_problems(names: Sequence[str], sets: Sequence[str], seeds: Sequence[int]) -> Iterator[Problem]:
    for text in sets:
        key = text.partition("=")[0].strip()
        if key == "algorithm.name":
            yield Problem(f"--set {text}", "the algorithms are named by the list; remove it")
        if key == "seed" and seeds:
            yield Problem(f"--set {text}", "the seeds are named by --seeds; remove one of the two")
        for name in names:
            section = key.removeprefix(f"{name}.").partition(".")[0]
            if key.startswith(f"{name}.") and section not in _MAY_DIFFER:
                allowed = ", ".join(f"{name}.{s}.KEY" for s in _MAY_DIFFER)
                words = f"{section!r} is the same for all in a comparison; for one algorithm alone there are: {allowed}"
                yield Problem(f"--set {text}", words)


def _told(problem: Problem, own: bool) -> Problem:
    """A fault in the fields of all algorithms says how one is set for an algorithm of its own."""
    if own or not problem.path.startswith("algorithm."):
        return problem
    return Problem(problem.path, f"{problem.message} (for one algorithm alone: --set NAME.{problem.path}=VALUE)")


def carry_out(
    configs: Sequence[RunConfig],
    out: str | Path | None,
    *,
    device: str = "auto",
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> Comparison:
    """Run what was planned, but for what ``out`` holds finished, and write the comparison. Raises as :func:`compare`
    does, and :class:`rondo.RunInterrupted` once ``stop`` is set."""
    from rondo import errors
    from rondo.runs import runner
    from rondo.runs.assemble import find_device

    _check_classes(configs)
    find_device(device)
    folder = _folder(out)
    runs, stopped = [], []
    dealt: dict[int, tuple[str, Any]] = {}
    columns = _Columns()
    for planned in [_planned(folder, config, columns) for config in configs]:
        with watch(planned) if watch is not None else nullcontext() as observer:
            try:
                if planned.state == "new":
                    runner.run(planned.config, run_dir=planned.run_dir, device=device, observer=observer, stop=stop)
                elif planned.state == "unfinished":
                    runner.resume(planned.run_dir, device=device, observer=observer, stop=stop)
            except errors.RunStopped as error:
                where = {"algorithm": planned.config.algorithm.name, "seed": planned.config.seed}
                stopped.append({**where, "run_dir": planned.run_dir.name, "reason": str(error)})
                continue
        gc.collect()  # a model holds itself by its hooks, and the next one comes
        directory = RunDirectory(planned.run_dir)
        _check_dealt(dealt, planned, directory.read("partition.json"))
        runs.append(_numbers(planned, directory))
    return _written(folder, configs, runs, stopped)


def _check_classes(configs: Sequence[RunConfig]) -> None:
    """Make every algorithm once, so that none is refused after hours of the others."""
    from rondo.runs.wrapping import make_algorithm

    problems = []
    for config in configs:
        try:
            make_algorithm(config)
        except ConfigError as error:
            name = config.algorithm.name
            said = [p.message if name in p.message else f"{name}: {p.message}" for p in error.problems]
            problems += [Problem(p.path, words) for p, words in zip(error.problems, said, strict=True)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), "rondo compare")


def _folder(out: str | Path | None) -> Path:
    folder = Path(out) if out is not None else Path("runs", f"compare-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError.at("--out", f"{str(folder)!r} cannot be made: {error.strerror}") from None
    return folder


class _Columns:
    """What the data say of their columns, without their rows; asked once a seed, all else of the data being shared."""

    def __init__(self) -> None:
        self._known: dict[int, Source] = {}

    def __call__(self, config: RunConfig) -> Source:
        from rondo.data.sources import load as load_source

        if config.seed not in self._known:
            self._known[config.seed] = replace(load_source(config), train=None, clients=None, test=None)
        return self._known[config.seed]


def _planned(folder: Path, config: RunConfig, columns: _Columns) -> Planned:
    """Where a run goes. Nothing is ever deleted: beside a run of another configuration it goes under the next free
    name."""
    stem = folder / f"{config.algorithm.name.replace(':', '.')}-seed-{config.seed}"
    path, count = stem, 1
    while path.exists():
        if _holds(path, config, columns):
            return Planned(config, path, "finished" if RunDirectory(path).finished else "unfinished")
        path, count = stem.with_name(f"{stem.name}-{count}"), count + 1
    return Planned(config, path, "new")


def _holds(path: Path, config: RunConfig, columns: _Columns) -> bool:
    """Whether there is a run of ``config`` in ``path``. What the user left open is in ``config.toml`` as the data
    settled it, so it is asked of the data again."""
    from rondo.data.client_rows import resolved

    try:
        ran = to_toml(RunDirectory.open(path).config())
    except ConfigError:
        return False
    return ran == to_toml(config) or ran == to_toml(resolved(config, columns(config)))


def _check_dealt(dealt: dict[int, tuple[str, Any]], planned: Planned, partition: Any) -> None:
    """All runs of a seed have dealt the same rows: as many, of the same labels, to the same clients."""
    name, first = dealt.setdefault(planned.config.seed, (planned.run_dir.name, partition))
    if partition != first:
        words = f"{planned.run_dir.name} has another partition than {name}: the data changed between; name a new folder"
        raise ConfigError.at("--out", words, "rondo compare")


def _numbers(planned: Planned, directory: RunDirectory) -> dict[str, Any]:
    """What a finished run says, read from its directory. Bytes are over all clients and rounds."""
    summary, rounds = directory.read("summary.json"), directory.rounds()
    primary, traffic = summary["primary"], summary["bytes"]
    test, own = (_score(summary["after"], kinds, primary) for kinds in (_TEST, _OWN))
    kinds = _TEST if test is not None else _OWN
    curve, sent = [(0, 0, _score(summary["before"], kinds, primary))], 0
    for record in rounds:
        sent += record["bytes_up"] + record["bytes_down"]
        curve.append((record["round"] + 1, sent, _score(record["scores"], kinds, primary)))
    interference = [(r.get("diagnostics") or {}).get("interference") for r in rounds]
    return {
        "algorithm": planned.config.algorithm.name,
        "seed": planned.config.seed,
        "run_dir": planned.run_dir.name,
        "clients": summary["clients"],
        "primary": primary,
        "head": summary["head"],
        "test": test,
        "own_rows": own,
        "bytes_up": traffic["up"],
        "bytes_down": traffic["down"],
        "bytes_first_contact": traffic["first_contact"],
        "train_seconds": summary["seconds"]["train"],
        "seconds": summary["seconds"]["all"],
        "interference": _over(interference)["mean"],
        "curve": [{"round": r, "bytes": b, "score": s["score"]} for r, b, s in curve if s is not None],
    }


def _written(
    folder: Path, configs: Sequence[RunConfig], runs: list[dict[str, Any]], stopped: list[dict[str, Any]]
) -> Comparison:
    names = list(dict.fromkeys(c.algorithm.name for c in configs))
    by_name = {name: [r for r in runs if r["algorithm"] == name] for name in names}
    by_name = {name: found for name, found in by_name.items() if found}
    comparison = Comparison(
        folder,
        primary=runs[0]["primary"] if runs else "",
        rounds=configs[0].rounds,
        clients=runs[0]["clients"] if runs else 0,
        seeds=list(dict.fromkeys(c.seed for c in configs)),
        algorithms={name: _over_seeds(found) for name, found in by_name.items()},
        runs=runs,
        stopped=stopped,
    )
    content = {key: value for key, value in vars(comparison).items() if key != "out"}
    durable.write(folder / "comparison.json", (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    if runs:
        from rondo.report import pictures

        pictures.comparison(content, folder / "comparison.png")
    return comparison
