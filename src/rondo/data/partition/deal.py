"""Samples of rows, and their deal to clients, with flwr-datasets' partitioners where they fit. They run on local data,
and nothing is downloaded or reported."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from rondo.config.inputs import PartitionConfig
from rondo.errors import ConfigError
from rondo.process import no_warnings

NOBODY = None
"""The client of a test row that no client has."""


@dataclass(frozen=True)
class Deal:
    """Rows dealt to clients."""

    rows: dict[str, tuple[int, ...]]
    """Row numbers by client id, sorted."""
    dropped: int
    """Number of rows that no client got; some partitioners drop rows."""
    moved: int = 0
    """Number of rows moved from the largest clients to clients with fewer than ``min_size``."""


def deal(
    config: PartitionConfig,
    labels: Sequence[str] | None,
    ids: Sequence[str] | None,
    count: int,
    generator: torch.Generator,
) -> Deal:
    """Deal ``count`` rows.

    ``labels``: each row's class, for the kinds that skew by label.
    ``ids``: each row's owner, for kind natural.

    Raises :class:`ConfigError` if these rows do not allow the kind.
    """
    if config.kind == "natural":
        if ids is None:
            message = "the rows do not say whose they are: name the column that does"
            raise ConfigError.at("partition.column", message)
        # Nothing is drawn or dropped, so skip the partitioners and their import.
        numbers_by_owner: dict[str, list[int]] = {}
        for number, owner in enumerate(ids):
            numbers_by_owner.setdefault(str(owner), []).append(number)
        return Deal({owner: tuple(numbers) for owner, numbers in sorted(numbers_by_owner.items())}, 0)
    _check_possible(config, labels, count)
    # Shuffle the rows first: some partitioners deal them in file order.
    order = torch.randperm(count, generator=generator).tolist()
    seed = int(torch.randint(2**31, (1,), generator=generator))
    columns: dict[str, list[Any]] = {"row": order}
    if labels is not None:
        columns["by"] = [labels[i] for i in order]
    moved = 0
    try:
        parts = _parts(config, columns, seed, generator)
    except (ValueError, TypeError) as error:
        if config.kind != "dirichlet" or config.equal_sizes:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError.at("partition", f"kind {config.kind!r} is not possible here: {reason}") from None
        # Many clients, few classes and a small alpha: no draw leaves every client with rows, however many are tried.
        parts = _parts(config.model_copy(update={"min_size": 0}), columns, seed, generator)
        moved = _fill(parts, config.min_size, generator)
    smallest = min(map(len, parts))
    if config.kind in ("shards", "classes") and smallest < config.min_size:
        message = f"kind {config.kind!r} gives a client {smallest} rows; lower partition.min_size or partition.clients"
        raise ConfigError.at("partition.min_size", message)
    width = len(str(len(parts) - 1))
    rows = {f"client-{i:0{width}d}": tuple(sorted(part)) for i, part in enumerate(parts)}
    return Deal(dict(sorted(rows.items())), count - sum(map(len, rows.values())), moved)


def _check_possible(config: PartitionConfig, labels: Sequence[str] | None, count: int) -> None:
    """Raise :class:`ConfigError` where ``count`` rows of these classes cannot be dealt so."""
    if config.kind in ("dirichlet", "shards", "classes") and labels is None:
        raise ConfigError.at(
            "partition.kind",
            f"{config.kind!r} deals by label, and this task has none, or several in a row: "
            "take iid, natural or lognormal",
        )
    clients = config.clients or 0
    if count < clients * max(1, config.min_size):
        message = f"{count} rows are not enough for {clients} clients of at least {max(1, config.min_size)}: lower it"
        raise ConfigError.at("partition.clients", message)
    for kind, needed in (("dirichlet", "alpha"), ("shards", "shards_per_client"), ("classes", "classes_per_client")):
        if config.kind == kind and getattr(config, needed) is None:
            raise ConfigError.at(f"partition.{needed}", f"kind {kind!r} needs it")
    if config.kind == "shards" and clients * (config.shards_per_client or 1) > count:
        message = f"{clients} clients of {config.shards_per_client} shards each are more shards than the {count} rows"
        raise ConfigError.at("partition.shards_per_client", f"{message}: lower it")
    classes = len(set(labels or ()))
    if config.kind == "classes" and (config.classes_per_client or 1) > classes:
        message = f"{config.classes_per_client}, but the rows have {classes} classes: lower it to {classes}"
        raise ConfigError.at("partition.classes_per_client", message)


def deal_tests(
    trained: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    generator: torch.Generator,
    persons: Sequence[str] | None = None,
) -> list[str | None]:
    """The client of each row of a test set, so that each client has those of its own classes: a class's rows, in random
    order, are divided in proportion to the clients' training rows of it (FedRep, Table 1). :data:`NOBODY` for the rows
    of a class that no client trains on.

    ``trained``: the class of each client's training rows.
    ``labels``: the class of each test row. Rows without classes are all of one.
    ``persons``: of each test row, whose rows stay together; a person is dealt by the class of its first row.
    """
    if persons is not None:
        first = dict(zip(reversed(persons), reversed(labels), strict=True))
        owner = dict(zip(first, deal_tests(trained, list(first.values()), generator), strict=True))
        return [owner[person] for person in persons]
    owners: list[str | None] = [NOBODY] * len(labels)
    counts = {client: Counter(classes) for client, classes in trained.items()}
    rows = by_label(labels, generator)
    for name in rows:
        having = [client for client in counts if counts[client][name]]
        having = [having[i] for i in torch.randperm(len(having), generator=generator).tolist()]
        sizes = proportional(rows[name], [counts[client][name] for client in having], 0) if having else []
        line = iter(rows[name])
        for client, size in zip(having, sizes, strict=True):
            for number in islice(line, size):
                owners[number] = client
    return owners


def _parts(
    config: PartitionConfig, columns: Mapping[str, Sequence[Any]], seed: int, generator: torch.Generator
) -> list[list[int]]:
    """Row numbers of every client. Raises ValueError or TypeError if the partitioner cannot deal these rows."""
    if config.kind == "classes" or config.equal_sizes:
        assert config.clients is not None
        if config.kind == "classes":
            parts = by_classes(
                columns["by"],
                config.clients,
                config.classes_per_client or 1,
                sigma=config.sigma,
                equal_sizes=config.equal_sizes,
                generator=generator,
            )
        else:
            parts = equal_dirichlet(columns["by"], config.clients, config.alpha or 1.0, generator)
        return [[columns["row"][i] for i in part] for part in parts]
    import datasets

    partitioner = _partitioner(config, len(columns["row"]), seed, generator)
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    # Partitioners warn of dropped rows, which are counted, and show progress bars even without a terminal.
    with no_warnings(stderr=True):
        return [partitioner.load_partition(i)["row"][:] for i in range(partitioner.num_partitions)]


def _fill(parts: Sequence[list[int]], least: int, generator: torch.Generator) -> int:
    """Move rows to parts with fewer than ``least``, from parts with more, drawn in proportion to their sizes. Returns
    the number of rows moved. There must be ``least`` rows per part, and a part's rows must be in random order."""
    owners = [part for part in parts for _ in part]
    donors = (owners[i] for i in torch.randperm(len(owners), generator=generator).tolist())
    moved = 0
    for part in parts:
        while len(part) < least:
            part.append(next(donor for donor in donors if len(donor) > least).pop())
            moved += 1
    return moved


def _partitioner(config: PartitionConfig, count: int, seed: int, generator: torch.Generator) -> Any:
    # The package reports usage unless told not to. The partitioners do not, but importing them loads the package.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr_datasets import partitioner as kinds

    clients = config.clients
    match config.kind:
        case "iid":
            return kinds.IidPartitioner(clients)
        case "dirichlet":
            return kinds.DirichletPartitioner(
                clients, "by", alpha=config.alpha, min_partition_size=config.min_size, self_balancing=False, seed=seed
            )
        case "shards":
            # An incomplete shard may take the place of a full one, so keeping it drops more rows, not fewer.
            return kinds.ShardPartitioner(
                clients, "by", num_shards_per_partition=config.shards_per_client, keep_incomplete_shard=False, seed=seed
            )
        case "lognormal":
            assert clients is not None
            return kinds.SizePartitioner(_lognormal_sizes(count, clients, config, generator))


def _lognormal_sizes(count: int, clients: int, config: PartitionConfig, generator: torch.Generator) -> list[int]:
    """Sizes that sum to ``count``: max(1, ``min_size``) for each client, and the remaining rows in proportion to
    exp(sigma z), z standard normal."""
    normal = torch.randn(clients, generator=generator, dtype=torch.float64)
    shares = torch.softmax((config.sigma or 1.0) * normal, 0).tolist()
    return proportional(range(count), shares, max(1, config.min_size))


def histogram(labels: Sequence[str]) -> dict[str, int]:
    """Number of rows per label, sorted by label."""
    return dict(sorted(Counter(labels).items()))


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


def sample(
    count: int | None,
    total: int,
    labels: Sequence[str] | None,
    owners: Sequence[str] | None,
    generator: torch.Generator,
) -> Sequence[int]:
    """Numbers of ``count`` of ``total`` rows, in the order of the rows; all of them if ``count`` is None or no less.

    ``labels``, ``owners``: one per row, where rows have them.

    The sample is systematic: the rows are lined up by label, then by owner, and taken at equal distances from a random
    start. All rows are equally likely, and the rows of a label, and of a label and owner, keep their share to within
    one row. Each label lines up the owners in another order, so equal distances do not favour the same ones.
    """
    if count is None or count >= total:
        return range(total)
    strata: dict[str, dict[str, list[int]]] = {}
    for row in torch.randperm(total, generator=generator).tolist():
        by_owner = strata.setdefault(labels[row] if labels is not None else "", {})
        by_owner.setdefault(owners[row] if owners is not None else "", []).append(row)
    line = [row for by_owner in strata.values() for rows in by_owner.values() for row in rows]
    start = int(torch.randint(total, (1,), generator=generator))
    return sorted(line[(start + i * total) // count] for i in range(count))
