"""Rows of multiple choice: the forms of choices and answers, and the answers that a generated text names."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from choice_rows import COMMONSENSE, TEMPLATE, byte_pairs, commonsense, questions
from rondo.config import ConfigError, load
from rondo.config.inputs import TaskConfig
from rondo.tasks.language.choosing.choices import choices_of, first_mentioned, right_of
from rondo.tasks.language.choosing.multiple_choice import MultipleChoice

COLUMNS = ["c0", "c1", "c2", "c3"]


def task_of(template: str | None = None, **keys: Any) -> MultipleChoice:
    config = {"kind": "multiple-choice", "prompt": "question", "choices": "choices", "answer": "answer", **keys}
    return MultipleChoice.of(TaskConfig.model_validate(config), byte_pairs(template), ())


@pytest.mark.parametrize(
    ("answer", "choices", "index"),
    [
        ("green", ["red", "green"], 1),
        ("B", ["red", "green"], 1),
        (1, ["red", "green"], 1),
        (1.0, ["red", "green"], 1),
        ("0", ["red", "green"], 0),
        ("4", ["0", "4", "2"], 1),
        ("C", ["0", "4", "2"], 2),
        ("A", ["A", "B"], 0),
    ],
)
def test_answer_is_a_text_a_letter_or_a_number(answer: Any, choices: list[str], index: int) -> None:
    assert right_of(answer, choices) == index


@pytest.mark.parametrize(
    ("answer", "choices", "letter", "text"), [("C", ["C", "D", "B", "A"], 2, 0), ("B", ["AB", "A", "O", "B"], 1, 3)]
)
def test_answer_with_two_readings_is_refused(answer: str, choices: list[str], letter: int, text: int) -> None:
    """MMLU asks for vitamins and blood groups."""
    with pytest.raises(ValueError, match=r"the text of .* and the letter of .*: say which with task.answer_is"):
        right_of(answer, choices)
    assert (right_of(answer, choices, "letter"), right_of(answer, choices, "text")) == (letter, text)
    with pytest.raises(ValueError, match="the text of '2' and the number of '1'"):
        right_of(2, ["3", "2", "1"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [("E", "is not the text"), (2, "is not the text"), (None, "is not"), ([1], "is not"), (-1, "is not"), ("b", "not")],
)
def test_answer_that_is_no_choice_is_refused(answer: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        right_of(answer, ["red", "green"])


def test_choices_are_a_list_or_columns() -> None:
    row = questions(3)[0]
    assert choices_of(row, "choices") == choices_of(row, COLUMNS) == row["choices"]
    assert choices_of({"c": [1, 2.0, "x"]}, "c") == ["1", "2", "x"]
    for empty in (None, "", math.nan):
        assert choices_of({"c0": "red", "c1": "green", "c2": empty}, ["c0", "c1", "c2"]) == ["red", "green"]


@pytest.mark.parametrize(
    ("row", "columns", "words"),
    [
        ({"c": "red"}, "c", "expected a list of choices, or a text with 'Answer format: a/b' at its end, got 'red'"),
        ({"c": "which? Answer format: red"}, "c", "1 choices"),
        ({"c": ["red"]}, "c", "1 choices"),
        ({"c": ["red", " "]}, "c", "choice B: the text is empty"),
        ({"c": ["red", None]}, "c", "choice B: expected text"),
        ({"c0": "red", "c1": None, "c2": "blue"}, ["c0", "c1", "c2"], "choice B: expected text"),
        ({"c0": "red", "c1": None}, ["c0", "c1"], "1 choices"),
    ],
)
def test_unusable_choices_are_refused(row: dict[str, Any], columns: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        choices_of(row, columns)


@pytest.mark.parametrize("name", COMMONSENSE)
def test_rows_of_llm_adapters_learn_and_score_the_whole_answer(name: str) -> None:
    keys = {"prompt": ["instruction", "input"], "choices": "instruction", "answer_text": "the correct answer is {}"}
    task = task_of(**keys)
    for row in commonsense(name, 3):
        assert tuple(choices_of(row, "instruction")) == COMMONSENSE[name]
        (example,) = task.encode([row])
        assert task.tokenizer.decode([t for t in example.target if t != -100]) == f"\n{row['output']}<end>"
        said = [f"the correct answer is {choice}" for choice in COMMONSENSE[name]]
        assert [task.tokenizer.decode(c).strip() for c in example.choices] == said
        assert COMMONSENSE[name][example.right] == row["answer"]
        other = next(choice for choice in COMMONSENSE[name] if choice != row["answer"])
        for answer, score in ((row["output"], 1.0), (row["answer"], 1.0), (f"the correct answer is {other}", 0.0)):
            assert task.scores_of_answers([example], [answer]) == {"accuracy_generation": score}


@pytest.mark.parametrize("text", ["the answer", "{} or {}"])
def test_text_of_an_answer_has_one_place_for_the_choice(text: str) -> None:
    keys = {"kind": "multiple-choice", "prompt": "q", "choices": "c", "answer": "a", "answer_text": text}
    with pytest.raises(ConfigError, match=r"task.answer_text: .* should have \{\} once"):
        load({"task": keys, "data": {"source": "rows.csv"}, "partition": {"clients": 2}}, check_paths=False)


@pytest.mark.parametrize(
    ("text", "candidates", "index"),
    [
        ("the correct answer is false, not true", ["true", "false"], 1),
        ("answer3 because answer1", ["answer1", "answer2", "answer3"], 2),
        ("none of these", ["true", "false"], None),
        ("", ["true", "false"], None),
        ("it is a+b (c)", ["c)", "a+b"], 1),
        ("Answer: B", ["A", "B"], 1),
        ("An answer", ["A", "B"], None),
        ("untrue", ["true", "false"], 0),
        ("it is 12", ["1", "2", "12"], 2),
        ("Greenland, not Green", ["Green", "Greenland"], 1),
        ("not likely", ["not", "not likely", ""], 1),
        ("anything", ["", ""], None),
    ],
)
def test_first_candidate_in_a_text_is_the_answer(text: str, candidates: list[str], index: int | None) -> None:
    assert first_mentioned(text, candidates) == index


def test_loss_is_on_the_right_choice_and_the_end() -> None:
    task, row = task_of(), questions(5)[4]
    (example,) = task.encode([row])
    text = task.tokenizer.decode([t for t in example.target if t != -100])
    assert text == "\n" + row["choices"]["ABCD".index(row["answer"])] + "<end>"
    assert task.tokenizer.decode(example.ids) == f"{row['question']}{text}"


def test_choices_are_listed_with_letters() -> None:
    task, row = task_of(letters=True), questions(2)[1]
    (example,) = task.encode([row])
    listed = "".join(f"\n{letter}. {text}" for letter, text in zip("ABC", row["choices"], strict=True))
    assert task.tokenizer.decode(example.ids) == f"{row['question']}{listed}\nAnswer: {row['answer']}<end>"
    assert [task.tokenizer.decode(c) for c in example.choices] == [" A", " B", " C"]


def test_chat_template_stands_around_question_and_choice() -> None:
    task, row = task_of(TEMPLATE), questions(2)[1]
    (example,) = task.encode([row])
    right = row["choices"]["ABCD".index(row["answer"])]
    whole = f"<|user|>\n{row['question']}<|end|>\n<|assistant|>\n{right}<|end|>\n"
    assert task.tokenizer.decode(example.ids) == whole
    assert [task.tokenizer.decode(c).strip() for c in example.choices] == row["choices"]


def test_long_prompt_loses_its_beginning() -> None:
    row = questions(2)[1]
    (whole,), (cut,) = (task_of(max_length=n).encode([row]) for n in (128, 12))
    assert cut.lost == len(whole.ids) - len(cut.ids) > 0
    longest = max(map(len, cut.choices)) + 1
    assert cut.prompt == 12 - longest
    assert cut.ids == whole.ids[cut.lost :]
    assert task_of(max_length=5).encode([row]) == []


def test_size_of_a_choice_is_in_bytes() -> None:
    """The accuracy per byte is that of the evaluation harness, which counts bytes of UTF-8."""
    (example,) = task_of().encode([{"question": "Who?", "choices": ["Zoë", "日本", "ann"], "answer": 2}])
    assert example.sizes == (4, 6, 3)
    assert [part.size for part in task_of().scored([example])] == [4, 6, 3]


def test_store_gives_back_its_examples() -> None:
    task = task_of()
    examples = task.encode(questions(7))
    store, other = task.store(), task.store()
    assert store.add(examples[:3]) == range(3)
    assert store.add(examples[3:]) == range(3, 7)
    assert [store[i] for i in range(7)] == examples
    assert [store.cost(i) for i in range(7)] == [len(e.ids) for e in examples]
    other.add([*examples[:6], task.encode([{**questions(7)[6], "answer": 0}])[0]])
    assert other.sha256() != store.sha256()
    assert store.account()["rows"] == 7


def test_more_choices_than_letters_are_refused_with_and_without_an_answer() -> None:
    task = task_of(letters=True)
    row = {**questions(1)[0], "choices": [f"choice {i}" for i in range(27)]}
    with pytest.raises(ValueError, match="27 choices, and only 26 letters"):
        task.encode([row])
    assert "only 26 letters" in str(
        MultipleChoice.problem(TaskConfig(kind="multiple-choice", choices="choices", letters=True), row, 0)
    )


def test_loss_is_the_mean_over_tokens_of_right_choices() -> None:
    """Over 400 words that are equally likely, ln 400, whatever the sizes of the rows."""
    task = task_of()
    _, targets = task.collate(task.scored(task.encode(questions(3))))
    tally = task.tally()
    tally.add(torch.zeros(*targets["labels"].shape, 400), targets)
    assert tally.scores()["loss"] == pytest.approx(math.log(400), rel=1e-6)


def test_diverged_model_has_no_accuracy() -> None:
    """Of likelihoods that are no numbers none is the largest."""
    task = task_of()
    parts = task.scored(task.encode(questions(2)))
    _, targets = task.collate(parts)
    output = torch.full((*targets["labels"].shape, 400), math.nan)
    tally = task.tally()
    tally.add(output, targets)
    scores = tally.scores()
    assert scores["examples"] == 2
    assert scores["accuracy_likelihood"] is scores["accuracy_normalised"] is None


CHATS = {
    # Llama 3's and Gemma's trim; Command R's end token has letters that are answers.
    "trims": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "has letters": "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|END_OF_TURN|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
}


@pytest.mark.parametrize(
    ("template", "choices", "keys", "learned"),
    [
        ("trims", [" a cat", " no one "], {}, " a cat<|eot|>"),
        ("has letters", ["END", "TURN"], {}, "END<|END_OF_TURN|>"),
        ("has letters", ["w", "x", "y", "z"], {"letters": True}, "A<|END_OF_TURN|>"),
        ("has letters", ["_", "|>"], {}, "_<|END_OF_TURN|>"),
    ],
)
def test_answer_ends_as_the_template_ends_it(
    template: str, choices: list[str], keys: dict[str, Any], learned: str
) -> None:
    task = task_of(CHATS[template], answer_is="number", **keys)
    (example,) = task.encode([{"question": "Who?", "choices": choices, "answer": 0}])
    assert task.tokenizer.decode([t for t in example.target if t != -100]) == learned


def test_choice_keeps_its_words_where_a_tokenizer_ends_texts_without_an_end_token() -> None:
    """BERT's puts a separator behind every text, also in models that generate."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "where", "is", "it", "in", "the", "city", "two"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing("[CLS] $0 [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    coder = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    keys = {"kind": "multiple-choice", "prompt": "question", "choices": "choices", "answer": "answer"}
    task = MultipleChoice.of(TaskConfig.model_validate(keys), coder, ())
    row = {"question": "where is it", "choices": ["in the city", "two"], "answer": 0}
    (example,) = task.encode([row])
    assert [coder.decode(c) for c in example.choices] == ["in the city", "two"]
    assert coder.decode(example.ids) == "[CLS] where is it in the city [SEP]"
    assert coder.decode(task.begun("where is it")) == "[CLS] where is it"
