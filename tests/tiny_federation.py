"""A federation of three clients on a tiny model, for tests of the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from composed import Composed
from methods import KINDS
from rondo import algorithms
from rondo.algorithm import Client, HeadPolicy, Round
from rondo.config import RunConfig, load
from rondo.data.members import Member
from rondo.data.population import Population
from rondo.lowrank import GrowingSum
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.params import Params, everything, head, pick
from rondo.runs.assembling.wrapping import with_policies
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from rondo.tasks.task import Batch

NAMES = algorithms.names()


HEADS: tuple[HeadPolicy, ...] = ("shared", "local", "frozen")


def refused(name: str, policy: HeadPolicy) -> bool:
    """Whether the method would keep or send nothing, although it divides the model."""
    keeps = algorithms.entry(name).traits.keeps
    return (keeps == head and policy == "frozen") or (keeps == ~head and policy != "shared")


ALLOWED = {name: [policy for policy in HEADS if not refused(name, policy)] for name in NAMES}
"""The head policies that every method goes with."""


def stateful(name: str) -> dict[str, Any]:
    """Sections of three rounds of two of three clients, with state at the server and at the clients."""
    method = algorithms.get(name)
    steps = method.traits.keeps != everything and method.linear and method.traits.server in ("mean", "restart")
    return {
        "rounds": 3,
        "algorithm": {"name": name},
        "model": {"head": "local" if "local" in ALLOWED[name] else "shared"},
        "clients": {"per_round": 2},
        "train": {"local_epochs": 1, "batch_size": 4},
        "server": {"optimizer": "adam" if steps else "none"},
        "evaluation": {"diagnostics_every": 2},
    }


EVERY_HEAD = [
    pytest.param(name, policy, marks=() if j == i % len(ALLOWED[name]) else pytest.mark.slow)
    for i, name in enumerate(NAMES)
    for j, policy in enumerate(ALLOWED[name])
]
"""Every method with every head policy that it goes with. Each has one policy in the default run, the policies in
turn."""

HEADS_OF_KINDS = [
    pytest.param(*p.values, marks=p.marks if p.values[0] in KINDS else pytest.mark.slow) for p in EVERY_HEAD
]
"""The same, where the default run has one method of each kind."""


RANK = 3


POISON = tiny.VOCABULARY - 1
"""A word that only the rows of clients chosen to fail contain."""


def examples(client: str, count: int, *, poisoned: bool = False) -> tuple[TextExample, ...]:
    """Sentences labelled by their first word, with a rule per client."""
    g = Round(0, 1, 0, 0).generator(client)
    shift = int(torch.randint(0, 3, (1,), generator=g))
    rows = []
    for _ in range(count):
        body = torch.randint(4, POISON, (int(torch.randint(3, 8, (1,), generator=g)),), generator=g).tolist()
        ids = (2, *body, POISON, 3) if poisoned else (2, *body, 3)
        rows.append(TextExample(ids, (body[0] + shift) % 3, (0,) * len(ids)))
    return tuple(rows)


def population(sizes: Mapping[str, int], poisoned: Sequence[str] = ()) -> Population:
    members = {}
    for name, size in sizes.items():
        rows = examples(name, size + 2, poisoned=name in poisoned)
        members[name] = Member(Client(name, size), rows[:size], rows[size:])
    return Population(members, examples("the test set", 6), {})


SIZES = {"ann": 4, "bob": 9, "cid": 6}


class Task(SequenceClassification):
    """Classification whose loss is not finite on a row with the poisoned word.

    ``before``: called with the rows of every batch; what it raises ends the batch.
    """

    def __init__(self) -> None:
        super().__init__(tiny.tokenizer(), ["text"], "label", ("a", "b", "c"), 32)
        self.before: Callable[[Sequence[TextExample]], object] = len

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        self.before(examples)
        inputs, targets = super().collate(examples)
        poisoned = torch.tensor([POISON in e.ids for e in examples])
        return inputs, {**targets, "poison": torch.where(poisoned, math.nan, 1.0)}

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        sums, counts = super().loss(logits, targets)
        return sums * targets["poison"], counts


def config(**sections: Any) -> RunConfig:
    train = {"lr": 5e-3, "batch_size": 4, "local_epochs": 1, **sections.pop("train", {})}
    return load({"seed": 5, "rounds": 4, "train": train, **sections})


ALONE = config(simulation={"cohort": 1})


def make(
    name: str = "rolora",
    policy: HeadPolicy = "shared",
    *,
    people: Population | None = None,
    run: RunConfig | None = None,
    dtype: torch.dtype = torch.float32,
    targets: Sequence[str] = ("query", "intermediate.dense"),
    **fields: Any,
) -> Composed:
    """A simulation as a run builds it, from an algorithm of the table and a head policy."""
    module = tiny.bert().to(dtype)
    sites = tiny.sites(module, targets, rank=RANK)
    network = AdaptedNetwork(module, sites, tiny.head_names(module))
    # PEFT's start: A random, B zero.
    initial = {n: t if n.endswith(".A") else 0 * t for n, t in tiny.factors(sites, 1, dtype=dtype).items()}
    if policy != "frozen":
        initial |= network.initial_head
    algorithm = with_policies(algorithms.get(name, **fields), policy)
    return Composed(algorithm, network, Task(), people or population(SIZES), run or config(), initial)


def run(simulation: Composed, rounds: int = 2) -> list[dict[str, Any]]:
    return [simulation.run_round(t) for t in range(rounds)]


def change(sim: Composed, seen: Params, base: Mapping[str, GrowingSum]) -> dict[str, Tensor]:
    """The dense change that the network adds to every adapted layer, and the head."""
    changes = {n: t.double() for n, t in pick(seen, head).items()}
    for path, site in sim.network.sites.items():
        changes[path] = site.scale * seen[f"{path}.B"].double() @ seen[f"{path}.A"].double()
        if path in base:
            changes[path] = changes[path] + base[path].factors().dense().double()
    return changes
