"""Words as numbers without a vocabulary."""

from __future__ import annotations

from rondo.models.hashing_tokenizer import HashingTokenizer

TOKENIZER = HashingTokenizer(8192)


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
    assert TOKENIZER(["a b"], ["c"], truncation=True, max_length=3)["input_ids"] == [[*first, 1]]
    assert TOKENIZER(["   "])["input_ids"] == [[1]]
