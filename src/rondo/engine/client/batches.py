"""The batches of a client's local training, drawn from a stream of the run's seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from rondo.config.schema import TrainConfig
from rondo.data.units import Units
from rondo.tasks.task import Example

_GROUPED_BATCHES = 50
"""Length grouping sorts within this many batches at a time, so batches still differ between epochs."""


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator, *, group_by_length: bool, least: int = 1
) -> Iterator[list[Example]]:
    """One epoch of batches, in an order drawn from ``generator``. ``group_by_length`` puts rows of similar length in
    one batch, which saves padding; the order of the batches is still random. A last, smaller batch of fewer than
    ``least`` examples joins those before it."""
    order = torch.randperm(len(examples), generator=generator).tolist()
    if group_by_length:
        window = size * _GROUPED_BATCHES
        pools = [order[i : i + window] for i in range(0, len(order), window)]
        order = [i for pool in pools for i in sorted(pool, key=lambda i: examples[i].cost, reverse=True)]
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    while len(groups) > 1 and len(groups[-1]) != size and len(groups[-1]) < least:
        rest = groups.pop()
        groups[-1] = groups[-1] + rest
    if group_by_length:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield [examples[i] for i in group]


def stream_of(
    examples: Sequence[Example], generator: torch.Generator, config: TrainConfig, steps: int | None, epochs: int
) -> Iterator[list[Example]]:
    """Batches of ``epochs`` epochs, or of ``steps`` steps over as many epochs as they take; more of them where examples
    come in blocks."""
    units = Units.of(examples)
    if len(units) < len(examples):
        yield from _of_blocks(examples, units, generator, config, steps, epochs)
        return
    done = 0
    while (done < steps) if steps is not None else (epochs > 0):
        epochs -= 1
        for batch in batches(examples, config.batch_size, generator, group_by_length=config.length_grouping):
            if steps is not None and done == steps:
                return
            done += 1
            yield batch


def _of_blocks(
    examples: Sequence[Example],
    blocks: Sequence[Sequence[int]],
    generator: torch.Generator,
    config: TrainConfig,
    steps: int | None,
    epochs: int,
) -> Iterator[list[Example]]:
    """As :func:`stream_of`. A pass over a part of the examples is one over whole blocks, which are drawn, and no step
    is of fewer examples than the smallest block has, except where all are. So what is behind several trainings differs
    by blocks. ``blocks``: the places of each one's examples."""
    size, least = config.batch_size, min(map(len, blocks))
    left = steps if steps is not None else epochs * math.ceil(len(examples) / size)
    while left > 0:
        places = [i for block in _drawn(blocks, left * size, generator) for i in block]
        seen = examples if len(places) == len(examples) else [examples[i] for i in sorted(places)]
        yield from batches(seen, size, generator, group_by_length=config.length_grouping, least=least)
        left -= math.ceil(len(seen) / size)


def _drawn(blocks: Sequence[Sequence[int]], count: int, generator: torch.Generator) -> Iterator[Sequence[int]]:
    """Blocks of at least ``count`` examples together, drawn at random; all where these are no more."""
    if sum(map(len, blocks)) <= count:
        yield from blocks
        return
    for number in torch.randperm(len(blocks), generator=generator).tolist():
        if count <= 0:
            return
        count -= len(blocks[number])
        yield blocks[number]
