"""Conversations of several turns: read from a row, and rendered by the tokenizer's chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from rondo.errors import ConfigError
from rondo.tasks.language.text import text_ids
from rondo.tasks.row_checks import text_problem

Turn: TypeAlias = dict[str, str]
"""``role`` ("system", "user" or "assistant") and ``content``, as chat templates read them."""

_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "human": "user", "gpt": "assistant"}
_KEYS = (("role", "content"), ("from", "value"))
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Marks the assistant's tokens in a template (transformers' own extension of Jinja)."""


def turns(value: Any, *, answered: bool = True) -> list[Turn]:
    """The turns of a conversation: a list of ``{"role", "content"}``, or of ShareGPT's ``{"from", "value"}``. A system
    prompt may come first; then user and assistant take turns. Other keys of a turn are left out.

    Raises :class:`ValueError` with the reason if ``value`` has another form, or has no answer and should be
    ``answered``.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of turns, got {value!r:.60}")
    result: list[Turn] = []
    for place, turn in enumerate(value):
        keys = next((k for k in _KEYS if isinstance(turn, Mapping) and all(key in turn for key in k)), None)
        if keys is None:
            raise ValueError(f"turn {place} should have role and content, or from and value; it is {turn!r:.60}")
        said_by, content = (turn[key] for key in keys)
        role = _ROLES.get(said_by) if isinstance(said_by, str) else None
        if role is None:
            raise ValueError(f"turn {place} is by {said_by!r:.60}; known: system, user, assistant, human, gpt")
        before = result[-1]["role"] if result else "system"
        expected = "assistant" if before == "user" else "user"
        if role != expected and (place, role) != (0, "system"):
            order = "a system prompt may come first, then user and assistant take turns"
            raise ValueError(f"turn {place} is by {role} and should be by {expected}: {order}")
        fault = text_problem({"content": content}, place, "content")
        if fault is not None and not (role == "system" and content == ""):
            raise ValueError(f"turn {place}: {fault.reason}")
        result.append({"role": role, "content": content})
    if answered and not any(turn["role"] == "assistant" for turn in result):
        raise ValueError("no answer: no turn is by the assistant")
    return result


def encoded(tokenizer: Any, conversation: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    """The token ids of a conversation, and whether each belongs to an answer.

    The parts of the chat template between its markers ``{% generation %}`` and ``{% endgeneration %}`` are answers.
    Without markers, an answer is what a turn of the assistant adds to the turns before it and the generation prompt.
    Raises :class:`ConfigError` if the template does not show the answers' tokens.
    """
    if not tokenizer.chat_template:
        message = "the tokenizer has no chat template, which task.messages needs: name a Jinja file, or another model"
        raise ConfigError.at("task.chat_template", message)
    if tokenizer.is_fast and _MARKER.search(tokenizer.get_chat_template()):
        return _by_markers(tokenizer, conversation)
    return _by_prefixes(tokenizer, conversation)


def prompt_ids(tokenizer: Any, value: Any) -> list[int]:
    """The token ids of a conversation up to its last turn by the user, and of the generation prompt, which an answer
    follows. Raises :class:`ValueError` as :func:`turns` does, and if no turn is by the user."""
    conversation = turns(value, answered=False)
    while conversation and conversation[-1]["role"] != "user":
        conversation.pop()
    if not conversation:
        raise ValueError("no turn is by the user")
    text = rendered(tokenizer, conversation, tokenize=False, add_generation_prompt=True)
    return text_ids(tokenizer, text)


def closing(tokenizer: Any, conversation: Sequence[Turn]) -> str:
    """The text that the chat template puts behind the answer to ``conversation``. It is shown a word that is
    nowhere else in its text: it may trim an answer, and an answer may be a part of its own marks."""
    word = "zqzq"
    while word in rendered(tokenizer, conversation, tokenize=False, add_generation_prompt=True):
        word += "zq"
    answered = [*conversation, {"role": "assistant", "content": word}]
    _, found, end = rendered(tokenizer, answered, tokenize=False).rpartition(word)
    if not found:
        raise _refusal(conversation, "the template leaves the answer out; name another template")
    return str(end)


def rendered(tokenizer: Any, conversation: Sequence[Turn], **options: bool) -> Any:
    """A conversation by the chat template, with options of transformers' ``apply_chat_template``. Raises
    :class:`ConfigError` with the template's own complaint."""
    try:
        return tokenizer.apply_chat_template(list(conversation), **options)
    except Exception as error:  # a template may raise anything
        raise _refusal(conversation, f"the template fails: {error}; mend the row, or name another template") from None


def _by_markers(tokenizer: Any, conversation: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    coded = rendered(tokenizer, conversation, return_dict=True, return_assistant_tokens_mask=True)
    answers = [bool(mark) for mark in coded["assistant_masks"]]
    expected = sum(turn["role"] == "assistant" for turn in conversation)
    # transformers stops marking at an answer whose first character is in no token.
    marked = sum(key for key, _ in groupby(answers))
    if marked < expected:
        reason = f"{{% generation %}} in the template marks {marked} of {expected} answers: "
        raise _refusal(conversation, reason + "let it begin at the first character of every answer")
    return list(coded["input_ids"]), answers


def _by_prefixes(tokenizer: Any, conversation: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    places = [place for place, turn in enumerate(conversation) if turn["role"] == "assistant"]
    texts = [rendered(tokenizer, conversation, tokenize=False)]
    for place in places:
        texts.append(rendered(tokenizer, conversation[:place], tokenize=False, add_generation_prompt=True))
        texts.append(rendered(tokenizer, conversation[: place + 1], tokenize=False))
    whole, *prefixes = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    answers = [False] * len(whole)
    for place, before, after in zip(places, prefixes[::2], prefixes[1::2], strict=True):
        if whole[: len(before)] != before or whole[: len(after)] != after:
            reason = f"the tokens up to turn {place} do not begin those of the whole, so this answer's are not known"
            remedy = "name a template with {% generation %} and {% endgeneration %} around every answer"
            raise _refusal(conversation, f"{reason}; {remedy}")
        answers[len(before) : len(after)] = [True] * (len(after) - len(before))
    return whole, answers


def _refusal(conversation: Sequence[Turn], reason: str) -> ConfigError:
    first = conversation[0]["content"]
    return ConfigError.at("task.chat_template", f"the conversation that begins {first!r:.60}: {reason}")
