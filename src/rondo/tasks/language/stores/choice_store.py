"""Rows of multiple choice as examples: the prompt with the right choice, to train on, and all choices, to score."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rondo.tasks.language.stores.token_store import TextExample, TokenStore


@dataclass(frozen=True, kw_only=True)
class Choice(TextExample):
    """The prompt with one of the choices, to be scored. Only the choice's tokens have a target."""

    row: int
    """The number of its row among those that are scored."""
    place: int
    """Its number among the row's choices."""
    right: bool
    size: int
    """Bytes of the choice's text."""


@dataclass(frozen=True, kw_only=True)
class ChoiceExample(TextExample):
    """A row: the prompt with the right choice, and the end token, to be trained on."""

    prompt: int
    """Number of tokens of the prompt."""
    choices: tuple[tuple[int, ...], ...]
    """Token ids of every choice after the prompt."""
    sizes: tuple[int, ...]
    """Bytes of every choice's text."""
    right: int
    """Index of the right choice."""

    def parts(self, row: int, ignored: int) -> Iterator[Choice]:
        """Every choice after the prompt. ``ignored``: the target of a token without a loss."""
        prompt = self.ids[: self.prompt]
        for number, (choice, size) in enumerate(zip(self.choices, self.sizes, strict=True)):
            target = (ignored,) * len(prompt) + choice
            yield Choice(prompt + choice, target, row=row, place=number, right=number == self.right, size=size)


class ChoiceStore:
    """All examples of a run, in flat arrays (:class:`rondo.tasks.language.stores.token_store.TokenStore`)."""

    def __init__(self) -> None:
        self._rows, self._choices = TokenStore(), TokenStore()
        self._ends, self._prompts, self._right = array("q", [0]), array("i"), array("i")

    def add(self, examples: Iterable[ChoiceExample]) -> range:
        """See :class:`rondo.tasks.task.Store`."""
        first = len(self._right)
        for example in examples:
            self._rows.add([example])
            added = self._choices.add(TextExample(c, s) for c, s in zip(example.choices, example.sizes, strict=True))
            self._ends.append(added.stop)
            self._prompts.append(example.prompt)
            self._right.append(example.right)
        return range(first, len(self._right))

    def __getitem__(self, number: int) -> ChoiceExample:
        row = self._rows[number]
        choices = [self._choices[i] for i in range(self._ends[number], self._ends[number + 1])]
        return ChoiceExample(
            row.ids,
            row.target,
            prompt=self._prompts[number],
            choices=tuple(c.ids for c in choices),
            sizes=tuple(c.target for c in choices if isinstance(c.target, int)),
            right=self._right[number],
        )

    def cost(self, number: int) -> int:
        """See :class:`rondo.tasks.task.Store`."""
        return self._rows.cost(number)

    def account(self) -> dict[str, int]:
        """See :class:`rondo.tasks.task.Store`. Tokens are those that are trained on: the right choices'."""
        return self._rows.account()

    def sha256(self) -> str:
        """See :class:`rondo.tasks.task.Store`."""
        digest = hashlib.sha256((self._rows.sha256() + self._choices.sha256()).encode())
        for part in (self._ends, self._prompts, self._right):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        return digest.hexdigest()
