"""The table of task kinds by name. Imports no torch, and of Rondo only the errors and the import of a user's code.

A user's own task needs no entry: ``task.kind`` names it as ``package.module:Class``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rondo import own_code
from rondo.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rondo.tasks.task import Task

Checks = Callable[[Mapping[str, Any], bool], Iterator[Problem]]
"""Yields the faults of the section ``[task]``, given its keys and whether the data are the user's own."""


@dataclass(frozen=True)
class Kind:
    """One kind of task."""

    cls: str
    """Its class, as ``package.module:Class``."""
    auto: str
    """Transformers' class for its models; empty where transformers has none."""
    peft: Literal["SEQ_CLS", "CAUSAL_LM"] | None
    """PEFT's name for it."""
    head: bool
    """Whether its models may have a task head."""
    checks: Checks


def _classification(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    for key in ("prompt", "response", "messages", "separator", "chat_template"):
        if task[key] is not None:
            yield Problem(f"task.{key}", "only kind = 'causal-lm' uses it: remove it, or set task.kind")
    if own_data and task["text"] is None:
        yield Problem("task.text", "name the column, or the two columns, with the text")
    if own_data and task["label"] is None:
        yield Problem("task.label", "name the column with the label")


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
    if task["label"] is not None:
        yield Problem("task.label", "causal-lm has no label column; remove it")


def _linear(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    for key in ("text", "label", "prompt", "response", "messages", "separator", "chat_template"):
        if task[key] is not None:
            yield Problem(f"task.{key}", "kind = 'linear' has the columns x and y: remove it")


TABLE: dict[str, Kind] = {
    "sequence-classification": Kind(
        cls="rondo.tasks.classification:SequenceClassification",
        auto="AutoModelForSequenceClassification",
        peft="SEQ_CLS",
        head=True,
        checks=_classification,
    ),
    "causal-lm": Kind(
        cls="rondo.tasks.causal_lm:CausalLM",
        auto="AutoModelForCausalLM",
        peft="CAUSAL_LM",
        head=False,
        checks=_causal_lm,
    ),
    "linear": Kind(cls="rondo.tasks.linear:LinearRegression", auto="", peft=None, head=True, checks=_linear),
}


def check(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    """Yield the faults of the section ``[task]``. A user's own class checks its rows itself and nothing else."""
    kind = task["kind"]
    if kind in TABLE:
        yield from TABLE[kind].checks(task, own_data)
    elif ":" not in kind:
        near = difflib.get_close_matches(kind, TABLE, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else " (one of your own is given as package.module:Class)"
        yield Problem("task.kind", f"should be {' or '.join(map(repr, TABLE))}, got {kind!r}{hint}")


def load(kind: str) -> type[Task]:
    """The class of a kind. Raises :class:`ConfigError` if it cannot be loaded or is not a task."""
    from rondo.tasks.task import Task

    try:
        cls = own_code.load(TABLE[kind].cls if kind in TABLE else kind)
    except Exception as error:  # importing a user's module may raise anything
        raise ConfigError.at("task.kind", f"cannot load {kind!r}: {type(error).__name__}: {error}") from None
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ConfigError.at("task.kind", f"{kind!r} is not a class derived from rondo.tasks.task.Task")
    return cls
