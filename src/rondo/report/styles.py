"""The colour and dash of each method, by a number: the same in all pictures and pages. Imports no torch."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable

from rondo import algorithms

COLOURS = 7
"""Colours that can be told apart; further numbers have them again, with other dashes."""


def styles(labels: Iterable[str]) -> dict[str, int]:
    """The number of each label, whatever their order. A label begins with its method, which has its place in the table
    of methods; one whose colour another one has takes the next that is free."""
    found: dict[str, int] = {}
    firsts: dict[str, str] = {}
    ordered = sorted(set(labels), key=lambda label: (_place(label), label))
    for label in ordered:
        firsts.setdefault(_method(label), label)
    for label in dict.fromkeys((*firsts.values(), *ordered)):
        wanted = itertools.chain([_place(label) % COLOURS], itertools.count())
        found[label] = next(number for number in wanted if number not in found.values())
    return found


def _method(label: str) -> str:
    return label.split(" ")[0]


def _place(label: str) -> int:
    name = _method(label)
    names = list(algorithms.TABLE)
    return names.index(name) if name in names else len(names) + zlib.crc32(name.encode())
