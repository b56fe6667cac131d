"""Words as numbers: by their digest, or by a list that is everybody's.

A vocabulary of all clients' words would reveal some of them to the server. Words with the same digest share an
embedding.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence

_WORD = re.compile(r"\w+|[^\w\s]")
SEPARATOR, RESERVED = 1, 2
"""The number between two texts, and how many numbers no word has."""


class WordTokenizer:
    """A tokenizer in the form of transformers', as far as tasks use it. 0 pads and 1 separates two texts.

    ``number``: the number of a word in lower case, 1 if it has none.
    """

    pad_token_id = 0

    def __init__(self, number: Callable[[str], int]) -> None:
        self.number = number

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        verbose: bool = True,
    ) -> dict[str, list[list[int]]]:
        """The numbers of the words of every text, or of a text and its pair, under ``input_ids``. ``truncation`` cuts
        rows to ``max_length``, of a pair the longer text first. A text without a word is a single separator."""
        limit = max_length if truncation else None
        rows = []
        for i, text in enumerate(texts):
            ids = self._numbers(text)
            if pairs is not None:
                ids = _joined(ids, self._numbers(pairs[i]), limit)
            rows.append((ids or [SEPARATOR])[:limit])
        return {"input_ids": rows}

    def _numbers(self, text: str) -> list[int]:
        return [self.number(word) for word in _WORD.findall(text.lower())]


def _joined(first: list[int], second: list[int], limit: int | None) -> list[int]:
    room = len(first) + len(second) if limit is None else max(0, limit - 1)
    shorter = min(len(first), len(second), room // 2)
    kept = room - shorter if len(first) >= len(second) else shorter
    return [*first[:kept], SEPARATOR, *second[: room - min(kept, len(first))]]


@functools.lru_cache(maxsize=2**16)
def hashed(word: str, size: int) -> int:
    """A word's number below ``size``, by its digest."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return RESERVED + int.from_bytes(digest) % (size - RESERVED)
