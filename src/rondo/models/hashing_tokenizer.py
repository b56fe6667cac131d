"""Words to numbers by a hash: the tokenizer of models that have none of their own.

A vocabulary would have to be made of the clients' words, and a server that holds it knows them. A hash needs no words:
every process gives a word the same number, and two words may share one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_WORD = re.compile(r"\w+|[^\w\s]")
_PAD, _END_OF_FIRST, _FIRST = 0, 1, 2
"""The numbers of padding, of the end of a pair's first text, and of the first word."""


@dataclass(frozen=True)
class HashingTokenizer:
    """A tokenizer of words in lower case and of punctuation marks, called as those of transformers are.

    ``size``: the numbers that ids are below. Of n different words, about n / (2 ``size``) share their number with
    another.
    """

    size: int = 2**14

    def __post_init__(self) -> None:
        if self.size <= _FIRST:
            raise ValueError(f"size must be above {_FIRST}, got {self.size}")

    @property
    def pad_token_id(self) -> int:
        return _PAD

    def __len__(self) -> int:
        return self.size

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        **_: Any,
    ) -> dict[str, list[list[int]]]:
        """The ids of ``texts``, or of each text and its pair with a mark between, as ``input_ids``. With ``truncation``
        they are cut to ``max_length``: of a pair, the longer text is cut first."""
        limit = max_length if truncation else None
        firsts = [self._ids(text) for text in texts]
        if pairs is None:
            return {"input_ids": [ids[:limit] for ids in firsts]}
        seconds = [self._ids(text) for text in pairs]
        return {"input_ids": [_joined(a, b, limit) for a, b in zip(firsts, seconds, strict=True)]}

    def _ids(self, text: str) -> list[int]:
        return [_FIRST + _hash(word) % (self.size - _FIRST) for word in _WORD.findall(text.lower())]

    def save_pretrained(self, folder: str) -> None:
        """Write its settings to ``hashing_tokenizer.json``."""
        Path(folder, "hashing_tokenizer.json").write_text(json.dumps({"size": self.size}) + "\n", encoding="utf-8")


def _joined(first: list[int], second: list[int], limit: int | None) -> list[int]:
    room = len(first) + len(second) if limit is None else max(0, limit - 1)
    shorter = min(len(first), len(second), room // 2)
    of_first = room - shorter if len(first) >= len(second) else shorter
    return [*first[:of_first], _END_OF_FIRST, *second[: room - min(of_first, len(first))]]


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    """The same in every process, unlike Python's own."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())
