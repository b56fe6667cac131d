"""Writes rondo/algorithms/declared.py: the traits and hyperparameters of every method's class, read without torch.

Run it after a change to a method's traits, fields or to the table: python tests/algorithms/declare.py
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

from rondo import algorithms, roles
from rondo.algorithm import Algorithm, Round, plain, unbounded
from rondo.algorithms.trial import trial_fits
from rondo.roles import Select
from rondo.testing import TwoLayers
from rondo.traits import Traits

FILE = Path(algorithms.__file__).with_name("declared.py")

HEADER = '''"""The traits and hyperparameters that the methods' classes declare, by class. Imports no torch.

Written by ``python tests/algorithms/declare.py`` from the classes; a test says when it is out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rondo.roles import everything, head
from rondo.traits import Traits
'''


def fields(cls: type[Algorithm[Any]]) -> dict[str, Any]:
    """The types of the hyperparameters of ``cls`` by name."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _selection(select: Select) -> str:
    """``select`` in Python: the name of one of :mod:`rondo.roles`, or of its complement."""
    names = {value: name for name, value in vars(roles).items() if isinstance(value, Select)}
    return names.get(select) or f"~{names[~select]}"


def _traits(traits: Traits) -> str:
    values = {f.name: getattr(traits, f.name) for f in dataclasses.fields(traits)}
    told = {f.name: values[f.name] for f in dataclasses.fields(traits) if values[f.name] != f.default}
    words = {n: _selection(v) if isinstance(v, Select) else repr(v) for n, v in told.items()}
    return f"Traits({', '.join(f'{n}={word}' for n, word in words.items())})"


def _type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else repr(hint).removeprefix("typing.")


def trains_plainly(algorithm: Algorithm[Any]) -> bool:
    """Whether all local training of ``algorithm`` in four rounds is on the plain loss."""
    if algorithm.traits.least_squares:
        return False
    problem = TwoLayers.make(seed=0)
    state, (client, *_) = algorithm.init(problem.params, problem.weights, Round(0, 4, 0, 3)), problem.clients
    fits = []
    for index in range(4):
        round = Round(index, 4, 0, 3)
        fits += trial_fits(algorithm, algorithm.broadcast(state, client, round), client, round)
    return {(fit.objective, fit.project) for fit in fits} <= {(plain, unbounded)}


def text() -> str:
    """The file, before it is formatted."""
    traits, single, plainless, hyperparameters = "", "", "", ""
    for name, entry in algorithms.TABLE.items():
        algorithm = algorithms.get(name)
        traits += f"{entry.cls!r}: {_traits(algorithm.traits)},\n"
        single += f"{entry.cls!r},\n" * (not algorithm.linear)
        plainless += f"{entry.cls!r},\n" * (not trains_plainly(algorithm))
        if types := fields(type(algorithm)):
            hyperparameters += f"{entry.cls!r}: {{{', '.join(f'{n!r}: {_type(t)}' for n, t in types.items())}}},\n"
    return (
        f"{HEADER}\nTRAITS: Mapping[str, Traits] = {{{traits}}}\n"
        f'\nNOT_LINEAR = frozenset({{{single}}})\n"""Their servers work on single uploads."""\n'
        f'\nNOT_PLAIN = frozenset({{{plainless}}})\n"""Their clients minimise more than the plain loss."""\n'
        f"\nFIELDS: Mapping[str, Mapping[str, Any]] = {{{hyperparameters}}}\n"
    )


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", str(FILE)], check=True)
