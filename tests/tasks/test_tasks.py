"""Tasks: rows to examples, tokens with a loss, and scores against scikit-learn and transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics
from torch import Tensor

import tiny
from rondo.models.networks.rows import Rows
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from rondo.tasks.task import Task

BOS, EOS = 2, 3


def ids(text: str) -> list[int]:
    """The ids that the tokenizers of :mod:`tiny` give to words: ``w0`` is 4."""
    return [4 + int(word[1:]) for word in text.split()]


# Sequence classification


def classification(*columns: str, labels: tuple[str, ...] = ("no", "yes"), max_length: int = 32) -> Any:
    return SequenceClassification(tiny.tokenizer(), columns or ("text",), "label", labels, max_length)


def test_text_is_encoded_with_its_class() -> None:
    (example,) = classification().encode([{"text": "w1 w2 unheard", "label": "yes"}])
    assert example == TextExample((BOS, *ids("w1 w2"), 1, EOS), 1, (0,) * 5)


def test_pair_is_encoded_with_segments() -> None:
    row = {"premise": "w1 w2", "hypothesis": "w3", "label": "no", "other": None}
    (example,) = classification("premise", "hypothesis").encode([row])
    assert example == TextExample((BOS, *ids("w1 w2"), EOS, *ids("w3"), EOS), 0, (0, 0, 0, 0, 1, 1))
    swapped = classification("hypothesis", "premise").encode([row])[0]
    assert swapped.ids == (BOS, *ids("w3"), EOS, *ids("w1 w2"), EOS)


def test_long_texts_are_cut_and_keep_special_tokens() -> None:
    long = " ".join(f"w{i}" for i in range(30))
    (example,) = classification(max_length=8).encode([{"text": long, "label": "no"}])
    assert example.ids == (BOS, *ids(long)[:6], EOS)
    (pair,) = classification("a", "b", max_length=8).encode([{"a": long, "b": "w9 w8", "label": "no"}])
    assert pair.ids == (BOS, *ids(long)[:3], EOS, *ids("w9 w8"), EOS)


def test_integer_and_boolean_labels_match_by_text() -> None:
    task = classification(labels=("0", "1", "True"))
    assert [e.target for e in task.encode([{"text": "w1", "label": v} for v in (1, "0", True)])] == [1, 0, 2]


def test_no_rows_give_no_examples() -> None:
    assert classification().encode([]) == []


def test_collating_pads_on_the_right_and_masks() -> None:
    task = classification("a", "b")
    rows = [{"a": "w1", "b": "w2 w3", "label": "yes"}, {"a": "w1", "b": "w2", "label": "no"}]
    inputs, targets = task.collate(task.encode(rows))
    assert inputs["input_ids"].tolist() == [[2, 5, 3, 6, 7, 3], [2, 5, 3, 6, 3, 0]]
    assert inputs["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]]
    assert inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert targets["labels"].tolist() == [1, 0]


def test_tokenizer_without_segments_gives_none() -> None:
    task = SequenceClassification(tiny.tokenizer("gpt"), ("a",), "label", ("no", "yes"), 8)
    inputs, _ = task.collate(task.encode([{"a": "w1", "label": "no"}]))
    assert inputs.keys() == {"input_ids", "attention_mask"}


def test_padding_changes_no_logits() -> None:
    task, module = classification(labels=("a", "b", "c")), tiny.bert().double()
    rows = [{"text": t, "label": "a"} for t in ("w1", "w2 w3 w4 w5", "w6 w7")]
    encoded = task.encode(rows)
    with torch.no_grad():
        together = module(**task.collate(encoded)[0]).logits
        alone = torch.cat([module(**task.collate([e])[0]).logits for e in encoded])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


def of_each(rows: Rows, found: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of each client, as the trainer computes it from the rows' sums and counts."""
    return rows.sum(found[0]) / rows.sum(found[1])


def test_classification_loss_is_the_mean_per_client() -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    task = classification(labels=("a", "b", "c"))
    by_hand = -logits.log_softmax(-1)[range(6), labels]
    sums, counts = task.loss(logits, {"labels": labels})
    torch.testing.assert_close(sums, by_hand)
    assert counts.tolist() == [1] * 6
    for clients in (1, 2, 3):
        loss = of_each(Rows((6 // clients,) * clients), (sums, counts))
        torch.testing.assert_close(loss, by_hand.reshape(clients, -1).mean(1))
    uneven = of_each(Rows((1, 3, 2)), (sums, counts))
    torch.testing.assert_close(uneven, torch.stack([part.mean() for part in by_hand.split([1, 3, 2])]))


def _scores(task: Task, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    tally = task.tally()
    for part in range(0, len(labels), 7):  # over several batches
        tally.add(logits[part : part + 7], {"labels": labels[part : part + 7]})
    return tally.scores()


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_equal_scikit_learns(classes: int) -> None:
    g = torch.Generator().manual_seed(classes)
    labels = torch.randint(0, classes, (40,), generator=g)
    logits = torch.randn(40, classes, generator=g) + torch.nn.functional.one_hot(labels, classes)
    scores = _scores(classification(labels=tuple(map(str, range(classes)))), logits, labels)
    predicted = logits.argmax(-1)
    assert scores["accuracy"] == pytest.approx(float((predicted == labels).double().mean()))
    assert scores["f1"] == pytest.approx(
        metrics.f1_score(labels, predicted, average="binary" if classes == 2 else "macro")
    )
    assert scores["matthews"] == pytest.approx(metrics.matthews_corrcoef(labels, predicted))
    assert scores["loss"] == pytest.approx(
        metrics.log_loss(labels, logits.softmax(-1), labels=range(classes)), abs=1e-6
    )
    probabilities = logits.double().softmax(-1)
    area = metrics.roc_auc_score(labels, probabilities[:, 1] if classes == 2 else probabilities, multi_class="ovr")
    assert scores["auc"] == pytest.approx(area, abs=1e-12)
    assert scores["examples"] == 40
    assert 0.2 < scores["accuracy"] < 1


@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30))
def test_scores_equal_scikit_learns_with_missing_classes(classes: int, pairs: list[tuple[int, int]]) -> None:
    """Classes that never occur, are never predicted, or both."""
    labels, predicted = (torch.tensor(side) % classes for side in zip(*pairs, strict=True))
    assume(len(labels.unique()) > 1)
    names = tuple(map(str, range(classes)))
    scores = _scores(classification(labels=names), torch.nn.functional.one_hot(predicted, classes).float(), labels)
    average = "binary" if classes == 2 else "macro"  # of class 1
    f1 = metrics.f1_score(labels, predicted, average=average, zero_division=0)
    assert scores["f1"] == pytest.approx(f1, abs=1e-12)
    assert scores["matthews"] == pytest.approx(metrics.matthews_corrcoef(labels, predicted), abs=1e-12)
    assert scores["accuracy"] == metrics.accuracy_score(labels, predicted)


@pytest.mark.slow
@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=30))
def test_area_counts_ties_half_and_classes_that_occur(classes: int, pairs: list[tuple[int, int]]) -> None:
    labels, values = (torch.tensor(side) for side in zip(*pairs, strict=True))
    labels = labels % classes
    assume(len(labels.unique()) > 1)
    logits = torch.stack([values.float() * (c + 1) % 3 for c in range(classes)], 1)
    probabilities = logits.double().softmax(-1)
    of_each = [metrics.roc_auc_score(labels == c, probabilities[:, c]) for c in labels.unique()]
    scores = _scores(classification(labels=tuple(map(str, range(classes)))), logits, labels)
    assert scores["auc"] == pytest.approx(sum(of_each) / len(of_each), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_area_tells_confident_rows_apart(classes: int) -> None:
    """From a margin of 37 on a probability is 1 in float64, and from 104 on in any way that it is computed."""
    logits = torch.zeros(4, classes)
    logits[:, 1] = torch.tensor([40.0, 60.0, 120.0, 150.0])
    scores = _scores(classification(labels=tuple("abc"[:classes])), logits, torch.tensor([0, 0, 1, 1]))
    assert scores["auc"] == 1.0


def test_area_of_logits_that_are_no_numbers_is_none() -> None:
    logits = torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [1.0, 0.0]])
    assert _scores(classification(), logits, torch.tensor([0, 1, 1]))["auc"] is None


@pytest.mark.parametrize(
    ("names", "positive", "f1", "title"),
    [
        (("anomaly", "normal"), None, 7 / 12, "macro f1 (anomaly, normal)"),  # the mean of the next two
        (("anomaly", "normal"), "anomaly", 1 / 2, "f1 (anomaly)"),
        (("anomaly", "normal"), "normal", 2 / 3, "f1 (normal)"),
        (("0", "1"), None, 2 / 3, "f1 (1)"),
        (("1", "0"), None, 1 / 2, "f1 (1)"),
    ],
)
def test_f1_says_its_class(names: tuple[str, ...], positive: str | None, f1: float, title: str) -> None:
    labels, predicted = torch.tensor([1, 1, 1, 0, 0]), torch.tensor([1, 1, 0, 1, 0])
    task = classification(labels=names)
    task = task if positive is None else task.scored_by(positive, None, per_class=False)
    scores = _scores(task, torch.nn.functional.one_hot(predicted, 2).float(), labels)
    assert scores["f1"] == pytest.approx(f1)
    assert scores["accuracy"] == pytest.approx(0.6)
    assert task.titles == {"f1": title}


def test_f1_of_one_of_three_classes() -> None:
    labels, predicted = torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([0, 0, 2, 1, 1, 0])
    logits = torch.nn.functional.one_hot(predicted, 3).float()
    task = classification(labels=("a", "b", "c"))
    assert task.titles == {"f1": "macro f1"}
    for place, name in enumerate("abc"):
        f1 = metrics.f1_score(labels == place, predicted == place)
        assert _scores(task.scored_by(name, None, per_class=False), logits, labels)["f1"] == pytest.approx(f1)


def test_weighted_f1_and_that_of_each_class() -> None:
    logits, labels = torch.randn(60, 3, generator=torch.Generator().manual_seed(5)), torch.arange(60) ** 2 % 3
    predicted, names = logits.argmax(-1), ("a", "b", "c\x1b")
    task = classification(labels=names).scored_by(None, "weighted", per_class=True)
    scores = _scores(task, logits, labels)
    assert scores["f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="weighted"))
    each = metrics.f1_score(labels, predicted, average=None, labels=[0, 1, 2], zero_division=0)
    # Class c has no rows, and some are predicted.
    assert [scores[f"f1 of {name}"] for name in names] == pytest.approx(each.tolist())
    assert task.titles == {
        "f1": "weighted f1",
        **{f"f1 of {n}": f"f1 of {n}" for n in "ab"},
        "f1 of c\x1b": r"f1 of c\x1b",
    }


def test_weighted_f1_of_0_and_1_is_of_both() -> None:
    task = classification(labels=("0", "1")).scored_by(None, "weighted", per_class=False)
    assert task.titles == {"f1": "weighted f1 (0, 1)"}
    scores = _scores(task, torch.tensor([[1.0, 0], [0, 1], [0, 1]]), torch.tensor([0, 0, 1]))
    assert scores["f1"] == pytest.approx(2 / 3)


def test_f1_of_a_class_that_is_nowhere_is_none() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([0, 1]), 3).float()
    scores = _scores(
        classification(labels=("a", "b", "c")).scored_by("c", None, per_class=False), logits, torch.tensor([0, 1])
    )
    assert scores["f1"] is None


def test_titles_of_long_and_strange_names_fit_a_table() -> None:
    title = classification(labels=("x" * 80, "a\x1bb")).titles["f1"]
    assert len(title) < 70
    assert title.isprintable()


@pytest.mark.parametrize("right", [True, False])
def test_single_class_has_no_f1_and_no_correlation(right: bool) -> None:
    labels = torch.zeros(4, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0] if right else [0.0, 1.0]] * 4)
    scores = _scores(classification(), logits, labels)
    assert (scores["f1"], scores["matthews"], scores["auc"]) == (None, None, None)
    assert scores["accuracy"] == float(right)


def test_scores_of_no_examples_are_none() -> None:
    assert classification().tally().scores() == {
        "accuracy": None,
        "f1": None,
        "matthews": None,
        "auc": None,
        "loss": None,
        "examples": 0,
    }


# Causal language modelling

TEMPLATE = (
    "{% for m in messages %}<s> {{ 'w30' if m['role'] == 'user' else 'w31' }} {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> w31 {% endif %}"
)


def language(
    kind: str = "gpt",
    *,
    text: str | None = None,
    prompt: tuple[str, ...] = ("ask",),
    template: str | None = None,
    pad: bool = True,
    max_length: int = 32,
    separator: str | None = None,
) -> CausalLM:
    coder = tiny.tokenizer(kind, pad=pad)
    if not pad:
        coder.pad_token = coder.eos_token
    coder.chat_template = template
    return CausalLM(coder, text, () if text else prompt, None if text else "answer", max_length, separator=separator)


ROW = {"ask": "w1 w2", "more": "w3", "answer": "w4 w5", "text": "w6 w7"}


def test_plain_text_has_a_loss_on_every_token() -> None:
    """It ends with the end token, once."""
    (example,) = language(text="text").encode([ROW])
    assert example == TextExample((*ids("w6 w7"), EOS), (*ids("w6 w7"), EOS))
    (example,) = language("llama", text="text").encode([ROW])
    assert example.ids == (BOS, *ids("w6 w7"), EOS)
    (example,) = language(text="text").encode([{"text": "w6 </s>"}])  # already has an end
    assert example.ids == (*ids("w6"), EOS)


@pytest.mark.parametrize("kind", ["gpt", "llama", "bert"])
def test_only_response_and_end_token_have_a_loss(kind: str) -> None:
    (example,) = language(kind).encode([ROW])
    start = () if kind == "gpt" else (BOS,)  # the "bert" one ends every text, but must not end the prompt
    assert example.ids == (*start, *ids("w1 w2 w4 w5"), EOS)
    assert example.target == (*([-100] * (len(start) + 2)), *ids("w4 w5"), EOS)


def test_prompt_columns_are_joined_without_empty_ones() -> None:
    task = language(prompt=("ask", "more"))
    assert task.encode([ROW])[0].ids == (*ids("w1 w2 w3 w4 w5"), EOS)
    for empty in ("", " ", None):
        row = {**ROW, "more": empty}
        assert task.encode([row])[0].ids == (*ids("w1 w2 w4 w5"), EOS)


def test_separator_is_between_columns_and_before_the_response() -> None:
    task = language(prompt=("ask", "more"), separator=" w9 ")
    (example,) = task.encode([ROW])
    assert example.ids == (*ids("w1 w2 w9 w3 w9 w4 w5"), EOS)
    assert example.target == (*[-100] * 5, *ids("w4 w5"), EOS)
    assert task.encode([{**ROW, "more": ""}])[0].ids == (*ids("w1 w2 w9 w4 w5"), EOS)


def test_separator_leaves_the_chat_template_its_own() -> None:
    task = language(prompt=("ask", "more"), separator=" w9 ", template=TEMPLATE)
    question = [BOS, *ids("w30 w1 w2 w9 w3"), EOS, BOS, *ids("w31")]
    assert list(task.encode([ROW])[0].ids) == [*question, *ids("w4 w5"), EOS]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["plain", "chat"])
def test_prompt_is_the_part_of_an_example_without_loss(kind: str, template: str | None) -> None:
    task = language(kind, template=template)
    (example,) = task.encode([ROW])
    assert isinstance(example.target, tuple)
    without_response = {c: v for c, v in ROW.items() if c != "answer"}
    assert task.prompt_ids(without_response) == list(example.ids[: example.target.count(-100)])


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_prompt_of_plain_text_has_no_end(kind: str) -> None:
    task = language(kind, text="text")
    (example,) = task.encode([ROW])
    assert task.prompt_ids(ROW) == list(example.ids[:-1])


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_chat_template_makes_the_turns(kind: str) -> None:
    (example,) = language(kind, template=TEMPLATE).encode([ROW])
    user = [BOS, *ids("w30 w1 w2"), EOS, BOS, *ids("w31")]  # special tokens come from the template alone
    assert list(example.ids) == [*user, *ids("w4 w5"), EOS]
    assert list(example.target) == [*[-100] * len(user), *ids("w4 w5"), EOS]


def test_response_ends_where_generation_prompt_is_no_prefix() -> None:
    """Templates of reasoning models open a thought in the generation prompt that a finished turn does not have."""
    thinking = TEMPLATE.replace("<s> w31 {% endif %}", "<s> w31 w35 {% endif %}")
    (example,) = language(template=thinking).encode([ROW])
    user = [BOS, *ids("w30 w1 w2"), EOS, BOS, *ids("w31 w35")]
    assert list(example.ids) == [*user, *ids("w4 w5"), EOS]
    assert list(example.target) == [*[-100] * len(user), *ids("w4 w5"), EOS]


@pytest.mark.parametrize("answer", ["w31", "w30 w1", "w4 "])
def test_response_that_a_template_says_or_trims_is_whole(answer: str) -> None:
    """With an end behind it: it is not looked for in the template's own words."""
    thinking = TEMPLATE.replace("<s> w31 {% endif %}", "<s> w31 w35 {% endif %}").replace(
        "m['content']", "m['content'] | trim"
    )
    (example,) = language(template=thinking).encode([{**ROW, "answer": answer}])
    assert [t for t in example.target if t != -100] == [*ids(answer), EOS]


@pytest.mark.parametrize("empty", [None, "", " ", float("nan")])
def test_empty_part_of_a_prompt_is_left_out(empty: Any) -> None:
    task = CausalLM(tiny.tokenizer("llama"), None, ("ask", "more"), "answer", 32)
    (with_empty,) = task.encode([{"ask": "w1 w2", "more": empty, "answer": "w4"}])
    (without,) = CausalLM(tiny.tokenizer("llama"), None, ("ask",), "answer", 32).encode(
        [{"ask": "w1 w2", "answer": "w4"}]
    )
    assert with_empty == without


def test_long_rows_are_cut_and_rows_without_target_dropped() -> None:
    task = language(max_length=4)
    rows = [
        {"ask": "w1 w2", "answer": "w4 w5 w6"},
        {"ask": "w1 w2 w3 w4", "answer": "w5"},  # the response is cut away
        {"ask": "w1 w2 w3 w4 w5 w6", "answer": "w7"},
        {"ask": "w1", "answer": "w7"},
    ]
    first, last = task.encode(rows)
    assert first == TextExample(tuple(ids("w1 w2 w4 w5")), (-100, -100, *ids("w4 w5")), lost=2)
    assert last == TextExample((*ids("w1 w7"), EOS), (-100, *ids("w7"), EOS))


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_tokens_cut_from_a_pair_are_counted(kind: str) -> None:
    """A row of exactly ``max_length`` tokens loses none."""
    task, whole = (
        SequenceClassification(tiny.tokenizer(kind), ["a", "b"], "label", ["no"], length) for length in (7, 1000)
    )
    rows = [{"a": "w1 " * a, "b": "w2 " * b, "label": "no"} for a in range(1, 9) for b in range(1, 9)]
    for cut, full in zip(task.encode(rows), whole.encode(rows), strict=True):
        assert (len(cut.ids) + cut.lost, full.lost) == (len(full.ids), 0)
        assert (cut.lost > 0) == (len(full.ids) > 7)


def test_row_of_a_single_token_is_dropped() -> None:
    """It predicts nothing."""
    assert language(text="text").encode([{"text": "</s>"}]) == []


def test_end_token_as_padding_is_masked_by_position() -> None:
    """If padding and end are one token, a loss that ignored the padding's id would never teach a model to stop."""
    task = language(pad=False)
    inputs, targets = task.collate(task.encode([ROW, {"ask": "w1", "answer": "w2"}]))
    assert inputs["input_ids"].tolist() == [[*ids("w1 w2 w4 w5"), EOS], [*ids("w1 w2"), EOS, EOS, EOS]]
    assert inputs["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert targets["labels"].tolist() == [[-100, -100, *ids("w4 w5"), EOS], [-100, *ids("w2"), EOS, -100, -100]]


ROWS = [ROW, {"ask": "w9", "answer": "w10"}, {"ask": "w11 w12 w13", "answer": "w14 w15 w16 w17"}]


@pytest.mark.parametrize("make", [tiny.gpt2_lm, tiny.llama_lm])
def test_language_loss_equals_transformers_own(make: Any) -> None:
    task, module = language(pad=False), make()
    inputs, targets = task.collate(task.encode(ROWS))
    with torch.no_grad():
        output = module(**inputs, labels=targets["labels"])
    loss = of_each(Rows((len(ROWS),)), task.loss(output.logits, targets))
    torch.testing.assert_close(loss[0], output.loss, rtol=1e-6, atol=1e-6)


def test_language_loss_equals_hand_computed_means_per_client() -> None:
    task, module = language(), tiny.gpt2_lm()
    encoded = task.encode(ROWS[:2])
    inputs, targets = task.collate(encoded)
    with torch.no_grad():
        logits = module(**inputs).logits
    terms = []
    for row, example in enumerate(encoded):
        logp = logits[row].log_softmax(-1)
        first = example.target.index(next(t for t in example.target if t != -100))
        terms.append([-float(logp[i - 1, example.ids[i]]) for i in range(first, example.cost)])
    assert [len(t) for t in terms] == [3, 2]
    sums, counts = task.loss(logits, targets)
    assert counts.tolist() == [3, 2]
    assert sums.tolist() == pytest.approx([sum(t) for t in terms], abs=1e-5)
    whole = of_each(Rows((2,)), (sums, counts))
    assert whole.tolist() == pytest.approx([sum(map(sum, terms)) / 5], abs=1e-5)
    per_client = of_each(Rows((1, 1)), (sums, counts))
    assert per_client.tolist() == pytest.approx([sum(t) / len(t) for t in terms], abs=1e-5)


def test_language_scores_equal_hand_computed_ones() -> None:
    task, module = language(), tiny.gpt2_lm()
    tally = task.tally()
    total = tokens = hits = 0.0
    for row in ROWS:
        inputs, targets = task.collate(task.encode([row]))
        with torch.no_grad():
            output = module(**inputs, labels=targets["labels"])
        tally.add(output.logits, targets)
        real = targets["labels"][0, 1:] != -100
        total += float(output.loss) * int(real.sum())
        tokens += int(real.sum())
        hits += int((output.logits[0, :-1].argmax(-1) == targets["labels"][0, 1:])[real].sum())
    scores = tally.scores()
    assert (scores["tokens"], scores["examples"]) == (tokens, 3) == (10, 3)
    assert scores["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(hits / tokens)


def test_language_accuracy_counts_tokens() -> None:
    """Three of four tokens of one row and none of the other's are right: three of five, whatever the rows."""
    task, tally = language(), language().tally()
    rows = [TextExample((5, 6, 7, 8, 9), (-100, 6, 7, 8, 9)), TextExample((5, 6), (-100, 6))]
    _, targets = task.collate(rows)
    predicted = torch.tensor([[6, 7, 8, 0, 0], [0, 0, 0, 0, 0]])
    tally.add(torch.nn.functional.one_hot(predicted, 40).float(), targets)
    assert tally.scores()["accuracy"] == 3 / 5


def test_undefined_language_scores_are_none() -> None:
    scores = language().tally().scores()
    assert scores == {"loss": None, "perplexity": None, "accuracy": None, "tokens": 0, "examples": 0}
    tally = language().tally()
    logits = torch.zeros(1, 2, 40)
    logits[0, 0, 5] = 1e4  # a perplexity beyond any float
    tally.add(logits, {"labels": torch.tensor([[-100, 6]]), "places": torch.tensor([0])})
    assert tally.scores()["perplexity"] is None
    assert tally.scores()["loss"] == pytest.approx(1e4)


@pytest.mark.parametrize("kind", ["classification", "language"])
def test_loss_of_float64_logits_is_float64(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    task: Any = classification() if kind == "classification" else language()
    logits = torch.randn(*((4, 2) if kind == "classification" else (4, 3, 40)), generator=g, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0]) if kind == "classification" else torch.randint(0, 40, (4, 3), generator=g)
    used, wanted = (logits, labels) if kind == "classification" else (logits[:, :-1], labels[:, 1:])
    expected = torch.nn.functional.cross_entropy(used.flatten(0, -2), wanted.flatten())
    loss = of_each(Rows((4,)), task.loss(logits, {"labels": labels}))
    assert loss.dtype == torch.float64
    assert abs(float(loss[0]) - float(expected)) < 1e-14


def test_loss_of_bfloat16_logits_is_float32() -> None:
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 2, generator=g).bfloat16(), torch.tensor([0, 1, 1, 0])
    sums, _ = classification().loss(logits, {"labels": labels})
    expected = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    torch.testing.assert_close(sums, expected, rtol=0, atol=0)
    token_logits, token_ids = torch.randn(2, 3, 40, generator=g).bfloat16(), torch.randint(0, 40, (2, 3), generator=g)
    assert language().loss(token_logits, {"labels": token_ids})[0].dtype == torch.float32


def test_row_without_a_target_counts_for_nothing() -> None:
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[7, -100, -100], [7, 8, -100]])
    sums, counts = language().loss(logits, {"labels": labels})
    assert (counts.tolist(), float(sums[0])) == ([0, 1], 0.0)
    assert float(sums[1]) > 0
