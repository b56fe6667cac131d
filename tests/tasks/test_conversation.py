"""Conversations of several turns: checks of their rows, and the tokens with a loss by the chat template."""

from __future__ import annotations

from typing import Any

import pytest

import tiny
from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.conversation import turns
from rondo.tasks.row_checks import RowProblem

BOS, EOS = 2, 3
NAMES = "{'system': 'w29', 'user': 'w30', 'assistant': 'w31'}"
PLAIN = (
    f"{{% for m in messages %}}<s> {{{{ {NAMES}[m.role] }}}} {{{{ m.content }}}} </s> {{% endfor %}}"
    "{% if add_generation_prompt %}<s> w31 {% endif %}"
)
"""Of the form ``<s> role content </s>``."""
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<s> w31 {% generation %}"
    "{{ m.content }} </s>{% endgeneration %} "
    "{% else %}<s> w30 {{ m.content }} </s> {% endif %}{% endfor %}"
)
"""The same with markers, but for the name of the system."""
FORGETFUL = PLAIN.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else 'w35' }}")
"""Earlier answers are rendered otherwise than the last one, as by templates that drop earlier thoughts."""
FIXED = TaskConfig(kind="causal-lm", messages="chat")


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


CHAT = [said("user", "w1 w2"), said("assistant", "w3"), said("user", "w4"), said("assistant", "w5 w6")]


def ids(text: str) -> list[int]:
    return [4 + int(word[1:]) for word in text.split()]


def coder(template: str | None = PLAIN) -> Any:
    tokenizer = tiny.tokenizer("gpt")
    tokenizer.chat_template = template
    return tokenizer


def task(template: str | None = PLAIN, **keys: Any) -> CausalLM:
    return CausalLM.of(TaskConfig(kind="causal-lm", messages="chat", **keys), coder(template), ())


def problem(chat: Any) -> str:
    found = CausalLM.problem(FIXED, {"chat": chat}, 7)
    assert isinstance(found, RowProblem)
    assert (found.row, found.column) == (7, "chat")
    return found.reason


# --- the tokens with a loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_only_answers_and_their_end_have_a_loss(template: str) -> None:
    (example,) = task(template).encode([{"chat": CHAT}])
    parts = [
        ([BOS, *ids("w30 w1 w2"), EOS, BOS, *ids("w31")], False),
        ([*ids("w3"), EOS], True),
        ([BOS, *ids("w30 w4"), EOS, BOS, *ids("w31")], False),
        ([*ids("w5 w6"), EOS], True),
    ]
    assert list(example.ids) == [i for part, _ in parts for i in part]
    assert list(example.target) == [i if answer else -100 for part, answer in parts for i in part]


def test_system_prompt_and_later_question_have_no_loss() -> None:
    chat = [said("system", "w9"), *CHAT[:2], said("user", "w7")]
    (example,) = task().encode([{"chat": chat}])
    targets = [t for t in example.target if t != -100]
    assert targets == [*ids("w3"), EOS]
    assert list(example.ids[:4]) == [BOS, *ids("w29 w9"), EOS]
    assert list(example.ids[-4:]) == [BOS, *ids("w30 w7"), EOS]


def test_single_turn_equals_prompt_and_response() -> None:
    row = {"chat": CHAT[:2], "ask": "w1 w2", "answer": "w3"}
    columns = CausalLM.of(TaskConfig(kind="causal-lm", prompt="ask", response="answer"), coder(), ())
    assert task().encode([row]) == columns.encode([row])


def test_long_conversations_are_cut_and_those_without_target_dropped() -> None:
    assert len(task().encode([{"chat": CHAT}])[0].ids) == 18
    (cut,) = task(max_length=9).encode([{"chat": CHAT}])
    assert [t for t in cut.target if t != -100] == [*ids("w3"), EOS]
    assert task(max_length=6).encode([{"chat": CHAT}]) == []


def test_names_of_sharegpt_are_read() -> None:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    chat = [said("system", "w9"), *CHAT]
    assert turns([{"from": names[t["role"]], "value": t["content"]} for t in chat]) == chat


def test_keys_without_a_value_are_absent() -> None:
    """Parquet gives every turn the keys of all."""
    assert turns([{**turn, "weight": None, "tool_calls": None, "from": None} for turn in CHAT]) == CHAT


@pytest.mark.parametrize("template", [PLAIN, MARKED])
@pytest.mark.parametrize("weight", [0, 0.0, False])
def test_answer_of_weight_zero_has_no_loss(template: str, weight: Any) -> None:
    chat = [*CHAT[:1], {**CHAT[1], "weight": weight}, *CHAT[2:]]
    (example,), (whole,) = (task(template).encode([{"chat": c}]) for c in (chat, CHAT))
    assert example.ids == whole.ids
    assert [t for t in example.target if t != -100] == [*ids("w5 w6"), EOS]


def test_answers_of_weight_one_are_learned() -> None:
    chat = [{**turn, "weight": 1} for turn in CHAT]
    assert task().encode([{"chat": chat}]) == task().encode([{"chat": CHAT}])


@pytest.mark.parametrize("weight", [0.5, 2, "0", -1])
def test_other_weights_are_refused(weight: Any) -> None:
    assert "an answer counts (1) or does not (0)" in problem([CHAT[0], {**CHAT[1], "weight": weight}])


def test_conversation_of_weight_zero_has_no_answer() -> None:
    assert "the weight of all of them is 0" in problem([CHAT[0], {**CHAT[1], "weight": 0}])


def test_key_that_the_template_reads_reaches_it() -> None:
    template = PLAIN.replace("{{ m.content }}", "{{ m['name'] if m.name is defined else '' }} {{ m.content }}")
    (example,) = task(template).encode([{"chat": [{**CHAT[0], "name": "w17"}, CHAT[1]]}])
    assert list(example.ids[:4]) == [BOS, *ids("w30 w17 w1")]


def test_key_that_the_template_does_not_read_is_refused() -> None:
    message = refused(PLAIN, [CHAT[0], {**CHAT[1], "tool_calls": [{"function": {"name": "f"}}]}])
    assert "turn 1 has 'tool_calls', which the template does not read and Rondo does not know: leave it out" in message


def test_tools_come_between_answers() -> None:
    calls = "{% if m.tool_calls is defined %}{{ m.tool_calls[0].function.name }}{% endif %}"
    template = PLAIN.replace("{{ m.content }}", f"{{{{ m.content }}}}{calls}").replace(
        "'w31'}", "'w31', 'tool': 'w28'}"
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "w20"}}]}
    chat = [CHAT[0], call, said("tool", "w21"), said("assistant", "w3")]
    (example,) = task(template).encode([{"chat": chat}])
    assert [t for t in example.target if t != -100] == [*ids("w20"), EOS, *ids("w3"), EOS]
    assert "turn 2 is by tool and should be by user" in problem([*CHAT[:2], said("tool", "w21")])


# --- templates that do not show whose a token is --------------------------------------------------------------------


def refused(template: str | None, chat: Any = CHAT) -> str:
    with pytest.raises(ConfigError) as caught:
        task(template).encode([{"chat": chat}])
    return str(caught.value)


def test_missing_template_is_refused_with_a_remedy() -> None:
    message = refused(None)
    assert "task.chat_template: the tokenizer has no chat template" in message
    assert "name a Jinja file" in message


def test_template_that_changes_earlier_turns_is_refused() -> None:
    message = refused(FORGETFUL)
    assert "the conversation that begins 'w1 w2': " in message
    assert "turn 1" in message
    assert "{% generation %}" in message
    assert len(task(FORGETFUL).encode([{"chat": CHAT[:2]}])) == 1


def test_token_across_the_start_of_an_answer_is_refused() -> None:
    """The text before it is a beginning of the whole text, and its tokens are not one of the whole's."""
    glued = PLAIN.replace("] }} {{", "] }}{{").replace("w31 {%", "w31{%")
    chat = [said("user", " w1"), said("assistant", "5 w6")]  # w31 and 5 are one word
    assert "turn 1" in refused(glued, chat)


def test_templates_own_complaint_is_told() -> None:
    picky = "{{ raise_exception('no system prompt, please') }}"
    assert "no system prompt, please" in refused(picky)
    assert "unexpected" in refused("{{ messages[0]").lower()


def test_markers_that_miss_an_answer_are_refused() -> None:
    """transformers stops at an answer whose first character is in no token, and leaves out all later ones."""
    assert "marks 0 of 2 answers" in refused(MARKED.replace("w31 {% generation %}", "w31{% generation %} "))
    last = MARKED.replace("m.role == 'assistant'", "loop.last").replace("<s> w30", "<s> {{ 'w30' }}")
    assert "marks 1 of 2 answers" in refused(last)


# --- rows -----------------------------------------------------------------------------------------------------------


def test_usable_rows_have_no_problem() -> None:
    for chat in (CHAT, CHAT[:2], CHAT[:3], [said("system", ""), *CHAT], tuple(CHAT)):
        assert CausalLM.problem(FIXED, {"chat": chat}, 0) is None


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ("w1", "expected a list of turns"),
        (None, "expected a list of turns"),
        ([], "no answer"),
        (["w1"], "turn 0 should have role and content"),
        ([{"role": "user"}], "turn 0 should have role and content"),
        ([*CHAT, said("tool", "w1")], "turn 4 is by tool and should be by user"),
        ([said(None, "w1")], "turn 0 should have role and content"),
        ([*CHAT[:2], said("user", 5)], "turn 2: expected text, got 5"),
        ([CHAT[0], said("assistant", None)], "turn 1: expected text, got None"),
        ([CHAT[0], said("assistant", " ")], "turn 1: the text is empty"),
        ([CHAT[0], said("assistant", "w1 \ud800")], "turn 1: the text has a lone surrogate"),
        ([CHAT[0]], "no answer"),
        ([said("system", "w1"), CHAT[0]], "no answer"),
        (CHAT[1:], "turn 0 is by assistant and should be by user"),
        ([CHAT[0], *CHAT], "turn 1 is by user and should be by assistant"),
        ([*CHAT, said("system", "w1")], "turn 4 is by system and should be by user"),
        ([said("system", "w1"), *CHAT[1:]], "turn 1 is by assistant and should be by user"),
    ],
)
def test_unusable_conversation_gives_turn_and_reason(chat: Any, words: str) -> None:
    assert words in problem(chat)


def test_lone_surrogate_in_another_key_is_a_bad_row() -> None:
    chat = [CHAT[0], {**CHAT[1], "tool_calls": [{"name": "w1 \ud83d"}]}]
    assert "turn 1 has a lone surrogate in tool_calls" in problem(chat)
