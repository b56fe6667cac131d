"""Where rows come from and how they are dealt to clients."""

from __future__ import annotations

from rondo.data.loading import Source, load
from rondo.data.partition import Deal, deal

__all__ = ["Deal", "Source", "deal", "load"]
