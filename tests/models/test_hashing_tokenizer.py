"""The hashing tokenizer: the same ids in every process, cut and joined as transformers' tokenizers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.config.schema import TaskConfig
from rondo.models.hashing_tokenizer import HashingTokenizer
from rondo.tasks.classification import SequenceClassification

TOKENIZER = HashingTokenizer()


def ids(*texts: str, **options: int | bool) -> list[int]:
    return TOKENIZER(*([t] for t in texts), **options)["input_ids"][0]  # type: ignore[arg-type]


def test_ids_are_those_of_every_process() -> None:
    assert ids("Turn on the lights!") == [2208, 3777, 5458, 12491, 6515]


def test_case_and_space_do_not_matter() -> None:
    assert ids("The  film\nwas GOOD .") == ids("the film was good.")
    assert ids("naïve Straße 你好") != ids("naive Strasse 您好")


def test_few_of_the_words_of_a_language_collide() -> None:
    words = [f"word{i}" for i in range(1000)]
    assert len({ids(word)[0] for word in words}) > 960


@given(st.text(), st.text(), st.integers(4, 12))
def test_pairs_are_cut_to_length(first: str, second: str, limit: int) -> None:
    a, b = ids(first), ids(second)
    whole, cut = ids(first, second), ids(first, second, truncation=True, max_length=limit)
    assert whole == [*a, 1, *b]
    assert len(cut) == min(limit, len(whole))
    place = cut.index(1)
    assert cut[:place] == a[:place]
    assert cut[place + 1 :] == b[: len(cut) - place - 1]
    if len(whole) > limit and min(len(a), len(b)) >= limit:
        assert abs(place - (len(cut) - place - 1)) <= 1


def test_ids_are_in_range() -> None:
    small = HashingTokenizer(5)
    found = set(small(["a b c d e f g h i j k l m n o p"])["input_ids"][0])
    assert found == {2, 3, 4}
    with pytest.raises(ValueError, match="size must be above 2"):
        HashingTokenizer(2)


def test_classifier_takes_it_as_its_tokenizer() -> None:
    config = TaskConfig(text="text", label="label", max_length=4)
    task = SequenceClassification.of(config, TOKENIZER, ("a", "b"))
    rows = [{"text": "one two three four five six", "label": "b"}, {"text": "seven", "label": "a"}]
    examples = task.encode(rows)
    assert [e.lost for e in examples] == [2, 0]
    batch, targets = task.collate(examples)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"].shape == (2, 4)
    assert batch["input_ids"][1, 1:].tolist() == [0, 0, 0]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert targets["labels"].tolist() == [1, 0]
