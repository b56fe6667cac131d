"""The plan of a run, which the server sends to a site that connects, the site's consent, and the run's end.

All are JSON. The site checks the plan before it loads anything; the server trusts nothing in the consent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from rondo.data.labels import MOST
from rondo.engine.wire.envelope import Rejected, short, strict_object

PROTOCOL = 1
LARGEST = 2**24
"""Bytes of a consent that no honest site reaches."""
_LABEL, _NAME = 1000, 200
"""Characters of the longest label, and of other names."""
_VALUES = (dict, str, int, float)
"""Types of a configuration's sections and of what is beside them."""


class NotAPlan(ValueError):
    """Bytes that are no plan, or one of another protocol."""


@dataclass(frozen=True)
class Plan:
    """The description of a run that a site gets before it takes part."""

    run: str
    """A name that no other run has."""
    config: Mapping[str, Any]
    """The run's configuration."""
    clients: tuple[str, ...] | None
    """Ids of the clients that the site answers for, by the server's roster; None: all of its own."""
    labels: tuple[str, ...] | None
    """The label names; None asks for those of the site's rows, and for no consent yet."""
    model: str
    """SHA-256 of the base model's identity; empty as long as ``labels`` is None."""
    rondo: str
    """Version of Rondo at the server."""
    threads: int
    """Number of threads on which the server made the run's first state. Sums of a matrix product depend on it."""
    protocol: int = PROTOCOL

    @property
    def digest(self) -> str:
        """SHA-256 of all that is the same for all sites."""
        return hashlib.sha256(replace(self, clients=()).encode()).hexdigest()

    def encode(self) -> bytes:
        """The plan as bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The plan from :meth:`encode`. Raises :class:`NotAPlan` for other bytes, and for another protocol."""
        try:
            content = strict_object("unreadable", "the plan", data)
        except Rejected as error:
            raise NotAPlan(f"not a plan: {error}") from None
        if content.get("protocol") != PROTOCOL:
            raise NotAPlan(f"the server speaks protocol {short(content.get('protocol'))}, this site {PROTOCOL}")
        if content.keys() != {f.name for f in fields(cls)}:
            raise NotAPlan(f"not a plan: its keys are {short(sorted(content))}")
        config, clients, labels = content["config"], content["clients"], content["labels"]
        texts = [content[key] for key in ("run", "model", "rondo")]
        if not all(isinstance(text, str) and len(text) <= _NAME for text in texts):
            raise NotAPlan("not a plan: run, model and rondo are no texts")
        if type(content["threads"]) is not int or content["threads"] < 1:
            raise NotAPlan(f"not a plan: threads is {short(content['threads'])}")
        if not isinstance(config, dict) or not all(s is None or isinstance(s, _VALUES) for s in config.values()):
            raise NotAPlan("not a plan: its configuration is none")
        if clients is not None and not (isinstance(clients, list) and all(isinstance(name, str) for name in clients)):
            raise NotAPlan("not a plan: clients are no names")
        if labels is not None and not (
            isinstance(labels, list)
            and len(labels) <= MOST
            and all(map(_is_label, labels))
            and len(set(labels)) == len(labels)
        ):
            raise NotAPlan("not a plan: labels are not distinct names")
        listed = {key: None if content[key] is None else tuple(content[key]) for key in ("clients", "labels")}
        return cls(**{**content, **listed})


@dataclass(frozen=True)
class Consent:
    """A site's answer to a plan: its clients, its labels where they are asked for, or the reason why it takes no
    part."""

    clients: Mapping[str, int]
    """Numbers of training examples by client id; of rows as long as labels are asked for."""
    labels: tuple[str, ...] = ()
    refused: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The site's machine: ``torch``, ``threads`` and ``cpu`` (its instructions). Sites of equal environments give
    the bits of a simulation on one of them."""
    fewest: int = 0
    """Fewest sites that open a masked sum with this one; 0 in a run without."""

    def encode(self) -> bytes:
        """The consent as bytes."""
        return json.dumps({"protocol": PROTOCOL, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The consent from :meth:`encode`. Raises :class:`~rondo.engine.wire.envelope.Rejected`, and nothing else."""
        if len(data) > LARGEST:
            raise Rejected("too_large", f"{len(data)} bytes")
        content = strict_object("unreadable", "the consent", data)
        if content.keys() != {"protocol", *(f.name for f in fields(cls))}:
            raise Rejected("unreadable", f"its keys are {short(sorted(content))}")
        if content.pop("protocol") != PROTOCOL:
            raise Rejected("wrong_protocol", f"another than {PROTOCOL}")
        clients, labels, refused = content["clients"], content["labels"], content["refused"]
        environment = content["environment"]
        if not isinstance(clients, dict) or not all(type(n) is int and 0 < n < 2**53 for n in clients.values()):
            raise Rejected("unreadable", "clients must map each id to a number of examples")
        if not isinstance(labels, list) or not all(map(_is_label, labels)) or len(set(labels)) < len(labels):
            raise Rejected("unreadable", "labels are not distinct names")
        if len(labels) > MOST:
            raise Rejected("unreadable", f"{len(labels)} labels, where {MOST} classes are the most")
        if not isinstance(refused, str):
            raise Rejected("unreadable", "refused is no text")
        if not isinstance(environment, dict) or not all(map(_is_line, (*environment, *environment.values()))):
            raise Rejected("unreadable", "environment is no mapping of texts")
        if type(content["fewest"]) is not int or not 0 <= content["fewest"] < 2**53:
            raise Rejected("unreadable", f"fewest is {short(content['fewest'])}")
        return cls(clients, tuple(labels), refused, environment, content["fewest"])


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
            content = strict_object("unreadable", "the end", data)
        except Rejected:
            return cls("its server gives no reason")
        reason = content.get("reason")
        return cls(reason[:_LABEL] if isinstance(reason, str) else "its server gives no reason")


def _is_line(value: object) -> bool:
    """Whether ``value`` is a short text that can be printed."""
    return isinstance(value, str) and len(value) <= _NAME and value.isprintable()


def _is_label(value: object) -> bool:
    """Whether ``value`` is a text that can name a class and be written to a file."""
    if not isinstance(value, str) or not value.strip() or len(value) > _LABEL:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
