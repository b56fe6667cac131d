"""The extra ``federation``: what a module of this room says if its packages are missing."""

from __future__ import annotations

from rondo.errors import ConfigError


def missing(error: ModuleNotFoundError) -> ConfigError:
    """The fault of a package that is not installed."""
    package = (error.name or "flwr").partition(".")[0]
    message = f"needs the package {package}, which is not installed: pip install 'rondo-fl[federation]'"
    return ConfigError.at("federation", message, "rondo federate")
