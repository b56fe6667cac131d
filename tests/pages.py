"""The fenced blocks of a page of the documentation, with the marks above them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]*?) -->\n+)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)


@dataclass(frozen=True)
class Fence:
    """A block between two fences."""

    language: str
    """The word behind the opening fence; often none."""
    title: str
    """The file that the block is, if it is one."""
    reason: str
    """The reason why no test runs it; empty without a mark."""
    text: str


def fences(page: str) -> list[Fence]:
    """The blocks of a page, by its path from the repository's root, in order."""
    found = _FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))
    return [Fence(m["language"], m["title"] or "", m["reason"] or "", m["text"]) for m in found]
