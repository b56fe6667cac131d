"""TODO"""

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
