"""The table of task kinds by name. It needs no torch.

A user's own task needs no entry: ``task.kind`` names it as ``package.module:Class``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rondo.config.inputs import TaskConfig
from rondo.config.rules import kind_words, task_keys
from rondo.errors import Problem

Checks = Callable[[Mapping[str, Any], bool], Iterator[Problem]]
"""Yields the faults of the section ``[task]``, given its keys and whether the data are the user's own."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of task."""

    cls: str
    """Its class, as ``package.module:Class``."""
    inputs: Literal["text", "image", "numbers"] = "text"
    """Content of a row. Text needs the model's tokenizer."""
    auto: str | None = None
    """Transformers' class for its models; None if it has none."""
    outputs: int | None = None
    """Outputs of the head; None: one per label."""
    peft: Literal["SEQ_CLS", "TOKEN_CLS", "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION"] | None = None
    """PEFT's name for it; None if it has none."""
    pipeline: str | None = None
    """The hub's name for it; None if it has none."""
    head: bool = True
    """Whether its models have a task head."""
    builtin: str | None = None
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

    @property
    def mixes_rows(self) -> bool:
        """Whether a row's loss depends on the other rows of its client in a batch."""
        return self.pipeline == "sentence-similarity"


_CLASS_METRICS = {"accuracy": True, "f1": True, "matthews": True, "auc": True, "loss": False}
_PAIR_METRICS = {"accuracy": True, "margin": True, "loss": False}
_LABEL_METRICS = {"f1_micro": True, "f1_macro": True, "accuracy": True, "auc": True, "loss": False}
"""Those of a classifier whose rows may have several labels."""
_RATED_METRICS = {"spearman": True, "recall_at_1": True, "recall_at_10": True, "mrr": True}
"""Those of an embedding of which some rows have a score."""
CLASS_KINDS = ("sequence-classification", "image-classification")
"""Kinds whose rows have one of several labels, or several."""
CLASS_KEYS = {
    **dict.fromkeys(("positive", "f1", "threshold"), CLASS_KINDS),
    "per_class": (*CLASS_KINDS, "token-classification"),
}
"""Keys of ``[evaluation]`` that say how classes are scored, with the kinds that use them."""
PAIR_KINDS = ("preference", "reward")
"""Kinds whose rows have two answers, of which one is better."""
_KEYS = {
    "text": ("sequence-classification", "sequence-regression", "causal-lm", "token-classification"),
    **dict.fromkeys(("label", "label_separator", "multi_label"), CLASS_KINDS),
    "labels": (*CLASS_KINDS, "token-classification"),
    **dict.fromkeys(("tokens", "tags", "spans", "scheme"), ("token-classification",)),
    "stride": ("question-answering", "token-classification"),
    "messages": ("causal-lm",),
    "response": ("causal-lm", "seq2seq-lm"),
    **dict.fromkeys(("chosen", "rejected"), PAIR_KINDS),
    **dict.fromkeys(("loss_type", "beta", "label_smoothing"), ("preference",)),
    "max_target_length": ("seq2seq-lm",),
    **dict.fromkeys(("chat_template", "today"), ("causal-lm", "multiple-choice", *PAIR_KINDS)),
    "prompt": ("causal-lm", "seq2seq-lm", "multiple-choice", *PAIR_KINDS),
    "separator": ("causal-lm", "seq2seq-lm", "multiple-choice"),
    **dict.fromkeys(("choices", "answer", "answer_is", "answer_text", "letters"), ("multiple-choice",)),
    **dict.fromkeys(("image", "image_size", "image_shape"), ("image-classification",)),
    **dict.fromkeys(("context", "question", "answers", "answer_start", "max_answer_tokens"), ("question-answering",)),
    **dict.fromkeys(("anchor", "positive", "negative", "score", "scale", "pooling", "unit_length"), ("embedding",)),
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
    several = task["label"] if isinstance(task["label"], list) else None
    for key in ("labels", "label_separator"):
        if several is not None and task[key] is not None:
            yield Problem(f"task.{key}", "the columns that task.label names are the labels: remove it")
    if task["multi_label"] is False and (several is not None or task["label_separator"] is not None):
        yield Problem("task.multi_label", "false, and task.label or task.label_separator gives several: remove one")


def _twice(task: Mapping[str, Any]) -> Iterator[Problem]:
    """Labels, and columns, that one key names several times: each column would be read as often."""
    for key in ("label", "labels", "prompt", "choices", "negative", "features"):
        counts = Counter(task[key] if isinstance(task[key], list) else ())
        if twice := next((name for name, count in counts.items() if count > 1), None):
            yield Problem(f"task.{key}", f"{twice!r} is named twice: name it once")


def metrics_of(task: TaskConfig) -> Mapping[str, bool]:
    """The metrics of a task, and whether higher is better; the first is its own. None for a task of one's own."""
    kind = TABLE.get(task.kind)
    if kind is not None and kind.mixes_rows and task.score is not None:
        return _RATED_METRICS
    return {} if kind is None else _LABEL_METRICS if task.several_labels else kind.metrics


def without_answers(task: TaskConfig) -> TaskConfig:
    """``task`` with the columns alone that predictions read. A reward is of an answer; all other answers are made."""
    unread = ["label", "response", "target", "answer", "answers", "answer_start", "tags", "spans", "rejected"]
    unread += ["positive", "negative", "score"]
    return task.model_copy(update=dict.fromkeys(unread if task.kind == "reward" else [*unread, "chosen"]))


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


TABLE: dict[str, Kind] = {
    "sequence-classification": Kind(
        cls="rondo.tasks.language.sequences:SequenceClassification",
        auto="AutoModelForSequenceClassification",
        peft="SEQ_CLS",
        pipeline="text-classification",
        builtin="builtin:home-intents",
        metrics=_CLASS_METRICS,
        checks=task_keys.classification,
    ),
    "sequence-regression": Kind(
        cls="rondo.tasks.language.sequences:SequenceRegression",
        auto="AutoModelForSequenceClassification",
        outputs=1,
        peft="SEQ_CLS",
        pipeline="text-classification",
        metrics={"pearson": True, "spearman": True, "mse": False},
        checks=task_keys.sequence_regression,
    ),
    "question-answering": Kind(
        cls="rondo.tasks.language.answering.question_answering:QuestionAnswering",
        auto="AutoModelForQuestionAnswering",
        outputs=2,
        peft=None,  # PEFT's own class for it drops the segment ids
        pipeline="question-answering",
        metrics={"f1": True, "exact_match": True, "loss": False},
        checks=task_keys.question_answering,
    ),
    "token-classification": Kind(
        cls="rondo.tasks.language.tagging.token_classification:TokenClassification",
        auto="AutoModelForTokenClassification",
        peft="TOKEN_CLS",
        pipeline="token-classification",
        metrics={"f1": True, "precision": True, "recall": True, "accuracy": True, "loss": False},
        checks=task_keys.token_classification,
    ),
    "causal-lm": Kind(
        cls="rondo.tasks.language.causal_lm:CausalLM",
        auto="AutoModelForCausalLM",
        peft="CAUSAL_LM",
        pipeline="text-generation",
        head=False,
        builtin="builtin:home-intents",
        metrics={"loss": False, "perplexity": False, "accuracy": True},
        checks=task_keys.causal_lm,
    ),
    "seq2seq-lm": Kind(
        cls="rondo.tasks.language.seq2seq_lm:Seq2SeqLM",
        auto="AutoModelForSeq2SeqLM",
        peft="SEQ_2_SEQ_LM",
        pipeline="text2text-generation",
        head=False,
        builtin="builtin:home-intents",
        metrics={"loss": False, "perplexity": False, "accuracy": True},
        checks=task_keys.seq2seq_lm,
    ),
    "multiple-choice": Kind(
        cls="rondo.tasks.language.choosing.multiple_choice:MultipleChoice",
        auto="AutoModelForCausalLM",
        peft="CAUSAL_LM",
        pipeline="text-generation",
        head=False,
        metrics={"accuracy_likelihood": True, "accuracy_normalised": True, "loss": False},
        checks=task_keys.multiple_choice,
    ),
    "preference": Kind(
        cls="rondo.tasks.language.preferring.preference:Preference",
        auto="AutoModelForCausalLM",
        peft="CAUSAL_LM",
        pipeline="text-generation",
        head=False,
        metrics=_PAIR_METRICS,
        checks=task_keys.preference,
    ),
    "reward": Kind(
        cls="rondo.tasks.language.preferring.reward:Reward",
        auto="AutoModelForSequenceClassification",
        outputs=1,
        peft="SEQ_CLS",
        pipeline="text-classification",
        metrics=_PAIR_METRICS,
        checks=task_keys.preference,
    ),
    "image-classification": Kind(
        cls="rondo.tasks.images.image_classification:ImageClassification",
        inputs="image",
        auto="AutoModelForImageClassification",
        pipeline="image-classification",
        builtin="builtin:digits",
        metrics=_CLASS_METRICS,
        checks=task_keys.images,
    ),
    "embedding": Kind(
        cls="rondo.tasks.language.embedding.embedding:Embedding",
        auto="AutoModel",
        peft="FEATURE_EXTRACTION",
        pipeline="sentence-similarity",
        head=False,
        metrics={"recall_at_1": True, "recall_at_10": True, "mrr": True, "spearman": True},
        checks=task_keys.embedding,
    ),
    "regression": Kind(
        cls="rondo.tasks.numbers.regression:Regression",
        inputs="numbers",
        outputs=1,
        metrics={"r2": True, "rmse": False, "mae": False},
        checks=task_keys.regression,
    ),
    "linear": Kind(
        cls="rondo.tasks.numbers.linear:LinearRegression",
        inputs="numbers",
        builtin="builtin:linear",
        metrics={"loss": False},
        checks=task_keys.linear,
    ),
}


def check(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    """Yield the faults of the section ``[task]``. A user's own class checks its rows itself and nothing else."""
    kind = task["kind"]
    if kind in TABLE:
        yield from _unused(task)
        yield from _labels(task)
        yield from _twice(task)
        yield from _metric(task)
        yield from TABLE[kind].checks(task, own_data)
    elif task["metric"] is not None and ":" in kind:
        yield Problem("task.metric", "a task of one's own names its metric itself (Task.primary): remove it")
    elif ":" not in kind:
        own = " (one of your own is given as package.module:Class)"
        yield Problem("task.kind", unknown(kind, own))


def unknown(word: str, otherwise: str = "") -> str:
    """The message about a word that is no kind of task. ``otherwise``: its end if no kind is near."""
    hint = kind_words.hint(word, TABLE)
    return f"should be one of {', '.join(map(repr, TABLE))}, got {word!r}{f'; {hint}' if hint else otherwise}"
