"""The output layer of a language model, on the tokens that have a target only, and on few of them at a time.

Logits have a number for every word of the vocabulary where all else has one for every unit of width: those of a batch
are the largest tensors of training by far, needed for the loss, its gradient and nothing else. Here the network ends
before its output layer. The layer, the loss and the loss's gradient are computed for some tokens together, whose logits
are then thrown away; prompts and padding have no target and so no logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.text import wide

_CPU_BYTES = 24 * 2**20
"""Of logits at a time: they stay in the cache (docs/log/decisions.md, "Output layer, one client at a time")."""
_GPU_BYTES = 256 * 2**20


@dataclass(frozen=True)
class OutputLayer:
    """States (tokens, width) to logits (tokens, ``vocabulary``) by a frozen layer."""

    layer: Callable[[Tensor], Tensor]
    vocabulary: int

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy (tokens,) of ``targets`` (tokens,). Differentiable once, with respect to ``states``."""
        result: Tensor = _Losses.apply(states, targets, self)  # type: ignore[no-untyped-call]
        return result

    def parts(self, states: Tensor) -> Iterator[slice]:
        """Tokens, as many together as are to have logits at once."""
        size = max(1, (_CPU_BYTES if states.device.type == "cpu" else _GPU_BYTES) // (4 * self.vocabulary))
        return (slice(start, start + size) for start in range(0, len(states), size))


class _Losses(torch.autograd.Function):
    """A token's loss depends on its own state alone, so its gradient is known, but for a factor, with the loss."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, targets: Tensor, output: OutputLayer) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        losses = states.new_empty(len(states), dtype=wide(states[:0]).dtype)
        grads = torch.empty_like(states) if wanted else None
        # Who watches what this pass keeps for its backward pass has nothing to see in those that begin and end here.
        with torch.set_grad_enabled(wanted), torch.autograd.graph.saved_tensors_hooks(itself, itself):
            for part in output.parts(states):
                leaf = states[part].detach().requires_grad_(wanted)
                each = functional.cross_entropy(wide(output.layer(leaf)), targets[part], reduction="none")
                losses[part] = each.detach()
                if grads is not None:
                    (grads[part],) = torch.autograd.grad(each.sum(), leaf)
        ctx.save_for_backward(grads)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (each,) = ctx.saved_tensors
        return (each * grad.unsqueeze(1)).to(each.dtype), None, None


def itself(tensor: Tensor) -> Tensor:
    return tensor
