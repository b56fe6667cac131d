"""Vectors of words from a text file, as GloVe's and word2vec's."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.models.forms.builtin.word_tokenizer import RESERVED, SEPARATOR


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
