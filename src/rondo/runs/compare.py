"""Compare several algorithms on the same data, split, seeds and rounds. Imports no torch until a run starts.

::

    DIR/ALGORITHM-seed-N/    an ordinary run directory per algorithm and seed
    DIR/comparison.json      every run's numbers with its seed, and means and standard deviations over seeds
    DIR/comparison.png       score over rounds and over megabytes
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rondo import algorithms as table
from rondo.config.load import listed, load, located
from rondo.config.schema import RunConfig
from rondo.data.demo import STARTER
from rondo.errors import ConfigError, Problem
from rondo.report.html import html_table
from rondo.report.over_seeds import OWN_KINDS, TEST_KINDS, mean_and_deviation, over_seeds, score_of
from rondo.report.terminal import comparison_columns, comparison_rows, comparison_title
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory, to_toml

if TYPE_CHECKING:
    from rondo.engine.transport import Observer

ConfigSource: TypeAlias = str | PathLike[str] | Mapping[str, Any] | RunConfig


_MAY_DIFFER = ("algorithm", "adapter", "train", "server")
"""Sections that ``NAME.SECTION.KEY=VALUE`` may set for one algorithm. The others are equal for all runs, which makes
them comparable."""


@dataclass(frozen=True)
class Planned:
    """One run of a comparison. Unless it is new, ``run_dir`` already holds it, with an equal configuration."""

    config: RunConfig
    run_dir: Path
    state: Literal["new", "unfinished", "finished"]

    def __str__(self) -> str:
        return f"{self.config.algorithm.name}, seed {self.config.seed}"


Watch: TypeAlias = Callable[[Planned], "AbstractContextManager[Observer | None]"]
"""Entered around every run, finished ones included, to show progress. The observer that it yields observes the run."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison, which a notebook shows as a table; all but ``out`` is also in ``comparison.json``.

    ``algorithms``: per name, means and standard deviations over seeds.
    ``runs``: one dict per run.
    ``stopped``: runs that could not finish, with the reason.
    """

    out: Path
    primary: str
    title: str
    """The name of ``primary`` in tables, which says the class whose F1 it is."""
    rounds: int
    clients: int
    seeds: list[int]
    algorithms: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]
    stopped: list[dict[str, Any]]

    def _repr_html_(self) -> str:
        content = asdict(self)
        title = (comparison_title(content), str(self.out))
        return html_table(title, comparison_columns(content), comparison_rows(content))


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

    ``algorithms``: names of the table, or ``package.module:Class``.
    ``config``: as for :func:`rondo.run`, by default the demo's. Its algorithm is replaced, and so is its seed if
    ``seeds`` are given.
    ``sets``: ``key.path=value`` for all algorithms, or ``NAME.key.path=value`` for one.
    ``out``: by default ``runs/compare-<time>``. Runs that it already holds with an equal configuration are not
    repeated; an interrupted one is resumed.

    Every algorithm gets the same hyperparameters, tuned for none: a score says how a method does at these settings.
    Each keeps its own head policy unless ``model.head`` is set, so some train fewer tensors. Seconds are measured on
    this machine, under its load at the time. For personal methods the test score belongs to the cold-start model, not
    to the personal ones.

    Raises :class:`ConfigError` for input that the user must fix, before a model is loaded where possible. A run that
    stops, for instance because it diverges, is listed in ``stopped``, and the others go on. Raises :class:`RunStopped`
    where the comparison itself cannot be written.
    """
    return carry_out(plan(algorithms, config, sets=sets, seeds=seeds), out, device=device)


def plan(
    names: Sequence[str], config: ConfigSource | None = None, *, sets: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[RunConfig]:
    """The configuration of every run, algorithm by algorithm. Raises :class:`ConfigError` with every fault found."""
    source = STARTER if config is None else config
    names, sets = listed(names, "algorithms"), listed(sets, "sets")
    problems = [*_name_problems(names), *_seed_problems(seeds), *_set_problems(names, sets, seeds)]
    shared = [text for text in sets if not any(text.startswith(f"{name}.") for name in names)]
    configs = []
    for name in names:
        own_sets = [text.removeprefix(f"{name}.") for text in sets if text.startswith(f"{name}.")]
        try:
            configs.append(load(source, [*shared, *own_sets, f"algorithm.name={name}"]))
        except ConfigError as error:
            keys = {text.partition("=")[0].strip() for text in own_sets}
            problems += [_told(p, p.path in keys) for p in error.problems if p.path != "algorithm.name"]
    if problems:
        # Each algorithm reports the faults that concern all, so drop duplicates.
        raise ConfigError(list(dict.fromkeys(problems)), "rondo compare")
    return [c.model_copy(update={"seed": seed}) for c in configs for seed in seeds or (c.seed,)]


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
                message = (
                    f"{section!r} is the same for all in a comparison; for one algorithm alone there are: {allowed}"
                )
                yield Problem(f"--set {text}", message)


def _told(problem: Problem, set_for_one: bool) -> Problem:
    """``problem``; if it lies in the algorithm fields set for all, with a hint how to set one for one algorithm."""
    if set_for_one or not problem.path.startswith("algorithm."):
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
    """Run ``configs``, except runs that ``out`` holds finished, and write the comparison. Raises as :func:`compare`
    does, and :class:`rondo.RunInterrupted` once ``stop`` is set."""
    from rondo import errors
    from rondo.runs import runner
    from rondo.runs.assemble import find_device

    _check_classes(configs)
    find_device(device)
    folder = _folder(out)
    runs, stopped = [], []
    partitions: dict[int, tuple[str, Any]] = {}
    settled = _Settled()
    for planned in [_planned(folder, config, settled) for config in configs]:
        with watch(planned) if watch is not None else nullcontext() as observer:
            try:
                if planned.state == "new":
                    runner.run(planned.config, run_dir=planned.run_dir, device=device, observer=observer, stop=stop)
                elif planned.state == "unfinished":
                    # The user has named the code again, in the same configuration.
                    runner.resume(planned.run_dir, device=device, allow_code=True, observer=observer, stop=stop)
            except errors.RunStopped as error:
                identity = {"algorithm": planned.config.algorithm.name, "seed": planned.config.seed}
                stopped.append({**identity, "run_dir": planned.run_dir.name, "reason": str(error)})
                continue
        gc.collect()  # hooks keep a model in a cycle; free it before the next one is loaded
        directory = RunDirectory(planned.run_dir)
        _check_dealt(partitions, planned, directory.read("partition.json"))
        runs.append(_numbers(planned, directory))
    return _written(folder, configs, runs, stopped)


def _check_classes(configs: Sequence[RunConfig]) -> None:
    """Make every algorithm once, so that a bad one is refused now, not after hours of the others."""
    from rondo.runs.wrapping import make_algorithm

    problems = []
    for config in configs:
        try:
            make_algorithm(config)
        except ConfigError as error:
            name = config.algorithm.name
            messages = [p.message if name in p.message else f"{name}: {p.message}" for p in error.problems]
            problems += [Problem(p.path, message) for p, message in zip(error.problems, messages, strict=True)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), "rondo compare")


def _folder(out: str | Path | None) -> Path:
    folder = Path(out) if out is not None else Path("runs", f"compare-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        durable.make_folder(folder)
    except OSError as error:
        message = f"{str(folder)!r} cannot be made: {error.strerror}; name another folder"
        raise ConfigError.at("--out", message, "rondo compare") from None
    return folder


class _Settled:
    """Configurations with the keys that the data settle (columns, shapes, the kind of partition). The data are loaded
    once per seed, since they are the same for all algorithms."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, Any]] = {}

    def __call__(self, config: RunConfig) -> RunConfig:
        from rondo.data.client_rows import resolved
        from rondo.data.sources import load as load_source

        if config.seed not in self._known:
            settled = resolved(config, load_source(config))
            self._known[config.seed] = {"task": settled.task, "partition": settled.partition}
        return config.model_copy(update=self._known[config.seed])


def _planned(folder: Path, config: RunConfig, settled: _Settled) -> Planned:
    """The folder of a run, and its state. Nothing is ever deleted: if another configuration has the name, the run
    takes the next free one."""
    stem = folder / f"{config.algorithm.name.replace(':', '.')}-seed-{config.seed}"
    path, count = stem, 1
    while path.exists():
        if _holds(path, config, settled):
            return Planned(config, path, "finished" if RunDirectory(path).finished else "unfinished")
        path, count = stem.with_name(f"{stem.name}-{count}"), count + 1
    return Planned(config, path, "new")


def _holds(path: Path, config: RunConfig, settled: _Settled) -> bool:
    """Whether ``path`` holds a run of ``config``. Options that the user left open are in ``config.toml`` as the data
    and the day settled them, so ``config`` is also compared after the data settled it, and to a run of any day."""
    try:
        there = RunDirectory.open(path).config()
    except ConfigError:
        return False
    if config.task.today is None:
        there = there.model_copy(update={"task": there.task.model_copy(update={"today": None})})
    ran, config = to_toml(there), located(config)
    return ran == to_toml(config) or ran == to_toml(settled(config))


def _check_dealt(partitions: dict[int, tuple[str, Any]], planned: Planned, partition: Any) -> None:
    """Raise :class:`ConfigError` unless all runs of a seed dealt the same clients as many rows of the same labels."""
    name, first_partition = partitions.setdefault(planned.config.seed, (planned.run_dir.name, partition))
    if partition != first_partition:
        message = (
            f"{planned.run_dir.name} has another partition than {name}: the data changed between; name a new folder"
        )
        raise ConfigError.at("--out", message, "rondo compare")


def _numbers(planned: Planned, directory: RunDirectory) -> dict[str, Any]:
    """The numbers of a finished run, read from its directory. Bytes are summed over all clients and rounds."""
    summary, rounds = directory.read("summary.json"), directory.rounds()
    primary, traffic = summary["primary"], summary["bytes"]
    test, own_rows = (score_of(summary["after"], kinds, primary) for kinds in (TEST_KINDS, OWN_KINDS))
    kinds = TEST_KINDS if test is not None else OWN_KINDS
    curve, total_bytes = [(0, 0, score_of(summary["before"], kinds, primary))], 0
    for record in rounds:
        total_bytes += record["bytes_up"] + record["bytes_down"]
        curve.append((record["round"] + 1, total_bytes, score_of(record["scores"], kinds, primary)))
    interference = [(r.get("diagnostics") or {}).get("interference") for r in rounds]
    return {
        "algorithm": planned.config.algorithm.name,
        "seed": planned.config.seed,
        "run_dir": planned.run_dir.name,
        "clients": summary["clients"],
        "primary": primary,
        "title": summary["titles"].get(primary, primary),
        "head": summary["head"],
        "test": test,
        "own_rows": own_rows,
        "bytes_up": traffic["up"],
        "bytes_down": traffic["down"],
        "bytes_first_contact": traffic["first_contact"],
        "train_seconds": summary["seconds"]["train"],
        "seconds": summary["seconds"]["all"],
        "interference": mean_and_deviation(interference)["mean"],
        "curve": [{"round": r, "bytes": b, "score": s["score"]} for r, b, s in curve if s is not None],
    }


def _written(
    folder: Path, configs: Sequence[RunConfig], runs: list[dict[str, Any]], stopped: list[dict[str, Any]]
) -> Comparison:
    names = list(dict.fromkeys(c.algorithm.name for c in configs))
    runs_by_name = {name: [r for r in runs if r["algorithm"] == name] for name in names}
    runs_by_name = {name: own_runs for name, own_runs in runs_by_name.items() if own_runs}
    comparison = Comparison(
        folder,
        primary=runs[0]["primary"] if runs else "",
        title=runs[0]["title"] if runs else "",
        rounds=configs[0].rounds,
        clients=runs[0]["clients"] if runs else 0,
        seeds=list(dict.fromkeys(c.seed for c in configs)),
        algorithms={name: over_seeds(own_runs) for name, own_runs in runs_by_name.items()},
        runs=runs,
        stopped=stopped,
    )
    content = {key: value for key, value in vars(comparison).items() if key != "out"}
    files = {"comparison.json": (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()}
    if runs:
        from rondo.report import pictures

        files["comparison.png"] = pictures.comparison(content)
    with durable.written(folder):
        durable.write_all(folder, files)
    return comparison
