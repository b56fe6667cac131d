"""The facts about a method that are known without importing it. Imports no torch.

Those that only a person can tell are in ``entries.py`` beside the methods. Those that their classes declare are in
``declared.json``, which ``python tests/algorithms/declare.py`` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from rondo.algorithms.formulas import Numbers, Whole
from rondo.roles import everything, head
from rondo.traits import Traits

_SELECTIONS = {"head": head, "~head": ~head, "everything": everything}
_TYPES = {"bool": bool, "int": int, "float": float}


@dataclass(frozen=True)
class Declared:
    """The declarations of a method's class, with its default fields.

    ``linear``: as :attr:`rondo.algorithm.Algorithm.linear`.
    ``plain_loss``: whether all local training is on the plain loss (:func:`rondo.algorithm.plain`).
    ``fields``: hyperparameters, name and type.
    """

    traits: Traits
    linear: bool
    plain_loss: bool
    fields: Mapping[str, Any]


@cache
def declared() -> Mapping[str, Declared]:
    """That of every class of the table. Of a hyperparameter, a list has its values."""
    content = json.loads((files("rondo.algorithms") / "declared.json").read_text(encoding="utf-8"))
    by_class: dict[str, Declared] = {}
    for cls, told in content.items():
        traits: dict[str, Any] = {
            name: _SELECTIONS[value] if name == "keeps" else value for name, value in told["traits"].items()
        }
        fields = {n: _TYPES[t] if isinstance(t, str) else Literal[tuple(t)] for n, t in told["fields"].items()}
        by_class[cls] = Declared(Traits(**traits), told["linear"], told["plain_loss"], fields)
    return by_class


@dataclass(frozen=True)
class Entry:
    """The facts about an algorithm that are known without importing it.

    >>> from rondo import algorithms
    >>> entry = algorithms.entry("fedit")
    >>> entry.paper
    'Zhang et al. 2023'
    >>> entry.up_numbers(8, 384, 384, 0, 1)  # rank, in, out, round, uploads
    6144
    """

    cls: str
    """``package.module:Class``."""
    summary: str
    """One line for ``rondo list``."""
    paper: str
    """First author, venue if any, year."""
    up: str
    """Numbers that a client uploads per adapted module, in words, for a client that has the run's rank r."""
    down: str
    """The same for the numbers that a client receives."""
    up_numbers: Numbers
    """``up`` as a function."""
    down_numbers: Numbers
    """``down`` as a function."""
    whole: Whole = "all"
    """Whole tensors that travel, up and down, of those that the method is given. A head that is local or frozen by
    ``model.head`` is not."""

    core: bool = False
    """Whether RoLoRA's, FLoRG's, FedRep's or FedLoRU's authors propose it, or a claim with a verdict rests on it
    (``rondo reproduce list``). The others are *more methods*: lawful, and compared with nothing here."""

    @property
    def traits(self) -> Traits:
        """The traits that the class has with its default fields."""
        return declared()[self.cls].traits

    @property
    def linear(self) -> bool:
        """Whether the class is linear with its default fields (:attr:`rondo.algorithm.Algorithm.linear`)."""
        return declared()[self.cls].linear

    @property
    def plain_loss(self) -> bool:
        """Whether all local training of the class is on the plain loss (:func:`rondo.algorithm.plain`)."""
        return declared()[self.cls].plain_loss

    @property
    def fields(self) -> Mapping[str, Any]:
        """Hyperparameters: name and type."""
        return declared()[self.cls].fields

    @property
    def flags(self) -> tuple[str, str, str]:
        """Exact, linear and personal, in words. "whole": exact where whole tensors are trained alone. "one rank":
        linear where clients have no ranks of their own."""
        traits = self.traits
        exact = ("yes" if traits.needs_factors else "whole") if traits.exact else "no"
        linear = ("one rank" if traits.client_ranks else "yes") if self.linear else "no"
        return exact, linear, "yes" if traits.personal else "no"
