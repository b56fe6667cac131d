"""The hub of models and data: asked once, with little patience, while torch is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from rondo.doctor.finding import Finding
from rondo.doctor.surroundings import hub_cache

_SECONDS = 1.5
_SKEW = 60
"""Seconds that a clock may be wrong before certificates and signed requests of a federation are in doubt."""


def hub() -> Iterator[Finding]:
    """Whether the hub answers, what its cache has, and whether its clock is ours."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    cached = _cached(hub_cache())
    count = f"{len(cached)} models and data sets in its cache"
    names = ", ".join(cached)
    if constants.HF_HUB_OFFLINE:
        yield Finding("hub", "ok", f"HF_HUB_OFFLINE is set, so it is not asked; {count}", own=names)
        return
    where = "the hub" if constants.ENDPOINT == "https://huggingface.co" else "the hub that HF_ENDPOINT names"
    try:
        date = get_session().head(constants.ENDPOINT, timeout=_SECONDS).headers.get("date")
    except Exception as error:  # of the HTTP library, which differs between versions
        reason = f"{constants.ENDPOINT}: {str(error).strip() or type(error).__name__}"
        text = f"{where} does not answer ({type(error).__name__}); {count}"
        remedy = "models and data come from folders and the cache: set HF_HUB_OFFLINE=1"
        yield Finding("hub", "note", text, remedy, "; ".join(filter(None, (reason, names))))
        return
    yield Finding("hub", "ok", f"{where} answers; {count}", own="; ".join(filter(None, (constants.ENDPOINT, names))))
    if date is not None:
        yield from _clock(date)


def _clock(date: str) -> Iterator[Finding]:
    """This machine's clock beside the hub's."""
    try:
        off = (datetime.now(UTC) - parsedate_to_datetime(date).astimezone(UTC)).total_seconds()
    except (TypeError, ValueError):
        return
    if abs(off) <= _SKEW:
        yield Finding("clock", "ok", "that of the hub, to a minute")
    else:
        text = f"{abs(off):.0f} s {'before' if off > 0 else 'behind'} the hub's"
        yield Finding("clock", "note", text, "set the clock: keys and certificates of a federation go by it")


def _cached(cache: Path) -> list[str]:
    """The names of what the cache has."""
    kinds = ("models--", "datasets--")
    try:
        return sorted(n.split("--", 1)[1].replace("--", "/") for n in os.listdir(cache) if n.startswith(kinds))
    except OSError:
        return []
