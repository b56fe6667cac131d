"""Conversations of several turns: read from a row, rendered by the tokenizer's chat template, and shown to people
without the words of the template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from functools import lru_cache
from itertools import groupby
from string import ascii_letters
from typing import Any, TypeAlias

from jinja2 import Environment

from rondo.errors import ConfigError
from rondo.tasks.language.text import text_ids
from rondo.tasks.row_checks import text_problem
from rondo.tasks.task import AnswerEnd

Turn: TypeAlias = dict[str, Any]
"""``role`` ("system", "user", "assistant" or "tool") and ``content``, as chat templates read them, and other keys that
the template reads, such as ``tool_calls``. ``weight`` is 0 where an answer is not learned, and else left out."""

_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"human": "user", "gpt": "assistant"}
_KEYS = (("role", "content"), ("from", "value"))
_NEXT = {"system": ("user",), "user": ("assistant",), "assistant": ("user",), "tool": ("assistant", "tool")}
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Marks the assistant's tokens in a template (transformers' own extension of Jinja)."""


def turns(value: Any, *, answered: bool = True) -> list[Turn]:
    """The turns of a conversation: a list of ``{"role", "content"}``, or of ShareGPT's ``{"from", "value"}``. A system
    prompt may come first; then user and assistant take turns; tools that an answer calls (``tool_calls``) come between
    it and the next answer. An answer of ``weight`` 0 is not learned. Keys without a value, which Parquet gives to all
    turns, are absent.

    Raises :class:`ValueError` with the reason if ``value`` has another form, or has no answer and should be
    ``answered``.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of turns, got {value!r:.60}")
    result: list[Turn] = []
    for place, turn in enumerate(value):
        known = _KEYS if isinstance(turn, Mapping) else ()
        keys = next((k for k in known if k[0] in turn and k[1] in turn and turn[k[0]] is not None), ())
        if not keys:
            raise ValueError(f"turn {place} should have role and content, or from and value; it is {turn!r:.60}")
        said_by, content = (turn[key] for key in keys)
        others = {key: value for key, value in turn.items() if key not in keys and value is not None}
        if content is None and others.get("tool_calls"):
            content = ""
        role = _ROLES.get(said_by) if isinstance(said_by, str) else None
        if role is None:
            raise ValueError(f"turn {place} is by {said_by!r:.60}; known: {', '.join(_ROLES)}")
        expected = _NEXT[result[-1]["role"] if result else "system"]
        if result and result[-1].get("tool_calls"):
            expected = (*expected, "tool")
        if role not in expected and (place, role) != (0, "system"):
            order = "a system prompt may come first, then user and assistant take turns"
            raise ValueError(f"turn {place} is by {role} and should be by {' or '.join(expected)}: {order}")
        fault = text_problem({"content": content}, place, "content")
        may_be_empty = role in ("system", "tool") or others.get("tool_calls")
        if fault is not None and not (may_be_empty and content == ""):
            raise ValueError(f"turn {place}: {fault.reason}")
        try:  # the template may print all of them
            json.dumps(others, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise ValueError(f"turn {place} has a lone surrogate in {', '.join(others)}") from None
        weight = others.pop("weight", 1)
        if weight not in (0, 1):
            raise ValueError(f"turn {place} has the weight {weight!r:.60}: an answer counts (1) or does not (0)")
        unlearned = {"weight": 0} if weight == 0 and role == "assistant" else {}
        result.append({"role": role, "content": content, **others, **unlearned})
    if answered and not any(turn["role"] == "assistant" and _learned(turn) for turn in result):
        raise ValueError("no answer: no turn is by the assistant, or the weight of all of them is 0")
    return result


def _learned(turn: Turn) -> bool:
    return bool(turn.get("weight", 1))


@lru_cache
def _read_by(template: str) -> frozenset[str]:
    """The names and the texts in the blocks of a template: every key of a turn that it reads is one of them."""
    tokens = Environment(autoescape=True).lex(template)
    return frozenset(value.strip("'\"") for _, kind, value in tokens if kind in ("name", "string"))


_CLOCK = "strftime_now"
"""The function of templates, in transformers, that gives the time."""
_MACRO = (
    f"{{% macro {_CLOCK}(format) %}}{{% set made = namespace(text=format) %}}"
    "{% for code, value in rondo_today %}{% set made.text = made.text.replace(code, value) %}{% endfor %}"
    "{{ made.text }}{% endmacro %}\n"
)
"""Put before a template, it is called in place of :data:`_CLOCK`: transformers gives templates no functions of a
caller's. Its line break, which Jinja drops, keeps the template's first line one."""


@lru_cache
def _directives(today: str) -> list[list[str]]:
    """Every directive of ``strftime``, and its text at the first moment of that day, in the order of replacement."""
    moment, texts = datetime.combine(date.fromisoformat(today), time()), []
    for code in (f"%{flag}{letter}" for flag in ("", "-") for letter in ascii_letters):
        with suppress(ValueError):  # not every system has all
            texts.append([code, moment.strftime(code)])
    return [["%%", "\0"], *texts, ["\0", "%"]]


def tells_the_date(tokenizer: Any) -> bool:
    """Whether the tokenizer has a chat template that prints today's date, as those of Llama 3.2 and Granite do."""
    return bool(tokenizer.chat_template) and _CLOCK in _read_by(tokenizer.get_chat_template())


def must_have_template(tokenizer: Any) -> None:
    """Raise :class:`ConfigError` for a tokenizer without a chat template."""
    if not tokenizer.chat_template:
        message = "the tokenizer has no chat template, which conversations need: name a Jinja file, or another model"
        raise ConfigError.at("task.chat_template", message)


def encoded(tokenizer: Any, conversation: Sequence[Turn], today: str | None = None) -> tuple[list[int], list[bool]]:
    """The token ids of a conversation, and whether each belongs to an answer. ``today``: see :func:`rendered`.

    The parts of the chat template between its markers ``{% generation %}`` and ``{% endgeneration %}`` are answers.
    Without markers, an answer is what a turn of the assistant adds to the turns before it and the generation prompt.
    Raises :class:`ConfigError` if the template does not show the answers' tokens.
    """
    must_have_template(tokenizer)
    if tokenizer.is_fast and _MARKER.search(tokenizer.get_chat_template()):
        return _by_markers(tokenizer, conversation, today)
    return _by_prefixes(tokenizer, conversation, today)


def prompt_ids(tokenizer: Any, value: Any, today: str | None = None) -> list[int]:
    """The token ids of a conversation up to its last turn by the user, and of the generation prompt, which an answer
    follows. ``today``: see :func:`rendered`. Raises :class:`ValueError` as :func:`turns` does, and if no turn is by the
    user."""
    conversation = turns(value, answered=False)
    while conversation and conversation[-1]["role"] != "user":
        conversation.pop()
    if not conversation:
        raise ValueError("no turn is by the user")
    text = rendered(tokenizer, conversation, today, tokenize=False, add_generation_prompt=True)
    return text_ids(tokenizer, text)


def closing(tokenizer: Any, conversation: Sequence[Turn], today: str | None = None) -> str:
    """The text that the chat template puts behind the answer to ``conversation``. It is shown a word that is
    nowhere else in its text: it may trim an answer, and an answer may be a part of its own marks. ``today``: see
    :func:`rendered`."""
    word = "zqzq"
    while word in rendered(tokenizer, conversation, today, tokenize=False, add_generation_prompt=True):
        word += "zq"
    answered = [*conversation, {"role": "assistant", "content": word}]
    _, word_there, end = rendered(tokenizer, answered, today, tokenize=False).rpartition(word)
    if not word_there:
        raise _refusal(conversation, "the template leaves the answer out; name another template")
    return str(end)


_LEAST_TEXT = 3
"""Fewest characters of a text that ends answers: a line break or a point may be within one."""


def answer_end(tokenizer: Any, known: AnswerEnd, today: str | None = None) -> AnswerEnd:
    """What ends an answer by the chat template, and the tokens ``known`` to do so. ``today``: see :func:`rendered`."""
    try:
        text = closing(tokenizer, [{"role": "user", "content": _WORDS[0]}], today)
    except ConfigError:  # a template that does not take such turns
        return known
    ids, added = text_ids(tokenizer, text), set(tokenizer.get_added_vocab().values()) | set(tokenizer.all_special_ids)
    if (token := next((i for i in ids if i in added), None)) is not None:
        return AnswerEnd(tuple(dict.fromkeys((token, *known.tokens))))
    return replace(known, text=text.rstrip() if len(text.strip()) >= _LEAST_TEXT else "")


def rendered(tokenizer: Any, conversation: Sequence[Turn], today: str | None = None, **options: bool) -> Any:
    """A conversation by the chat template, with options of transformers' ``apply_chat_template``. Raises
    :class:`ConfigError` with the template's own complaint, and for a key that the template does not read.

    ``today``: the date that the template prints, as YYYY-MM-DD; None: that of the clock.
    """
    shown = [{key: value for key, value in turn.items() if key != "weight"} for turn in conversation]
    for place, turn in enumerate(shown):
        if unread := sorted(turn.keys() - {"role", "content"} - _read_by(tokenizer.get_chat_template())):
            reason = f"turn {place} has {unread[0]!r}, which the template does not read and Rondo does not know"
            raise _refusal(conversation, f"{reason}: leave it out, or name a template that reads it")
    dated: dict[str, Any] = {}
    if today is not None:
        dated = {"chat_template": _MACRO + tokenizer.get_chat_template(), "rondo_today": _directives(today)}
    try:
        return tokenizer.apply_chat_template(shown, **options, **dated)
    except Exception as error:  # a template may raise anything
        raise _refusal(conversation, f"the template fails: {error}; mend the row, or name another template") from None


def _by_markers(tokenizer: Any, conversation: Sequence[Turn], today: str | None) -> tuple[list[int], list[bool]]:
    coded = rendered(tokenizer, conversation, today, return_dict=True, return_assistant_tokens_mask=True)
    answers = [bool(mark) for mark in coded["assistant_masks"]]
    expected = sum(turn["role"] == "assistant" for turn in conversation)
    # transformers stops marking at an answer whose first character is in no token.
    marked = sum(key for key, _ in groupby(answers))
    if marked < expected:
        reason = f"{{% generation %}} in the template marks {marked} of {expected} answers: "
        raise _refusal(conversation, reason + "let it begin at the first character of every answer")
    learned = [_learned(turn) for turn in conversation if turn["role"] == "assistant"]
    if not all(learned):
        if marked > expected:
            reason = f"{{% generation %}} in the template marks {marked} parts of {expected} answers, and some of "
            raise _refusal(conversation, reason + "these have the weight 0: mark each answer once")
        parts = ((key, list(group)) for key, group in groupby(answers))
        weights = iter(learned)
        answers = [key and counts for key, group in parts for counts in [key and next(weights)] for _ in group]
    return list(coded["input_ids"]), answers


def _by_prefixes(tokenizer: Any, conversation: Sequence[Turn], today: str | None) -> tuple[list[int], list[bool]]:
    places = [place for place, turn in enumerate(conversation) if turn["role"] == "assistant"]
    texts = [rendered(tokenizer, conversation, today, tokenize=False)]
    for place in places:
        texts.append(rendered(tokenizer, conversation[:place], today, tokenize=False, add_generation_prompt=True))
        texts.append(rendered(tokenizer, conversation[: place + 1], today, tokenize=False))
    whole, *prefixes = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    answers = [False] * len(whole)
    for place, before, after in zip(places, prefixes[::2], prefixes[1::2], strict=True):
        if whole[: len(before)] != before or whole[: len(after)] != after:
            reason = f"the tokens up to turn {place} do not begin those of the whole, so this answer's are not known"
            remedy = "name a template with {% generation %} and {% endgeneration %} around every answer"
            raise _refusal(conversation, f"{reason}; {remedy}")
        answers[len(before) : len(after)] = [_learned(conversation[place])] * (len(after) - len(before))
    return whole, answers


def _refusal(conversation: Sequence[Turn], reason: str) -> ConfigError:
    first = conversation[0]["content"]
    return ConfigError.at("task.chat_template", f"the conversation that begins {first!r:.60}: {reason}")


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
    tokenizer: Any, turns: Sequence[Turn], today: str | None, words: Sequence[str], *, asked: bool
) -> list[str]:
    """The texts before, between and after ``words``, the contents of ``turns``. Raises ValueError where one is not
    found."""
    text = rendered(tokenizer, turns, today, tokenize=False, add_generation_prompt=asked)
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
