"""A look at the machine before a run: versions, cores, memory, disk, hub, extras. Nothing is trained or written."""

from __future__ import annotations

from rondo.doctor.checks import look
from rondo.doctor.finding import Finding

__all__ = ["Finding", "look"]
