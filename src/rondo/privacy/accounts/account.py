"""The account of everything that was published with noise: sums of uploads, and private steps on rows.

It is JSON lines, each on the disk before what it counts is used. An entry has the noise, the probability and the
secrecy that its own sum or step had, so no later configuration makes it cheaper. Noise that is not secret counts as
none.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rondo.config.schema import RunConfig
from rondo.privacy.mechanism.adaptive import START

Steps: TypeAlias = Mapping[tuple[float, float], int]
"""How many steps, by noise multiplier and probability of a unit to be in one. A sum is a step of the clients."""

LEAST = 1e-8
"""Smallest probability of an account: no run has more clients, and no client more rows, than a hundred million."""


@dataclass(frozen=True)
class Entry:
    """A line of an account: a sum, or steps of one kind."""

    noise: float
    """The noise multiplier z that was used."""
    clip: float
    delta: float
    secret: bool
    """Whether nobody knows the noise: it is of no debug seed."""
    colluding: int | None = None
    """Sites whose noise does not count in z, where sites add it; None where they do not."""
    sampled: float = 1.0
    """The probability of a unit to be in the sum, or in a step."""
    who: str = ""
    """The client with the rows, or their digest; empty for a sum of clients."""
    run: str = ""
    """The run, in an account over several."""
    attempt: int = 0
    """Of the run; 0 in an account over several."""
    sum: str = ""
    """SHA-256 of a sum and its noise: the same of the same attempt tells nothing more. Empty for steps."""
    count: int = 1
    """Number of steps. Below 0 for steps that were asked for before, and not taken."""
    then: float | None = None
    """The clip of the next attempt, where it is adaptive."""

    @staticmethod
    def of(config: RunConfig) -> Entry:
        """An entry of the protection that ``config`` has, for ``dataclasses.replace``."""
        promise = config.guarantee
        assert promise.noise is not None
        assert promise.delta is not None
        clip = promise.clip if isinstance(promise.clip, float) else START
        colluding = promise.colluding if promise.noise_from == "sites" else None
        return Entry(promise.noise, clip, promise.delta, promise.debug_seed is None, colluding)

    @staticmethod
    def read(line: bytes) -> Entry:
        """Raises ValueError or TypeError for a line that :meth:`line` does not write."""
        entry = Entry(**json.loads(line))
        texts, flags = (entry.who, entry.run, entry.sum), (entry.secret,)
        whole = (entry.attempt, entry.count, 0 if entry.colluding is None else entry.colluding)
        numbers = (entry.noise, entry.clip, entry.delta, entry.sampled, 1.0 if entry.then is None else entry.then)
        for kind, values in ((str, texts), (bool, flags), (int, whole), (float, numbers)):
            if not all(type(value) is kind for value in values):
                raise TypeError(f"something that is not of type {kind.__name__}")
        small, large = sys.float_info.min, sys.float_info.max
        limits = ((0.0, large), (small, large), (small, 1.0), (LEAST, 1.0), (small, large))
        within = [least <= value <= most for value, (least, most) in zip(numbers, limits, strict=True)]
        counts = entry.count == 1 if entry.sum else entry.count != 0
        if not (all(within) and counts and min(entry.attempt, whole[-1]) >= 0):
            raise ValueError("a number out of its range")
        return entry

    def line(self) -> bytes:
        """The entry as JSON, with its line end."""
        content = {key: value for key, value in vars(self).items() if value is not None and value != ""}
        return json.dumps(content).encode() + b"\n"

    @property
    def kind(self) -> tuple[float, float]:
        """The noise multiplier that counts, and the probability."""
        return (self.noise if self.secret else 0.0, self.sampled)


def read(lines: Iterable[bytes]) -> Iterator[Entry]:
    """The entries in the ``lines`` of an account's file. Raises ValueError for a line that it does not write."""
    for number, line in enumerate(lines, 1):
        try:
            yield Entry.read(line)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is not as it was written: {error}") from None


@dataclass
class Account:
    """The entries of an account.

    ``write``: appends lines to its file and flushes them to the disk.
    """

    write: Callable[[bytes], None]
    steps: dict[str, Counter[tuple[float, float]]] = field(default_factory=dict)
    """By client with rows, and of all clients under the empty name."""
    noisy: bool = True
    """Whether all that was published had noise that nobody knows."""
    shares: int = 0
    """Number of sums whose noise is of sites."""
    clips: dict[int, float] = field(default_factory=dict)
    """The clip from each attempt on, where it is adaptive."""
    _sums: dict[tuple[str, int], dict[str, Entry]] = field(default_factory=dict)
    """By attempt of a run, and by digest."""

    def spend(self, *entries: Entry) -> None:
        """Write ``entries`` down; they are on the disk when this returns. A sum that is there spends nothing."""
        new = [entry for entry in entries if entry.sum not in self._sums.get((entry.run, entry.attempt), {})]
        if new:
            self.write(b"".join(entry.line() for entry in new))
        for entry in new:
            self.count(entry)

    def count(self, entry: Entry) -> None:
        """Add an entry that is written down. Raises ValueError for one that no account has."""
        own = self.steps.setdefault(entry.who, Counter())
        self.noisy &= entry.kind[0] > 0
        if not entry.sum:
            _add(own, entry.kind, entry.count)
            return
        sums = self._sums.setdefault((entry.run, entry.attempt), {})
        if entry.sum in sums:
            raise ValueError("a sum stands there twice")
        if sums:
            _add(own, _together(sums.values()), -1)
        sums[entry.sum] = entry
        _add(own, _together(sums.values()), 1)
        self.shares += entry.colluding is not None
        if entry.then is not None:
            self.clips[entry.attempt + 1] = entry.then


def _add(steps: Counter[tuple[float, float]], kind: tuple[float, float], count: int) -> None:
    steps[kind] += count
    if steps[kind] < 0:
        raise ValueError("more steps are taken back than were asked for")
    if steps[kind] == 0:
        del steps[kind]


def _together(sums: Iterable[Entry]) -> tuple[float, float]:
    """Sums of one sample, each with noise of its own, as one step: c sums tell as much as one with noise / sqrt(c)."""
    kinds = [entry.kind for entry in sums]
    least, sampled = min(noise for noise, _ in kinds), max(sampled for _, sampled in kinds)
    return (least and least / math.sqrt(sum((least / noise) ** 2 for noise, _ in kinds)), sampled)


def told(epsilon: float) -> float | None:
    """``epsilon`` in a record: None is no guarantee at all."""
    return epsilon if math.isfinite(epsilon) else None
