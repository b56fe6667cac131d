"""Choice of the shortcuts that a model allows: each is tried on real rows before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rondo.config.schema import SimulationConfig
from rondo.models.kernels import attention
from rondo.models.kernels.attention import attention as written_out
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.models.kernels.private_transformers import attention_of
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Network, agree, rounding
from rondo.models.networks.rows import Rows
from rondo.models.shortcuts.prefix import Prefix, ShortcutRefused, tried
from rondo.params import Params, add_client_axis, stack_clients
from rondo.tasks.language.output_layer import OutputLayer, itself
from rondo.tasks.task import Batch, Example, Task


def split_off(network: AdaptedNetwork, seen: Params, inputs: Batch) -> OutputLayer:
    """Take the output layer out of ``network``, which then returns the states before that layer in place of logits.

    Raises :class:`ShortcutRefused`, having changed nothing, if the layer is adapted, if its output on ``inputs`` is not
    the logits, or if the model does not run without it.
    """
    find = getattr(network.module, "get_output_embeddings", None)
    layer = find() if find is not None else None
    weight = getattr(layer, "weight", None)
    if not isinstance(layer, nn.Module) or not isinstance(weight, Tensor):
        raise ShortcutRefused("the model names no output layer")
    if any(network.module.get_submodule(path) is layer for path in network.sites):
        raise ShortcutRefused("the output layer is adapted")
    if layer.forward is itself:
        raise ShortcutRefused("the output layer has been taken out before")
    params, forward = add_client_axis(seen), layer.forward
    outputs: list[Tensor] = []
    # Clone the output: the model may change it in place.
    hook = layer.register_forward_hook(lambda _, __, out: outputs.append(out.clone()))
    try:
        with torch.no_grad():
            logits = network(params, {}, inputs)
    finally:
        hook.remove()
    if not logits.isfinite().all():
        raise ShortcutRefused("the logits that it was tried on are not finite")
    if len(outputs) != 1 or outputs[0].dtype != logits.dtype or not torch.equal(outputs[0], logits):
        raise ShortcutRefused("the model changes what its output layer gives, or its type")
    layer.forward = itself
    try:
        with torch.no_grad():
            recomputed = forward(network(params, {}, inputs))
        # Allow for rounding: an accelerator may add in another order the second time.
        allowed = torch.finfo(logits.dtype).eps ** 0.5 * max(1.0, float(logits.abs().max()))
        same = recomputed.shape == logits.shape and float((recomputed - logits).abs().max()) <= allowed
    except Exception:  # a model may raise anything on states that it takes for logits
        same = False
    if not same:
        layer.forward = forward
        raise ShortcutRefused("the model does not do the same without its output layer")
    return OutputLayer(forward, logits.shape[-1])


@contextmanager
def put_back(network: Network, output: OutputLayer | None) -> Iterator[None]:
    """Within, ``network`` has the output layer again that :func:`split_off` took, if it took any."""
    if output is None:
        yield
        return
    layer = network.module.get_output_embeddings()  # type: ignore[operator]
    layer.forward = output.layer
    try:
        yield
    finally:
        layer.forward = itself


def first_token_only(network: AdaptedNetwork, seen: Params, inputs: Batch) -> None:
    """Cut the last layer down to the first token, from its queries on or else from its attention's output on, if
    ``network`` then gives the same logits on ``inputs`` (several rows and tokens). Raises :class:`ShortcutRefused`,
    having changed nothing, where it does not.
    """
    lists = [m for m in network.module.modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
    layers = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=[nn.Identity()])
    attention = getattr(layers[-1], "attention", None)
    if not isinstance(attention, nn.Module):
        raise ShortcutRefused("the last layer has no attention of a known name")
    if inputs["input_ids"].shape[1] < 2:  # the first token is the last and all that there is
        raise ShortcutRefused("no row that it could be tried on has several tokens")
    with torch.no_grad():
        batch = add_client_axis(seen)
        whole: Tensor = network(batch, {}, inputs)
        allowed = rounding(network) ** 0.5
        for cut in (_queries, _output):
            undo = cut(attention)
            if undo is None:
                continue
            tokens: list[int] = []
            count = layers[-1].register_forward_hook(lambda _, __, out, seen=tokens: seen.append(_first(out).shape[1]))
            try:
                short = network(batch, {}, inputs)
                same = agree(short, whole, allowed)
            except Exception as error:  # a model may raise anything
                if is_out_of_memory(error):
                    raise
                same = False
            count.remove()
            if same and tokens == [1]:
                return
            undo()
    raise ShortcutRefused("the model reads more than the first token of its last layer")


def _first(output: Any) -> Tensor:
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def _queries(attention: Any) -> Callable[[], None] | None:
    """Only the first token gets a query, in an attention made like BERT's. Returns the undoing; None where it is made
    otherwise."""
    from transformers import AttentionInterface

    inner: Any = getattr(attention, "self", None)
    size = getattr(inner, "attention_head_size", None)
    query, key, value = (getattr(inner, name, None) for name in ("query", "key", "value"))
    output = getattr(attention, "output", None)
    known = all(isinstance(layer, nn.Module) for layer in (query, key, value, output))
    if not known or not isinstance(size, int):
        return None

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, size).transpose(1, 2)

    def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        # Contiguous: torch would multiply a slice by one copy of the weight per row.
        first = hidden_states[:, :1].contiguous()
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        q, k, v = heads(query(first)), heads(key(hidden_states)), heads(value(hidden_states))  # type: ignore[misc]
        kernel = AttentionInterface().get_interface(attention_of(inner.config), written_out)
        attended: Tensor = kernel(inner, q, k, v, mask, dropout=0.0, scaling=size**-0.5)[0]
        return output(attended.flatten(2), first), None  # type: ignore[misc]

    attention.forward = forward
    return lambda: delattr(attention, "forward")


def _output(attention: nn.Module) -> Callable[[], None]:
    """Only the first token of the attention's output goes on. Returns the undoing."""

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0][:, :1].contiguous(), *output[1:])
        return output[:, :1].contiguous()

    return attention.register_forward_hook(cut).remove


def lay_end_to_end(network: AdaptedNetwork, task: Task, seen: Params, examples: Sequence[Example]) -> None:
    """Make ``network`` lay rows of different lengths end to end, if it then gives the same output on ``examples``.
    Raises :class:`ShortcutRefused`, having changed nothing, where it does not."""
    if len({e.cost for e in examples}) < 2:
        raise ShortcutRefused("no rows that it could be tried on differ in length")
    if "position_ids" not in inspect.signature(type(network.module).forward).parameters:
        raise ShortcutRefused("the model counts positions itself")
    if any(
        getattr(m.config, "attn_temperature_tuning", False) for m in network.module.modules() if hasattr(m, "config")
    ):
        # Llama 4 scales late queries by their place in the call, which no short trial reaches.
        raise ShortcutRefused("the model counts places in a call")
    undo = attention.end_to_end(network.module)
    if undo is None:
        raise ShortcutRefused("the model's attention is its own")
    together = network.one_at_a_time is None
    groups = [[e] for e in examples] if together else [list(examples)]
    # Another client's factors, so that rows that are dealt to the wrong client show.
    other = {n: t + 0.1 if t.is_floating_point() else t for n, t in seen.items()}
    params = stack_clients([seen, *[other] * (len(groups) - 1)]) if together else add_client_axis(seen)
    rows = Rows.of(groups, task).to(network.device)
    inputs = {n: t.to(network.device) for n, t in task.collate([e for group in groups for e in group])[0].items()}
    real = inputs["attention_mask"].bool()
    try:
        with torch.no_grad():
            whole = network(params, {}, inputs, None, rows)[real]
            network.packs = True
            laid = network(params, {}, inputs, None, rows)[real]
        same = agree(laid, whole, rounding(network) ** 0.5)
        reason = "rows laid end to end give other logits"
    except Exception as error:  # a model may raise anything on a form that it does not know
        same, reason = False, f"the model does not run on rows laid end to end: {type(error).__name__}: {error}"
    if not same:
        network.packs = False
        undo()
        raise ShortcutRefused(reason)


SAMPLE = 256
"""Rows to choose from: a shortened model is tried on two of them."""
_TRIED_TOKENS = 64
"""Their largest length if every token has logits: longer rows would take more memory than the rest of the run."""
_NOTHING = "there is nothing to train on"
_ONLY_TEXT = "it is made for rows of tokens"


@dataclass(frozen=True)
class Shortened:
    """The layers computed once per example, and the reason for each shortcut that is not taken."""

    prefix: Prefix | None = None
    no_prefix: str | None = _NOTHING
    all_tokens: str | None = _NOTHING
    all_logits: str | None = _NOTHING
    apart: str | None = _NOTHING
    output: OutputLayer | None = None
    """The output layer that the network leaves to the task."""

    def record(self) -> dict[str, Any]:
        layers = self.prefix.layers if self.prefix is not None else 0
        return {
            "prefix": {"layers": layers, "reason": self.no_prefix},
            "first_token_only": {"on": self.all_tokens is None, "reason": self.all_tokens},
            "targets_only": {"on": self.all_logits is None, "reason": self.all_logits},
            "packing": {"on": self.apart is None, "reason": self.apart},
        }


def shorten(
    network: AdaptedNetwork, task: Task, examples: Sequence[Any], config: SimulationConfig, *, packing: bool
) -> Shortened:
    """Skip computation that the output does not need: tokens after the first at the end of a model that reads only the
    first, layers below the lowest adapted one, padding, logits of tokens without a target. ``examples`` are some of the
    task's. ``packing``: whether padding may be left out."""
    if not task.padded:
        return Shortened(None, _ONLY_TEXT, _ONLY_TEXT, _ONLY_TEXT, _ONLY_TEXT)
    trial = telling(task, examples)
    if not trial:
        return Shortened()
    device = network.device
    seen = {n: t.to(device) for n, t in network.initial.items()}
    inputs = {n: t.to(device) for n, t in task.collate(trial)[0].items()}
    reuse = None if config.reuse_prefix else "simulation.reuse_prefix is off"
    pack = None if packing else "train.packing is off"
    _, all_tokens = tried(lambda: first_token_only(network, seen, inputs))
    prefix, no_prefix = tried(lambda: _prefix(network, task, config, seen, trial), reuse, task.unfit.get("prefix"))
    _, apart = tried(lambda: lay_end_to_end(network, task, seen, trial), pack, task.unfit.get("packing"))
    output, all_logits = tried(lambda: split_off(network, seen, inputs), task.unfit.get("targets_only"))
    return Shortened(prefix, no_prefix, all_tokens, all_logits, apart, output)


def _prefix(
    network: AdaptedNetwork, task: Task, config: SimulationConfig, seen: Params, trial: Sequence[Example]
) -> Prefix:
    memory, disk = config.prefix_memory_mb * 2**20, config.prefix_disk_mb * 2**20
    prefix = Prefix(network, task, memory=memory, disk=disk)
    prefix.check(seen, trial)
    return prefix


def telling(task: Task, examples: Sequence[Example]) -> tuple[Example, ...]:
    """The longest and the shortest example, so that the first token is not the last and some rows are padded. The task
    may cut them to ``_TRIED_TOKENS`` tokens and to half as many; rows of one length to the whole and a half."""
    if not examples:
        return ()
    by_length = sorted(examples, key=lambda e: e.cost)
    longest = task.opening(by_length[-1], _TRIED_TOKENS)
    shortest = task.opening(by_length[0], _TRIED_TOKENS // 2)
    if shortest.cost == longest.cost:
        shortest = task.opening(by_length[0], max(1, longest.cost // 2))
    return (longest,) if longest == shortest else (longest, shortest)
