"""The plan of a run, which the server sends to a site that connects, the site's consent, and the run's end.

All are JSON. The site checks the plan before it loads anything; the server trusts nothing in the consent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Self

from pydantic import Field

from rondo import __version__
from rondo.data.labels import MOST
from rondo.engine.wire.strict import PROTOCOL, Count, Rejected, is_count, is_line, is_text, json_object, only, read

LARGEST = 2**24
"""Bytes of a consent that no honest site reaches."""
_REASON = 1000
"""Characters of the longest reason."""


def _is_config(value: object) -> bool:
    """Whether ``value`` has sections, and what is beside them. Anything further is the configuration's to say."""
    return isinstance(value, dict) and all(s is None or isinstance(s, dict | str | int | float) for s in value.values())


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _are_labels(value: object) -> bool:
    """Whether ``value`` are distinct texts that can name the classes of a run and be written to a file."""
    if not isinstance(value, list) or len(value) > MOST:
        return False
    return all(is_text(label) and label.strip() for label in value) and len(set(value)) == len(value)


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(is_count(n) and n > 0 for n in value.values())


def _is_environment(value: object) -> bool:
    return isinstance(value, dict) and all(is_line(text, 200) for pair in value.items() for text in pair)


_Name = Annotated[str, Field(max_length=200)]
_LABELS = f"a list of at most {MOST} distinct names, of 1000 characters at most"


class NotAPlan(ValueError):
    """Bytes that are no plan, or one of another protocol."""


@dataclass(frozen=True)
class Plan:
    """The description of a run that a site gets before it takes part."""

    run: _Name
    """A name that no other run has."""
    config: Annotated[Mapping[str, Any], only(_is_config, "an object of sections")]
    """The run's configuration."""
    clients: Annotated[tuple[str, ...], only(_are_names, "a list of names")] | None
    """Ids of the clients that the site answers for, by the server's roster; None: all of its own."""
    labels: Annotated[tuple[str, ...], only(_are_labels, _LABELS)] | None
    """The label names; None asks for those of the site's rows, and for no consent yet."""
    model: _Name
    """SHA-256 of the base model's identity; empty as long as ``labels`` is None."""
    rondo: _Name
    """Version of Rondo at the server."""
    threads: Annotated[int, Field(ge=1)]
    """Number of threads on which the server made the run's first state. Sums of a matrix product depend on it."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that is the same for all sites."""
        return hashlib.sha256(replace(self, clients=()).encode()).hexdigest()

    def encode(self) -> bytes:
        """The plan as bytes."""
        return json.dumps({**asdict(self), "protocol": PROTOCOL}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The plan from :meth:`encode`. Raises :class:`NotAPlan` for other bytes, and for another protocol."""
        try:
            return read(cls, "unreadable", "the plan", data)
        except Rejected as error:
            if error.reason == "wrong_protocol":
                raise NotAPlan(
                    f"the server speaks another protocol: {error.detail}; this side has Rondo {__version__!r}"
                ) from None
            raise NotAPlan(f"invalid plan: {error.detail.removeprefix('the plan: ')}") from None


@dataclass(frozen=True)
class Consent:
    """A site's answer to a plan: its clients, its labels where they are asked for, or the reason why it takes no
    part."""

    clients: Annotated[Mapping[str, int], only(_are_counts, "numbers of examples, from 1 on, by client")]
    """Numbers of training examples by client id; of rows as long as labels are asked for."""
    labels: Annotated[tuple[str, ...], only(_are_labels, _LABELS)] = ()
    refused: str = ""
    environment: Annotated[Mapping[str, str], only(_is_environment, "an object of lines")] = field(default_factory=dict)
    """The site's machine: ``rondo`` (its version), ``torch``, ``threads`` and ``cpu`` (its instructions). Sites
    of equal environments give the bits of a simulation on one of them."""
    fewest: Count = 0
    """Fewest sites that open a masked sum with this one; 0 in a run without."""

    def encode(self) -> bytes:
        """The consent as bytes."""
        return json.dumps({"protocol": PROTOCOL, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The consent from :meth:`encode`. Raises :class:`~rondo.engine.wire.strict.Rejected`, and nothing else."""
        if len(data) > LARGEST:
            raise Rejected("too_large", f"{len(data)} bytes")
        return read(cls, "unreadable", "the consent", data)


@dataclass(frozen=True)
class End:
    """The end of a run."""

    reason: str = ""
    """The reason why the run failed for good; empty: it is finished."""

    def encode(self) -> bytes:
        """The end as bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The end from :meth:`encode`, with a reason cut short. Any other bytes are an end without a known reason."""
        try:
            content = json_object("unreadable", "the end", data)
        except Rejected:
            return cls("its server gives no reason")
        reason = content.get("reason")
        return cls(reason[:_REASON] if isinstance(reason, str) else "its server gives no reason")
