"""The manifest of a run: the environment it ran in, and the comparison that a resumption must pass."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rondo.errors import ConfigError, Problem

_NOT_THE_RUN = ("started", "platform")
"""Keys of the manifest that do not affect the run."""


def must_equal(then: Mapping[str, Any], now: Mapping[str, Any], *, whatever: bool) -> None:
    """Compare the manifest of a run at its start with the one at its resumption.

    Keys that only ``then`` has are not compared. Keys that ``then`` lacks, because another version wrote it, count as
    null. Raises :class:`ConfigError` with every difference by key path, unless ``whatever``.
    """
    differences = []
    for key in now.keys() - set(_NOT_THE_RUN):
        before, after = _flat(key, then.get(key)), _flat(key, now[key])
        for path in after:
            if path.endswith(".reason") and before.get(path) and after[path]:
                continue  # both say no; another version may word it otherwise
            if before.get(path) != after[path]:
                was, is_ = (json.dumps(value, ensure_ascii=False) for value in (before.get(path), after[path]))
                differences.append(Problem(path, f"was {was}, is {is_}"))
    if differences and not whatever:
        message = "set it to resume anyway; the result will not equal, bit for bit, that of an uninterrupted run"
        problems = [*sorted(differences, key=lambda p: p.path), Problem("--allow-nondeterministic", message)]
        raise ConfigError(problems, "rondo resume")


def _flat(path: str, value: Any) -> dict[str, Any]:
    """The leaves of nested mappings by key path."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {p: v for key, inner in value.items() for p, v in _flat(f"{path}.{key}", inner).items()}


def environment() -> dict[str, Any]:
    """Versions, machine and the current time, for the manifest."""
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
    """The processor's name if the system tells it, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
