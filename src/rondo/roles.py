"""The meaning of a tensor's name: its role, and selections by role. Imports no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

HEAD_PREFIX = "head:"
BUFFER_PREFIX = "buffer:"
AUXILIARY_PREFIX = "aux:"


class Role(enum.Enum):
    """The purpose of a tensor."""

    DOWN = "down"  #: ``<module>.A``, (r, in)
    UP = "up"  #: ``<module>.B``, (out, r)
    GRAM = "gram"  #: ``<module>.G``, (r, min(in, out)); the one matrix that FLoRG trains
    FIXED = (
        "fixed"  #: ``<module>.L`` (out, k), ``<module>.R`` (k, in) and a scale, ``<module>.s`` (1, 1); never trained
    )
    DENSE = "dense"  #: ``<module>.D``, (out, in); a full-rank change, in units of the scale
    SPARSE = "sparse"  #: ``<module>.S``, (n,); values of a change that is zero elsewhere, in units of the scale
    INDEX = "index"  #: ``<module>.I``, (n,) integers; positions or slots; never trained
    NESTED = "nested"  #: ``<module>.Ad`` ``.Au`` ``.Bd`` ``.Bu``; factors of a change of A or of B
    PERSONAL_DOWN = "personal down"  #: ``<module>.pA``
    PERSONAL_UP = "personal up"  #: ``<module>.pB``
    HEAD = "head"  #: ``head:<torch's own name>``
    BUFFER = "buffer"  #: ``buffer:<torch's own name>``; statistics that a forward pass updates, never a gradient
    AUXILIARY = "auxiliary"  #: ``aux:<name>``; a method's own numbers beside the model, such as control variates
    BODY = "body"  #: torch's own name


_SUFFIXES = {
    "A": Role.DOWN,
    "B": Role.UP,
    "G": Role.GRAM,
    "L": Role.FIXED,
    "R": Role.FIXED,
    "s": Role.FIXED,
    "D": Role.DENSE,
    "S": Role.SPARSE,
    "I": Role.INDEX,
    "Ad": Role.NESTED,
    "Au": Role.NESTED,
    "Bd": Role.NESTED,
    "Bu": Role.NESTED,
    "pA": Role.PERSONAL_DOWN,
    "pB": Role.PERSONAL_UP,
}


def role(name: str) -> Role:
    """The role of the tensor called ``name``."""
    if name.startswith(HEAD_PREFIX):
        return Role.HEAD
    if name.startswith(BUFFER_PREFIX):
        return Role.BUFFER
    if name.startswith(AUXILIARY_PREFIX):
        return Role.AUXILIARY
    _, dot, suffix = name.rpartition(".")
    return _SUFFIXES.get(suffix, Role.BODY) if dot else Role.BODY


def module_of(name: str) -> str:
    """The module path of an adapter tensor: ``"encoder.query.A"`` gives ``"encoder.query"``."""
    return name.rpartition(".")[0]


@dataclass(frozen=True)
class Select:
    """A frozen predicate on a tensor's role. Call it on a name; combine with ``|``, ``&`` and ``~``."""

    roles: frozenset[Role]

    def __call__(self, name: str) -> bool:
        return role(name) in self.roles

    def __or__(self, other: Select) -> Select:
        return Select(self.roles | other.roles)

    def __and__(self, other: Select) -> Select:
        return Select(self.roles & other.roles)

    def __invert__(self) -> Select:
        return Select(frozenset(Role) - self.roles)


everything = Select(frozenset(Role))
nothing = Select(frozenset())
down = Select(frozenset({Role.DOWN}))
up = Select(frozenset({Role.UP}))
gram = Select(frozenset({Role.GRAM}))
fixed = Select(frozenset({Role.FIXED}))
dense = Select(frozenset({Role.DENSE}))
sparse = Select(frozenset({Role.SPARSE}))
nested = Select(frozenset({Role.NESTED}))
personal = Select(frozenset({Role.PERSONAL_DOWN, Role.PERSONAL_UP}))
head = Select(frozenset({Role.HEAD}))
buffer = Select(frozenset({Role.BUFFER}))
auxiliary = Select(frozenset({Role.AUXILIARY}))
body = Select(frozenset({Role.BODY, Role.BUFFER}))
"""Whole tensors below the head, with their statistics."""
whole = head | body
"""Tensors that are trained as they are, beside factors."""
