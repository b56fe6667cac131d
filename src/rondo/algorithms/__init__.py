"""The algorithm table, and the classes by name. Importing it imports no algorithm and no torch.

Third parties need no entry: ``package.module:Class`` works wherever a name does.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any

from rondo import own_code
from rondo.algorithms.formulas import Numbers as Numbers
from rondo.algorithms.other_words import other_word
from rondo.algorithms.table import TABLE as TABLE
from rondo.algorithms.table import Entry as Entry
from rondo.errors import UnknownAlgorithm as UnknownAlgorithm

if TYPE_CHECKING:
    from rondo.algorithm import Algorithm


def names() -> tuple[str, ...]:
    """The names of the methods for any task, in the table's order. Methods for tasks of least squares only are left
    out.

    >>> from rondo import algorithms
    >>> algorithms.names()[:4]
    ('fedit', 'ffa-lora', 'fed-sb', 'rolora')
    """
    return tuple(name for name, entry in TABLE.items() if not entry.traits.least_squares)


def entry(name: str) -> Entry:
    """The table's entry. Raises :class:`UnknownAlgorithm` with near matches.

    >>> from rondo import algorithms
    >>> rolora = algorithms.entry("rolora")
    >>> rolora.up, rolora.traits.exact, rolora.linear
    ('r*out, r*in in turn', True, True)
    """
    if name in TABLE:
        return TABLE[name]
    if (elsewhere := other_word(name)) is not None:
        raise UnknownAlgorithm(elsewhere)
    completions = [n for n in TABLE if name and n.startswith(name.lower())]
    near = completions or difflib.get_close_matches(name.lower(), TABLE, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(TABLE)}"
    raise UnknownAlgorithm(
        f"no algorithm is called {name!r}; {hint} (one of your own is given as package.module:Class)"
    )


def _frozen(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def load(name: str) -> type[Algorithm[Any]]:
    """The class behind a table name or a ``package.module:Class``.

    Raises :class:`UnknownAlgorithm` if there is no such class, or if it is not a frozen dataclass derived from
    Algorithm.

    >>> from rondo import algorithms
    >>> algorithms.load("fedprox").__name__
    'FedProx'
    """
    from rondo.algorithm import Algorithm

    place = name if ":" in name else entry(name).cls
    try:
        cls = own_code.load(place)
    except Exception as error:  # importing a user's module may raise anything
        raise UnknownAlgorithm(f"cannot load {name!r}: {own_code.reason(error)}") from error
    if not (isinstance(cls, type) and issubclass(cls, Algorithm) and _frozen(cls)):
        raise UnknownAlgorithm(f"{name!r} is not a frozen dataclass derived from rondo.algorithm.Algorithm")
    if not hasattr(cls, "traits"):
        raise UnknownAlgorithm(f"{name!r} declares no traits: write traits = Traits(exact=...), of rondo.algorithm")
    return cls


def get(name: str, /, **fields: Any) -> Algorithm[Any]:
    """The algorithm ``name`` (a table name or ``package.module:Class``) with the given hyperparameters.

    Raises :class:`UnknownAlgorithm`, TypeError for a field the algorithm lacks, ValueError for a value out of range.

    >>> from rondo import algorithms
    >>> algorithms.get("fedprox", mu=0.01)
    FedProx(mu=0.01)
    """
    return load(name)(**fields)
