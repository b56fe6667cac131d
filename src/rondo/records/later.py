"""Keys of a configuration that are younger than what they meet: the digests of published records
(docs/results/runs), and sites whose version of Rondo is older than their server's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rondo.config.schema import RunConfig

CAME_LATER = frozenset(
    {
        *(("partition", "deal_tests"), ("train", "lr_ratio"), ("clients", "mode"), ("clients", "staleness")),
        ("adapter", "use_dora"),
    }
)
"""Section and name of each."""


def as_before(tree: Mapping[str, Any]) -> dict[str, Any]:
    """``tree``, which :meth:`RunConfig.model_dump` has made, without the keys that came later and have their default:
    a run is then what it was before they came."""
    default = RunConfig().model_dump()

    def told(section: str, key: str, value: Any) -> bool:
        return (section, key) not in CAME_LATER or value != default[section][key]

    return {
        name: {k: v for k, v in part.items() if told(name, k, v)} if isinstance(part, Mapping) else part
        for name, part in tree.items()
    }
