"""The output layer of a language model, applied only to tokens with a target, and to a few of them at a time.

Logits hold one number per word of the vocabulary; other tensors hold one per unit of width. A batch's logits are by far
the largest tensors of training, and only the loss and its gradient need them. So the network ends before its output
layer here: the layer, the loss and the loss's gradient are computed for some tokens together, then the logits are
thrown away. Prompts and padding have no target and so no logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.task import wide

_CPU_BYTES = 12 * 2**20
"""Size of the logits held at a time on a CPU, where these stay in the cache
(docs/dev/log/decisions.md, "Output layer, in place")."""
_GPU_BYTES = 256 * 2**20
_STEP_BYTES = 2**20
"""Size of the logits that are turned into a gradient at a time on a CPU: four passes over them stay in a core's own
cache."""


@dataclass(frozen=True)
class OutputLayer:
    """A frozen layer from states (tokens, width) to logits (tokens, ``vocabulary``)."""

    layer: Callable[[Tensor], Tensor]
    vocabulary: int

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy (tokens,) of ``targets`` (tokens,). Differentiable once, with respect to ``states``."""
        result: Tensor = _Losses.apply(states, targets, self)  # type: ignore[no-untyped-call]
        return result

    def parts(self, states: Tensor) -> Iterator[slice]:
        """Slices of the tokens, each as long as the limit on logits held at a time allows."""
        size = max(1, (_CPU_BYTES if states.device.type == "cpu" else _GPU_BYTES) // (4 * self.vocabulary))
        return (slice(start, start + size) for start in range(0, len(states), size))


class _Losses(torch.autograd.Function):
    """The forward pass also computes each token's gradient, which the backward pass only scales: a token's loss depends
    on its own state alone. The gradient of the logits is written over them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, targets: Tensor, output: OutputLayer) -> Tensor:
        needs_grad = ctx.needs_input_grad[0]
        losses = states.new_empty(len(states), dtype=wide(states[:0]).dtype)
        grads = torch.empty_like(states) if needs_grad else None
        # The backward passes below begin and end here, so hide their saved tensors from hooks on the outer pass.
        with torch.set_grad_enabled(needs_grad), torch.autograd.graph.saved_tensors_hooks(itself, itself):
            for part in output.parts(states):
                leaf = states[part].detach().requires_grad_(needs_grad)
                logits = output.layer(leaf)
                if grads is None:
                    losses[part] = functional.cross_entropy(wide(logits), targets[part], reduction="none")
                else:
                    values = wide(logits.detach())
                    losses[part] = _to_gradient(values, targets[part])
                    (grads[part],) = torch.autograd.grad(logits, leaf, values.to(logits.dtype))
        ctx.save_for_backward(grads)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (grads,) = ctx.saved_tensors
        return (grads * grad.unsqueeze(1)).to(grads.dtype), None, None


def _to_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropies (tokens,) of ``logits`` (tokens, vocabulary), which become the gradient of their sum: softmax
    minus one at the target. In place, because another tensor of this size would cost as much time as the product."""
    step = len(logits) if logits.is_cuda else max(1, _STEP_BYTES // (logits.element_size() * logits.shape[1]))
    losses = []
    for values, places in zip(torch.split(logits, step), torch.split(targets, step), strict=True):
        places = places.unsqueeze(1)
        values.sub_(values.amax(1, keepdim=True))
        target = values.gather(1, places)
        total = values.exp_().sum(1, keepdim=True)
        losses.append((total.log() - target).squeeze(1))
        values.div_(total).scatter_add_(1, places, values.new_full((), -1.0).expand_as(places))
    return torch.cat(losses)


def itself(tensor: Tensor) -> Tensor:
    return tensor
