"""TODO"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rondo.models.shortcuts.prefix import Prefix
from rondo.tasks.task import Example


@dataclass(frozen=True)
class Shortened:
    """The layers that are computed once an example, or why none are; why all tokens are computed to the end, if they
    are; and why they all have logits, if they have."""

    prefix: Prefix | None
    no_prefix: str | None
    all_tokens: str | None
    all_logits: str | None

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        layers = self.prefix.layers if self.prefix is not None else 0
        return {
            "prefix": {"layers": layers, "reason": self.no_prefix},
            "first_token_only": {"on": self.all_tokens is None, "reason": self.all_tokens},
            "targets_only": {"on": self.all_logits is None, "reason": self.all_logits},
        }


_LOOKED_AT = 256
"""Rows of which two are chosen to try a shortened model on."""


_TRIED_TOKENS = 64
"""Their length at most where all tokens have logits, which for longer rows would be what a whole run needs most memory
for. A classifier's rows stay whole: their ends may be what it reads."""


def _telling(examples: Sequence[Example], *, cut: bool) -> tuple[Example, ...]:
    """The longest and the shortest of these: several tokens, of which the first is not the last, and padding. ``cut``:
    to ``_TRIED_TOKENS``, and to half as many."""
    if not examples:
        return ()
    by_length = sorted(examples, key=lambda e: e.length)
    longest, shortest = by_length[-1], by_length[0]
    if cut:
        longest, shortest = _cut(longest, _TRIED_TOKENS), _cut(shortest, _TRIED_TOKENS // 2)
    return (longest,) if longest == shortest else (longest, shortest)


def _cut(example: Example, size: int) -> Example:
    target, segments = example.target, example.segments
    return Example(
        example.ids[:size],
        target[:size] if isinstance(target, tuple) else target,
        None if segments is None else segments[:size],
    )
