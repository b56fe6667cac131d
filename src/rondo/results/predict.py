"""Predictions for new rows: labels, numbers, answers of a context, responses of a language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rondo.data.client_rows import other_rows, refuse
from rondo.data.image_files import FILE
from rondo.data.tables import Rows, Table
from rondo.errors import ConfigError, Problem, headed
from rondo.models.forms.generation import Generation, answers, batches
from rondo.models.forms.model import Outline
from rondo.models.forms.outline import TransformerOutline, look
from rondo.models.forms.row_limits import RowLimits
from rondo.models.forms.transformer import load_base
from rondo.models.loading import peft
from rondo.models.loading.pretrained import identity
from rondo.models.networks.call import output_of
from rondo.params import add_client_axis, on_device
from rondo.results.reopen import HandedOver, handed_over, is_result
from rondo.runs.assemble import find_device
from rondo.runs.given import NOTHING
from rondo.runs.storage.directory import RunDirectory
from rondo.tasks.images.image_classification import ImageClassification
from rondo.tasks.language.choice_store import ChoiceExample
from rondo.tasks.language.classification import SequenceClassification
from rondo.tasks.language.language_model import LanguageModel
from rondo.tasks.language.multiple_choice import MultipleChoice
from rondo.tasks.language.question_answering import QuestionAnswering
from rondo.tasks.language.sequence_regression import SequenceRegression
from rondo.tasks.numbers.regression import Regression
from rondo.tasks.row_checks import Row, RowProblem
from rondo.tasks.task import Batch, Task

_SOURCE, _DATA = "rondo predict", "--data"
Output: TypeAlias = Callable[[Batch], Tensor]
"""The output of a model for a batch."""


@headed(_SOURCE)
@torch.no_grad()
def predict(
    path: str | Path,
    data: str | Path | Table,
    *,
    device: str = "auto",
    max_new_tokens: int = 64,
    allow_code: bool = False,
    allow_changed: bool = False,
) -> list[dict[str, Any]]:
    """One prediction per row of ``data``, in the order of its rows.

    ``path``: a folder that a run handed over (a PEFT adapter, a whole model), or a run directory, whose ``adapter/`` is
    taken.
    ``data``: a file or a table in memory with the run's columns of text, prompts, conversations, contexts and
    questions, pictures or numbers; labels, responses and answers are not read. Pictures may also be in a folder, or in
    an archive without labels.
    ``max_new_tokens``: most tokens of a response.
    ``allow_code``: import a network of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: predict even if the base model is not that of the run.

    A classifier gives ``label`` and its ``probability``, multiple choice ``choice`` and its ``probability``, a
    regression ``prediction``. Question answering gives ``answer``, its ``probability`` among the answers that its
    window allows, and ``answer_start``, the character of the context where it starts (None, and an empty answer, where
    the question has none). A language model gives a ``response``, which continues or answers the prompt, the
    conversation or the text greedily. Pictures of a folder have their ``file`` first. Weights are in float32. Raises
    :class:`ConfigError`.
    """
    target = find_device(device)
    if max_new_tokens < 1:
        raise ConfigError.at("--max-new-tokens", f"must be at least 1, got {max_new_tokens}")
    result = handed_over(
        handed_over_by(Path(path)), check_paths=False, allow_code=allow_code, source=_SOURCE, with_method=False
    )
    config = result.config
    NOTHING.check(config, with_rows=False)
    rows = other_rows(config, data, (), key=_DATA, answers=False)
    outline = look(config, result.labels)
    if outline.problems:
        raise ConfigError(outline.problems)
    batch_size, task = config.evaluation.batch_size, outline.task
    if isinstance(outline, TransformerOutline):
        model = stock(result, outline, allow_changed, _SOURCE).to(target)
        if isinstance(task, QuestionAnswering):
            return _answers(partial(output_of, model), task, rows, batch_size, target)
        if isinstance(task, MultipleChoice):
            return _choices(model, task, rows, batch_size, target)
        if isinstance(task, LanguageModel):
            return _responses(model, task, rows, batch_size, max_new_tokens, outline.limits)
        output: Output = partial(output_of, model)
    else:
        output = _whole(result, outline, target, allow_changed)
    predictions = _predictions(output, task, rows, batch_size, target)
    if any(FILE in row for row in rows):
        return [{FILE: row.get(FILE), **p} for row, p in zip(rows, predictions, strict=True)]
    return predictions


def handed_over_by(path: Path) -> Path:
    """The folder with the model: ``path``, or the ``adapter/`` of this run directory. Raises :class:`ConfigError`."""
    if is_result(path):
        return path
    directory = RunDirectory.open(path)
    if not directory.adapter.is_dir():
        raise ConfigError.at("RUN_DIR", f"{str(path)!r} has no adapter yet: finish the run with rondo resume")
    return directory.adapter


def stock(result: HandedOver, outline: TransformerOutline, allow_changed: bool, source: str) -> Any:
    """The model as transformers and PEFT alone load it. ``source``: the command, for the message about a changed
    base."""
    config = result.config
    base = load_base(config, outline.name, outline.known, outline.tokenizer, config.seed)
    changed = identity(base.module, outline.tokenizer)
    result.check_base(changed, allow_changed=allow_changed, source=source)
    return peft.stock_model(base.module, result.folder) if result.form == "adapter" else base.module.eval()


def _whole(result: HandedOver, outline: Outline, device: torch.device, allow_changed: bool) -> Output:
    """The output of a network without a hub."""
    train = result.config.train.model_copy(update={"precision": "exact"})
    model = outline.load(result.config.model_copy(update={"train": train}), device)
    result.check_base(model.identity, allow_changed=allow_changed, source=_SOURCE)
    seen = add_client_axis(on_device(result.tensors(model), device))
    return lambda batch: model.network(seen, {}, batch)


def _predictions(output: Output, task: Task, rows: Rows, batch_size: int, device: torch.device) -> list[dict[str, Any]]:
    if not isinstance(task, SequenceClassification | ImageClassification | Regression | SequenceRegression):
        message = f"{type(task).__name__} is no classifier, regression or language model: call the network yourself"
        raise ConfigError.at("task.kind", message)
    examples: Sequence[Any] = task.unlabelled(rows)
    predictions: list[dict[str, Any]] = [{}] * len(rows)
    for batch in batches([e.cost for e in examples], batch_size):
        inputs, _ = task.collate([examples[i] for i in batch])
        result = output(on_device(inputs, device)).float()
        if isinstance(task, Regression | SequenceRegression):
            for i, value in zip(batch, result.flatten().tolist(), strict=True):
                predictions[i] = {"prediction": value}
            continue
        largest = result.softmax(-1).max(-1)
        for i, probability, label in zip(batch, largest.values.tolist(), largest.indices.tolist(), strict=True):
            predictions[i] = {"label": task.labels[label], "probability": probability}
    return predictions


def _answers(
    output: Output, task: QuestionAnswering, rows: Rows, batch_size: int, device: torch.device
) -> list[dict[str, Any]]:
    windows, reader = task.unlabelled(rows), task.reader()
    for batch in batches([w.cost for w in windows], batch_size):
        inputs, targets = task.collate([windows[i] for i in batch])
        reader.add(output(on_device(inputs, device)), targets)
    answers = [reader.answer(question) for question in dict.fromkeys(w.question for w in windows)]
    return [{"answer": a.text, "probability": a.probability, "answer_start": a.start} for a in answers]


def _choices(
    model: Any, task: MultipleChoice, rows: Rows, batch_size: int, device: torch.device
) -> list[dict[str, Any]]:
    """The likeliest choice of every row, and its probability among the row's choices."""
    parts = task.scored([_fitting(task, row, number) for number, row in enumerate(rows)])
    texts = [task.texts(row) for row in rows]
    likelihoods = [torch.full((len(choices),), -math.inf, dtype=torch.float64) for choices in texts]
    for batch in batches([part.cost for part in parts], batch_size):
        inputs, targets = task.collate([parts[i] for i in batch])
        losses, _ = task.loss(output_of(model, on_device(inputs, device)), on_device(targets, device))
        for i, loss in zip(batch, losses.tolist(), strict=True):
            likelihoods[parts[i].row][parts[i].place] = -loss
    chosen = [(int(row.argmax()), row.softmax(-1)) for row in likelihoods]
    return [{"choice": t[i], "probability": float(p[i])} for t, (i, p) in zip(texts, chosen, strict=True)]


def _fitting(task: MultipleChoice, row: Row, number: int) -> ChoiceExample:
    """The example of a row. Raises :class:`ConfigError` if a choice does not fit into the model's rows."""
    try:
        return task.unlabelled([row])[0]
    except ValueError as reason:
        raise ConfigError.at(_DATA, f"row {number}: {reason}") from None


def _responses(
    model: Any,
    task: LanguageModel,
    rows: Rows,
    batch_size: int,
    max_new_tokens: int,
    limits: RowLimits,
) -> list[dict[str, Any]]:
    prompts = _prompts(task, rows)
    if problems := list(_too_long(prompts, max_new_tokens, limits)):
        raise ConfigError(problems)
    made = answers(model, task.tokenizer, prompts, Generation(max_new_tokens, batch_size))
    return [{"response": text} for text in task.tokenizer.batch_decode(made, skip_special_tokens=True)]


def _prompts(task: LanguageModel, rows: Rows) -> list[list[int]]:
    """Token ids of every row's prompt. Raises :class:`ConfigError` with rows that are no conversation."""
    prompts, problems = [], []
    for number, row in enumerate(rows):
        try:
            prompts.append(task.prompt_ids(row))
        except ConfigError:
            raise
        except ValueError as reason:
            problems.append(RowProblem(number, task.messages or "", str(reason)))
    refuse(problems, _DATA)
    return prompts


def _too_long(prompts: Sequence[Sequence[int]], max_new_tokens: int, limits: RowLimits) -> Iterator[Problem]:
    """The first prompt that leaves no room for a response."""
    for number, ids in enumerate(prompts):
        prompt = f"the {len(ids)} tokens of row {number}"
        if (fault := limits.fault(len(ids), max_new_tokens, prompt)) is not None:
            yield Problem("--max-new-tokens", fault)
            return
