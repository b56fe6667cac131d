"""A run's trained and sent tensors, in a line of words. Imports no torch."""

from __future__ import annotations

from rondo.algorithms.table import TABLE
from rondo.config import task_kinds as tasks
from rondo.config.schema import RunConfig

_WHOLE = {
    "all": "all whole tensors",
    "body": "the body",
    "head": "the head",
    "none": "no whole tensors",
    "twice all": "all whole tensors and as many control variates",
}


def trained(config: RunConfig) -> str:
    """The tensors that ``config`` trains, and those that a client sends in a round."""
    entry, whole = TABLE.get(config.algorithm.name), config.whole_tensors
    kind = tasks.TABLE.get(config.task.kind)
    trains, sends = [], []
    if config.has_factors:
        trains.append(f"factors of rank {config.adapter.r}")
        sends += [f"{entry.up} numbers per adapted layer"] if entry is not None else []
    if whole is not None:
        tensors = {"all": "all whole tensors", "head": "the head"}.get(str(whole), f"the tensors {whole}")
        trains.append(tensors if not config.has_factors or whole != "all" else "all other tensors")
        sends += [_WHOLE[entry.whole]] if entry is not None else []
    text = f"trains {' and '.join(trains)}; sends {', '.join(sends) or 'as its own code says'}"
    head = config.model.head or (entry.traits.default_head if entry is not None else None)
    if head is None or (kind is not None and not kind.head):
        return text
    is_head = {"shared": "sent", "local": "kept by its client", "frozen": "not trained"}
    return f"{text}; the head is {is_head[head]}"
