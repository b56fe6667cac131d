"""The private parts of transformers that Rondo uses: all of them, and nowhere else.

``tests/models/kernels/test_private_parts.py`` names the part that a new version of transformers no longer has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def attention_of(config: Any) -> str | None:
    """The name of the attention that a model of this configuration uses."""
    return getattr(config, "_attn_implementation", None)


def classes_of(auto: Any) -> Mapping[Any, Any]:
    """The classes of models, by the class of their configuration, among which ``auto`` chooses."""
    return auto._model_mapping  # type: ignore[no-any-return]


def write_by_own_names(module: Any, patterns: Collection[str]) -> None:
    """Have ``module`` written under the names of its class, and not under those of a checkpoint that it was loaded
    from by ``patterns``."""
    module._weight_conversions = [c for c in module._weight_conversions if c.source_patterns != list(patterns)]
