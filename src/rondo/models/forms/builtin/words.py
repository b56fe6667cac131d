"""Words as numbers, by their digest or by a list that is everybody's, and their vectors from a text file, as GloVe's.

A vocabulary of all clients' words would reveal some of them to the server. Words with the same digest share an
embedding."""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError

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


@dataclass(frozen=True)
class WordVectors:
    """Words with their vectors."""

    numbers: Mapping[str, int]
    table: Tensor
    """The vectors by number, (words + 2, dimensions); those of padding, and of unknown words, are zeros."""

    def number(self, word: str) -> int:
        """The number of a word."""
        return self.numbers.get(word, SEPARATOR)


def word_vectors(config: RunConfig) -> WordVectors | None:
    """The vectors that ``model.vectors`` names; None if it names none. Raises :class:`ConfigError`."""
    if config.model.vectors is None:
        return None
    path = Path(config.model.vectors).expanduser()
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, ValueError) as error:  # a UnicodeDecodeError too
        message = (
            f"{config.model.vectors!r} cannot be read: {error}; name a text file with a word and its numbers per line"
        )
        raise ConfigError.at("model.vectors", message) from None


@functools.lru_cache(maxsize=1)  # a run's tokenizer and its modules need it
def _read(path: Path, changed: int, size: int) -> WordVectors:
    with path.open(encoding="utf-8") as lines:
        return _parsed(lines)


def _parsed(lines: Iterable[str]) -> WordVectors:
    """Raises ValueError with the faulty line. The first line may be word2vec's: the numbers of words and of
    dimensions."""
    numbers: dict[str, int] = {}
    values = array("f")
    dimensions = 0
    for place, line in enumerate(lines, 1):
        parts = line.rstrip().split(" ")
        if place == 1 and len(parts) == 2 and all(map(str.isdecimal, parts)):
            continue
        dimensions = dimensions or len(parts) - 1
        word = " ".join(parts[:-dimensions])  # some of GloVe's have blanks
        if not word:
            raise ValueError(f"line {place} has not a word and {dimensions or 'some'} numbers")
        if word in numbers:
            continue
        try:
            values.extend(map(float, parts[-dimensions:]))
        except ValueError:
            raise ValueError(f"line {place} has not {dimensions} numbers behind {word!r:.40}") from None
        numbers[word] = RESERVED + len(numbers)
    table = torch.zeros(RESERVED + len(numbers), dimensions)
    if not numbers:
        raise ValueError("it has no words")
    table[RESERVED:] = torch.frombuffer(values, dtype=torch.float32).reshape(len(numbers), dimensions)
    if not table.isfinite().all():
        raise ValueError("some of its numbers are not finite")
    return WordVectors(numbers, table)
