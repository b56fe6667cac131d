"""A store for hundreds of thousands of tokenised rows. Ids lie in flat arrays, 4 bytes each; access makes objects."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rondo.tasks.task import Store


@dataclass(frozen=True)
class TextExample:
    """One tokenised row."""

    ids: tuple[int, ...]
    """Input ids."""
    target: float | tuple[int, ...]
    """A class, a number to predict, or ids."""
    segments: tuple[int, ...] | None = None
    """Segment ids, if the tokenizer gives them."""
    lost: int = 0
    """Number of tokens cut away to fit ``task.max_length``. A store only counts them."""

    @property
    def cost(self) -> int:
        """Number of tokens."""
        return len(self.ids)


class TokenStore(Store):
    """All examples of a run. Targets are all single or all sequences; all examples have segments, or none has.

    ``targets``: the array type of targets, "i" for classes and ids or "d" for numbers to predict.
    """

    def __init__(self, targets: Literal["i", "d"] = "i") -> None:
        self._ids, self._ends = array("i"), array("q", [0])
        self._targets, self._target_ends = array(targets), array("q", [0])
        self._segments = array("b")
        self._single = True
        self._cut_rows = self._lost_tokens = 0

    def add(self, examples: Iterable[TextExample]) -> range:
        first = len(self._ends) - 1
        for example in examples:
            self._ids.extend(example.ids)
            self._ends.append(len(self._ids))
            self._single = not isinstance(example.target, tuple)
            targets: Any = (example.target,) if self._single else example.target
            self._targets.extend(targets)
            self._target_ends.append(len(self._targets))
            self._segments.extend(example.segments or ())
            self._cut_rows += example.lost > 0
            self._lost_tokens += example.lost
        return range(first, len(self._ends) - 1)

    def __getitem__(self, number: int) -> TextExample:
        start, end = self._ends[number], self._ends[number + 1]
        target = tuple(self._targets[self._target_ends[number] : self._target_ends[number + 1]])
        segments = tuple(self._segments[start:end]) if self._segments else None
        return TextExample(tuple(self._ids[start:end]), target[0] if self._single else target, segments)

    def cost(self, number: int) -> int:
        return self._ends[number + 1] - self._ends[number]

    def account(self) -> dict[str, int]:
        rows = len(self._ends) - 1
        return {
            "rows": rows,
            "rows_cut": self._cut_rows,
            "tokens": len(self._ids) + self._lost_tokens,
            "tokens_lost": self._lost_tokens,
        }

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in (self._ids, self._ends, self._targets, self._target_ends, self._segments):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        return digest.hexdigest()
