"""The rank of each client, where ranks differ: from a list, shares dealt by the run's seed, or a budget of bytes."""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Weight
from rondo.algorithms.trial import trial_upload
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.models.networks.adapted_layer import Site
from rondo.params import head, num_bytes, pick


def client_ranks(
    config: RunConfig, algorithm: Algorithm[Any], sites: Collection[Site], count: int
) -> tuple[int, ...] | None:
    """The ranks of ``count`` clients, in the order of their ids; None where all have the run's rank, the largest of
    ``sites``. Lists in ``config`` have one value per client. Raises :class:`ConfigError` where a rank is above the
    run's, a budget does not hold rank 1, or no layer is adapted."""
    ranks, budget = config.clients.ranks, config.clients.bytes_budget
    if ranks is None and budget is None:
        return None
    if not sites:
        key = "ranks" if ranks is not None else "bytes_budget"
        raise ConfigError.at(f"clients.{key}", "no layer is adapted, so clients have no ranks: remove it")
    largest = max(s.rank for s in sites)
    if isinstance(ranks, Mapping):
        chosen = _dealt({int(r): s for r, s in ranks.items()}, count, Round(0, config.rounds, config.seed, count))
    elif ranks is not None:
        chosen = tuple(ranks)
    else:
        assert budget is not None
        budgets = (budget,) * count if isinstance(budget, int) else budget
        sizes = functools.cache(lambda rank: upload_bytes(algorithm, sites, config.rounds, rank))
        chosen = _affordable(budgets, largest, sizes)
    if max(chosen) > largest:
        message = f"rank {max(chosen)} is above the run's, which is {largest}: lower it"
        raise ConfigError.at("clients.ranks", message)
    return chosen


def _dealt(shares: Mapping[int, float], count: int, first_round: Round) -> tuple[int, ...]:
    """Ranks in these shares, in an order drawn from the run's seed. Counts are rounded by largest remainder."""
    ranks, sum_of_shares = sorted(shares), sum(shares.values())
    exact = {r: shares[r] / sum_of_shares * count for r in ranks}
    counts = {r: math.floor(exact[r]) for r in ranks}
    # Round, so that remainders that differ only in their last bit are equal; among equals the smaller rank goes first.
    by_remainder = sorted(ranks, key=lambda r: round(counts[r] - exact[r], 6))
    for r in by_remainder[: count - sum(counts.values())]:
        counts[r] += 1
    pool = [r for r in ranks for _ in range(counts[r])]
    order = torch.randperm(count, generator=first_round.generator("ranks")).tolist()
    return tuple(pool[i] for i in order)


def _affordable(budgets: Sequence[int], largest: int, sizes: Callable[[int], int]) -> tuple[int, ...]:
    """The largest rank up to ``largest`` whose upload fits, for each budget. ``sizes`` maps a rank to its bytes, which
    grow with it below ``largest``; mFedLoRU's upload of the run's own rank may be smaller."""
    least = sizes(1)
    if min(budgets) < least:
        message = f"{min(budgets)} bytes do not hold an upload of rank 1, which is {least}: raise it to that or more"
        raise ConfigError.at("clients.bytes_budget", message)
    below = range(1, largest)
    return tuple(largest if sizes(largest) <= b else bisect_right(below, b, key=sizes) for b in budgets)


def upload_bytes(algorithm: Algorithm[Any], sites: Iterable[Site], rounds: int, rank: int) -> int:
    """Bytes that a client of ``rank`` uploads in a round, without the head.

    The larger of the first two rounds counts, because factors may take turns. The algorithm is asked with tensors of
    the right shapes, before there is a model. Where modules differ in shape, LoRA-A2's uploads vary around this number,
    because its choice of slots depends on what was learned.
    """
    initial: dict[str, Tensor] = {}
    weights: dict[str, Weight] = {}
    for site in sites:
        initial[f"{site.path}.A"] = torch.zeros(site.rank, site.shape[1])
        initial[f"{site.path}.B"] = torch.zeros(site.shape[0], site.rank)
        if site.magnitude:
            initial[f"{site.path}.magnitude"] = torch.ones(site.shape[0])
        weights[site.path] = Weight(site.shape, site.scale, functools.partial(torch.zeros, site.shape))
    client, sizes = Client("any", 1, rank), []
    for index in range(min(2, rounds)):
        round = Round(index, rounds, 0, 1)
        shared = algorithm.broadcast(algorithm.init(initial, weights, round), client, round)
        upload = trial_upload(algorithm, shared, client, round)
        sizes.append(num_bytes(pick(upload.params, ~head)))
    return max(sizes)
