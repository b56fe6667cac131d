"""Arms that are a product, and claims on several arms alike: their short forms in an entry's file.

::

    [product.method]                    # an arm for each method and each epsilon: fedit-1, fedit-8, rolora-1, ...
    fedit = { algorithm = { name = "fedit" } }
    rolora = { algorithm = { name = "rolora" } }
    [product.epsilon]
    1 = { privacy = { noise = 7.3 } }
    8 = { privacy = { noise = 1.4 } }

    [[bounds]]                          # a claim for each
    each = { fedit = "FedIT", rolora = "RoLoRA" }
    claim = "{name} at epsilon 8 is above chance"
    arm = "{arm}-8"
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rondo.errors import ConfigError
from rondo.study.tune.tuning import merge

_TABLES = ("contrasts", "bounds", "preconditions")


def spread(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys ``raw`` of the entry ``name`` with every arm and claim written out. Raises :class:`ConfigError`."""
    written = {key: value for key, value in raw.items() if key != "product"}
    if "product" in raw:
        written["arms"] = {**dict(_arms(raw["product"], name)), **raw.get("arms", {})}
    for key in _TABLES:
        if isinstance(tables := raw.get(key), list):
            written[key] = [one for table in tables for one in _each(table, f"{key}.each", name)]
    return written


def _arms(product: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    axes = list(product.values()) if isinstance(product, Mapping) else []
    if not axes or not all(_is_table(axis) and all(map(_is_table, axis.values())) for axis in axes):
        raise ConfigError.at("product", "should be tables of arms' tables: [product.method], fedit = { ... }", name)
    for point in itertools.product(*(axis.items() for axis in axes)):
        tree: dict[str, Any] = {}
        for _, part in point:
            merge(tree, part)
        yield "-".join(value for value, _ in point), tree


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _each(table: Any, path: str, name: str) -> Iterator[Any]:
    if not isinstance(table, Mapping) or "each" not in table:
        yield table
        return
    if not isinstance(of := table["each"], Mapping):
        raise ConfigError.at(path, 'should be a table of names by arm: { fedit = "FedIT" }', name)
    for arm, said in of.items():
        yield {key: _filled(value, arm, str(said)) for key, value in table.items() if key != "each"}


def _filled(value: Any, arm: str, said: str) -> Any:
    if isinstance(value, list):
        return [_filled(one, arm, said) for one in value]
    return value.replace("{arm}", arm).replace("{name}", said) if isinstance(value, str) else value
