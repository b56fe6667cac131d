"""Prompts of chat templates for people to read: the contents of turns without the words around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rondo.errors import ConfigError
from rondo.tasks.language import conversation
from rondo.tasks.language.text import text_ids

_WORDS = ("zqzqa", "zqzqb", "zqzqc", "zqzqd")
"""Contents of turns that no template has."""


@dataclass(frozen=True)
class Frame:
    """The texts that a chat template puts around the contents of turns, as the tokenizer decodes them."""

    before_user: str
    """Before a first turn by the user."""
    system: tuple[str, str] | None
    """Before a system prompt and between it and the user's turn; None where the template takes none."""
    before_answer: str
    before_next_user: str
    opening: str
    """After the user's last turn, before the answer that is asked for."""
    closing: str
    """After the last answer."""

    def turns(self, prompt: str) -> str | None:
        """The contents of the turns in ``prompt``, each with its role if there are several. None for a prompt of
        another form."""
        for end in (self.opening, self.before_answer):
            if end.strip() and prompt.endswith(end):
                prompt = prompt.removesuffix(end)
                break
        else:
            return None
        parts: list[tuple[str, str]] = []
        # A template may begin with a system prompt of its own, and a told one may begin as the user's turn does.
        begin, between = self.system or ("", "")
        told = bool(between) and prompt.startswith(begin) and between in prompt
        if prompt.startswith(self.before_user) and not (told and len(begin) > len(self.before_user)):
            prompt = prompt.removeprefix(self.before_user)
        elif told:
            content, _, prompt = prompt.removeprefix(begin).partition(between)
            parts.append(("system", content))
        else:
            return None
        for number, content in enumerate(_alternating(prompt, self.before_answer, self.before_next_user)):
            parts.append((("user", "assistant")[number % 2], content))
        if len(parts) == 1:
            return parts[0][1]
        return "\n".join(f"{role}: {content}" for role, content in parts)

    def answer(self, text: str) -> str:
        """An answer without what the template puts behind it."""
        return text.rstrip().removesuffix(self.closing.strip()).rstrip()


def frame_of(tokenizer: Any, today: str | None) -> Frame | None:
    """The frame of the tokenizer's chat template, seen on turns made up for it. None where the template does not take
    them, or changes their contents. ``today``: see :func:`rondo.tasks.language.conversation.rendered`."""
    first, answer, second, system = _WORDS
    turns = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": second},
    ]
    try:
        before_user, before_answer, before_next_user, opening = _around(tokenizer, turns, today, _WORDS[:3], asked=True)
        *_, closing = _around(tokenizer, turns[:2], today, _WORDS[:2], asked=False)
    except (ConfigError, ValueError):
        return None
    try:
        told = [{"role": "system", "content": system}, *turns[:1]]
        begin, between, _ = _around(tokenizer, told, today, (system, first), asked=True)
    except (ConfigError, ValueError):
        return Frame(before_user, None, before_answer, before_next_user, opening, closing)
    return Frame(before_user, (begin, between), before_answer, before_next_user, opening, closing)


def _around(
    tokenizer: Any, turns: Sequence[conversation.Turn], today: str | None, words: Sequence[str], *, asked: bool
) -> list[str]:
    """The texts before, between and after ``words``, the contents of ``turns``. Raises ValueError where one is not
    found."""
    text = conversation.rendered(tokenizer, turns, today, tokenize=False, add_generation_prompt=asked)
    rest, parts = tokenizer.decode(text_ids(tokenizer, text)), []
    for word in words:
        before, found, rest = rest.partition(word)
        if not found:
            raise ValueError(f"the template leaves out {word}")
        parts.append(before)
    return [*parts, rest]


def _alternating(text: str, first: str, second: str) -> list[str]:
    """``text`` divided at ``first``, then at ``second``, and so on."""
    parts: list[str] = []
    marks = (first, second)
    while (mark := marks[len(parts) % 2]) and mark in text:
        part, _, text = text.partition(mark)
        parts.append(part)
    return [*parts, text]
