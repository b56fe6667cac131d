"""Faults of a configuration that lie between its keys, or between it and the files that it names. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from rondo.algorithms.table import SERVER_OPTIONS
from rondo.config.schema import BUILTIN_DATA, BUILTIN_MODEL, ClientsConfig, FaultKind, RunConfig
from rondo.errors import Problem
from rondo.tasks import table as tasks


def partition_kind(config: RunConfig) -> str:
    """The kind of partition where none was named: the built-in homes are clients by nature, other rows go iid."""
    if config.partition.kind is not None:
        return config.partition.kind
    builtin = config.data.source in (None, BUILTIN_DATA) and config.data.clients_from is None
    return "natural" if builtin and config.partition.clients is None else "iid"


_NEEDS = {
    "dirichlet": ("alpha", "for instance alpha = 0.5"),
    "shards": ("shards_per_client", "for instance shards_per_client = 2"),
    "classes": ("classes_per_client", "for instance classes_per_client = 2"),
    "natural": ("column", "the column that says whose a row is"),
}

_USED_BY = {
    "alpha": "dirichlet",
    "shards_per_client": "shards",
    "classes_per_client": "classes",
    "sigma": "lognormal",
}
"""Keys of ``[partition]`` that one kind uses."""


def cross_checks(config: RunConfig) -> Iterator[Problem]:
    """Faults that lie between keys."""
    part, clients, data = config.partition, config.clients, config.data
    own_data = data.source not in (None, BUILTIN_DATA) or data.clients_from is not None
    if config.train.local_epochs is not None and config.train.local_steps is not None:
        yield Problem("train.local_steps", "set local_steps or local_epochs, not both")
    if config.train.momentum and config.train.optimizer != "sgd":
        yield Problem("train.momentum", f"only sgd has momentum, not {config.train.optimizer}: remove one of the two")
    if config.train.warmup_rounds >= config.rounds:
        words = f"must be below rounds = {config.rounds}, or nothing follows the warm-up: lower it or raise rounds"
        yield Problem("train.warmup_rounds", words)
    if data.source is not None and data.clients_from is not None:
        yield Problem("data.clients_from", "set data.source or data.clients_from, not both")
    kind = partition_kind(config)
    if data.clients_from is None:
        needed, hint = _NEEDS.get(kind, (None, ""))
        if needed and getattr(part, needed) is None and (own_data or kind != "natural"):
            yield Problem(f"partition.{needed}", f"partition.kind = {kind!r} needs it: set it, {hint}")
        for key, user in _USED_BY.items():
            if kind != user and getattr(part, key) is not None:
                yield Problem(f"partition.{key}", f"only kind = {user!r} uses it, not {kind!r}: remove it or set kind")
        if kind != "natural" and part.clients is None:
            words = f"partition.kind = {kind!r} needs the number of clients: set it, for instance clients = 10"
            yield Problem("partition.clients", words)
    if part.kind == "natural" and part.clients is not None:
        yield Problem("partition.clients", "with kind = 'natural' there is one client a value of the column; remove it")
    if clients.sampling == "full" and clients.per_round is not None:
        yield Problem("clients.per_round", "sampling = 'full' takes every client; remove per_round")
    if clients.sampling in ("poisson", "weighted") and clients.per_round is None:
        yield Problem("clients.per_round", f"sampling = {clients.sampling!r} needs it: set it")
    if part.clients is not None and clients.per_round is not None and clients.per_round > part.clients:
        yield Problem("clients.per_round", f"{clients.per_round} of {part.clients} clients: lower it to {part.clients}")
    if clients.per_round is not None and clients.min_clients > clients.per_round:
        words = f"above clients.per_round = {clients.per_round}, so no round could succeed: lower it"
        yield Problem("clients.min_clients", words)
    if clients.over_select and clients.per_round is None:
        yield Problem("clients.over_select", "it goes beyond clients.per_round, which is not set: set both or neither")
    if config.admission.clip and config.admission.max_norm is None:
        yield Problem("admission.clip", "there is nothing to clip to: set admission.max_norm too")
    least = 2 * config.robust.byzantine + 1
    if config.robust.rule != "none" and clients.min_clients < least:
        words = f"robust.byzantine = {config.robust.byzantine} of {clients.min_clients} uploads may be half or more"
        yield Problem("clients.min_clients", f"{words}: raise it to {least} or lower robust.byzantine")
    yield from _fault_checks(config)
    yield from _rank_checks(config)
    yield from _server_checks(config)
    yield from _task_checks(config, own_data)
    if config.adapter.start_from is not None and not Path(config.adapter.start_from, "adapter_config.json").is_file():
        yield Problem(
            "adapter.start_from",
            f"no adapter_config.json in {config.adapter.start_from!r}: name one that PEFT wrote",
        )
    if _is_path(config.model.name) and not _exists(config.model.name):
        yield Problem(
            "model.name", f"no such folder: {config.model.name!r}; mend the path, or give a Hugging Face name"
        )
    if config.model.name.startswith("builtin:") and config.model.name != BUILTIN_MODEL:
        yield Problem("model.name", f"unknown built-in; did you mean {BUILTIN_MODEL!r}?")
    if (data.source or "").startswith("builtin:") and data.source != BUILTIN_DATA:
        yield Problem("data.source", f"unknown built-in; did you mean {BUILTIN_DATA!r}?")
    if config.model.gguf_file and config.model.quantization:
        yield Problem("model.quantization", "a GGUF file is loaded dequantised; remove gguf_file or quantization")


def _fault_checks(config: RunConfig) -> Iterator[Problem]:
    faults = config.faults
    rates = {kind: value for kind in get_args(FaultKind) if isinstance(value := getattr(faults, kind), float) and value}
    if sum(rates.values()) > 1:
        words = (
            f"the probabilities of {', '.join(rates)} sum to {sum(rates.values()):g}: a client has one fault a round"
        )
        yield Problem("faults", f"{words}, so lower them to 1 or less in all")
    if faults.slow and config.clients.deadline is None and not config.clients.over_select:
        yield Problem("faults.slow", "slow clients are waited for: set clients.deadline or clients.over_select")


def _rank_checks(config: RunConfig) -> Iterator[Problem]:
    clients, adapter = config.clients, config.adapter
    ranks = clients.ranks
    if ranks is not None and clients.bytes_budget is not None:
        yield Problem("clients.bytes_budget", "set clients.ranks or clients.bytes_budget, not both")
    count = config.partition.clients if config.data.clients_from is None else None
    if count is not None:
        yield from list_lengths(clients, count)
    if isinstance(ranks, dict):
        odd = [k for k in ranks if not (k.isdecimal() and k == str(int(k)) and int(k) > 0)]
        if odd:
            words = f"{odd[0]!r} is no rank: give shares of the clients by rank, for instance {{ 4 = 0.5, 8 = 0.5 }}"
            yield Problem("clients.ranks", words)
            return
        if abs(sum(ranks.values()) - 1) > 1e-6:
            yield Problem("clients.ranks", f"the shares sum to {sum(ranks.values()):.6g}: mend them to sum to 1")
    largest = max(map(int, ranks)) if ranks is not None else 0
    if largest > adapter.r and adapter.start_from is None and not adapter.rank_pattern:
        yield Problem("clients.ranks", f"rank {largest} is above adapter.r = {adapter.r}: lower it or raise adapter.r")


def list_lengths(clients: ClientsConfig, count: int) -> Iterator[Problem]:
    """Lists with a value per client whose length is not ``count``, the number of clients."""
    for key, value in (("ranks", clients.ranks), ("bytes_budget", clients.bytes_budget)):
        if isinstance(value, list) and len(value) != count:
            words = f"{len(value)} for {count} clients: give one a client, in the order of their ids"
            yield Problem(f"clients.{key}", words)


def _server_checks(config: RunConfig) -> Iterator[Problem]:
    kind = config.server.optimizer
    known = SERVER_OPTIONS[kind]
    for key in ("lr", "beta1", "beta2", "tau"):
        if key not in known and getattr(config.server, key) is not None:
            words = f"{kind!r} has no {key}; it has {', '.join(known)}" if known else "name server.optimizer too"
            yield Problem(f"server.{key}", words)


def missing_files(config: RunConfig) -> Iterator[Problem]:
    """Data that are named by a path at which there is nothing."""
    for key in ("source", "clients_from", "test_source"):
        value = getattr(config.data, key)
        if value is not None and _is_path(value) and not _exists(value):
            yield Problem(
                f"data.{key}",
                f"no such file or folder: {value!r}; mend the path (it is taken from the folder you work in)",
            )
        elif key != "clients_from" and value is not None and "*" in value:
            yield Problem(
                f"data.{key}", "one file or folder is wanted here; for one file a client use data.clients_from"
            )


def _task_checks(config: RunConfig, own_data: bool) -> Iterator[Problem]:
    kind = tasks.TABLE.get(config.task.kind)
    if kind is not None and not kind.head and config.model.head is not None:
        yield Problem("model.head", f"a {config.task.kind} model has no task head; remove it")
    yield from tasks.check(config.task.model_dump(), own_data)


_DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


def _is_path(name: str) -> bool:
    """Whether ``name`` can only be meant as a path: absolute, relative with a dot, or with a data file's ending."""
    return name.startswith(("/", "./", "../", "~")) or name.endswith(_DATA_SUFFIXES)


def _exists(name: str) -> bool:
    try:
        path = Path(name).expanduser()
        return path.exists() or any(path.parent.glob(path.name))
    except (ValueError, RuntimeError, OSError):  # a pattern or a home that no system accepts
        return False
