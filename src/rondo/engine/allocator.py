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
    give_back()  # what loading the model and the data has left
    # Tensors of a step are smaller than the first, all of a step's together than the second. More of any costs memory.
    _glibc("mallopt", _MMAP_THRESHOLD, 16 * 2**20)
    _glibc("mallopt", _TRIM_THRESHOLD, 96 * 2**20)
    _glibc("mallopt", _TOP_PAD, 4 * 2**20)
    try:
        yield
    finally:
        give_back()


def give_back() -> None:
    """Give what is not in use back to the system, for work that will take memory elsewhere: each thread has a heap of
    its own. Does nothing where there is no glibc."""
    _glibc("malloc_trim", 0)


def _glibc(name: str, *numbers: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), name)(*numbers)
