"""The trial of a network before the first round: it runs on real rows, and clients that share a call get what each gets
alone.

Rows mix in more ways than a network can declare: layers applied to something other than the batch's rows, routing or
capacity that depends on the whole batch, padding that is read. One call of several clients is therefore compared with
each alone. Clients of a network that fails the comparison train one at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rondo.errors import ConfigError
from rondo.models.kernels.out_of_memory import does_not_fit, is_out_of_memory
from rondo.models.networks.call import RowsUnknown
from rondo.models.networks.checks import check_buffers
from rondo.models.networks.network import Network, agree, rounding
from rondo.models.networks.rows import Rows
from rondo.params import Params, add_client_axis, buffer, module_of, on_device, stack_clients, up
from rondo.process import seeded, shared_streams
from rondo.tasks.task import Example, Task

_COSTS = (23, 34, 45, 56, 64)
"""Lengths that texts are cut to. Other rows are at most as costly as the last, if any is."""


def try_out(name: str, network: Network, task: Task, examples: Sequence[Any]) -> None:
    """Run training steps of ``network`` on a few of ``examples``, if there are any, and tell it the outcome
    (:meth:`rondo.models.networks.network.Network.tried`).

    Nothing else is changed. Raises :class:`ConfigError` if the network does not run.
    """
    if not examples:
        return
    buffers = {name: tensor.clone() for name, tensor in network.module.named_buffers()}
    groups = _groups(task, examples)
    params = [_drawn(network, client) for client in range(len(groups))]
    try:
        alone = [_step(network, task, [groups[k]], add_client_axis(p), (k,)) for k, p in enumerate(params)]
    except Exception as error:  # a model may raise anything
        if is_out_of_memory(error):
            raise does_not_fit(name, error) from None
        remedy = "name other layers in adapter.target_modules, or another model" if network.sites else "mend it"
        if network.sites and rounding(network, task.precision) > torch.finfo(torch.float32).eps:
            remedy = f"set train.precision = 'exact', {remedy}"
        message = f"{name!r} does not train on rows of the data: {type(error).__name__}: {error}; {remedy}"
        raise ConfigError.at("model.name", message) from None
    if not all(bool(step.losses.isfinite().all()) for step in alone):
        _check_finite(name, network)
    check_buffers(buffers, dict(network.module.named_buffers()))
    rows = [example for group in groups for example in group]
    inputs, _ = task.collate(rows)
    network.check_training(on_device(inputs, network.device))
    reason = network.one_at_a_time or _reason(network, task, groups, params, alone)
    minds_padding: bool | None = None
    if not task.padded or len({row.cost for row in rows}) > 1:
        # Where clients share calls, rows of one are padded to another's, and that was tried.
        minds_padding = reason is not None and _minds_padding(network, task, rows, params[0])
    network.tried(reason, minds_padding=minds_padding, draws=any(step.drew for step in alone))
    if minds_padding:
        message = "model.name: a row's output depends on how far it is padded, so scores depend on the batch size, and "
        warnings.warn(f"{message}predictions on the rows beside a row", stacklevel=2)


def _check_finite(name: str, network: Network) -> None:
    """Raise :class:`ConfigError` if a tensor of the base model has numbers that are not finite."""
    tensors = dict(network.module.named_parameters())
    broken = [n for n, t in tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if broken:
        others = f", and {len(broken) - 1} more of its tensors" if broken[1:] else ""
        message = f"numbers that are NaN or infinite are in {broken[0]} of {name!r}{others}"
        raise ConfigError.at("model.name", f"{message}: name a checkpoint without them")


def _reason(
    network: Network, task: Task, groups: Sequence[Sequence[Example]], params: Sequence[Params], alone: Sequence[_Step]
) -> str | None:
    """The reason why clients cannot share a call; None if they can."""
    try:
        together = _step(network, task, groups, stack_clients(params), range(len(groups)))
    except RowsUnknown as unknown:
        return str(unknown)
    except Exception as error:  # it runs for one client
        return f"a call of several clients fails: {type(error).__name__}: {error}"
    allowed = rounding(network, task.precision) ** 0.5
    start = 0
    for k, single in enumerate(alone):
        shared = together.losses[start : start + len(single.losses)]
        start += len(single.losses)
        if not agree(shared, single.losses, allowed):
            return "a row's loss is not what it is when its client is alone in a call"
        largest = max(float(g.norm()) for g in single.grads.values())
        for tensor, grad in single.grads.items():
            if not agree(together.grads[tensor][k], grad[0], allowed, largest / 100):
                return f"the gradient of {tensor} is not what it is when its client is alone in a call"
    return None


@torch.no_grad()
def _minds_padding(network: Network, task: Task, rows: Sequence[Example], params: Params) -> bool:
    """Whether a row has another loss beside longer ones than alone."""
    if not task.padded:
        return False

    def losses(rows: Sequence[Example]) -> Tensor:
        inputs, targets = (on_device(part, network.device) for part in task.collate(rows))
        call = Rows.of([rows], task).to(network.device)
        return task.loss(network(add_client_axis(params), {}, inputs, None, call), targets)[0]

    alone = torch.cat([losses([row]) for row in rows])
    try:
        together = losses(rows)
    except Exception:  # the comparison of clients says why
        return False
    return not agree(together, alone, rounding(network, task.precision) ** 0.5)


@dataclass(frozen=True)
class _Step:
    losses: Tensor
    """(rows,)"""
    grads: Mapping[str, Tensor]
    """Gradients of all trained tensors, (K, ...)."""
    drew: bool
    """Whether it drew from a stream of the process."""


def _step(
    network: Network, task: Task, groups: Sequence[Sequence[Example]], params: Params, seeds: Sequence[int]
) -> _Step:
    """A training step of clients with one group of rows each. Their masks of adapter dropout come from ``seeds``."""
    groups = [task.trained(group) for group in groups]
    inputs, targets = (on_device(part, network.device) for part in task.collate([e for g in groups for e in g]))
    rows = Rows.of(groups, task).to(network.device)
    leaves = {n: t.detach().clone().requires_grad_(t.is_floating_point() and not buffer(n)) for n, t in params.items()}
    trained = {n: t for n, t in leaves.items() if t.requires_grad}
    dropout = [torch.Generator().manual_seed(seed) for seed in seeds]
    with seeded(0, network.device):
        before = shared_streams(network.device)
        losses, _ = task.loss(network(leaves, {}, inputs, dropout, rows), targets)
        grads = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        drew = shared_streams(network.device) != before
    pairs = zip(trained.items(), grads, strict=True)
    return _Step(losses.detach(), {n: torch.zeros_like(t) if g is None else g for (n, t), g in pairs}, drew)


def _groups(task: Task, examples: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    """The rows of four clients, one of them with two, of as many lengths as there are: every client but one has padding
    that it lacks alone, and some models (Funnel) mind the padding of some lengths only."""
    by_cost = sorted(examples, key=lambda e: e.cost)
    short = [e for e in by_cost if e.cost <= _COSTS[-1]] or by_cost[:1]
    distinct = list({e.cost: e for e in short}.values())
    chosen = distinct if len(distinct) >= len(_COSTS) else short
    rows = [chosen[i * (len(chosen) - 1) // (len(_COSTS) - 1)] for i in range(len(_COSTS))]
    rows = [task.opening(row, size) for row, size in zip(rows, _COSTS, strict=True)]
    if type(task).trained is not Task.trained:  # a row alone may have no loss
        return (rows[0], rows[4]), (rows[1], rows[2]), (rows[3], rows[1]), (rows[4], rows[2])
    return (rows[0],), (rows[1], rows[2]), (rows[3],), (rows[4],)


def _drawn(network: Network, client: int) -> Params:
    """One client's tensors without a client axis, away from the start by so much that every factor's part in the output
    is about as large as its layer's own."""
    g = torch.Generator().manual_seed(client)

    def moved(name: str, start: Tensor) -> Tensor:
        if not start.is_floating_point() or buffer(name):
            return start
        path = module_of(name)
        scale = network.sites[path].scale if up(name) and path in network.sites else 1.0
        size = scale * math.sqrt(max(1, start.shape[-1]) if start.dim() else 1)
        return start + torch.randn(start.shape, generator=g).to(start.dtype) / size

    return on_device({n: moved(n, t.cpu()) for n, t in network.initial.items()}, network.device)
