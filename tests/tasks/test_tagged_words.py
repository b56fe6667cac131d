"""Words, spans and windows of token classification."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from rondo.tasks.language.tagging.windows import NO_TOKEN, WindowStore, windows
from rondo.tasks.language.tagging.words import Columns, Words

TEXTS = Columns(None, None, "text", "spans", None, None)
LISTS = Columns("tokens", "tags", None, None, None, None)


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end in TEXTS.words({"text": text}).ranges]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada Lovelace (b. 1815)", ["Ada", "Lovelace", "(", "b", ".", "1815", ")"]),
        ("it's snake_case", ["it", "'", "s", "snake_case"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("我在北京 ok", ["我", "在", "北", "京", "ok"]),
        ("cafe\u0301 !?", ["cafe\u0301", "!", "?"]),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize(
    "spans",
    [
        [{"start": 0, "end": 12, "label": "PER"}, {"start": 16, "end": 22, "label": "LOC"}],
        [[16, 22, "LOC"], [0, 12, "PER"]],
        json.dumps([[0, 12, "PER"], [16, 22, "LOC"]]),
        np.array([{"start": 0, "end": 13, "label": "PER"}, {"start": 17, "end": 20, "label": "LOC"}]),
    ],
)
def test_spans_in_every_form(spans: Any) -> None:
    """In any order, with blanks around them, and within a word, of which they then take all."""
    row = {"text": "Ada Lovelace in London.", "spans": spans}
    assert TEXTS.entities(row, TEXTS.words(row)) == [(0, 2, "PER"), (3, 4, "LOC")]


@pytest.mark.parametrize("empty", [None, "", [], "[]", float("nan")])
def test_a_row_may_have_no_spans(empty: Any) -> None:
    assert TEXTS.entities({"text": "a b", "spans": empty}, TEXTS.words({"text": "a b"})) == []


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 3]], 'expected {"start", "end", "label"}, got'),
        ([[0, 3, None]], "the label of a span should be a text, and is None"),
        ([[0, 99, "PER"]], "the span 0 to 99 is not in the text, which has 12 characters"),
        ([[3, 3, "PER"]], "the span 3 to 3 is not in the text"),
        ([[3, 4, "PER"]], "the span 3 to 4 has blanks alone"),
        ([[0.5, 3, "PER"]], "start and end of a span should be numbers of characters, and are 0.5, 3"),
        ([[0, 7, "PER"], [4, 12, "LOC"]], "the spans of 'PER' and 'LOC' overlap at character 4: a word has one type"),
        ([[4, 6, "PER"], [6, 12, "LOC"]], "two spans share the word 'Lovelace' at character 4"),
        ("Ada", "expected a list of spans, got the text 'Ada', which is not JSON"),
        (5, "expected a list of spans, got 5"),
    ],
)
def test_bad_spans_have_a_reason(spans: Any, message: str) -> None:
    row = {"text": "Ada Lovelace", "spans": spans}
    with pytest.raises(ValueError) as error:
        TEXTS.entities(row, TEXTS.words(row))
    assert message in str(error.value)


def test_lists_may_be_arrays_or_json() -> None:
    for make in (np.array, json.dumps, tuple):
        row = {"tokens": make(["New York", "is"]), "tags": make(["B-LOC", "O"])}
        words = LISTS.words(row)
        assert (words.text, words.ranges) == ("New York is", ((0, 8), (9, 11)))
        assert LISTS.entities(row, words) == [(0, 1, "LOC")]


def pieces() -> Any:
    """A tokenizer of bytes, of which "ab" is one, after a split at blanks. It drops "z" and ends rows on both sides."""
    inner = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "<pad>": 2, **_BYTES, "ab": len(_BYTES) + 3}, [("a", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


_BYTES = {sign: number for number, sign in enumerate(sorted({*pre_tokenizers.ByteLevel.alphabet()} - {"z"}), 3)}
CODER = pieces()


@given(
    st.lists(st.text("abcdz", min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(6, 12),
    st.integers(0, 3),
    st.sampled_from(("left", "right")),
)
def test_every_word_is_in_one_window_at_its_first_token(words: list[str], size: int, stride: int, side: str) -> None:
    """Whatever the windows; a word of which the tokenizer keeps nothing has no token."""
    CODER.truncation_side = side
    row = LISTS.words({"tokens": words})
    whole = CODER(row.text, return_offsets_mapping=True)
    expected = []
    for start, end in row.ranges:
        own = [i for i, (a, b) in enumerate(whole["offset_mapping"]) if a < b and a < end and b > start]
        expected.append(whole["input_ids"][own[0]] if own else NO_TOKEN)
    (made,) = windows(CODER, [row], size, stride)
    found = [w.ids[place] if place != NO_TOKEN else NO_TOKEN for w in made for place in w.places]
    assert found == (expected if set(expected) != {NO_TOKEN} else [])
    assert [w for w in made if len(w.ids) > size] == []
    assert [w.begins for w in made] == [1, *[0] * (len(made) - 1)][: len(made)]


def test_words_that_share_a_token_follow_one_another() -> None:
    """The second of them has none of its own."""
    row = Words("ab a", ((0, 1), (1, 2), (3, 4)))
    ((window,),) = windows(CODER, [row], 12, 0)
    assert window.places == (1, NO_TOKEN, 3)


def test_neighbours_divide_what_they_share() -> None:
    row = LISTS.words({"tokens": ["c"] * 12})  # 23 tokens with the blanks; 12 fit, and 8 are new in the next window
    (made,) = windows(pieces(), [row], 14, 4)
    assert [len(w.places) for w in made] == [5, 4, 3]
    assert [w.places[0] for w in made] == [1, 3, 3]


def test_store_counts_rows_words_and_windows() -> None:
    rows = [LISTS.words({"tokens": ["c"] * n}) for n in (3, 12)]
    store = WindowStore()
    made = [w for of_row in windows(CODER, rows, 8, 4) for w in of_row]
    assert list(store.add(made)) == list(range(len(made)))
    assert [store[i] for i in range(len(made))] == made
    account = store.account()
    assert (account["rows"], account["windows"], account["words"]) == (2, len(made), 15)
    assert account["words_without_token"] == 0
