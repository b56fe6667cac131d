"""The contract of a task. Only this package knows what an example is made of."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.lowrank import GrowingSum
from rondo.params import Params
from rondo.tasks.row_checks import Row, RowProblem

if TYPE_CHECKING:
    from rondo.tasks.language.output_layer import OutputLayer


@dataclass(frozen=True)
class AnswerEnd:
    """What ends an answer in training, in generation and exports: any of ``tokens``, or ``text``, if no token is it."""

    tokens: tuple[int, ...] = ()
    text: str = ""


class Predictor(Protocol):
    """A trained model, with every tensor in its place. It takes tensors on any device."""

    @property
    def batch_size(self) -> int:
        """Most rows of a call."""

    def output(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The network's output for ``inputs``, as :meth:`rondo.tasks.task.Task.collate` gives them."""

    def generated(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Token ids of the text that follows each prompt (ids), in their order. Raises
        :class:`rondo.errors.ConfigError` for a model that generates none, and for prompts that leave no room."""


def batches(costs: Sequence[int], size: int, *, one_cost: bool = False) -> Iterator[list[int]]:
    """Numbers of rows, at most ``size`` at a time, by ascending cost. ``one_cost``: those of a batch have the same."""
    order = sorted(range(len(costs)), key=costs.__getitem__)
    groups = [list(group) for _, group in groupby(order, costs.__getitem__)] if one_cost else [order]
    yield from (group[start : start + size] for group in groups for start in range(0, len(group), size))


def wide(logits: Tensor) -> Tensor:
    """Cast bfloat16 logits to float32, which a loss needs; return wider ones as they are."""
    return logits.float() if logits.element_size() < 4 else logits


Batch: TypeAlias = Mapping[str, Tensor]
Scores: TypeAlias = dict[str, float | None]
"""Metric to value, the task's ``primary`` metric among them. A metric undefined on these data is None, never NaN."""


Shortcut: TypeAlias = Literal["prefix", "packing", "targets_only"]
"""A way to skip computation in a model of tokens: states below the lowest adapted layer that are kept, rows that are
laid end to end, an output layer that only tokens with a target pass."""


class Example(Protocol):
    """One row, ready for the network."""

    @property
    def cost(self) -> int:
        """The work of one training step on it, at least 1, in the task's own unit (tokens, pixels, rows). Cohorts are
        planned by cost, and rows of similar cost are scored together."""


class Store(Protocol):
    """The examples of a run, numbered."""

    def add(self, examples: Iterable[Any]) -> range:
        """Store ``examples`` and return their numbers."""

    def __getitem__(self, number: int) -> Any: ...

    def cost(self, number: int) -> int:
        return int(self[number].cost)

    def account(self) -> Mapping[str, float]:
        """Numbers about all examples for the record of a run. Text: rows and tokens, and how many of them were cut to
        fit ``task.max_length``, and lost by it. Pictures: the range of floats. Empty if there is nothing to tell."""
        return {}

    def sha256(self) -> str:
        """Digest of all examples in their order."""


class Tally(ABC):
    """Accumulates scores batch by batch."""

    @abstractmethod
    def add(self, output: Tensor, targets: Batch) -> None: ...

    @abstractmethod
    def scores(self) -> Scores:
        """The metrics so far; undefined ones are None."""

    def fewest(self) -> Mapping[str, int]:
        """The number of rows that decide a metric, by its name, where it goes by class: those of the smallest class.
        Default: none, for means over all rows."""
        return {}


@dataclass(frozen=True)
class Picture:
    """A picture for a report."""

    pixels: Any  # an array (height, width, channels) of uint8
    caption: str


class Task(ABC):
    """A kind of task; an instance serves one run. Users name their own as ``package.module:Class`` in ``task.kind``."""

    primary: str
    """The metric to show, to keep the best round by and to end a run by. A class sets its default; ``task.metric``
    names another one for a run."""
    higher_is_better: bool = False
    """Whether higher values of :attr:`primary` are better."""
    classes: ClassVar[bool] = False
    """Whether the outputs are named classes, which all parts of a run have in the same order: those of the labels in
    the column ``task.label``, unless :meth:`label_names` says others."""
    precision: ClassVar[torch.dtype] = torch.float32
    """The dtype that ``train.precision = "exact"`` computes in."""
    least_squares: ClassVar[str | None] = None
    """The name among the targets of the values that the output should have, where a row's loss is a constant times its
    squared error, summed over outputs, and every row counts as one target. None for any other loss."""
    padded: ClassVar[bool] = False
    """Whether batches are padded along their second axis to the costliest row; an example's cost is then its
    number of tokens."""
    unfit: ClassVar[Mapping[Shortcut, str]] = MappingProxyType({})
    """Shortcuts that do not go with the task's rows where they are :attr:`padded`, each with the reason."""
    cohort_cost: ClassVar[int | None] = None
    """Largest cost of a cohort's step on one CPU thread, for frozen weights of 4 bytes per number; beyond it a larger
    cohort gains nothing. None: only activations limit a cohort."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Names of metrics for tables and pictures, where a metric's own name does not tell it all, such as the class
        whose F1 ``f1`` is. Default: none."""
        return {}

    @classmethod
    @abstractmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """The task of a run.

        ``tokenizer``: the model's, None if it has none.
        ``labels``: the label names, in the order of the classes.
        """

    @property
    def marks(self) -> Sequence[str]:
        """Texts that are read as control tokens, whoever typed them. Default: none."""
        return ()

    @property
    def answer_end(self) -> AnswerEnd:
        """What ends a generated answer. Default: nothing, as there is none."""
        return AnswerEnd()

    def judged_by(self, metric: str, *, higher_is_better: bool) -> Self:
        task = copy.copy(self)
        task.primary, task.higher_is_better = metric, higher_is_better
        return task

    def for_model(self, module: Any) -> Self:
        """This task for a model of transformers, ``module``, which may have no weights yet. Default: as it is. Raises
        :class:`rondo.errors.ConfigError` for a model that does not go with it."""
        return self

    def completed(self, config: TaskConfig) -> TaskConfig:
        """``config``, of which this task was made, with what it took from elsewhere. Default: as it is."""
        return config

    @classmethod
    def with_columns(cls, config: TaskConfig, text: str | None, label: str | None) -> TaskConfig:
        """``config`` with the columns that the user left open, where the data know theirs (``text``, ``label``).
        Default: both where the task has :attr:`classes`."""
        known = {"label": config.label or label, "text": config.text or text}
        return config.model_copy(update=known) if cls.classes else config

    @classmethod
    def settled(cls, config: TaskConfig, rows: Iterable[Row]) -> TaskConfig:
        """``config`` with the settings filled in that the user left open and the training rows know. Default: as it is.
        Raises :class:`rondo.errors.ConfigError` for settings that do not fit the rows."""
        return config

    @classmethod
    def label_names(cls, config: TaskConfig, rows: Iterable[Row]) -> tuple[str, ...] | None:
        """The names of the classes for training rows, in their order. Default: None, they are in ``task.label``."""
        return None

    @classmethod
    def counted(cls, config: TaskConfig, rows: Iterable[Row]) -> list[str] | None:
        """The names that the account of a client's rows counts. Default: None, its labels."""
        return None

    @classmethod
    def remarks(cls, config: TaskConfig, rows: Iterable[Row]) -> Iterator[str]:
        """Sentences about usable training rows for their owner. Default: none."""
        yield from ()

    @classmethod
    def opened(cls, config: TaskConfig, row: Row) -> dict[str, Any]:
        """A copy of ``row`` with its values in the form that :meth:`problem` and :meth:`encode` take, such as pixels of
        a file's bytes. Default: as they are. A value that cannot be opened becomes one that :meth:`problem` refuses."""
        return dict(row)

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        """The problem of row ``number``, or None. The columns that ``config`` names are checked before this call."""
        return None

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> Sequence[Example]:
        """Examples of rows that passed :meth:`problem`, in their order. Rows with nothing to learn may be left out. A
        row may give several (:meth:`row_sizes`)."""

    def row_sizes(self, examples: Sequence[Any]) -> Sequence[int]:
        """The number of ``examples``, as :meth:`encode` gives them, that each row has. The examples of a row are never
        divided between training and validation. Default: one each."""
        return [1] * len(examples)

    def unlabelled(self, rows: Sequence[Row]) -> Sequence[Example]:
        """Examples of rows to predict for, as :meth:`encode` gives them. Labels, targets and answers are not read and
        may be missing. Default: :meth:`encode`."""
        return self.encode(rows)

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> tuple[Batch, Batch]:
        """Network inputs and targets. The first axis of every tensor counts the :meth:`sequences` of the examples."""

    def sequences(self, example: Any) -> Sequence[Any]:
        """The rows of the network's input that ``example`` takes, each an example for :meth:`collate`: itself."""
        return (example,)

    def compared_with(self, reference: Callable[[Batch], Tensor]) -> Self:
        """This task where its loss compares the network with one that is not trained, whose output on inputs of
        :meth:`collate` is ``reference``. Default: as it is."""
        return self

    def lengths(self, example: Any) -> tuple[int, ...]:
        """The tokens of ``example``, of :meth:`sequences`, in every sequence that batches pad: one, or an encoder's and
        a decoder's. Default: its cost where rows are :attr:`padded`, else none."""
        return (example.cost,) if self.padded else ()

    @property
    def augments(self) -> bool:
        return type(self).augment is not Task.augment

    def augment(self, inputs: Batch, rows_per_client: Sequence[int], generators: Sequence[torch.Generator]) -> Batch:
        """``inputs`` of a training step, changed at random. Default: as they are.

        ``rows_per_client``: the number of rows of each client, in the order of the rows.
        ``generators``: one per client. A client's rows are changed by draws from its own generator only, so that they
        do not depend on its cohort.
        """
        return inputs

    def trained(self, examples: Sequence[Any]) -> Sequence[Example]:
        """A client's part of a batch. Default: as it is. Rows that are compared are marked as being together."""
        return examples

    @abstractmethod
    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Per row of ``output``, the sum of its targets' losses and the number of its targets, both of shape (rows,). A
        client's loss is its sum of losses over all rows, divided by its number of targets."""

    def scored(self, examples: Sequence[Any]) -> Sequence[Example]:
        """The examples on which the network runs to score ``examples``, for :meth:`collate` and the tally. Default: as
        they are. A row may have several (one per choice); their targets then say which row each belongs to."""
        return examples

    @abstractmethod
    def tally(self) -> Tally:
        """An empty tally."""

    def predicted(self, output: Tensor) -> list[dict[str, Any]]:
        """A prediction for each row of the network's ``output``, as the columns of ``rondo predict``. Default: raises
        :class:`rondo.errors.ConfigError`."""
        message = f"{type(self).__name__} predicts nothing: give it the method predicted, or call the network yourself"
        raise ConfigError.at("task.kind", message)

    def predictions(self, rows: Sequence[Row], model: Predictor) -> list[dict[str, Any]]:
        """A prediction for each of ``rows``, in their order. Default: :meth:`predicted` on the network's output for
        :meth:`unlabelled` rows. Raises :class:`rondo.errors.ConfigError`, and
        :class:`rondo.tasks.row_checks.UnusableRows`."""
        examples = self.unlabelled(rows)
        if len(examples) != len(rows):
            message = f"{type(self).__name__} makes {len(examples)} examples of {len(rows)} rows, so predictions are "
            raise ConfigError.at("task.kind", f"{message}not one per row: give it the method unlabelled")
        return self._predicted(examples, model)

    def _predicted(self, examples: Sequence[Any], model: Predictor) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = [{}] * len(examples)
        for batch in batches([e.cost for e in examples], model.batch_size):
            inputs, _ = self.collate([examples[i] for i in batch])
            for i, prediction in zip(batch, self.predicted(model.output(inputs)), strict=True):
                result[i] = prediction
        return result

    def shown(self, example: Any) -> tuple[str, str]:
        """``example`` as texts for people to look at: its input and the expected answer. Default: raises
        :class:`rondo.errors.ConfigError`."""
        message = f"{type(self).__name__} shows no examples: give it the method shown, or remove it"
        raise ConfigError.at("evaluation.generate", message)

    def answered(self, examples: Sequence[Any], model: Predictor) -> list[str]:
        """The model's answers to ``examples`` as texts, beside :meth:`shown`. Default: the values of its predictions.
        Raises :class:`rondo.errors.ConfigError`."""
        return [", ".join(map(str, prediction.values())) for prediction in self._predicted(examples, model)]

    def scores_of_answers(self, examples: Sequence[Any], answers: Sequence[str]) -> Scores:
        """Scores of the texts :meth:`answered` to ``examples``. Default: none."""
        return {}

    def completions(self, texts: Sequence[str], model: Predictor) -> list[str]:
        """The texts with which the model goes on after ``texts``. Default: raises :class:`rondo.errors.ConfigError`."""
        message = "only a causal model of transformers completes a text: name the run of one"
        raise ConfigError.at("task.kind", message)

    def opening(self, example: Any, size: int) -> Any:
        """At most the first ``size`` tokens of ``example``, with a loss, to try a network on. Default: all of it."""
        return example

    def trial_batch(self) -> tuple[Batch, Tensor | None]:
        """Inputs that need no rows, to compare two networks on, and the places (rows, tokens) where an output per token
        means something; None for all. Default: raises :class:`rondo.errors.ConfigError`."""
        message = f"{type(self).__name__} has no rows of its own to compare models on: leave --verify out"
        raise ConfigError.at("task.kind", message)

    def with_output(self, layer: OutputLayer) -> Self:
        """This task where the network leaves its output layer to :meth:`loss` and :meth:`tally`. Raises TypeError for a
        task of which "targets_only" is :attr:`unfit`."""
        raise TypeError(f"{type(self).__name__} has no logits of a vocabulary")

    def measures(
        self, model: Callable[[], tuple[Params, Mapping[str, GrowingSum]]], before: Mapping[str, float]
    ) -> dict[str, float]:
        """Numbers about the model itself that need no rows, for every line of ``metrics.jsonl``. Default: none.

        ``model``: makes the model, which may take long: the tensors that the network sees, without a client axis, and
        the change of the frozen base.
        ``before``: the numbers before the round; empty before the first.
        """
        return {}

    def picture(self, example: Any) -> Picture | None:
        """``example`` as a picture with its caption, for the report of a run. Default: None, it is none."""
        return None

    def digest(self, examples: Sequence[Any]) -> str:
        """Digest of ``examples``, the same for those that the network and the loss cannot tell apart."""
        store = self.store()
        store.add(examples)
        return store.sha256()

    def store(self) -> Store:
        """An empty store for this task's examples."""
        return ExampleStore(self.collate)


class ExampleStore(Store):
    """All examples of a run. ``collate`` is the task's: the digest covers the tensors that each example becomes."""

    def __init__(self, collate: Callable[[Sequence[Any]], tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]) -> None:
        self._collate = collate
        self._examples: list[Any] = []

    def add(self, examples: Iterable[Any]) -> range:
        first = len(self._examples)
        self._examples.extend(examples)
        return range(first, len(self._examples))

    def __getitem__(self, number: int) -> Any:
        return self._examples[number]

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for example in self._examples:
            for part in self._collate([example]):
                for name, tensor in sorted(part.items()):
                    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()
