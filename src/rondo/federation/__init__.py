"""Sites and a server over TLS: identities, contracts, letters, and what a site lets out."""

from __future__ import annotations

from importlib.util import find_spec

from rondo.config import packages
from rondo.errors import ConfigError


def needed(*names: str) -> None:
    """Raise :class:`ConfigError` if one of these packages of the extra ``federation`` is not installed."""
    for package in names:
        if find_spec(package) is None:
            raise ConfigError.at("federation", packages.missing(package), "rondo federate")
