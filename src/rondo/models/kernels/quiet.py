"""Silence for the progress bars and the advice of other libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(*, stderr: bool = False) -> Iterator[None]:
    """Silence the progress bars, advice and announced changes of transformers and peft: Rondo reports problems in its
    own words. torchao and bitsandbytes, where they are installed, are imported with models, and warn of kernels for
    other processors. ``stderr`` silences all that is written there, for a progress bar that no setting turns off."""
    import transformers

    loggers = [logging.getLogger(name) for name in ("transformers", "torchao", "bitsandbytes", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    bar = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()) if stderr else contextlib.nullcontext(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bar:
            transformers.logging.enable_progress_bar()
