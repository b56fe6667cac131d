"""Writes rondo/algorithms/declared.json: the traits and hyperparameters of every method's class, read without torch.

Run it after a change to a method's traits, fields or to the table: python tests/algorithms/declare.py
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rondo import algorithms, roles
from rondo.algorithm import Algorithm, Round, plain, unbounded
from rondo.algorithms.trial import trial_fits
from rondo.roles import Select
from rondo.testing import TwoLayers
from rondo.traits import Traits

FILE = Path(algorithms.__file__).with_name("declared.json")


def fields(cls: type[Algorithm[Any]]) -> dict[str, Any]:
    """The types of the hyperparameters of ``cls`` by name."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _selection(select: Select) -> str:
    """``select`` in Python: the name of one of :mod:`rondo.roles`, or of its complement."""
    names = {value: name for name, value in vars(roles).items() if isinstance(value, Select)}
    return names.get(select) or f"~{names[~select]}"


def _traits(traits: Traits) -> dict[str, Any]:
    values = {f.name: getattr(traits, f.name) for f in dataclasses.fields(traits)}
    told = {f.name: values[f.name] for f in dataclasses.fields(traits) if values[f.name] != f.default}
    return {n: _selection(v) if isinstance(v, Select) else v for n, v in told.items()}


def _type(hint: Any) -> str | list[str]:
    return hint.__name__ if isinstance(hint, type) else list(get_args(hint))


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
    """The file, a line per class."""
    lines = []
    for name, entry in algorithms.TABLE.items():
        algorithm = algorithms.get(name)
        told = {
            "traits": _traits(algorithm.traits),
            "linear": algorithm.linear,
            "plain_loss": trains_plainly(algorithm),
            "fields": {key: _type(hint) for key, hint in fields(type(algorithm)).items()},
        }
        lines.append(f"  {json.dumps(entry.cls)}: {json.dumps(told)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
