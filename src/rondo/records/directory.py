"""The run directory: its files, and how they are written and read. Imports no torch.

::

    config.toml       the configuration as run
    partition.json    rows and labels of every client; partition.png shows the same
    manifest.json     the configuration, versions, threads, device, model and its hash, labels, head policy
    checkpoint/       the state after each of the last two rounds (:mod:`rondo.runs.storage.checkpoint`)
    metrics.jsonl     one line per round; a line counts once a checkpoint covers it
    adapter/          the result as a PEFT adapter (for personal methods: the cold-start model)
    adapter-best/     the same after the round with the best score
    run.log           one line per round, with the time, and why the run stopped
    privacy.key       the secret of sampling and noise, privacy.jsonl what was spent (differential privacy)
    tracking.json     the id by which trackers know the run
    summary.json      scores before and after, bytes, seconds
    curve.png         the learning curve
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.records import durable, schema
from rondo.records.later import as_before


def _not_made(path: str | Path, reason: str | None, key: str = "--run-dir") -> ConfigError:
    return ConfigError.at(key, f"{str(path)!r} cannot be made: {reason}; name another folder", "rondo")


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run directory, and its small files."""

    path: Path

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def best_adapter(self) -> Path:
        return self.path / "adapter-best"

    @property
    def account(self) -> Path:
        """The privacy spent, with differential privacy."""
        return self.path / "privacy.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @staticmethod
    def create(path: str | Path | None, algorithm: str) -> RunDirectory:
        """A new directory, by default ``runs/<algorithm>-<time>``. Raises :class:`ConfigError` if ``path`` already
        holds a run or cannot be made."""
        if path is None:
            stem = Path("runs", f"{algorithm.rpartition(':')[2]}-{datetime.now():%Y%m%d-%H%M%S}")
            path, count = stem, 1
            while path.exists():
                path, count = stem.with_name(f"{stem.name}-{count}"), count + 1
        RunDirectory.check(path)
        try:
            durable.make_folder(Path(path))
        except OSError as error:
            raise _not_made(path, error.strerror) from None
        return RunDirectory(Path(path))

    @staticmethod
    def check(
        path: str | Path | None, *, key: str = "--run-dir", remedy: str = "name another folder", held: bool = False
    ) -> None:
        """Raise :class:`ConfigError` where :meth:`create` would, with nothing made.

        ``key``: the argument that names the folder.
        ``remedy``: for a folder that holds a run; ``held`` allows that.
        """
        path = Path("runs" if path is None else path)
        # All but the manifest can be left from a partly deleted run, and would pass for the new run's.
        for name in ("manifest.json", "checkpoint", "metrics.jsonl", "summary.json"):
            if not held and (path / name).exists():
                message = f"{str(path)!r} already holds a run, or what is left of one ({name}); {remedy}"
                raise ConfigError.at(key, message, "rondo")
        if (reason := durable.no_folder(path)) is not None:
            raise _not_made(path, reason, key)

    @staticmethod
    def open(path: str | Path) -> RunDirectory:
        """The directory of an existing run. Raises :class:`ConfigError` if ``path`` has no run."""
        directory = RunDirectory(Path(path))
        for name in ("config.toml", "manifest.json"):
            if not (directory.path / name).is_file():
                message = f"{str(path)!r} is not a run directory: it has no {name}; name the folder of a run"
                raise ConfigError.at("RUN_DIR", message)
        for entry in directory.path.rglob("*"):
            if entry.exists() and not (entry.is_file() or entry.is_dir()):  # reading it might never end
                raise ConfigError.at("RUN_DIR", f"{str(entry)!r} is a pipe or a device, not a file: remove it")
        return directory

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "summary.json").is_file()

    def config(self, sets: Sequence[str] = ()) -> RunConfig:
        return load(self.path / "config.toml", sets, check_paths=False)

    def write_config(self, config: RunConfig) -> None:
        durable.write(self.path / "config.toml", to_toml(config).encode())

    def read(self, name: str) -> Any:
        """A JSON file of the directory. Raises :class:`ConfigError` if it is missing, or is not as a run writes it."""
        try:
            return schema.parsed(name, (self.path / name).read_bytes())
        except OSError as error:
            raise ConfigError.at("RUN_DIR", f"{name} cannot be read: {error}") from None
        except ValueError as error:
            raise _unlike(name, error) from None

    def manifest(self) -> dict[str, Any]:
        """``manifest.json``. Raises :class:`ConfigError` if it is missing, broken or no manifest."""
        content = self.read("manifest.json")
        if not isinstance(content, dict):
            raise ConfigError.at("RUN_DIR", "manifest.json is not one that a run has written")
        return content

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        durable.write(self.path / name, schema.text(name, content, indent=2) + b"\n")

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; none where it is not there yet. A last line without its end is being written,
        and is left out. Raises :class:`ConfigError` for any other that is not as a run writes it, and where a finished
        run's summary is of another number of rounds."""
        finished = self.finished  # before the lines are read: a run that ends meanwhile has more
        try:
            content = self.metrics.read_bytes() if self.metrics.is_file() else b""
        except OSError as error:
            raise ConfigError.at("RUN_DIR", f"metrics.jsonl cannot be read: {error}") from None
        records = []
        for number, line in enumerate(content.split(b"\n")[:-1]):
            try:
                records.append(schema.parsed(self.metrics.name, line))
                if records[-1]["round"] != number:
                    raise ValueError(f"it is of round {records[-1]['round']}")
            except ValueError as error:
                raise _unlike(f"metrics.jsonl, line {number + 1}", error) from None
        if finished and self.read("summary.json")["rounds"] != len(records):
            message = f"metrics.jsonl has {len(records)} rounds, which is not what summary.json says"
            raise ConfigError.at("RUN_DIR", message)
        return records


def _unlike(name: str, reason: ValueError) -> ConfigError:
    return ConfigError.at("RUN_DIR", f"{name} is not as a run writes it ({reason})")


@contextmanager
def as_written(
    place: Path, key: str = "--out", remedy: str = "remove it, and what is missing is made anew"
) -> Iterator[None]:
    """Within, what ``place``, a run's folder or a file beside runs, has not as Rondo writes it is told with it and
    ``remedy``, under ``key``."""
    try:
        yield
    except ConfigError as error:
        if error.problems[0].path != "RUN_DIR":
            raise
        why = error.problems[0].message
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        why = f"has something that Rondo does not write ({type(error).__name__}: {error})"
    else:
        return
    raise ConfigError.at(key, f"{str(place)!r}: {why}; {remedy}")


def to_toml(config: RunConfig, *, later: bool = True) -> str:
    """The configuration as TOML. Unset keys (None) are left out, since TOML has no null. ``later``: whether keys that
    came later are there at their default, too (:mod:`rondo.records.later`)."""

    def pruned(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {k: pruned(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}

    absent = None if config.has_factors else {"adapter"}  # the section itself says that factors are trained
    tree = pruned(config.model_dump(exclude=absent))
    return tomli_w.dumps(tree if later else as_before(tree))
