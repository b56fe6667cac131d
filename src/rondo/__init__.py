"""Rondo: federated low-rank fine-tuning. Importing the package imports no torch; names load when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rondo.api import RunResult, run
    from rondo.config import ConfigError, RunConfig

_HOMES = {
    "run": "rondo.api",
    "RunResult": "rondo.api",
    "RunConfig": "rondo.config",
    "ConfigError": "rondo.config",
}

__all__ = ["ConfigError", "RunConfig", "RunResult", "__version__", "run"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("algorithms", "testing", "lowrank", "algorithm", "params"):
        return importlib.import_module(f"rondo.{name}")
    raise AttributeError(f"module 'rondo' has no attribute {name!r}")
