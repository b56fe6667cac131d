"""Data that is built in, and the configuration that runs on it. Imports no torch."""

from pathlib import Path

STARTER = Path(__file__).with_name("starter.toml")
"""The configuration that ``rondo init`` writes and ``rondo demo`` runs."""
