"""The batches of a client's local training, drawn from a stream of the run's seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rondo.config.schema import TrainConfig
from rondo.tasks.task import Example

_GROUPED_BATCHES = 50
"""Length grouping sorts within this many batches at a time, so batches still differ between epochs."""


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator, *, group_by_length: bool
) -> Iterator[list[Example]]:
    """One epoch of batches, in an order drawn from ``generator``. ``group_by_length`` puts rows of similar length in
    one batch, which saves padding; the order of the batches is still random."""
    order = torch.randperm(len(examples), generator=generator).tolist()
    if group_by_length:
        window = size * _GROUPED_BATCHES
        pools = [order[i : i + window] for i in range(0, len(order), window)]
        order = [i for pool in pools for i in sorted(pool, key=lambda i: examples[i].cost, reverse=True)]
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    if group_by_length:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield [examples[i] for i in group]


def stream_of(
    examples: Sequence[Example], generator: torch.Generator, config: TrainConfig, steps: int | None, epochs: int
) -> Iterator[list[Example]]:
    """Batches of ``epochs`` epochs, or of ``steps`` steps over as many epochs as they take."""
    done = 0
    while (done < steps) if steps is not None else (epochs > 0):
        epochs -= 1
        for batch in batches(examples, config.batch_size, generator, group_by_length=config.length_grouping):
            if steps is not None and done == steps:
                return
            done += 1
            yield batch
