"""The machines on which server and sites compute. A federation has the bits of a simulation if all compute alike."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rondo import __version__

Environment = Mapping[str, str]
"""``rondo``, ``torch``, ``threads`` and ``cpu`` (its instructions)."""


def here() -> dict[str, str]:
    """Everything about this process that decides on bits."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return {"rondo": __version__, "torch": torch.__version__, "threads": str(torch.get_num_threads()), "cpu": cpu}


def differences(server: Environment, site: Environment) -> dict[str, str]:
    """The entries of a site's environment that are not the server's; empty texts where the site does not tell."""
    return {key: site.get(key, "") for key in server if site.get(key, "") != server[key]}


def said(server: Environment, sites: Mapping[str, Environment], *, noise: bool = False) -> str:
    """Whether the bits are those of a simulation, as a line. ``sites``: the :func:`differences` of each site.
    ``noise``: whether there is noise that no seed gives."""
    others = {name: differing for name, differing in sites.items() if differing}
    are = "are not those of a simulation, since no seed gives the noise" if noise else "are those of a simulation"
    if not others:
        return f"the bits {are}: all have {_listed(server)}"
    shown = "; ".join(f"{name} has {_listed(differing)}" for name, differing in sorted(others.items()))
    may = are if noise else "may not be those of a simulation"
    return f"the bits {may}: the server has {_listed(server)}; {shown}"


def _listed(environment: Environment) -> str:
    return ", ".join(f"{key} {value or 'unknown'}" for key, value in environment.items())
