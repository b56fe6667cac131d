"""The run directory: what is written where, and how it is read back. Imports no torch.

::

    config.toml       the configuration as it was run
    partition.json    rows and labels of every client; partition.png, the same as a picture
    manifest.json     the configuration, versions, threads, device, model and its hash, labels, head policy
    checkpoint/       the last two rounds' state (:mod:`rondo.engine.checkpoint`)
    metrics.jsonl     one line a round; those count that a checkpoint knows of
    adapter/          the result as a PEFT adapter (for personal methods: the cold-start model)
    summary.json      before and after, bytes, seconds
    curve.png         the learning curve
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from rondo import durable
from rondo.config import ConfigError, Problem, RunConfig, load


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run directory, and its small files."""

    path: Path

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @staticmethod
    def create(path: str | Path | None, algorithm: str) -> RunDirectory:
        """A new directory, by default ``runs/<algorithm>-<time>``. Raises :class:`ConfigError` where ``path`` already
        holds a run."""
        if path is None:
            stem = Path("runs", f"{algorithm.rpartition(':')[2]}-{datetime.now():%Y%m%d-%H%M%S}")
            path, count = stem, 1
            while path.exists():
                path, count = stem.with_name(f"{stem.name}-{count}"), count + 1
        path = Path(path)
        if (path / "manifest.json").exists():
            raise ConfigError([Problem("--run-dir", f"{str(path)!r} already holds a run; name another folder")])
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            words = f"{str(path)!r} cannot be made: {error.strerror}"
            raise ConfigError([Problem("--run-dir", words)]) from None
        return RunDirectory(path)

    @staticmethod
    def open(path: str | Path) -> RunDirectory:
        """An existing run. Raises :class:`ConfigError` where there is none."""
        directory = RunDirectory(Path(path))
        for name in ("config.toml", "manifest.json"):
            if not (directory.path / name).is_file():
                words = f"{str(path)!r} is not a run directory: it has no {name}"
                raise ConfigError([Problem("RUN_DIR", words)])
        return directory

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").is_file()

    def config(self) -> RunConfig:
        return load(self.path / "config.toml", check_paths=False)

    def write_config(self, config: RunConfig) -> None:
        durable.write(self.path / "config.toml", to_toml(config).encode())

    def read(self, name: str) -> Any:
        """A JSON file of the directory. Raises :class:`ConfigError` where it is missing or broken."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError([Problem("RUN_DIR", f"{name} cannot be read: {error}")]) from None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        durable.write(self.path / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``. Raises :class:`ConfigError` where it is missing or broken."""
        try:
            return [json.loads(line) for line in self.metrics.read_bytes().splitlines()]
        except (OSError, ValueError) as error:
            raise ConfigError([Problem("RUN_DIR", f"metrics.jsonl cannot be read: {error}")]) from None


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML; keys that are unset (None) are left out, as TOML has no null."""

    def pruned(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {k: pruned(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}

    text: str = tomli_w.dumps(pruned(config.model_dump()))
    return text


_NOT_THE_RUN = ("started", "platform")
"""Keys of the manifest that change nothing of a run."""


def must_equal(then: Mapping[str, Any], now: Mapping[str, Any], *, whatever: bool) -> None:
    """Compare two manifests, of a run at its start and of one that is to go on with it. What the second does not know
    is not looked at; what the first does not know, because another version wrote it, counts as null. Raises
    :class:`ConfigError` with every difference by key path, unless ``whatever``."""
    found = []
    for key in now.keys() - set(_NOT_THE_RUN):
        before, after = _flat(key, then.get(key)), _flat(key, now[key])
        for path in after:
            if before.get(path) != after[path]:
                was, is_ = (json.dumps(value, ensure_ascii=False) for value in (before.get(path), after[path]))
                found.append(Problem(path, f"was {was}, is {is_}"))
    if found and not whatever:
        words = "give it to go on all the same; the result will not be, bit for bit, what it would have been"
        told = [*sorted(found, key=lambda p: p.path), Problem("--allow-nondeterministic", words)]
        raise ConfigError(told, "rondo resume")


def _flat(path: str, value: Any) -> dict[str, Any]:
    """The leaves of nested mappings by key path."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {p: v for key, inner in value.items() for p, v in _flat(f"{path}.{key}", inner).items()}


def environment() -> dict[str, Any]:
    """Versions and machine, for the manifest."""
    packages = ("rondo-fl", "torch", "transformers", "peft", "safetensors", "datasets", "flwr-datasets", "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "versions": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """The processor's name where the system tells it, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
