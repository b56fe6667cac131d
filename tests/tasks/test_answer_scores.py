"""Exact match and F1 as SQuAD's own scripts define them, and answers read off the scores of tokens."""

from __future__ import annotations

import itertools
import math
import random
from array import array

import pytest
import torch
from torch.nn import functional

from rondo.tasks.language.answering.answer_scores import AnswerReader, AnswerTally, exact_match_and_f1, span_losses
from rondo.tasks.language.answering.windows import IGNORED, Question

# Worked out by hand from evaluate-v1.1.py.
CASES: list[tuple[str, list[str], float, float]] = [
    ("the Cat.", ["cat"], 1.0, 1.0),
    ("An apple", ["apple", "pear"], 1.0, 1.0),
    ("a big cat", ["the cat"], 0.0, 2 / 3),
    ("cat cat", ["cat"], 0.0, 2 / 3),
    ("cat\t dog\n", ["cat dog"], 1.0, 1.0),
    ("dog", ["cat"], 0.0, 0.0),
    ("don't", ["dont"], 1.0, 1.0),
    ("1990-91", ["199091"], 1.0, 1.0),
    ("theatre", ["atre"], 0.0, 0.0),
    ("", ["cat"], 0.0, 0.0),
    ("the", ["."], 1.0, 0.0),  # nothing is left of both, and without a common word there is no F1
    ("«chat»", ["chat"], 0.0, 0.0),  # ASCII's punctuation only
    ("New York City", ["New York", "York City Hall"], 0.0, 0.8),
]


@pytest.mark.parametrize(("predicted", "answers", "exact", "f1"), CASES)
def test_definition(predicted: str, answers: list[str], exact: float, f1: float) -> None:
    assert exact_match_and_f1(predicted, answers, unanswerable=False) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("predicted", "answers", "score"),
    [
        ("", [], 1.0),
        ("cat", [], 0.0),
        ("the", [], 1.0),
        ("", ["the"], 1.0),
        ("", ["cat"], 0.0),
        ("cat", ["cat", "."], 1.0),
    ],
)
def test_definition_where_there_may_be_no_answer(predicted: str, answers: list[str], score: float) -> None:
    assert exact_match_and_f1(predicted, answers, unanswerable=True) == (score, score)


def test_scores_equal_torchmetrics() -> None:
    """Its F1 of two answers without a word is 1, as in evaluate-v2.0.py, so none is drawn here."""
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    draw = random.Random(0)
    words = ["the", "cat", "Cat.", "a", "dog", "(dog)", "an", "Élan", "x-y", "2,000"]
    pairs = []
    for _ in range(200):
        truths = [" ".join(draw.choices(words, k=draw.randint(1, 5))) + " w" for _ in range(draw.randint(1, 3))]
        pairs.append((" ".join(draw.choices(words, k=draw.randint(0, 6))), truths))
    predictions = [{"prediction_text": p, "id": str(i)} for i, (p, _) in enumerate(pairs)]
    targets = [{"answers": {"text": t, "answer_start": [0] * len(t)}, "id": str(i)} for i, (_, t) in enumerate(pairs)]
    oracle = squad(predictions, targets)
    ours = [exact_match_and_f1(p, t, unanswerable=False) for p, t in pairs]
    assert 100 * sum(e for e, _ in ours) / 200 == pytest.approx(float(oracle["exact_match"]), abs=1e-4)
    assert 100 * sum(f for _, f in ours) / 200 == pytest.approx(float(oracle["f1"]), abs=1e-3)


# --- windows -----------------------------------------------------------------------------------------------------

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def question(number: int = 0, answers: tuple[str, ...] = ("three four",)) -> Question:
    ends = list(itertools.accumulate(len(word) + 1 for word in WORDS))
    spans = [place for word, end in zip(WORDS, ends, strict=True) for place in (end - len(word) - 1, end - 1)]
    return Question(number, " ".join(WORDS), answers, array("i", spans))


def targets(windows: list[dict[str, int]]) -> dict[str, torch.Tensor]:
    """Windows of five tokens of which the first stands for no answer and the others are the context's."""
    whole = {"question": 0, "first": 1, "tokens": 4, "skipped": 0, "nothing": 0, "start": 0, "end": 0, "cost": 5}
    rows = [{**whole, **window} for window in windows]
    return {name: torch.tensor([row[name] for row in rows]) for name in whole}


@pytest.mark.parametrize(("most", "unanswerable"), [(1, False), (2, True), (3, True), (30, False)])
def test_best_span_equals_a_search_through_all(most: int, unanswerable: bool) -> None:
    g = torch.Generator().manual_seed(most)
    for _ in range(20):
        output = torch.randn(2, 5, 2, generator=g, dtype=torch.float64)
        every = {
            (a + skipped, b + skipped): float(output[w, 1 + a, 0] + output[w, 1 + b, 1])
            for w, skipped in ((0, 0), (1, 4))
            for a in range(4)
            for b in range(a, min(4, a + most))
        }
        (first, last), best = max(every.items(), key=lambda item: item[1])
        nothing = min(float(output[w, 0].sum()) for w in (0, 1))
        expected = "" if unanswerable and nothing > best else " ".join(WORDS[first : last + 1])
        reader = AnswerReader(most, unanswerable=unanswerable)
        for w in (1, 0):  # in any order and batch
            reader.add(output[w : w + 1], targets([{"skipped": 4 * w}]))
        answer = reader.answer(question())
        assert answer.text == expected
        assert 0 < answer.probability <= 1
        if answer.start is not None:
            assert " ".join(WORDS)[answer.start :].startswith(expected)


def test_probability_is_a_share_of_the_window() -> None:
    """Of the spans of its window and, if allowed, of no answer."""
    output = torch.zeros(1, 5, 2)
    output[0, 2] = 1.0
    spans = [2.0, *[1.0] * 3, *[0.0] * 6]  # of ten, one begins and ends there, and three do either
    for unanswerable in (False, True):
        reader = AnswerReader(30, unanswerable=unanswerable)
        reader.add(output, targets([{}]))
        whole = sum(map(math.exp, spans)) + unanswerable
        assert reader.answer(question()).probability == pytest.approx(math.exp(2) / whole)


def test_many_windows_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    output, where = torch.randn(9, 5, 2, generator=g), targets([{"question": i} for i in range(9)])
    whole = AnswerReader(3, unanswerable=True)
    whole.add(output, where)
    monkeypatch.setattr("rondo.tasks.language.answering.answer_scores._MOST_SPANS", 40)
    parts = AnswerReader(3, unanswerable=True)
    parts.add(output, where)
    assert [whole.answer(question(i)) for i in range(9)] == [parts.answer(question(i)) for i in range(9)]


def test_window_without_context_or_numbers_has_no_answer() -> None:
    reader = AnswerReader(3, unanswerable=False)
    reader.add(torch.zeros(1, 5, 2), targets([{"tokens": 0}]))
    reader.add(torch.full((1, 5, 2), math.nan), targets([{"question": 1}]))
    assert [reader.answer(question(i)).text for i in (0, 1)] == ["", ""]


def test_tally_counts_questions() -> None:
    """Three windows of two questions; one of them is answered rightly."""
    output = torch.zeros(3, 5, 2)
    output[0, 3, 0] = output[0, 4, 1] = output[2, 1, 0] = output[2, 1, 1] = 9.0
    where = targets([{"start": 3, "end": 4}, {"skipped": 4}, {"question": 1, "start": IGNORED, "end": IGNORED}])
    questions = {0: question(), 1: question(1, ("eight",))}
    tally = AnswerTally(AnswerReader(30, unanswerable=False), questions)
    assert tally.scores() == {"f1": None, "exact_match": None, "loss": None, "examples": 0}
    for part in (slice(2, 3), slice(0, 2)):
        tally.add(output[part], {name: value[part] for name, value in where.items()})
    scores = tally.scores()
    assert list(scores) == ["f1", "exact_match", "loss", "examples"]
    assert (scores["f1"], scores["exact_match"], scores["examples"]) == (0.5, 0.5, 2)
    right = functional.cross_entropy(torch.tensor([0.0, 0, 0, 9, 0]), torch.tensor(3))
    assert scores["loss"] == pytest.approx((float(right) + math.log(5)) / 2)


def test_loss_does_not_depend_on_padding() -> None:
    g = torch.Generator().manual_seed(0)
    output, where = torch.randn(2, 5, 2, generator=g), targets([{"start": 2, "end": 3, "cost": 4}, {"cost": 5}])
    losses, counts = span_losses(output, where)
    longer = functional.pad(output, (0, 0, 0, 6), value=50.0).requires_grad_()
    padded, _ = span_losses(longer, where)
    assert torch.equal(losses, padded)
    assert counts.tolist() == [1, 1]
    expected = functional.cross_entropy(output[0, :4].T, torch.tensor([2, 3]))
    assert float(losses[0]) == pytest.approx(float(expected))
    padded.sum().backward()
    assert longer.grad is not None
    assert torch.equal(longer.grad[:, 5:], torch.zeros(2, 6, 2))
    assert bool(longer.grad.isfinite().all())


def test_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\), and should be \(2, tokens, 2\)"):
        span_losses(torch.zeros(2, 3), targets([{}, {}]))
