"""A look at the machine before a run: versions, cores, memory, disk, GPU, hub. Nothing is trained or written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from rondo.doctor.finding import Finding

__all__ = ["Finding", "look"]

CHECKS = (
    "packages.python",
    "packages.required",
    "packages.extras",
    "machine.threads",
    "machine.accelerator",
    "machine.memory",
    "machine.disk",
    "hub.hub",
)
"""Functions that yield findings. Each is imported when its turn comes: a package that is missing fails one of them."""


def look() -> Iterator[Finding]:
    """Look at everything. A check that fails itself is a fault, and the others go on."""
    for check in CHECKS:
        module, _, function = check.partition(".")
        try:
            yield from getattr(importlib.import_module(f"rondo.doctor.{module}"), function)()
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            remedy = f"pip install {missing.partition('.')[0]}" if missing else ""
            yield Finding(function, "fault", f"could not be looked at ({type(error).__name__})", remedy)
