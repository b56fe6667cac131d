"""Prompts of chat templates as people read them."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rondo.tasks.language.conversation import Frame, frame_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_A_SYSTEM_PROMPT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}" + CHATML
)
INSTRUCTIONS = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'system' %}{{ raise_exception('no system prompt') }}"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
SYSTEM_IN_THE_TURN = (
    "{% for m in messages %}{% if m.role == 'system' %}<s>[INST] <<SYS>>{{ m.content }}<</SYS>>"
    "{% elif m.role == 'user' %}{% if loop.first or messages[loop.index0 - 1].role != 'system' %}<s>[INST] {% endif %}"
    "{{ m.content }} [/INST]{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
ALL = {"chatml": CHATML, "own": WITH_A_SYSTEM_PROMPT, "instructions": INSTRUCTIONS, "inside": SYSTEM_IN_THE_TURN}


def bytewise(template: str) -> Any:
    """A tokenizer with a token per byte."""
    words = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=words, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.chat_template = template
    return tokenizer


def said(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


def shown(template: str, turns: list[dict[str, str]]) -> str | None:
    tokenizer = bytewise(template)
    frame = frame_of(tokenizer, None)
    assert frame is not None
    return frame.turns(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize("name", ALL)
def test_single_turn_is_its_content(name: str) -> None:
    assert shown(ALL[name], said("Tell me\n\n  a story.")) == "Tell me\n\n  a story."


@pytest.mark.parametrize("name", ALL)
def test_several_turns_have_their_roles(name: str) -> None:
    assert shown(ALL[name], said("Hello", "Good day", "Go on")) == "user: Hello\nassistant: Good day\nuser: Go on"


@pytest.mark.parametrize("name", ["chatml", "own", "inside"])
def test_system_prompt_is_a_turn(name: str) -> None:
    assert shown(ALL[name], said("Hello", system="Be kind.")) == "system: Be kind.\nuser: Hello"


def test_prompt_of_another_form_is_left_alone() -> None:
    frame = frame_of(bytewise(CHATML), None)
    assert frame is not None
    assert frame.turns("Hello") is None
    assert frame.turns("<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n") is None


def test_template_that_changes_contents_has_no_frame() -> None:
    assert frame_of(bytewise(CHATML.replace("m.content", "m.content | upper")), None) is None


def test_answer_loses_the_end_of_its_turn() -> None:
    frame = frame_of(bytewise(CHATML), None)
    assert isinstance(frame, Frame)
    assert frame.answer("Once\n\nupon.<|im_end|>\n") == frame.answer("Once\n\nupon.") == "Once\n\nupon."
