"""The device that a run computes on."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from rondo.errors import ConfigError


def here() -> dict[str, int]:
    """The number of devices of each kind on this machine."""
    return {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}


def find_device(name: str, count: Mapping[str, int] | None = None) -> torch.device:
    """The device named "cpu", "cuda", "cuda:INDEX" or "mps" (Apple's GPU), of ``count`` per kind, which is :func:`here`
    by default. "auto" is CUDA where there is any, else the CPU. Raises :class:`ConfigError`."""
    count = here() if count is None else count
    if name == "auto":
        name = "cuda" if count["cuda"] else "cpu"
    if not re.fullmatch("cpu|cuda(:(0|[1-9][0-9]*))?|mps", name):
        message = f"{name!r} is unknown; use auto, cpu, cuda, cuda:INDEX or mps"
        raise ConfigError.at("--device", message, "rondo")
    kind, _, index = name.partition(":")
    if kind != "cpu" and not count[kind]:
        raise ConfigError.at("--device", f"there is no {kind.upper()} device here; use auto or cpu", "rondo")
    if index and int(index) >= count["cuda"]:
        raise ConfigError.at("--device", f"there is no {name} here; the last one is cuda:{count['cuda'] - 1}", "rondo")
    return torch.device(name)
