"""The hub of models and data: asked once, with little patience."""

from __future__ import annotations

from collections.abc import Iterator

from rondo.doctor.finding import Finding

_SECONDS = 1.5


def hub() -> Iterator[Finding]:
    """Whether the hub answers."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        yield Finding("hub", "ok", "HF_HUB_OFFLINE is set, so it is not asked")
        return
    where = "the hub" if constants.ENDPOINT == "https://huggingface.co" else "the hub that HF_ENDPOINT names"
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS)
    except Exception as error:  # of the HTTP library, which differs between versions
        remedy = "models and data come from folders and the cache: set HF_HUB_OFFLINE=1"
        yield Finding("hub", "note", f"{where} does not answer ({type(error).__name__})", remedy)
    else:
        yield Finding("hub", "ok", f"{where} answers")
