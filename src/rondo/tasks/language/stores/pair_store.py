"""Rows of two texts as token ids: one that an encoder reads, and one that a decoder learns to write."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.tasks.language.stores.token_store import TextExample, TokenStore


@dataclass(frozen=True)
class PairExample(TextExample):
    """The ids of one row. ``target`` holds those to write, with the end token."""

    target: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Number of tokens of both texts."""
        return len(self.ids) + len(self.target)


class PairStore(TokenStore):
    """All examples of a run, in flat arrays."""

    def __getitem__(self, number: int) -> PairExample:
        row = super().__getitem__(number)
        assert isinstance(row.target, tuple)
        return PairExample(row.ids, row.target)

    def cost(self, number: int) -> int:
        """See :class:`rondo.tasks.task.Store`."""
        return super().cost(number) + self._target_ends[number + 1] - self._target_ends[number]

    def account(self) -> dict[str, int]:
        """See :class:`rondo.tasks.task.Store`. Tokens are those of both texts."""
        known = super().account()
        return {**known, "tokens": known["tokens"] + len(self._targets)}
