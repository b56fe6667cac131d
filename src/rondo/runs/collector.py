"""Importing large libraries in less time. Imports nothing else of Rondo."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OWN = 10_000
"""Python 3.12 sets some hundreds of its own objects aside. More were by the program, which are left alone."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Inside, the garbage collector rests: it would look through the hundreds of thousands of objects of torch,
    transformers and peft again and again, for a seventh of the time that importing them takes."""
    collecting, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if len(sys.modules) > modules and gc.get_freeze_count() < _OWN:
                # What was imported stays: it joins the old objects at once, not after being looked through twice. Where
                # nothing was, what was made may be garbage soon, and should count as new.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
