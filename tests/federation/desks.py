"""Desks of a site, and letters to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from rondo.federation.plan import Consent, Plan
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.desk import Desk

Make: TypeAlias = Callable[..., Desk]
"""The type of the fixture ``desk``."""


def asked(desk: Desk, plan: Plan | bytes) -> Consent:
    """The desk's consent to ``plan``."""
    return Consent.decode(desk.answer("plan", plan if isinstance(plan, bytes) else plan.encode()))


def with_(plan: Plan, **sections: Mapping[str, Any]) -> Plan:
    """``plan`` with other keys in sections of its configuration."""
    config = dict(plan.config)
    for name, changes in sections.items():
        config[name] = {**(config.get(name) or {}), **changes}
    return replace(plan, config=config)


def contract(**sections: Mapping[str, Any]) -> Contract:
    """A contract for texts and labels, with the defaults for all that is not in ``sections``. Runs may repeat rows."""
    rows = {"inputs": ["text"], "labels": ["label"], **sections.pop("rows", {})}
    training = {"repeats": True, **sections.pop("training", {})}
    return Contract.model_validate({"rows": rows, "training": training, **sections})
