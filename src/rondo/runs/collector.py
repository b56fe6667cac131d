"""Faster imports of large libraries. Imports nothing else of Rondo."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OWN = 10_000
"""Python 3.12 freezes some hundreds of its own objects. More frozen objects than this were frozen by the program; do
not unfreeze them."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector. It would look through the hundreds of thousands of objects of torch, transformers
    and peft again and again, which takes a seventh of their import time."""
    collecting, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if len(sys.modules) > modules and gc.get_freeze_count() < _OWN:
                # Imported objects stay: move them to the old generation at once. If nothing was imported, new objects
                # may soon be garbage: leave them young.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
