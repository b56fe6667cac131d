"""The reference of every configuration key, made of the schema: for ``rondo show config``, docs/configuration.md
(``tests/config/test_reference.py`` writes it), and as a JSON schema for editors. Imports no torch."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter

from rondo import algorithms
from rondo.config.schema import AlgorithmConfig, FileConfig
from rondo.errors import ConfigError


@dataclass(frozen=True)
class Key:
    """One key of the configuration."""

    path: str
    """With its section: ``train.lr``."""
    values: str
    """The values that it takes, in words."""
    default: str
    """In TOML; empty where the key is not set by default."""
    meaning: str

    @property
    def name(self) -> str:
        """The key within its section."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class SectionTable:
    """One section of the configuration. The keys outside any section have the name ""."""

    name: str
    meaning: str
    keys: tuple[Key, ...]


def sections() -> tuple[SectionTable, ...]:
    """Every section with its keys, in the order of the schema."""
    tables = [SectionTable("", "Keys outside of any section.", tuple(keys(FileConfig, "")))]
    for name, field in FileConfig.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields = _algorithm_fields() if model is AlgorithmConfig else ()
            tables.append(SectionTable(name, _prose(model.__doc__), (*keys(model, f"{name}."), *fields)))
    return tuple(tables)


def keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    """The keys of ``model`` that are not sections."""
    schemas = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        if "$ref" not in schemas[name]:
            default = field.get_default(call_default_factory=True)
            in_toml = "" if default is None else json.dumps(default)
            yield Key(prefix + name, _values(schemas[name]), in_toml, _prose(field.description))


def _algorithm_fields() -> Iterator[Key]:
    """The fields of the table's algorithms, by name and type."""
    methods: dict[tuple[str, str], list[str]] = {}
    for method, entry in algorithms.TABLE.items():
        for name, kind in entry.fields.items():
            methods.setdefault((name, _values(TypeAdapter(kind).json_schema())), []).append(method)
    for (name, values), users in methods.items():
        yield Key(f"algorithm.{name}", values, "", f"Field of {', '.join(users)}: see `rondo show {users[0]}`.")


def _prose(docstring: str | None) -> str:
    """A docstring in Markdown, in one line."""
    return " ".join((docstring or "").replace("``", "`").replace(":mod:", "").split())


_WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
_BOUNDS = (("exclusiveMinimum", ">"), ("minimum", ">="), ("exclusiveMaximum", "<"), ("maximum", "<="))


def _values(schema: Mapping[str, Any], plural: str = "") -> str:
    """The values that a JSON schema allows. None is left out: in TOML a key without value is not written."""
    if "anyOf" in schema:
        return " or ".join(_values(s, plural) for s in schema["anyOf"] if s.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        most = f"at most {schema['maxItems']} " if "maxItems" in schema else ""
        return f"list of {most}{_values(schema['items'], 's')}"
    if schema["type"] == "object":
        inner = schema["additionalProperties"]
        return f"table{plural}" if inner is True else f"table{plural} of {_values(inner, 's')}"
    bounds = " and ".join(f"{sign} {schema[name]:g}" for name, sign in _BOUNDS if name in schema)
    return f"{_WORDS[schema['type']]}{plural} {bounds}".rstrip()


def text(path: str | None = None, width: int = 100) -> str:
    """The reference in lines of at most ``width`` characters: all of it, or the section or key at ``path``. Raises
    :class:`ConfigError` if there is none."""
    every = sections()
    known = [key for section in every for key in section.keys]
    blocks = [_section_text(section, width) for section in every if path is None or section.name == path]
    blocks = blocks or [_key_text(key, width) for key in known if key.path == path]
    if not blocks:
        paths = [key.path for key in known]
        near = difflib.get_close_matches(str(path), paths, n=1) or [p for p in paths if p.endswith(f".{path}")]
        hint = f"did you mean {near[0]!r}?" if near else "rondo show config lists all"
        raise ConfigError.at("KEY", f"no key or section {path!r}; {hint}", "rondo show config")
    return "\n\n".join(blocks)


def _section_text(section: SectionTable, width: int) -> str:
    title = [f"[{section.name}]"] if section.name else []
    meaning = textwrap.fill(section.meaning, width)
    return "\n".join([*title, meaning, "", *(_key_text(key, width) for key in section.keys)])


def _key_text(key: Key, width: int) -> str:
    name = f"{key.path} = {key.default}" if key.default else f"{key.path} (not set)"
    body = [textwrap.fill(part, width - 4, break_on_hyphens=False) for part in (key.values, key.meaning)]
    return f"{name}\n" + textwrap.indent("\n".join(body), " " * 4)


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
