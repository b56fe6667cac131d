"""The keys of ``[compression]``. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rondo.config.section import Section


class CompressionConfig(Section):
    """Uploads of fewer bytes. What clients receive is not compressed."""

    kind: Literal["none", "rounding", "top-k"] = "none"
    """``"rounding"`` sends each number of a client's change in ``bits`` bits, rounded up or down by chance so that the
    mean stays; ``"top-k"`` sends the largest numbers of each tensor's change, and the client adds the rest to its next
    upload (error feedback). ``rondo list --compat`` says which methods take them."""
    bits: Literal[4, 8] | None = None
    """Bits of a number, with ``"rounding"``; left out, 8. Every 256 numbers have a scale of 4 bytes beside."""
    keep: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of each tensor's numbers that is sent, with ``"top-k"``; left out, 0.1. Each has its place of 2 bytes
    beside, or of 4 in a tensor of more than 32,768 numbers."""
