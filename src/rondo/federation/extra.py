"""The extra ``federation``, and the error if its packages are missing."""

from __future__ import annotations

from importlib.util import find_spec

from rondo.config import packages
from rondo.errors import ConfigError


def needed() -> None:
    """Raise :class:`ConfigError` if a package of the extra is not installed."""
    for package in ("flwr", "cryptography"):
        if find_spec(package) is None:
            raise ConfigError.at("federation", packages.missing(package), "rondo federate")
