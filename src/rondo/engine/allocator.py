"""Memory that a step frees is kept for the next one.

Every step frees and takes again some tens of megabytes. Left to itself, glibc gives them back to the system and takes
them anew, page by page: some per cent of the time of a round (docs/log.md).
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
    trim(0)  # what loading the model and the data has left
    # Tensors of a step are smaller than the first, all of a step's together than the second. More of any costs memory.
    mallopt(_MMAP_THRESHOLD, 16 * 2**20)
    mallopt(_TRIM_THRESHOLD, 96 * 2**20)
    mallopt(_TOP_PAD, 4 * 2**20)
    try:
        yield
    finally:
        trim(0)
