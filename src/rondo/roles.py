"""The meaning of a tensor's name: its role, and selections by role. Imports no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

HEAD_PREFIX = "head:"
"""Begins the names of a head's tensors."""
BUFFER_PREFIX = "buffer:"
"""Begins the names of statistics."""
AUXILIARY_PREFIX = "aux:"
"""Begins the names of a method's own numbers."""
SCALES_PREFIX = "scales:"
"""Begins the names of the scales of a rounded upload."""
PLACES_PREFIX = "places:"
"""Begins the names of the places of an upload's largest numbers."""
HELD_PREFIX = "held:"
"""Begins the names of what a client holds back."""
PACKED_PREFIXES = (SCALES_PREFIX, PLACES_PREFIX, HELD_PREFIX)
"""Begin the names of what a compressed upload has beside its numbers."""


class Role(enum.Enum):
    """The purpose of a tensor.

    >>> from rondo.params import Role, role
    >>> role("encoder.query.A") is Role.DOWN
    True
    """

    DOWN = "down"  #: ``<module>.A``, (r, in)
    UP = "up"  #: ``<module>.B``, (out, r)
    GRAM = "gram"  #: ``<module>.G``, (r, min(in, out)); the one matrix that FLoRG trains
    CORE = "core"  #: ``<module>.C``, (r, r), which Fed-SB trains, or (r, r/h), of RAVAN's h heads
    FIXED = (
        "fixed"  #: ``<module>.L`` (out, k), ``<module>.R`` (k, in) and a scale, ``<module>.s`` (1, 1); never trained
    )
    DENSE = "dense"  #: ``<module>.D``, (out, in); a full-rank change, in units of the scale
    SPARSE = "sparse"  #: ``<module>.S``, (n,); values of a change that is zero elsewhere, in units of the scale
    INDEX = "index"  #: ``<module>.I``, (n,) integers; positions or slots; never trained
    MAGNITUDE = "magnitude"  #: ``<module>.magnitude``, (out,); the norms of a layer's rows, which DoRA trains
    ROUTER = "router"  #: ``<module>.router``, (pairs, in); weighs the pairs that A and B stack, per token
    NESTED = "nested"  #: ``<module>.Ad`` ``.Au`` ``.Bd`` ``.Bu``; factors of a change of A or of B
    SKETCH = "sketch"  #: ``<module>.range`` (out, s), ``<module>.corange`` (l, in); of a product B A, in uploads alone
    PERSONAL_DOWN = "personal down"  #: ``<module>.pA``
    PERSONAL_UP = "personal up"  #: ``<module>.pB``
    HEAD = "head"  #: ``head:<torch's own name>``
    BUFFER = "buffer"  #: ``buffer:<torch's own name>``; statistics that a forward pass updates, never a gradient
    AUXILIARY = "auxiliary"  #: ``aux:<name>``; a method's own numbers beside the model, such as control variates
    PACKED = "packed"  #: ``scales:<name>``, ``places:<name>`` beside a packed tensor, ``held:<name>`` left out of one
    BODY = "body"  #: torch's own name


_SUFFIXES = {
    "A": Role.DOWN,
    "B": Role.UP,
    "G": Role.GRAM,
    "C": Role.CORE,
    "L": Role.FIXED,
    "R": Role.FIXED,
    "s": Role.FIXED,
    "D": Role.DENSE,
    "S": Role.SPARSE,
    "I": Role.INDEX,
    "magnitude": Role.MAGNITUDE,
    "router": Role.ROUTER,
    "Ad": Role.NESTED,
    "Au": Role.NESTED,
    "Bd": Role.NESTED,
    "Bu": Role.NESTED,
    "range": Role.SKETCH,
    "corange": Role.SKETCH,
    "pA": Role.PERSONAL_DOWN,
    "pB": Role.PERSONAL_UP,
}


def role(name: str) -> Role:
    """The role of the tensor called ``name``.

    >>> from rondo.params import role
    >>> [role(name).value for name in ("encoder.query.A", "encoder.query.B", "head:classifier.weight", "conv1.weight")]
    ['down', 'up', 'head', 'body']
    """
    if name.startswith(HEAD_PREFIX):
        return Role.HEAD
    if name.startswith(PACKED_PREFIXES):
        return Role.PACKED
    if name.startswith(BUFFER_PREFIX):
        return Role.BUFFER
    if name.startswith(AUXILIARY_PREFIX):
        return Role.AUXILIARY
    _, dot, suffix = name.rpartition(".")
    return _SUFFIXES.get(suffix, Role.BODY) if dot else Role.BODY


def module_of(name: str) -> str:
    """The module path of an adapter tensor: ``"encoder.query.A"`` gives ``"encoder.query"``.

    >>> from rondo.params import module_of
    >>> module_of("encoder.query.A")
    'encoder.query'
    """
    return name.rpartition(".")[0]


@dataclass(frozen=True)
class Select:
    """A frozen predicate on a tensor's role. Call it on a name; combine with ``|``, ``&`` and ``~``.

    >>> from rondo.params import down, head, up
    >>> [(down | head)(name) for name in ("query.A", "query.B", "head:out.weight")]
    [True, False, True]
    >>> (~up)("query.B")
    False
    """

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
"""Every tensor."""
nothing = Select(frozenset())
"""No tensor."""
down = Select(frozenset({Role.DOWN}))
"""A of every module."""
up = Select(frozenset({Role.UP}))
"""B of every module."""
gram = Select(frozenset({Role.GRAM}))
"""G, which FLoRG trains."""
core = Select(frozenset({Role.CORE}))
"""C, which Fed-SB and RAVAN train."""
fixed = Select(frozenset({Role.FIXED}))
"""Bases and scales that are never trained."""
dense = Select(frozenset({Role.DENSE}))
"""Changes of full rank."""
sparse = Select(frozenset({Role.SPARSE}))
"""Changes that are zero in most places."""
magnitude = Select(frozenset({Role.MAGNITUDE}))
"""Norms of the rows of layers."""
router = Select(frozenset({Role.ROUTER}))
"""Routers, which weigh the pairs of factors of a layer."""
nested = Select(frozenset({Role.NESTED}))
"""Factors of a change of A or of B."""
sketch = Select(frozenset({Role.SKETCH}))
"""Sketches of products B A."""
personal = Select(frozenset({Role.PERSONAL_DOWN, Role.PERSONAL_UP}))
"""Pairs of factors that stay with a client."""
head = Select(frozenset({Role.HEAD}))
"""The task's head."""
buffer = Select(frozenset({Role.BUFFER}))
"""Statistics that a forward pass updates."""
auxiliary = Select(frozenset({Role.AUXILIARY}))
"""Numbers of a method beside the model."""
packed = Select(frozenset({Role.PACKED}))
"""Scales and places beside a compressed upload's numbers, and what a client holds back."""
body = Select(frozenset({Role.BODY, Role.BUFFER}))
"""Whole tensors below the head, with their statistics."""
whole = head | body | magnitude
"""Tensors that are trained as they are, beside factors."""
