"""Words as numbers, without a vocabulary and with one."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from rondo.config.inputs import TaskConfig
from rondo.models.forms.builtin.classical import WordTokenizer, hashed
from rondo.tasks.language.sequences import SequenceClassification

TOKENIZER = WordTokenizer(partial(hashed, size=8192))


def test_numbers_are_the_same_everywhere() -> None:
    assert TOKENIZER(["Good flight, thanks!"])["input_ids"] == [[5094, 5558, 7693, 6855, 5301]]


def test_case_is_ignored_and_marks_are_words() -> None:
    assert TOKENIZER(["Good GOOD!"])["input_ids"] == TOKENIZER(["good good !"])["input_ids"]


def test_numbers_leave_room_for_padding_and_separator() -> None:
    ids = TOKENIZER([" ".join(map(str, range(20000)))])["input_ids"][0]
    assert min(ids) == 2
    assert max(ids) == 8191


def test_pair_is_separated_and_rows_are_cut() -> None:
    first, second = (TOKENIZER([t])["input_ids"][0] for t in ("a b", "c"))
    assert TOKENIZER(["a b"], ["c"])["input_ids"] == [[*first, 1, *second]]
    assert TOKENIZER(["a b"], ["c"], truncation=True, max_length=3)["input_ids"] == [[first[0], 1, *second]]
    assert TOKENIZER(["   "])["input_ids"] == [[1]]


@given(st.text(), st.text(), st.integers(4, 12))
def test_pairs_are_cut_to_length(first: str, second: str, limit: int) -> None:
    """The longer text is cut first, as transformers' tokenizers do it: no text of a pair is lost."""
    a, b = ([] if (ids := TOKENIZER([t])["input_ids"][0]) == [1] else ids for t in (first, second))
    whole = TOKENIZER([first], [second])["input_ids"][0]
    cut = TOKENIZER([first], [second], truncation=True, max_length=limit)["input_ids"][0]
    assert whole == [*a, 1, *b]
    assert len(cut) == min(limit, len(whole))
    place = cut.index(1)
    assert cut[:place] == a[:place]
    assert cut[place + 1 :] == b[: len(cut) - place - 1]
    if len(whole) > limit and min(len(a), len(b)) >= limit:
        assert abs(place - (len(cut) - place - 1)) <= 1


def test_few_words_share_a_number() -> None:
    numbers = {TOKENIZER([f"word{i}"])["input_ids"][0][0] for i in range(500)}
    assert len(numbers) > 470  # 485 are expected


def test_classifier_takes_it_as_its_tokenizer() -> None:
    config = TaskConfig(text="text", label="label", max_length=4)
    task = SequenceClassification.of(config, TOKENIZER, ("a", "b"))
    rows = [{"text": "one two three four five six", "label": "b"}, {"text": "seven", "label": "a"}]
    examples = task.encode(rows)
    assert [e.lost for e in examples] == [2, 0]
    batch, targets = task.collate(examples)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"][1, 1:].tolist() == [0, 0, 0]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert targets["labels"].tolist() == [1, 0]
