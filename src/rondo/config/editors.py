"""The configuration as a JSON schema, by which editors complete keys and mark errors."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from rondo import algorithms
from rondo.config.schema import FileConfig

FILE = "rondo.schema.json"
"""The name that :data:`HEADING` expects."""

HEADING = f"#:schema ./{FILE}\n# Editors complete and check keys by that file: rondo schema > {FILE}"
"""The first lines of a TOML file, for editors with Taplo (Even Better TOML)."""


def json_schema() -> dict[str, Any]:
    """The schema of a file, draft 2020-12. It has types, bounds, choices and names of keys; rules over several keys are
    ``rondo run``'s alone."""
    schema = FileConfig.model_json_schema()
    own = {"type": "string", "pattern": ":", "description": "An algorithm of one's own: package.module:Class."}
    algorithm = schema["$defs"]["AlgorithmConfig"]
    algorithm["properties"]["name"]["anyOf"] = [{"enum": list(algorithms.TABLE)}, own]
    algorithm["allOf"] = [_fields_of(name) for name in algorithms.TABLE]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _fields_of(name: str) -> dict[str, Any]:
    """The keys of ``[algorithm]`` where it has this name."""
    fields = {key: TypeAdapter(kind).json_schema() for key, kind in algorithms.TABLE[name].fields.items()}
    named = {"properties": {"name": {"const": name}}}
    if name != FileConfig().algorithm.name:  # which a table without a name has
        named["required"] = ["name"]  # type: ignore[assignment]
    return {"if": named, "then": {"properties": {"name": True, **fields}, "additionalProperties": False}}
