"""Models and data by their names on the Hugging Face hub, where it may be out of reach, and pointers of Git LFS."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from rondo.errors import ConfigError, visible

_SECONDS = 5.0
"""The time that the hub has to answer the one question that it is asked."""


@contextmanager
def asked(key: str, name: str, kind: Literal["models", "datasets"]) -> Iterator[None]:
    """Within, ``name``, which ``key`` names, is loaded from the hub or from the local cache.

    The hub is asked once before. If it does not answer, the libraries are kept from asking again, which takes them ten
    tries and a minute, and what the cache has is taken. Raises :class:`ConfigError` where it has nothing.
    """
    from huggingface_hub import constants

    reason = None if constants.HF_HUB_OFFLINE else _unreachable(constants.ENDPOINT)
    cache = Path(constants.HF_HUB_CACHE)
    held = (cache / f"{kind}--{name.replace('/', '--')}").is_dir()
    if reason is not None and held:
        logging.getLogger("rondo").warning("%s", visible(f"{reason}: {name!r} is taken from the cache"))
    with ExitStack() as stack:
        if reason is not None:
            stack.enter_context(patch.object(constants, "HF_HUB_OFFLINE", True))
            library: Any = sys.modules.get("datasets")
            if library is not None:
                stack.enter_context(patch.object(library.config, "HF_HUB_OFFLINE", True))
        try:
            yield
        except ConfigError:
            offline = reason is not None or constants.HF_HUB_OFFLINE
            if not offline or held:
                raise
            why = reason or "HF_HUB_OFFLINE is set, so the hub is not asked"
            message = (
                f"{name!r} is no file or folder here, {why}, and the cache {_short(cache)} does not have it: name a "
                "folder, or fetch it into the cache where there is a network, and set HF_HUB_OFFLINE=1 here"
            )
            raise ConfigError.at(key, message) from None


def _unreachable(endpoint: str) -> str | None:
    """The reason why the hub at ``endpoint`` does not answer; None if it does."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        get_session().head(endpoint, timeout=_SECONDS)
    except Exception as error:  # of the HTTP library, which differs between versions
        return f"the hub {endpoint} does not answer ({str(error).strip() or type(error).__name__})"
    return None


def _short(folder: Path) -> str:
    """``folder`` with the user's own as ``~``."""
    return f"~/{folder.relative_to(Path.home())}" if folder.is_relative_to(Path.home()) else str(folder)


_POINTER_BEGINS = b"version https://git-lfs.github.com/spec/"
POINTER = "is a pointer of Git LFS and not the file itself: run git lfs pull in its repository"
"""The fault of a file that is a pointer of Git LFS: a small text in place of a large file."""
_OF_MODELS = (
    "*.json",
    "*.model",
    "*.txt",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "adapter_model.safetensors",
)
"""Files of a model or an adapter that are read."""


def is_pointer(path: Path) -> bool:
    """Whether the file at ``path`` is a pointer. False for what cannot be read, which its reader reports."""
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER_BEGINS)) == _POINTER_BEGINS
    except OSError:
        return False


def pointer_in(folder: Path) -> Path | None:
    """The first file of a model or an adapter in ``folder`` that is a pointer."""
    files = sorted(file for pattern in _OF_MODELS for file in folder.glob(pattern) if file.is_file())
    return next(filter(is_pointer, files), None)
