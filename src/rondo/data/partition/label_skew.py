"""Deals of labelled rows as papers make them, where flwr-datasets' partitioners drop classes or give uneven sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch


def by_classes(
    labels: Sequence[str],
    clients: int,
    per_client: int,
    *,
    sigma: float | None,
    equal_sizes: bool,
    generator: torch.Generator,
) -> list[list[int]]:
    """Row numbers of ``clients`` clients with ``per_client`` different classes each.

    Every class goes to as many clients as any other, or one more, and its rows are divided among them evenly; with
    ``sigma`` in proportion to exp(sigma z) of each, z standard normal. With ``equal_sizes`` each client gets shards of
    one size, one per class, the largest for which there are enough (McMahan et al. 2017; FedRep, appendix B), and the
    rest of the rows is dropped. Raises ValueError where a class has fewer rows than clients.
    """
    rows = by_label(labels, generator)
    names = list(rows)
    counts = [len(rows[name]) for name in names]
    wanted, shard = clients * per_client, 0
    if equal_sizes:
        shard = _largest_shard(counts, clients, wanted)
        slots = [min(clients, count // shard) for count in counts]
    else:
        slots = [math.ceil(wanted / len(names))] * len(names)
    slots = _reduced(slots, wanted, generator)
    owners = _owners(slots, clients, per_client, generator)
    weights = torch.exp((sigma or 0.0) * torch.randn(clients, generator=generator, dtype=torch.float64)).tolist()
    parts: list[list[int]] = [[] for _ in range(clients)]
    for name, of_class in zip(names, owners, strict=True):
        if len(rows[name]) < len(of_class):
            raise ValueError(f"class {name!r} has {len(rows[name])} rows for {len(of_class)} clients")
        sizes = [shard] * len(of_class) if equal_sizes else proportional(rows[name], [weights[c] for c in of_class])
        start = 0
        for client, size in zip(of_class, sizes, strict=True):
            parts[client] += rows[name][start : start + size]
            start += size
    return parts


def equal_dirichlet(labels: Sequence[str], clients: int, alpha: float, generator: torch.Generator) -> list[list[int]]:
    """Row numbers of ``clients`` clients of one size, each with a mix of classes of its own, drawn from a symmetric
    Dirichlet distribution with parameter ``alpha`` (Hsu et al. 2019; FedLoRU, appendix D.1). Later mixes leave out a
    class that has run out. Fewer than ``clients`` rows are dropped."""
    rows = list(by_label(labels, generator).values())
    draw = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    left = np.array([len(of_class) for of_class in rows])
    size, parts = len(labels) // clients, []
    for _ in range(clients):
        mix = draw.dirichlet(np.full(len(rows), alpha))
        part: list[int] = []
        while len(part) < size:
            shares = mix * (left > 0)
            if not shares.sum() > 0:
                shares = left.astype(float)
            taken = np.minimum(draw.multinomial(size - len(part), shares / shares.sum()), left)
            for place, count in enumerate(taken.tolist()):
                part += rows[place][left[place] - count : left[place]]
            left -= taken
        parts.append(part)
    return parts


def proportional(rows: Sequence[object], weights: Sequence[float], least: int = 1) -> list[int]:
    """Sizes that sum to the number of ``rows``: ``least`` for each weight, and the others in proportion to the
    weights."""
    exact = [least + w / sum(weights) * (len(rows) - least * len(weights)) for w in weights]
    sizes = [math.floor(x) for x in exact]
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i] - exact[i])[: len(rows) - sum(sizes)]:
        sizes[i] += 1
    return sizes


def by_label(labels: Sequence[str], generator: torch.Generator) -> dict[str, list[int]]:
    """Row numbers of every class, in random order."""
    rows: dict[str, list[int]] = {name: [] for name in sorted(set(labels))}
    for number in torch.randperm(len(labels), generator=generator).tolist():
        rows[labels[number]].append(number)
    return rows


def _largest_shard(counts: Sequence[int], clients: int, wanted: int) -> int:
    """The largest size of which the classes have ``wanted`` shards, each class one per client at most. Raises
    ValueError if there is none."""
    for size in range(sum(counts) // wanted, 0, -1):
        if sum(min(clients, count // size) for count in counts) >= wanted:
            return size
    raise ValueError(f"the classes have no {wanted} shards of equal size")


def _reduced(slots: Sequence[int], wanted: int, generator: torch.Generator) -> list[int]:
    """``slots`` lowered to the sum ``wanted``, the largest first, of equal ones one at random."""
    result = list(slots)
    order = torch.randperm(len(slots), generator=generator).tolist()
    for _ in range(sum(slots) - wanted):
        result[max(order, key=lambda i: result[i])] -= 1
    return result


def _owners(slots: Sequence[int], clients: int, per_client: int, generator: torch.Generator) -> list[list[int]]:
    """The clients of every class, of which ``slots`` says how many. Each client in turn takes the classes with the most
    places left, of equal ones some at random, which always comes out even where no class has more than a place per
    client."""
    left, owners = list(slots), [[] for _ in slots]  # type: tuple[list[int], list[list[int]]]
    for client in range(clients):
        order = torch.randperm(len(left), generator=generator).tolist()
        for place in sorted(order, key=lambda i: -left[i])[:per_client]:
            left[place] -= 1
            owners[place].append(client)
    return owners
