"""Windows of question answering: where answers fall in them, with tokenizers of words, of word pieces and of bytes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.models.loading.pretrained import minilm_path
from rondo.tasks.language.answering.question_answering import QuestionAnswering
from rondo.tasks.language.answering.windows import IGNORED, Window
from tiny import tokenizer

LONG = " ".join(f"w{i % 30}" for i in range(100))


def task(coder: Any = None, **changes: Any) -> QuestionAnswering:
    options = {"max_length": 32, "stride": 8, "max_answer_tokens": 30, "unanswerable": False, **changes}
    return QuestionAnswering(coder or tokenizer(), "c", "q", "a", None, **options)


def row(context: str, question: str, *answers: str, start: int | None = None) -> dict[str, Any]:
    starts = [context.index(answer) if start is None else start for answer in answers]
    return {"c": context, "q": question, "a": {"text": list(answers), "answer_start": starts}}


def learned(window: Window) -> str:
    """The text that a window's target stands for."""
    shift = window.skipped - window.first
    return window.question.text(window.target[0] + shift, window.target[1] + shift)


def byte_level() -> Any:
    """A tokenizer of single bytes, with RoBERTa's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", *alphabet])}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", pad_token="<pad>"
    )


def test_windows_of_a_long_context() -> None:
    """They overlap by the stride, cover the context, and only those that hold the answer whole learn it."""
    coded = task().encode([row(LONG, "w1 w2", "w20 w21 w22")])
    room = 32 - 2 - 3
    assert [w.skipped for w in coded] == [0, 19, 38, 57, 76]
    assert [w.tokens for w in coded] == [room] * 4 + [100 - 76]
    assert len(coded[0].question.spans) == 200
    held = [w for w in coded if w.target != (w.nothing, w.nothing)]
    assert [w.skipped for w in held] == [0, 19]
    assert [learned(w) for w in held] == ["w20 w21 w22"] * 2
    assert [w for w in coded if w.question is not coded[0].question] == []


def test_left_truncation_gives_the_same_contexts() -> None:
    coder = tokenizer()
    coder.truncation_side = "left"
    coded = task(coder).encode([row(LONG, "w1", "w20 w21")])
    assert coded[0].skipped == 0
    assert coded[-1].skipped + coded[-1].tokens == 100
    texts = [w.question.text(w.skipped, w.skipped + w.tokens - 1) for w in coded]
    assert [text for text in texts if text not in LONG] == []
    assert [learned(w) for w in coded if w.target[0] > 0] == ["w20 w21"]


def test_rows_keep_their_windows_together() -> None:
    whole = task()
    rows = [row("w1 w2 w3", "w4", "w2"), row(LONG, "w4", "w5"), row("w1 w2", "w4", "w2")]
    coded = whole.encode(rows)
    assert whole.row_sizes(coded) == [1, 5, 1]
    store = whole.store()
    store.add(coded)
    assert [store[i] for i in range(7)] == coded
    assert [store.cost(i) for i in range(7)] == [len(w.ids) for w in coded]
    account = store.account()
    assert (account["rows"], account["windows"], account["answers_beyond_windows"]) == (3, 7, 0)


def test_same_row_twice_is_two_rows() -> None:
    whole = task()
    assert whole.row_sizes(whole.encode([row("w1 w2", "w4", "w2")] * 2)) == [1, 1]


def test_digest_covers_answers_and_contexts() -> None:
    def digest(given: dict[str, Any]) -> str:
        whole = task()
        store = whole.store()
        store.add(whole.encode([given]))
        return store.sha256()

    given = row("w1 w2 w3", "w4", "w2")
    assert digest(given) == digest(dict(given))
    assert digest(given) != digest(row("w1 w2 w3", "w4", "w2", "w3"))
    assert digest(given) != digest(row("w1 w2  w3", "w4", "w2"))


def test_answer_that_no_window_holds_is_scored_and_not_learned() -> None:
    coded = task().encode([row(LONG, "w1", " ".join(LONG.split()[10:50]))])
    assert [w for w in coded if w.target != (IGNORED, IGNORED)] == []
    store = task().store()
    store.add(coded)
    assert store.account()["answers_beyond_windows"] == 1
    _, targets = task().collate(coded)
    losses, counts = task().loss(torch.randn(len(coded), 32, 2, requires_grad=True), targets)
    assert losses.tolist() == [0.0] * len(coded)
    assert counts.tolist() == [0] * len(coded)


def test_question_without_answer_learns_the_first_token() -> None:
    (window,) = task(unanswerable=True).encode([row("w1 w2", "w3")])
    assert window.target == (0, 0)
    assert window.question.answers == ()


def test_long_question_is_cut_to_a_quarter() -> None:
    (short,) = task().encode([row("w1 w2", LONG, "w2")])
    assert short.lost == 92
    assert short.first == 1 + 8 + 1
    assert learned(short) == "w2"
    store = task().store()
    store.add([short])
    assert (store.account()["rows_cut"], store.account()["tokens_lost"]) == (1, 92)


@pytest.mark.parametrize(
    ("context", "answer", "start"),
    [
        ("w1  w2 w3", " w2 ", 3),  # white space around it is no part of the span
        ("w1 w2 w3", "w1", None),
        ("w1 w2 w3", "w3", None),
        ("w1 w2 w3", "w1 w2 w3", None),
    ],
)
def test_spans_of_words(context: str, answer: str, start: int | None) -> None:
    (window,) = task().encode([row(context, "w1", answer, start=start)])
    assert learned(window) == answer.strip()


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("The café was in Zürich, not in Genève.", "Zürich"),
        ("בירת צרפת היא פריז, עיר האורות.", "פריז"),
        ("عاصمة فرنسا هي باريس اليوم.", "باريس"),
        ("首都是巴黎。很大。", "巴黎"),
        ("I ate 🍕🍣 and 👩‍👩‍👧 came.", "🍣"),
        ("No\u00a0break\u200b here.\tTab", "break"),
    ],
)
@pytest.mark.parametrize("coder", ["pieces", "bytes"])
def test_spans_in_any_script(context: str, answer: str, coder: str) -> None:
    """The learned text has the answer in it; of bytes it is the answer. Word pieces may be longer, or unknown."""
    coders = {"pieces": lambda: transformers.AutoTokenizer.from_pretrained(minilm_path()), "bytes": byte_level}
    whole = task(coders[coder](), max_length=128, stride=16)
    (window,) = whole.encode([row(context, "Where?", answer)])
    assert answer in learned(window)
    if coder == "bytes":
        assert learned(window) == answer
        assert window.segments is None
    inputs, _ = whole.collate([window])
    assert ("token_type_ids" in inputs) == (coder == "pieces")


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_tokenizers_without_a_pair(kind: str) -> None:
    """GPT's adds nothing, so the first token of the question stands for no answer."""
    coded = task(tokenizer(kind)).encode([row(LONG, "w1 w2", "w20 w21")])
    assert {w.nothing for w in coded} == {0}
    assert "w20 w21" in [learned(w) for w in coded if w.target[0] != 0]
    assert min(w.first for w in coded) >= 2


def test_a_context_of_ten_thousand_tokens() -> None:
    context = " ".join(f"w{i % 30}" for i in range(10_000)) + " w35"
    whole = task()
    coded = whole.encode([row(context, "w1", "w35")])
    assert coded[-1].skipped + coded[-1].tokens == 10_001
    assert learned(coded[-1]) == "w35"


def test_context_without_tokens() -> None:
    """Format characters alone are no tokens of word pieces."""
    whole = task(transformers.AutoTokenizer.from_pretrained(minilm_path()))
    (window,) = whole.unlabelled([{"c": "\u200b\u200e", "q": "Where?"}])
    assert window.tokens == 0
    tally = whole.tally()
    inputs, targets = whole.collate([window])
    tally.add(torch.zeros(*inputs["input_ids"].shape, 2), targets)
    assert tally.scores()["f1"] == 0.0


def test_no_rows_give_no_windows() -> None:
    assert task().encode([]) == []
    assert task().row_sizes([]) == []


@pytest.mark.slow
def test_questions_are_forgotten_with_their_examples() -> None:
    whole = task()
    coded = whole.encode([row("w1 w2", "w3", "w2")])
    assert len(whole._questions) == 1
    del coded
    gc.collect()
    assert len(whole._questions) == 0


def test_slow_tokenizer_is_refused() -> None:
    from rondo.config.inputs import TaskConfig

    class Slow:
        is_fast = False

    keys = TaskConfig(kind="question-answering", context="c", question="q", answers="a")
    with pytest.raises(ConfigError, match=r"model\.name: its tokenizer does not tell a token's characters"):
        QuestionAnswering.of(keys, Slow(), ())


@pytest.mark.parametrize("shift", range(-2, 3))
@pytest.mark.parametrize("edge", ["start", "end"])
def test_answer_at_the_edge_of_a_window(edge: str, shift: int) -> None:
    """A window learns the answers that it holds whole, up to its first and its last token."""
    words = [f"w{i}" for i in range(29)]
    context = " ".join(words)
    windows = task().encode([row(context, "w1 w2", words[0])])
    second = windows[1].skipped
    edge_token = second if edge == "start" else windows[0].tokens - 1
    first, last = (edge_token + shift, edge_token + 1 + shift) if edge == "start" else (
        edge_token - 1 + shift,
        edge_token + shift,
    )  # fmt: skip
    answer = " ".join(words[first : last + 1])
    for window in task().encode([row(context, "w1 w2", answer)]):
        whole = window.skipped <= first and last < window.skipped + window.tokens
        assert (window.target != (window.nothing, window.nothing)) == whole
        assert not whole or learned(window) == answer


def test_windows_overlap_by_a_quarter_unless_told() -> None:
    config = {"kind": "question-answering", "context": "c", "question": "q", "answers": "a", "max_length": 32}
    strides = [
        QuestionAnswering.of(TaskConfig.model_validate({**config, **keys}), tokenizer(), ()).stride
        for keys in ({}, {"stride": 0}, {"stride": 5})
    ]
    assert strides == [8, 0, 5]
