"""Inputs of the head, computed once per example while nothing but the head is trained.

Below a head that is trained alone, every epoch computes the same numbers. They are kept for the length of one fit,
since training changes the body afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rondo.config.schema import SimulationConfig
from rondo.models.kernels.private_torch import Dropout, changes_in_place
from rondo.models.networks.call import output_of
from rondo.models.networks.network import Base, Network, agree, rounding
from rondo.models.networks.whole_network import HEAD_INPUT
from rondo.models.shortcuts.prefix import ShortcutRefused, tried
from rondo.params import HEAD_PREFIX, Params, head, on_device
from rondo.tasks.task import Batch, Example, Task

_MOST_BYTES = 64 * 2**20
"""Most bytes that are kept of a client in training: 250 rows of FedRep's CNN have 64 KB."""


@dataclass(frozen=True)
class HeadInputs:
    """The head's inputs of some examples, (examples, width), and the place of each by the example's ``id``."""

    states: Tensor
    places: Mapping[int, int]

    def of(self, examples: Sequence[Example]) -> Batch:
        """A batch of the network from which the head alone computes the output."""
        return {HEAD_INPUT: self.states[[self.places[id(e)] for e in examples]]}


def head_inputs(
    network: Network, task: Task, params: Params, base: Base, examples: Sequence[Example], rows: int
) -> HeadInputs | None:
    """The head's inputs of one client's ``examples``, computed ``rows`` at a time; None where they take too much
    memory. ``params`` has a client axis of length 1."""
    parts: list[Tensor] = []
    for start in range(0, len(examples), rows):
        inputs, _ = task.collate(examples[start : start + rows])
        parts.append(network.head_input(params, base, on_device(inputs, network.device)))
        if parts[0][0].nbytes * len(examples) > _MOST_BYTES:
            return None
    return HeadInputs(torch.cat(parts), {id(e): i for i, e in enumerate(examples)})


def keep_head_inputs(network: Network, task: Task, examples: Sequence[Any], config: SimulationConfig) -> dict[str, Any]:
    """Set :attr:`Network.head_layer` where the head's inputs can be kept. Returns the manifest's entry."""
    off = None if config.reuse_prefix else "simulation.reuse_prefix is off"
    network.head_layer, reason = tried(lambda: head_layer(network, task, examples), off)
    return {"head_inputs": {"on": reason is None, "reason": reason}}


@torch.no_grad()
def head_layer(network: Network, task: Task, examples: Sequence[Any]) -> str:
    """The path of the layer that is the head of ``network``, if its inputs can be kept. ``examples`` are some of the
    task's.

    Raises :class:`ShortcutRefused` if the head is not one layer whose output is the network's, or its inputs are not
    the same in every epoch and every batch.
    """
    paths = {n.removeprefix(HEAD_PREFIX).rpartition(".")[0] for n in network.initial if head(n)}
    if len(paths) != 1 or not examples:
        raise ShortcutRefused("the head that is trained is not one layer" if examples else "there are no rows")
    path = paths.pop()
    if network.moves_statistics:
        raise ShortcutRefused("a layer of the network normalises by the batch in training")
    if any(isinstance(layer, Dropout) and layer.p > 0 for layer in network.module.modules()):
        raise ShortcutRefused("a layer of the network drops at random in training")
    if task.augments:
        raise ShortcutRefused("rows are changed at random in training (task.augment)")
    some = list(examples[:4])
    together = _input(network, task, path, some)
    alone = torch.cat([_input(network, task, path, [e]) for e in some])
    if not agree(together, alone, rounding(network, task.precision) ** 0.5):
        raise ShortcutRefused("the head's input of a row depends on the other rows of its batch")
    return path


def _input(network: Network, task: Task, path: str, examples: Sequence[Any]) -> Tensor:
    """The input of the layer ``path``, one vector per row. Raises :class:`ShortcutRefused` if the layer has another
    input, or its output is not the network's."""
    calls: list[tuple[tuple[Any, ...], Any, Any]] = []

    def note(_: Any, args: tuple[Any, ...], output: Any) -> None:
        calls.append((args, output, changes_in_place(output) if isinstance(output, Tensor) else None))

    inputs, _ = task.collate(examples)
    hook = network.module.get_submodule(path).register_forward_hook(note)
    try:
        whole = output_of(network.module, on_device(inputs, network.device))
    finally:
        hook.remove()
    args, output, version = calls[0] if len(calls) == 1 else ((), None, None)
    if (
        output is not whole or changes_in_place(whole) != version
    ):  # a change in place makes a new version of the same tensor
        raise ShortcutRefused("its output is more than the head's")
    if len(args) != 1 or not isinstance(args[0], Tensor) or args[0].dim() != 2 or len(args[0]) != len(examples):
        raise ShortcutRefused("the head's input is not one vector per row")
    return args[0]
