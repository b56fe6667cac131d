"""Everything that is looked at, in the order in which it is told."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor

from rondo.doctor.finding import Finding

CHECKS = (
    "versions.python",
    "versions.packages",
    "computing.computing",
    "surroundings.memory",
    "surroundings.disk",
    "surroundings.encoding",
    "hub.hub",
)
"""Functions that yield findings. Each is imported when its turn comes: a package that is missing fails one of them."""

_WAITS = "hub.hub"
"""The check that waits for the network, while the others import torch."""


def look() -> list[Finding]:
    """Look at everything. A check that fails itself is a fault, and the others go on."""
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(tried, _WAITS)
        return [finding for check in CHECKS for finding in (asked.result() if check == _WAITS else tried(check))]


def tried(check: str) -> list[Finding]:
    """The findings of a check, of which the last is its own failure."""
    found: list[Finding] = []
    module, _, function = check.partition(".")
    try:
        found.extend(getattr(importlib.import_module(f"rondo.doctor.{module}"), function)())
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        remedy = f"pip install {absent}" if absent else ""
        found.append(Finding(function, "fault", f"could not be looked at ({type(error).__name__})", remedy, str(error)))
    return found
