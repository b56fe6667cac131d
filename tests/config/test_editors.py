"""The schema for editors: errors that a schema can express are found by it and by the program."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

import rondo
from rondo import algorithms
from rondo.config import load
from rondo.config.papers.writer import text
from rondo.config.reference import HEADING, json_schema
from rondo.data.demo import STARTER

jsonschema = pytest.importorskip("jsonschema", reason="the other judge")

SCHEMA = json_schema()
JUDGE = jsonschema.Draft202012Validator(SCHEMA)
STARTERS = tomllib.loads(STARTER.read_text(encoding="utf-8"))


def refused_by_schema(config: dict[str, Any]) -> bool:
    return not JUDGE.is_valid(config)


def refused_by_rondo(config: dict[str, Any]) -> bool:
    try:
        load(config)
    except rondo.ConfigError:
        return True
    return False


def wrong(schema: dict[str, Any]) -> Iterator[Any]:
    """Values that a key of this schema must not have."""
    kinds = schema.get("anyOf", [schema])
    types = {kind.get("type") for kind in kinds}
    if "object" not in types and not any("$ref" in kind for kind in kinds):
        yield {"nonsense": 1}
    if not types & {"array"}:
        yield [[1]]
    for kind in kinds:
        if len(types - {"null"}) == 1 and "minimum" in kind:
            yield kind["minimum"] - 1
        if len(types - {"null"}) == 1 and "exclusiveMinimum" in kind:
            yield kind["exclusiveMinimum"]
        if "enum" in kind and len(types - {"null"}) == 1:
            yield "no such choice"


def cases() -> Iterator[Any]:
    yield pytest.param({"no_such_key": 1}, id="unknown")
    for name, part in SCHEMA["properties"].items():
        reference = part.get("$ref", "").rpartition("/")[2]
        section = SCHEMA["$defs"].get(reference)
        if section is None:
            for i, value in enumerate(wrong(part)):
                yield pytest.param({name: value}, id=f"{name}-{i}")
            continue
        yield pytest.param({name: {"no_such_key": 1}}, id=f"{name}-unknown")
        yield pytest.param({name: 3}, id=f"{name}-number")
        for key, schema in section["properties"].items():
            for i, value in enumerate(wrong(schema)):
                yield pytest.param({name: {key: value}}, id=f"{name}.{key}-{i}")
    for name, entry in algorithms.TABLE.items():
        yield pytest.param({"algorithm": {"name": name, "no_such_field": 1}}, id=f"{name}-unknown")
        for field in entry.fields:
            yield pytest.param({"algorithm": {"name": name, field: {"nonsense": [1]}}}, id=f"{name}-{field}")


@pytest.mark.parametrize("change", cases())
def test_error_is_found_by_both(change: dict[str, Any]) -> None:
    config = json.loads(json.dumps(STARTERS))
    for name, value in change.items():
        section = config.get(name, {})
        config[name] = {**section, **value} if isinstance(value, dict) and isinstance(section, dict) else value
    assert refused_by_schema(config)
    assert refused_by_rondo(config)


@pytest.mark.parametrize("name", algorithms.names())
def test_fields_of_every_method_are_known(name: str) -> None:
    fields = {k: v for k, v in vars(algorithms.get(name)).items() if v is not None}
    assert not refused_by_schema({"algorithm": {"name": name, **json.loads(json.dumps(fields))}})


def test_file_to_start_from_is_valid_and_names_the_schema() -> None:
    assert not refused_by_schema(STARTERS)
    assert STARTER.read_text(encoding="utf-8").startswith(f"{HEADING}\n")
    assert not refused_by_schema(tomllib.loads(text("rolora/sst2")))


def test_methods_of_ones_own_are_valid() -> None:
    assert not refused_by_schema({"algorithm": {"name": "mine:Method", "anything": 1}})
