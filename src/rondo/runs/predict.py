"""Predictions for new rows: labels of a classifier, responses of a language model. Stock PEFT computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rondo.data.client_rows import other_rows, refuse
from rondo.data.tables import Rows, Table
from rondo.errors import ConfigError, Problem, headed
from rondo.models import peft
from rondo.models.loading.pretrained import identity
from rondo.models.outline import TransformerOutline, look
from rondo.models.transformer import load_base
from rondo.params import on_device
from rondo.runs.assemble import find_device
from rondo.runs.given import NOTHING
from rondo.runs.reopen import handed_over, is_adapter
from rondo.runs.storage.directory import RunDirectory
from rondo.tasks.causal_lm import CausalLM
from rondo.tasks.classification import SequenceClassification
from rondo.tasks.image_classification import ImageClassification
from rondo.tasks.row_checks import RowProblem


@headed("rondo predict")
@torch.no_grad()
def predict(
    path: str | Path,
    data: str | Path | Table,
    *,
    device: str = "auto",
    max_new_tokens: int = 64,
    allow_changed: bool = False,
) -> list[dict[str, Any]]:
    """One prediction per row of ``data``, in the order of its rows.

    ``path``: an adapter folder from a run, or a run directory, whose ``adapter/`` is taken.
    ``data``: a file or a table in memory with the run's columns of text, prompts, conversations or pictures; labels and
    responses are not read.
    ``max_new_tokens``: most tokens of a response.
    ``allow_changed``: predict even if the base model is not that of the run.

    A classifier gives ``label`` and its ``probability``. A language model gives a ``response``, which continues the
    prompt, the conversation or the text greedily. The frozen weights are in float32. No code of one's own is imported.
    Raises :class:`ConfigError`.
    """
    target = find_device(device)
    if max_new_tokens < 1:
        raise ConfigError.at("--max-new-tokens", f"must be at least 1, got {max_new_tokens}")
    adapter = handed_over(_adapter(Path(path)), check_paths=False)
    config = adapter.config
    NOTHING.check(config, with_rows=False)
    rows = other_rows(config, data, (), answers=False)
    outline = look(config, adapter.labels)
    if outline.problems:
        raise ConfigError(outline.problems)
    assert isinstance(outline, TransformerOutline)  # a network of one's own has no adapter that PEFT reads
    base = load_base(config, outline.name, outline.known, outline.tokenizer, config.seed)
    changed = identity(base.module, outline.tokenizer)
    adapter.check_base(changed, allow_changed=allow_changed, source="rondo predict")
    model = peft.stock_model(base.module, adapter.folder).to(target)
    batch_size = config.evaluation.batch_size
    if isinstance(outline.task, SequenceClassification | ImageClassification):
        return _labels(model, outline.task, rows, batch_size, target)
    assert isinstance(outline.task, CausalLM)
    return _responses(model, outline.task, rows, batch_size, target, max_new_tokens, outline.longest)


def _adapter(path: Path) -> Path:
    if is_adapter(path):
        return path
    directory = RunDirectory.open(path)
    if not directory.adapter.is_dir():
        raise ConfigError.at("RUN_DIR", f"{str(path)!r} has no adapter yet: finish the run with rondo resume")
    if not is_adapter(directory.adapter):
        message = "the run's result is no PEFT adapter, which predictions are made by: load the weights in its folder "
        message += "'adapter' into the network and call it"
        raise ConfigError.at("RUN_DIR", message)
    return directory.adapter


def _labels(
    model: nn.Module,
    task: SequenceClassification | ImageClassification,
    rows: Rows,
    batch_size: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    examples: Sequence[Any] = task.unlabelled(rows)
    predictions: list[dict[str, Any]] = [{}] * len(rows)
    for batch in _batches([e.cost for e in examples], batch_size):
        inputs, _ = task.collate([examples[i] for i in batch])
        largest = model(**on_device(inputs, device)).logits.float().softmax(-1).max(-1)
        for i, probability, label in zip(batch, largest.values.tolist(), largest.indices.tolist(), strict=True):
            predictions[i] = {"label": task.labels[label], "probability": probability}
    return predictions


def _responses(
    model: Any,
    task: CausalLM,
    rows: Rows,
    batch_size: int,
    device: torch.device,
    max_new_tokens: int,
    longest: int,
) -> list[dict[str, Any]]:
    from transformers import GenerationConfig

    prompts = _prompts(task, rows)
    if problems := list(_too_long(prompts, max_new_tokens, longest)):
        raise ConfigError(problems)
    # In place of the model's own, which may draw at random or penalise repetitions.
    model.generation_config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=_end_ids(model, task),
        pad_token_id=task.tokenizer.pad_token_id,
    )
    lengths = list(map(len, prompts))
    predictions: list[dict[str, Any]] = [{}] * len(rows)
    for batch in _batches(lengths, batch_size):
        # Prompts of one length go together, since not every architecture copes with padding before a prompt.
        for length, group in groupby(batch, lengths.__getitem__):
            numbers = list(group)
            ids = torch.tensor([prompts[i] for i in numbers], device=device)
            made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))[:, length:]
            texts = task.tokenizer.batch_decode(made, skip_special_tokens=True)
            for i, text in zip(numbers, texts, strict=True):
                predictions[i] = {"response": text}
    return predictions


def _prompts(task: CausalLM, rows: Rows) -> list[list[int]]:
    """Token ids of every row's prompt. Raises :class:`ConfigError` with rows that are no conversation."""
    prompts, problems = [], []
    for number, row in enumerate(rows):
        try:
            prompts.append(task.prompt_ids(row))
        except ConfigError:
            raise
        except ValueError as reason:
            problems.append(RowProblem(number, task.messages or "", str(reason)))
    refuse(problems)
    return prompts


def _batches(costs: Sequence[int], size: int) -> Iterator[list[int]]:
    """Numbers of rows, ``size`` at a time, by ascending cost."""
    order = sorted(range(len(costs)), key=costs.__getitem__)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _too_long(prompts: Sequence[Sequence[int]], max_new_tokens: int, longest: int) -> Iterator[Problem]:
    """The first prompt that leaves no room for a response."""
    for number, ids in enumerate(prompts):
        if len(ids) + max_new_tokens > longest:
            message = f"{max_new_tokens} after the {len(ids)} tokens of row {number}, and the model takes {longest}"
            yield Problem("--max-new-tokens", f"{message}: lower it, or shorten the row")
            return


def _end_ids(model: Any, task: CausalLM) -> list[int] | None:
    """The tokens that end a response: the model's own, and the tokenizer's, which ends a response in training."""
    known = model.generation_config.eos_token_id
    ends = {*(known if isinstance(known, list) else [known]), task.tokenizer.eos_token_id}
    return sorted(e for e in ends if e is not None) or None
