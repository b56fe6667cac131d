"""Checks of ``[compression]``, and of the options that it excludes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from rondo.config.schema import RunConfig
from rondo.errors import Problem


def compression_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults of ``[compression]``."""
    compression = config.compression
    for key, kind in (("bits", "rounding"), ("keep", "top-k")):
        if getattr(compression, key) is not None and compression.kind != kind:
            yield Problem(f"compression.{key}", f"only kind = {kind!r} uses it: set that, or remove it")
    if compression.kind == "none":
        return
    if config.admission.clip:
        message = "a packed upload has no numbers that could be scaled: remove it, and larger uploads are turned away"
        yield Problem("admission.clip", message)
    if config.privacy.secure_aggregation:
        message = "masked numbers are those of one ring for all clients, and each packed upload has its own scale"
        yield Problem("compression.kind", f'{message}: set it to "none", or remove privacy.secure_aggregation')
