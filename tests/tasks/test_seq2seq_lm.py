"""Sequence to sequence: pairs of texts as examples, their store, and the loss of stock transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pair_rows import requests, save_tiny, unigrams
from rondo.tasks.language.language_model import IGNORED
from rondo.tasks.language.seq2seq_lm import DecoderStart, PairExample, Seq2SeqLM

ROWS = requests(5)
WORDS = unigrams()


def task(words: Any = WORDS, longest: int = 64, answer: int = 64) -> Seq2SeqLM:
    return Seq2SeqLM(words, ["request"], "answer", longest, answer)


def test_texts_have_the_tokenizers_own_tokens() -> None:
    for row, example in zip(ROWS, task().encode(ROWS), strict=True):
        assert list(example.ids) == WORDS(row["request"])["input_ids"]
        assert list(example.target) == WORDS(text_target=row["answer"])["input_ids"]
        assert example.ids[-1] == example.target[-1] == WORDS.eos_token_id
        assert example.lost == 0


def test_columns_of_a_prompt_are_joined() -> None:
    row = {"a": "the light", "b": " ", "c": "is red", "answer": "red"}
    joined = Seq2SeqLM(WORDS, ["a", "b", "c"], "answer", 64, 64, separator=" ")
    assert list(joined.encode([row])[0].ids) == WORDS("the light is red")["input_ids"]


def test_cut_texts_end_with_the_end_token_and_are_counted() -> None:
    whole, cut, store = task().encode(ROWS), task(longest=8, answer=5).encode(ROWS), task().store()
    lost = 0
    for long, short in zip(whole, cut, strict=True):
        assert short.ids == (long.ids if len(long.ids) <= 8 else (*long.ids[:7], 1))
        assert short.target == (long.target if len(long.target) <= 5 else (*long.target[:4], 1))
        assert short.lost == long.cost - short.cost
        lost += short.lost
    assert lost > 0
    store.add(cut)
    rows_cut = sum(e.lost > 0 for e in cut)
    tokens = sum(e.cost for e in whole)
    assert store.account() == {"rows": 5, "rows_cut": rows_cut, "tokens": tokens, "tokens_lost": lost}


def test_end_token_is_added_where_the_tokenizer_adds_none() -> None:
    bare = unigrams()
    bare.backend_tokenizer.post_processor = None
    for row, example in zip(ROWS, task(bare).encode(ROWS), strict=True):
        assert list(example.ids) == bare(row["request"])["input_ids"]
        assert list(example.target) == [*bare(row["answer"])["input_ids"], 1]
    for long, short in zip(task(bare).encode(ROWS), task(bare, answer=5).encode(ROWS), strict=True):
        assert short.target == (long.target if len(long.target) <= 5 else (*long.target[:4], 1))


def test_texts_for_the_decoder_are_coded_as_targets() -> None:
    """Some tokenizers have a language or a vocabulary of its own for them."""

    class Marked:
        pad_token_id, eos_token_id = 0, 1

        def __call__(
            self, text: str | None = None, *, text_target: str | None = None, **_: Any
        ) -> dict[str, list[int]]:
            return {"input_ids": [5, 1] if text_target is None else [9, 5, 1]}

    example = task(Marked()).encode(ROWS[:1])[0]
    assert (example.ids, example.target) == ((5, 1), (9, 5, 1))


def test_stored_examples_come_back() -> None:
    examples, store = task().encode(ROWS), task().store()
    store.add(examples[:2])
    assert list(store.add(examples[2:])) == [2, 3, 4]
    assert [store[i] for i in range(5)] == [PairExample(e.ids, e.target) for e in examples]
    assert [store.cost(i) for i in range(5)] == [e.cost for e in examples]
    other = task().store()
    other.add([*examples[:4], PairExample(examples[4].ids + examples[4].target[:1], examples[4].target[1:])])
    assert other.sha256() != store.sha256()


def test_decoder_reads_the_targets_one_place_later() -> None:
    pairs = task()
    pairs.start = DecoderStart(7, 9)
    inputs, targets = pairs.collate([PairExample((3, 4, 1), (5, 1)), PairExample((3, 1), (5, 6, 8, 1))])
    assert inputs["input_ids"].tolist() == [[3, 4, 1], [3, 1, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert inputs["decoder_input_ids"].tolist() == [[7, 5, 9, 9], [7, 5, 6, 8]]
    assert targets["labels"].tolist() == [[5, 1, IGNORED, IGNORED], [5, 6, 8, 1]]
    assert targets["places"].tolist() == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_loss_and_scores_are_those_of_stock_transformers(tmp_path: Path, name: str) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(save_tiny(name, tmp_path)).eval()
    pairs = task().for_model(model)
    inputs, targets = pairs.collate(pairs.encode(ROWS))
    coded = WORDS([r["request"] for r in ROWS], padding=True, return_tensors="pt")
    labels = WORDS(text_target=[r["answer"] for r in ROWS], padding=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        stock = model(**coded, labels=labels.masked_fill(labels == 0, IGNORED))
        logits = model(**inputs).logits
    losses, counts = pairs.loss(logits, targets)
    assert counts.tolist() == (labels != 0).sum(1).tolist()
    assert float(losses.sum() / counts.sum()) == pytest.approx(float(stock.loss), rel=1e-6)
    tally = pairs.tally()
    tally.add(logits, targets)
    right = (stock.logits.argmax(-1) == labels)[labels != 0].double().mean()
    scores = tally.scores()
    assert scores["loss"] == pytest.approx(float(stock.loss), rel=1e-6)
    assert scores["perplexity"] == pytest.approx(float(stock.loss.exp()), rel=1e-6)
    assert scores["accuracy"] == pytest.approx(float(right))
    assert scores["tokens"] == int(counts.sum())
