"""Importing large libraries in less time. Imports nothing else of Rondo."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Inside, the garbage collector rests: it would look through the hundreds of thousands of objects of torch,
    transformers and peft again and again, for a seventh of the time that importing them takes."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if gc.get_freeze_count() == 0:
                # What was made here stays: it joins the old objects at once, not after being looked through twice.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
