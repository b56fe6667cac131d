"""Rondo: federated low-rank fine-tuning. Importing the package imports no torch; names load when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rondo.importing import collector_paused

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rondo.api import RunInterrupted, RunResult, RunStopped, resume, run
    from rondo.comparison import Comparison, compare
    from rondo.config import ConfigError, RunConfig

_HOMES = {
    "run": "rondo.api",
    "resume": "rondo.api",
    "RunResult": "rondo.api",
    "RunStopped": "rondo.api",
    "RunInterrupted": "rondo.api",
    "compare": "rondo.comparison",
    "Comparison": "rondo.comparison",
    "RunConfig": "rondo.config",
    "ConfigError": "rondo.config",
}

__all__ = [
    "Comparison",
    "ConfigError",
    "RunConfig",
    "RunInterrupted",
    "RunResult",
    "RunStopped",
    "__version__",
    "compare",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(_load(_HOMES[name]), name)
    if name in ("api", "algorithms", "testing", "lowrank", "algorithm", "params"):
        return _load(f"rondo.{name}")
    raise AttributeError(f"module 'rondo' has no attribute {name!r}")


def _load(module: str) -> Any:
    with collector_paused():
        return importlib.import_module(module)
