"""The facts about a method that are known without importing it. Imports no torch.

Those that only a person can tell are in ``entries.py`` beside the methods, those that their classes declare in
:mod:`rondo.algorithms.declared`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.algorithms.declared import FIELDS, NOT_LINEAR, NOT_PLAIN, TRAITS
from rondo.algorithms.formulas import Numbers, Whole
from rondo.traits import Traits


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
        return TRAITS[self.cls]

    @property
    def linear(self) -> bool:
        """Whether the class is linear with its default fields (:attr:`rondo.algorithm.Algorithm.linear`)."""
        return self.cls not in NOT_LINEAR

    @property
    def plain_loss(self) -> bool:
        """Whether all local training of the class is on the plain loss (:func:`rondo.algorithm.plain`)."""
        return self.cls not in NOT_PLAIN

    @property
    def fields(self) -> Mapping[str, Any]:
        """Hyperparameters: name and type."""
        return FIELDS.get(self.cls, {})

    @property
    def flags(self) -> tuple[str, str, str]:
        """Exact, linear and personal, in words. "whole": exact where whole tensors are trained alone. "one rank":
        linear where clients have no ranks of their own."""
        traits = self.traits
        exact = ("yes" if traits.needs_factors else "whole") if traits.exact else "no"
        linear = ("one rank" if traits.client_ranks else "yes") if self.linear else "no"
        return exact, linear, "yes" if traits.personal else "no"
