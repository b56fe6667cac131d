"""Activation checkpointing: a transformer layer keeps its inputs alone for the backward pass, which runs it again.

The bits of the gradients are the same: the second run has the tensors and the dropout masks of the first, whichever
thread it is in (an accelerator's backward pass has its own) and whatever calls were made in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rondo.models.kernels import attention
from rondo.models.networks.call import Call


class Recomputed:
    """The forward of a layer that is run again in the backward pass.

    ``on``: False runs it once, as a layer without checkpointing.
    ``kept``: bytes of the inputs that its last run kept.
    """

    def __init__(self, layer: nn.Module, call: Call) -> None:
        self.forward, self.call, self.on, self.kept = layer.forward, call, True, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.on or not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        inputs = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.requires_grad]
        self.kept = sum(t.nbytes for t in inputs)
        state, rows, runs = self.call.state(), attention.rows_of_call(), 0

        def run(*inputs: Any, **options: Any) -> Any:
            nonlocal runs
            runs += 1
            if runs == 1:
                return self.forward(*inputs, **options)
            with self.call.like(state), attention.rows_are(rows):
                return self.forward(*inputs, **options)

        # No random number is drawn in a layer: the base has no dropout, and the adapters' masks are kept.
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
