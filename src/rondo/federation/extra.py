"""The extra ``federation``, and the error if its packages are missing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rondo.config import packages
from rondo.errors import ConfigError


def needed(names: Sequence[str] = ("flwr", "cryptography")) -> None:
    """Raise :class:`ConfigError` if one of these packages of the extra is not installed."""
    for package in names:
        if find_spec(package) is None:
            raise ConfigError.at("federation", packages.missing(package), "rondo federate")
