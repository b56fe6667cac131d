"""The device that a run computes on."""

from __future__ import annotations

import re

import torch

from rondo.errors import ConfigError


def find_device(name: str) -> torch.device:
    """The device named "cpu", "cuda", "cuda:INDEX" or "mps" (Apple's GPU). "auto" is CUDA where there is any, else the
    CPU. Raises :class:`ConfigError`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch("cpu|cuda(:(0|[1-9][0-9]*))?|mps", name):
        message = f"{name!r} is unknown; use auto, cpu, cuda, cuda:INDEX or mps"
        raise ConfigError.at("--device", message, "rondo")
    kind, _, index = name.partition(":")
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise ConfigError.at("--device", f"there is no {kind.upper()} device here; use auto or cpu", "rondo")
    if index and int(index) >= (count := torch.cuda.device_count()):
        raise ConfigError.at("--device", f"there is no {name} here; the last one is cuda:{count - 1}", "rondo")
    return torch.device(name)
