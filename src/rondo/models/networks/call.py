"""One call of a network: the tensors that it uses, the client of every row in the batch, and layers that run again.

Activation checkpointing keeps a transformer layer's inputs alone for the backward pass, which runs the layer again. The
bits of the gradients are the same: the second run has the tensors and the dropout masks of the first, whichever thread
it is in (an accelerator's backward pass has its own) and whatever calls were made in between."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rondo.lowrank import GrowingSum
from rondo.models.kernels import attention
from rondo.models.networks.rows import Packing, Rows
from rondo.params import Params
from rondo.tasks.task import Batch


class RowsUnknown(RuntimeError):
    """A layer's input does not show which client's rows it holds, so several clients cannot share the call."""


class _Token:
    """A marker that lives as long as the graph of its call."""


class Call(threading.local):
    """This thread's current or last call, as a network's layers read it.

    Activation checkpointing runs layers again in ``backward``, so calls whose graph is still alive are tracked too.
    """

    def __init__(self) -> None:
        self.params: Params = {}
        self.base: Mapping[str, GrowingSum] = {}
        self.rows, self.tokens = Rows((1,)), frozenset((1,))
        self.packing: Packing | None = None
        self.dropout: Sequence[torch.Generator] | None = None
        self.masks: dict[str, list[Tensor]] = {}
        self.inside = False
        self.open: list[weakref.ref[_Token]] = []
        self.again = False

    def begin(
        self,
        params: Params,
        base: Mapping[str, GrowingSum],
        rows: Rows,
        tokens: frozenset[int],
        dropout: Sequence[torch.Generator] | None,
        packing: Packing | None = None,
    ) -> None:
        """Take the tensors of a call. ``tokens``: those per row, padding included, in each sequence of the batch.
        ``packing``: how its rows are laid end to end."""
        if self.again:  # layers ran again, so the earlier calls have had their backward
            self.open, self.again = [], False
        self.params, self.base, self.rows, self.tokens, self.packing = params, base, rows, tokens, packing
        self.dropout, self.masks = dropout, {}
        self.inside = True

    def end(self, output: Tensor | None) -> None:
        """Count the call as open for as long as its graph lives."""
        self.inside = False
        self.open = [ref for ref in self.open if ref() is not None]
        if output is not None and output.grad_fn is not None:
            token = _Token()
            output.grad_fn.metadata["rondo call"] = token  # type: ignore[index]
            self.open.append(weakref.ref(token))

    def state(self) -> dict[str, Any]:
        """Everything that this thread's call reads, for :meth:`like`."""
        return dict(vars(self))

    @contextlib.contextmanager
    def like(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Inside, this thread's call is the one of ``state``, whose layers run again."""
        before = self.state()
        vars(self).update(state, inside=False, open=[])
        try:
            yield
        finally:
            vars(self).update(before)

    def by_row(self, x: Tensor, path: str) -> Tensor:
        """A layer's input with the batch's rows on its first axis: as it is, or (rows * tokens, in) as (rows, tokens,
        in). The input of a single client is all its own and returned as it is, and so is that of rows laid end to end.

        Raises :class:`RowsUnknown` for several clients where the input has neither form (relative positions, the
        tokens of one expert): a first axis that can be divided among clients need not be made of their rows.
        """
        rows = sum(self.rows.counts)
        laid = self.packing is not None and x.numel() == len(self.packing.places) * x.shape[-1]
        if len(self.rows.counts) == 1 or laid or (self.packing is None and x.shape[0] == rows):
            return x
        if self.packing is None and x.dim() == 2 and x.shape[0] in {rows * tokens for tokens in self.tokens}:
            return x.reshape(rows, x.shape[0] // rows, -1)
        raise RowsUnknown(f"the clients' rows cannot be told apart in {path} (its input is not one row per example)")

    def layer_runs(self) -> None:
        """Check that a layer that runs again finds its own call's tensors: RuntimeError if several calls are open."""
        if not self.inside:
            self.again = True
            if sum(ref() is not None for ref in self.open) > 1:
                raise RuntimeError("activation checkpointing allows one network call before each backward")


def output_of(module: nn.Module, batch: Batch) -> Tensor:
    """The logits of ``module`` for ``batch``, or last states without them. ``forward`` takes the batch's
    tensors by name where it has these names, else in their order."""
    named = _takes(type(module).forward, tuple(batch))
    args: tuple[Any, ...] = () if named else tuple(batch.values())
    kwargs: dict[str, Any] = dict(batch) if named else {}
    if "use_cache" in inspect.signature(type(module).forward).parameters:
        kwargs["use_cache"] = False  # keys and values of earlier tokens are for generation
    result = module(*args, **kwargs)
    if hasattr(result, "start_logits"):  # of spans: (rows, tokens, 2)
        return torch.stack((result.start_logits, result.end_logits), -1)
    output = getattr(result, "logits", getattr(result, "last_hidden_state", result))
    if not isinstance(output, Tensor):
        message = "forward must return a tensor, or an object with .logits, and returned a "
        raise TypeError(message + type(output).__name__)
    return output


@functools.cache
def _takes(forward: Callable[..., object], names: tuple[str, ...]) -> bool:
    """Whether ``forward`` has arguments of all these names."""
    known = inspect.signature(forward).parameters
    return all(n in known for n in names) or any(p.kind is p.VAR_KEYWORD for p in known.values())


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
