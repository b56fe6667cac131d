"""Strict reading of another party's JSON: JSON without repeated keys, of exactly the fields of a class.

The fields' annotations are pydantic's, as those of the configuration. Whoever calls has counted the bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import pydantic
from pydantic import ConfigDict, FailFast, PlainValidator, Strict

PROTOCOL = 1
"""The version of all letters. Sides with the same number work together, whatever their versions of Rondo."""
_LENGTH = 8
"""Bytes of the length of a header."""

T = TypeVar("T")


class Rejected(Exception):
    """An upload or a letter that does not count. ``reason`` is a short code. ``detail`` says more, and quotes the
    sender's text as Python prints it, cut short."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def short(value: object) -> str:
    """Another party's value as Python prints it, so that no character acts on a terminal; cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def framed(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps({"protocol": PROTOCOL, **header}, allow_nan=False).encode()
    return len(text).to_bytes(_LENGTH, "little") + text + body


def unframed(shape: type[T], data: bytes, largest: int) -> tuple[T, bytes]:
    """The header of a letter, of the fields of ``shape`` and at most ``largest`` bytes, and its body."""
    size = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or size > min(largest, len(data) - _LENGTH):
        raise Rejected("unreadable", f"{len(data)} bytes with a header of {size}")
    return read(shape, "unreadable", "the header", data[_LENGTH : _LENGTH + size]), data[_LENGTH + size :]


def json_object(reason: str, what: str, text: bytes) -> dict[str, Any]:
    """A JSON object without repeated keys: of two values the parser would take one, and a check the other."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            ((key, count),) = Counter(key for key, _ in pairs).most_common(1)
            raise Rejected("duplicate_key", f"{short(key)} is there {count} times in {what}")
        return content

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        content = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise Rejected(reason, f"{what} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Rejected(reason, f"{what} is not a JSON object {{...}}")
    return content


def read(shape: type[T], reason: str, what: str, text: bytes) -> T:
    """The dataclass ``shape`` from a JSON object of its fields, beside which is the protocol."""
    content, model = json_object(reason, what, text), _model(shape)  # type: ignore[arg-type]
    protocol = content.get("protocol", PROTOCOL)
    if protocol is True or protocol != PROTOCOL:
        environment = content.get("environment")
        version = content.get("rondo", environment.get("rondo") if isinstance(environment, dict) else None)
        raise Rejected("wrong_protocol", other_protocol(protocol, version))
    for key in sorted(content.keys() ^ {*model.model_fields, "protocol"}):  # pydantic would note each of millions
        raise Rejected(reason, f"{what}: {short(key)} is {'unknown' if key in content else 'missing'}")
    try:
        return shape(**dict(model.model_validate(content)))
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in fault["loc"] if part == fault["loc"][0] or isinstance(part, int))
        wanted = re.sub("^(Value error, |Input |String )", "", fault["msg"]).replace("a valid tuple", "a list [...]")
        raise Rejected(reason, f"{what}: {path} {wanted}, got {short(fault['input'])}") from None


def other_protocol(protocol: object, version: object = None) -> str:
    """The fault of a letter of another protocol, and which side to upgrade. ``version``: the sender's version of Rondo,
    if the letter says it."""
    sender = short(protocol) if version is None else f"{short(protocol)} (Rondo {short(version)})"
    side = "this side" if isinstance(protocol, int) and protocol > PROTOCOL else "the other side"
    return f"{sender}, and this side speaks {PROTOCOL}: upgrade {side}"


@cache
def _model(shape: Any) -> type[pydantic.BaseModel]:
    hints = get_type_hints(shape, include_extras=True)
    config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())
    own: Any = {field.name: (hints[field.name], ...) for field in fields(shape)}
    model: type[pydantic.BaseModel] = pydantic.create_model(shape.__name__, __config__=config, **own)
    return model


def only(fits: Callable[[Any], bool], wanted: str) -> PlainValidator:
    """A value that ``fits``: for an object, and a list that comes as a tuple, whole, where pydantic would note each of
    millions of wrong entries."""

    def checked(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"should be {wanted}")
        return tuple(value) if isinstance(value, list) else value

    return PlainValidator(checked)


def is_line(value: object, longest: int = 1000) -> bool:
    """Whether ``value`` is a text of one line, which can be printed and written to a file."""
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


_LONE = re.compile("[\ud800-\udfff]")
"""Half a character, of which JSON can write one alone."""


def is_text(value: object, longest: int = 1000) -> bool:
    """Whether ``value`` is a text that can be written to a file."""
    return isinstance(value, str) and len(value) <= longest and not _LONE.search(value)


def is_count(value: object) -> bool:
    """Whether ``value`` is a whole number that every JSON has exactly."""
    return type(value) is int and 0 <= value < 2**53


Line = Annotated[str, only(is_line, "a text of one line, of 1000 characters at most")]
Lines = Annotated[tuple[Line, ...], Strict(False), FailFast()]
Count = Annotated[int, only(is_count, "a whole number from 0 on")]
