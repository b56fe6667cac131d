"""The table of task kinds by name. It needs no torch.

A user's own task needs no entry: ``task.kind`` names it as ``package.module:Class``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rondo.config.inputs import TaskConfig
from rondo.errors import Problem

Checks = Callable[[Mapping[str, Any], bool], Iterator[Problem]]
"""Yields the faults of the section ``[task]``, given its keys and whether the data are the user's own."""


@dataclass(frozen=True)
class Kind:
    """One kind of task."""

    cls: str
    """Its class, as ``package.module:Class``."""
    inputs: Literal["text", "image", "numbers"]
    """Content of a row. Text needs the model's tokenizer."""
    auto: str | None
    """Transformers' class for its models; None if it has none."""
    outputs: int | None
    """Outputs of the head; None: one per label."""
    peft: Literal["SEQ_CLS", "TOKEN_CLS", "CAUSAL_LM", "SEQ_2_SEQ_LM"] | None
    """PEFT's name for it; None if it has none."""
    pipeline: str | None
    """The hub's name for it; None if it has none."""
    head: bool
    """Whether its models have a task head."""
    builtin: str | None
    """The data if the user names none; None if the user must."""
    metrics: Mapping[str, bool]
    """Metrics that ``task.metric`` may name, and whether higher is better; the first is the task's own. Rows with
    several labels have others (:func:`metrics_of`)."""
    checks: Checks

    @property
    def generates(self) -> bool:
        """Whether its models write texts."""
        return self.peft in ("CAUSAL_LM", "SEQ_2_SEQ_LM")

    @property
    def completes(self) -> bool:
        """Whether its models go on with a text that they are given."""
        return self.peft == "CAUSAL_LM"

    @property
    def of_tokens(self) -> bool:
        """Whether its models have an output for every token, of which some say where something is."""
        return self.pipeline in ("question-answering", "token-classification")


_CLASS_METRICS = {"accuracy": True, "f1": True, "matthews": True, "auc": True, "loss": False}
_LABEL_METRICS = {"f1_micro": True, "f1_macro": True, "accuracy": True, "auc": True, "loss": False}
"""Those of a classifier whose rows may have several labels."""
CLASS_KINDS = ("sequence-classification", "image-classification")
"""Kinds whose rows have one of several labels, or several."""
CLASS_KEYS = {
    **dict.fromkeys(("positive", "f1", "threshold"), CLASS_KINDS),
    "per_class": (*CLASS_KINDS, "token-classification"),
}
"""Keys of ``[evaluation]`` that say how classes are scored, with the kinds that use them."""
_KEYS = {
    "text": ("sequence-classification", "sequence-regression", "causal-lm", "token-classification"),
    **dict.fromkeys(("label", "label_separator", "multi_label"), CLASS_KINDS),
    "labels": (*CLASS_KINDS, "token-classification"),
    **dict.fromkeys(("tokens", "tags", "spans", "scheme"), ("token-classification",)),
    "stride": ("question-answering", "token-classification"),
    "messages": ("causal-lm",),
    "response": ("causal-lm", "seq2seq-lm"),
    "max_target_length": ("seq2seq-lm",),
    **dict.fromkeys(("chat_template", "today"), ("causal-lm", "multiple-choice")),
    **dict.fromkeys(("prompt", "separator"), ("causal-lm", "seq2seq-lm", "multiple-choice")),
    **dict.fromkeys(("choices", "answer", "answer_is", "answer_text", "letters"), ("multiple-choice",)),
    **dict.fromkeys(("image", "image_size", "image_shape"), ("image-classification",)),
    **dict.fromkeys(("context", "question", "answers", "answer_start", "max_answer_tokens"), ("question-answering",)),
    "features": ("regression",),
    "target": ("regression", "sequence-regression"),
}
"""Keys of ``[task]`` that are None unless set, with the kinds that use them."""
_CHOICES: dict[tuple[str, object], tuple[str, ...]] = {
    ("normalize", "unit"): ("image-classification",),
    ("augment", "none"): ("image-classification",),
    ("unanswerable", False): ("question-answering",),
}
"""Keys with a default, and the kinds that use them."""


def _labels(task: Mapping[str, Any]) -> Iterator[Problem]:
    names = task["labels"] or ()
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield Problem("task.labels", f"{twice!r} is named twice: name it once")
    several = task["label"] if isinstance(task["label"], list) else None
    if several is not None and (twice := next((name for name in several if several.count(name) > 1), None)):
        yield Problem("task.label", f"{twice!r} is named twice: name it once")
    for key in ("labels", "label_separator"):
        if several is not None and task[key] is not None:
            yield Problem(f"task.{key}", "the columns that task.label names are the labels: remove it")
    if task["multi_label"] is False and (several is not None or task["label_separator"] is not None):
        yield Problem("task.multi_label", "false, and task.label or task.label_separator gives several: remove one")


def metrics_of(task: TaskConfig) -> Mapping[str, bool]:
    """The metrics of a task, and whether higher is better; the first is its own. None for a task of one's own."""
    kind = TABLE.get(task.kind)
    return {} if kind is None else _LABEL_METRICS if task.several_labels else kind.metrics


def _metric(task: Mapping[str, Any]) -> Iterator[Problem]:
    name, known = task["metric"], TABLE[task["kind"]].metrics
    of_labels = task["kind"] in CLASS_KINDS and name in _LABEL_METRICS  # only the rows may say if they have several
    if name is not None and name not in known and not of_labels:
        yield Problem("task.metric", f"a {task['kind']} task has {', '.join(known)}, not {name!r}: take one of them")


def _unused(task: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that the task's kind does not use."""
    given = [(key, users) for key, users in _KEYS.items() if task[key] is not None]
    given += [(key, users) for (key, default), users in _CHOICES.items() if task[key] != default]
    for key, users in given:
        if task["kind"] not in users:
            kinds = ", ".join(map(repr, users[:-1])) + (" and " if len(users) > 1 else "") + repr(users[-1])
            verb = "uses" if len(users) == 1 else "use"
            yield Problem(f"task.{key}", f"only kind = {kinds} {verb} it: remove it, or set task.kind")


def _classification(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if own_data and task["text"] is None:
        yield Problem("task.text", "name the column, or the two columns, with the text")
    if own_data and task["label"] is None:
        yield Problem("task.label", "name the column with the label")


def _sequence_regression(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if task["text"] is None:
        yield Problem("task.text", "name the column, or the two columns, with the text")
    if task["target"] is None:
        yield Problem("task.target", "name the column with the number to predict")


def _causal_lm(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    given = [key for key in ("text", "prompt", "messages") if task[key] is not None]
    if len(given) != 1:
        message = (
            "causal-lm needs either task.text, or task.prompt and task.response, or task.messages: name one of them"
        )
        yield Problem(f"task.{given[0] if given else 'text'}", message)
    if task["separator"] is not None and task["prompt"] is None:
        yield Problem("task.separator", "only task.prompt has columns to separate: remove it")
    if task["chat_template"] is not None and task["prompt"] is None and task["messages"] is None:
        yield Problem("task.chat_template", "plain text has no turns: name task.messages or task.prompt, or remove it")
    if isinstance(task["text"], list):
        message = "causal-lm takes one text column: name one, or use task.prompt and task.response"
        yield Problem("task.text", message)
    if (task["prompt"] is None) != (task["response"] is None):
        yield Problem("task.response", "task.prompt and task.response go together: name both")


def _seq2seq_lm(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if task["prompt"] is None:
        yield Problem("task.prompt", "name the column, or the columns, with the text to read")
    if task["response"] is None:
        yield Problem("task.response", "name the column with the text to write")


def _question_answering(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    for key, content in (("context", "text that has the answers"), ("question", "questions"), ("answers", "answers")):
        if task[key] is None:
            yield Problem(f"task.{key}", f"name the column with the {content}")
    yield from _windows(task, _SHORTEST_WINDOW, "question and context")


def _windows(task: Mapping[str, Any], shortest: int, content: str) -> Iterator[Problem]:
    if task["max_length"] < shortest:
        message = f"{task['max_length']} leave no room for {content}: raise it to {shortest} or more"
        yield Problem("task.max_length", message)
    if task["stride"] is not None and task["stride"] > task["max_length"] // 2:
        message = f"above half of task.max_length = {task['max_length']}, so windows would hardly move: lower it"
        yield Problem("task.stride", message)


_SHORTEST_WINDOW = 32
"""Tokens with which windows move on: a quarter of them is the question's, at most half is shared with the window
before, and special tokens are few."""


def _token_classification(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    first, second = ("text", "spans") if task["text"] is not None or task["spans"] is not None else ("tokens", "tags")
    if isinstance(task["text"], list):
        yield Problem("task.text", "token-classification takes one text column: name one")
    contents = {"text": "texts", "spans": "spans", "tokens": "lists of words", "tags": "lists of tags"}
    for key in (first, second):
        if task[key] is None:
            remedy = " (or task.text and task.spans)" if first == "tokens" else ""
            yield Problem(f"task.{key}", f"name the column with the {contents[key]}{remedy}")
    for key in ("tokens", "tags", "scheme"):
        if first == "text" and task[key] is not None:
            yield Problem(f"task.{key}", "task.text and task.spans take its place: remove it, or these two")
    yield from _windows(task, _SHORTEST_ROW, "words")
    names = task["labels"] or ["O"]
    types = dict.fromkeys(re.sub("^[BI]-", "", name) for name in names if name != "O")
    wanted = ["O", *(f"{mark}-{kind}" for kind in types for mark in "BI")]
    if set(names) != set(wanted):
        yield Problem("task.labels", f"name all tags of IOB2: {json.dumps(wanted, ensure_ascii=False)}")


_SHORTEST_ROW = 8
"""Tokens with which windows move on: special tokens are few, and at most half is shared with the window before."""


def _multiple_choice(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    missing = (
        ("prompt", "name the column, or the columns, with the question"),
        ("choices", "name the column with the choices, or one column per choice"),
        ("answer", "name the column with the right choice's text, letter or number"),
    )
    for key, remedy in missing:
        if task[key] is None:
            yield Problem(f"task.{key}", remedy)
    if task["answer_text"] is not None and task["answer_text"].count("{}") != 1:
        yield Problem("task.answer_text", f"{task['answer_text']!r} should have {{}} once, in place of the choice")
    if task["letters"] and task["separator"] is not None and isinstance(task["prompt"], str):
        yield Problem("task.separator", "with letters, 'Answer:' stands before the choice: remove it")


def _images(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    size, shape = task["image_size"], task["image_shape"]
    if shape is not None and shape[2] not in (1, 3):
        yield Problem("task.image_shape", f"{shape[2]} channels: give height, width, and 1 (greyscale) or 3 (colour)")
    if shape is not None and size is not None and shape[:2] != [size, size]:
        message = f"{shape[0]} x {shape[1]}, but task.image_size resizes to {size} x {size}: mend one of the two"
        yield Problem("task.image_shape", message)


def _regression(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if task["features"] is None:
        yield Problem("task.features", "name the columns with the numbers to predict from")
    elif twice := sorted({name for name in task["features"] if task["features"].count(name) > 1}):
        yield Problem("task.features", f"{twice[0]!r} is named twice: name it once")
    if task["target"] is None:
        yield Problem("task.target", "name the column with the number to predict")
    elif task["target"] in (task["features"] or ()):
        yield Problem("task.target", f"{task['target']!r} is also one of task.features: remove it there")


def _linear(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    """None: the columns are x and y."""
    yield from ()


TABLE: dict[str, Kind] = {
    "sequence-classification": Kind(
        cls="rondo.tasks.language.sequences:SequenceClassification",
        inputs="text",
        auto="AutoModelForSequenceClassification",
        outputs=None,
        peft="SEQ_CLS",
        pipeline="text-classification",
        head=True,
        builtin="builtin:home-intents",
        metrics=_CLASS_METRICS,
        checks=_classification,
    ),
    "sequence-regression": Kind(
        cls="rondo.tasks.language.sequences:SequenceRegression",
        inputs="text",
        auto="AutoModelForSequenceClassification",
        outputs=1,
        peft="SEQ_CLS",
        pipeline="text-classification",
        head=True,
        builtin=None,
        metrics={"pearson": True, "spearman": True, "mse": False},
        checks=_sequence_regression,
    ),
    "question-answering": Kind(
        cls="rondo.tasks.language.answering.question_answering:QuestionAnswering",
        inputs="text",
        auto="AutoModelForQuestionAnswering",
        outputs=2,
        peft=None,  # PEFT's own class for it drops the segment ids
        pipeline="question-answering",
        head=True,
        builtin=None,
        metrics={"f1": True, "exact_match": True, "loss": False},
        checks=_question_answering,
    ),
    "token-classification": Kind(
        cls="rondo.tasks.language.tagging.token_classification:TokenClassification",
        inputs="text",
        auto="AutoModelForTokenClassification",
        outputs=None,
        peft="TOKEN_CLS",
        pipeline="token-classification",
        head=True,
        builtin=None,
        metrics={"f1": True, "precision": True, "recall": True, "accuracy": True, "loss": False},
        checks=_token_classification,
    ),
    "causal-lm": Kind(
        cls="rondo.tasks.language.causal_lm:CausalLM",
        inputs="text",
        auto="AutoModelForCausalLM",
        outputs=None,
        peft="CAUSAL_LM",
        pipeline="text-generation",
        head=False,
        builtin="builtin:home-intents",
        metrics={"loss": False, "perplexity": False, "accuracy": True},
        checks=_causal_lm,
    ),
    "seq2seq-lm": Kind(
        cls="rondo.tasks.language.seq2seq_lm:Seq2SeqLM",
        inputs="text",
        auto="AutoModelForSeq2SeqLM",
        outputs=None,
        peft="SEQ_2_SEQ_LM",
        pipeline="text2text-generation",
        head=False,
        builtin="builtin:home-intents",
        metrics={"loss": False, "perplexity": False, "accuracy": True},
        checks=_seq2seq_lm,
    ),
    "multiple-choice": Kind(
        cls="rondo.tasks.language.choosing.multiple_choice:MultipleChoice",
        inputs="text",
        auto="AutoModelForCausalLM",
        outputs=None,
        peft="CAUSAL_LM",
        pipeline="text-generation",
        head=False,
        builtin=None,
        metrics={"accuracy_likelihood": True, "accuracy_normalised": True, "loss": False},
        checks=_multiple_choice,
    ),
    "image-classification": Kind(
        cls="rondo.tasks.images.image_classification:ImageClassification",
        inputs="image",
        auto="AutoModelForImageClassification",
        outputs=None,
        peft=None,
        pipeline="image-classification",
        head=True,
        builtin="builtin:digits",
        metrics=_CLASS_METRICS,
        checks=_images,
    ),
    "regression": Kind(
        cls="rondo.tasks.numbers.regression:Regression",
        inputs="numbers",
        auto=None,
        outputs=1,
        peft=None,
        pipeline=None,
        head=True,
        builtin=None,
        metrics={"r2": True, "rmse": False, "mae": False},
        checks=_regression,
    ),
    "linear": Kind(
        cls="rondo.tasks.numbers.linear:LinearRegression",
        inputs="numbers",
        auto=None,
        outputs=None,
        peft=None,
        pipeline=None,
        head=True,
        builtin="builtin:linear",
        metrics={"loss": False},
        checks=_linear,
    ),
}


def check(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    """Yield the faults of the section ``[task]``. A user's own class checks its rows itself and nothing else."""
    kind = task["kind"]
    if kind in TABLE:
        yield from _unused(task)
        yield from _labels(task)
        yield from _metric(task)
        yield from TABLE[kind].checks(task, own_data)
    elif task["metric"] is not None and ":" in kind:
        yield Problem("task.metric", "a task of one's own names its metric itself (Task.primary): remove it")
    elif ":" not in kind:
        near = difflib.get_close_matches(kind, TABLE)
        fallback = " (one of your own is given as package.module:Class)"
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else fallback
        yield Problem("task.kind", f"should be one of {', '.join(map(repr, TABLE))}, got {kind!r}{hint}")
