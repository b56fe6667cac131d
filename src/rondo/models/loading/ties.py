"""Weights that several layers of a model share."""

from __future__ import annotations

from torch import nn


def untie(module: nn.Module) -> None:
    """Give every layer of ``module`` weights of its own. A file has a shared weight once, so that all layers but one
    would be random in a model that is loaded without ties."""
    seen: set[int] = set()
    for layer in module.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if id(parameter) in seen:
                setattr(layer, name, nn.Parameter(parameter.detach().clone()))
            seen.add(id(parameter))
