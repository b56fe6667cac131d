"""Whether a model's rows can be laid end to end: tried on real rows of two clients."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch

from rondo.models.kernels import attention
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.agreement import agree, rounding
from rondo.models.networks.rows import Rows
from rondo.params import Params, add_client_axis, stack_clients
from rondo.tasks.task import Example, Task


class RowsApart(Exception):
    """Rows must keep an axis of their own; the message says why."""


def lay_end_to_end(network: AdaptedNetwork, task: Task, seen: Params, examples: Sequence[Example]) -> None:
    """Make ``network`` lay rows of different lengths end to end, if it then gives the same output on ``examples``.
    Raises :class:`RowsApart`, having changed nothing, where it does not."""
    if len({e.cost for e in examples}) < 2:
        raise RowsApart("no rows that it could be tried on differ in length")
    if "position_ids" not in inspect.signature(type(network.module).forward).parameters:
        raise RowsApart("the model counts positions itself")
    if any(
        getattr(m.config, "attn_temperature_tuning", False) for m in network.module.modules() if hasattr(m, "config")
    ):
        # Llama 4 scales late queries by their place in the call, which no short trial reaches.
        raise RowsApart("the model counts places in a call")
    undo = attention.end_to_end(network.module)
    if undo is None:
        raise RowsApart("the model's attention is its own")
    together = network.one_at_a_time is None
    groups = [[e] for e in examples] if together else [list(examples)]
    # Another client's factors, so that rows that are dealt to the wrong client show.
    other = {n: t + 0.1 if t.is_floating_point() else t for n, t in seen.items()}
    params = stack_clients([seen, *[other] * (len(groups) - 1)]) if together else add_client_axis(seen)
    rows = Rows.of(groups, task.lengths).to(network.device)
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
        raise RowsApart(reason)
