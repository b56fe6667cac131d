"""Memory that a step frees is kept for the next one.

Every step frees and takes again some tens of megabytes. Left to itself, glibc gives them back to the system and takes
them anew, page by page: one to three per cent of the time of a round (docs/log.md).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, freed memory stays with the process; what is not in use goes back at the end. Does nothing where there is
    no glibc. The thresholds stay as they are set here, since they cannot be read."""
    try:
        libc = ctypes.CDLL(None)
        mallopt, trim = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError, TypeError):
        yield
        return
    mallopt(_MMAP_THRESHOLD, 32 * 2**20)  # the most that it takes
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 * 2**20)
    try:
        yield
    finally:
        trim(0)
