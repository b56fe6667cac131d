"""Silence for the progress bars and the advice of other libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from rondo.process import alone


@contextlib.contextmanager
def quiet(*, stderr: bool = False) -> Iterator[None]:
    """Silence the progress bars, advice and announced changes of transformers and peft: Rondo reports problems in its
    own words. torchao and bitsandbytes, where they are installed, are imported with models, and warn of kernels for
    other processors. ``stderr`` silences all that is written there, for a progress bar that no setting turns off."""
    import transformers

    with contextlib.ExitStack() as stack:
        stack.enter_context(alone())
        if transformers.logging.is_progress_bar_enabled():
            transformers.logging.disable_progress_bar()
            stack.callback(transformers.logging.enable_progress_bar)
        for name in ("transformers", "torchao", "bitsandbytes", "torch.utils._pytree"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if stderr:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
        yield
