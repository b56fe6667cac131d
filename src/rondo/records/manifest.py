"""The manifest of a run: the environment it ran in, and the comparison that a resumption must pass."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem

_NOT_THE_RUN = ("started", "platform")
"""Keys of the manifest that do not affect the run."""


RESUME_ANYWAY = Problem(
    "--allow-nondeterministic",
    "set it to resume anyway; the result will not equal, bit for bit, that of an uninterrupted run",
)

KEEP_PRIVACY = Problem(
    "privacy",
    "no flag permits this, since what the run has published was protected as it was; bring back what the run had, or "
    "start another run",
)
"""The remedy where ``[privacy]`` differs, whatever else does."""

OPEN_ANYWAY = Problem(
    "--allow-changed", "bring back what the run had, or set this to go on; the result is then not the run's"
)

_PRIVACY = "config.privacy."

_MEANINGS = {
    "examples_sha256": "the rows, or what tokenizer and chat template make of them, are not the run's",
    "test_examples_sha256": "the test rows, or what tokenizer and chat template make of them, are not the run's",
    "clients_sha256": "rows went to other clients, or are of other persons",
    "today": "the chat template gives other text today",
}
"""Keys whose values tell a user nothing, with the cause of a difference."""


def recorded(config: RunConfig) -> dict[str, Any]:
    """The configuration in a manifest: without the keys on which no bit depends, which say where clients train, and
    which trackers follow."""
    return config.model_dump(mode="json", exclude={"simulation": {"engine", "workers"}, "track": True})


def must_equal(
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    whatever: bool,
    remedy: Problem = RESUME_ANYWAY,
    source: str = "rondo resume",
) -> None:
    """Compare the manifest of a run at its start with the one at its resumption, or a part of it when the run is opened
    again.

    Whole keys that only ``then`` has are not compared. Keys that ``then`` lacks, because another version wrote it,
    count as null, those of the configuration as their defaults. Raises :class:`ConfigError` with every difference by
    key path, and ``remedy``, unless ``whatever``. A difference in ``[privacy]`` is refused in any case.
    """
    differences = []
    for key in now.keys() - set(_NOT_THE_RUN):
        before, after = _flat(key, then.get(key)), _flat(key, now[key])
        if key == "config":
            whole = isinstance(then.get(key), Mapping)
            defaults = {p: v for p, v in _flat(key, recorded(RunConfig())).items() if p in after}
            before = {p: v for p, v in defaults.items() if whole or p.startswith(_PRIVACY)} | before
        for path in before.keys() | after.keys():
            was, is_ = before.get(path), after.get(path)
            if path.endswith(".reason") and was and is_:
                continue  # both say no; another version may word it otherwise
            if was != is_:
                shown = [json.dumps(value, ensure_ascii=False) for value in (was, is_)]
                cause = _MEANINGS.get(path.rpartition(".")[2])
                message = f"was {shown[0]}, is {shown[1]}" + (f": {cause}" if cause else "")
                differences.append(Problem(path, message))
    if any(problem.path.startswith(_PRIVACY) for problem in differences):
        whatever, remedy = False, KEEP_PRIVACY
    if differences and not whatever:
        raise ConfigError([*sorted(differences, key=lambda p: p.path), remedy], source)


def rows_of(partition: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``partition.json`` that show whether the data are still the same and still whose they were."""
    return {key: partition.get(key) for key in ("rows", "examples_sha256", "clients_sha256")} | tests_of(partition)


def tests_of(partition: Mapping[str, Any]) -> dict[str, Any]:
    """The entries about test sets, which the server of a federation has itself."""
    more = {name: test["examples_sha256"] for name, test in partition.get("more_tests", {}).items()}
    return {key: partition.get(key) for key in ("test_rows", "test_examples_sha256")} | {"more_tests": more}


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


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name if the system tells it, else its architecture."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
