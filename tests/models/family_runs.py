"""Small models of all families, opened and trained as a run does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from families import LONGEST, WORDS, Kind
from torch import Tensor

from rondo.algorithm import Client, Round
from rondo.config import RunConfig, load
from rondo.engine.client.trainer import CohortTrainer
from rondo.errors import ConfigError
from rondo.models.forms.outline import look
from rondo.models.forms.transformer import AdaptedTransformer
from rondo.models.forms.trial import try_out
from rondo.models.shortcuts.prefix import Prefix, States
from rondo.params import Params
from rondo.tasks.task import Task
from small_runs import write_rows

CPU = torch.device("cpu")
LABELS = ("neg", "pos")
TAGS = ("O", "B-A", "I-A")

WORDS_PER_ROW = ((7, 3), (LONGEST - 2,), (11, 5, 16))
"""Of each client's rows. The longest one has as many tokens as the model takes."""

ANSWER_WORDS = (4, 9, 6, LONGEST - 2, 3, 7)
"""Of each row's answer, over all clients."""


COLUMNS: dict[Kind, dict[str, Any]] = {
    "sequence-classification": {"text": "text", "label": "label"},
    "several-labels": {"text": "text", "label": "labels", "multi_label": True},
    "reward": {},
    "token-classification": {"tokens": "tokens", "tags": "tags"},
    "question-answering": {"context": "context", "question": "question", "answers": "answers"},
    # With its own scale of 20 a random model's losses are near zero, where rounding is large beside them.
    "embedding": {"anchor": "question", "positive": "answer", "negative": "rejected", "scale": 1.0},
    "causal-lm": {"text": "text"},
    "preference": {},
    "seq2seq-lm": {"prompt": "text", "response": "answer"},
    "image-classification": {"image": "image", "image_shape": [16, 16, 3], "label": "label"},
}
"""Keys of ``[task]``."""


def configured(folder: Path, kind: Kind, layers: Any, **adapter: Any) -> RunConfig:
    named = "sequence-classification" if kind == "several-labels" else kind
    longest = {} if kind == "image-classification" else {"max_length": LONGEST}
    return load(
        {
            "algorithm": {"name": "fedit"},
            "adapter": {"r": 2, "lora_alpha": 4, "target_modules": layers, **adapter},
            "model": {"name": str(folder)},
            "task": {"kind": named, **COLUMNS[kind], **longest},
            "data": {"source": str(write_rows(folder / "rows.csv", [{"text": "w1", "label": "pos", "answer": "w2"}]))},
            "partition": {"kind": "iid", "clients": 1},
            "train": {"optimizer": "sgd", "lr": 0.1, "batch_size": 4, "local_epochs": 1, "precision": "exact"},
        }
    )


def sentences() -> tuple[list[dict[str, Any]], ...]:
    """The rows of three clients."""
    count, clients = 0, []
    for lengths in WORDS_PER_ROW:
        texts = []
        for length in lengths:
            count += 1
            words, answer = (
                " ".join(WORDS[(17 * count + step * i) % len(WORDS)] for i in range(size))
                for step, size in ((5, length), (7, ANSWER_WORDS[count - 1]))
            )
            row = {"text": words, "label": LABELS[count % 2], "labels": LABELS[: 1 + count % 2], "answer": answer}
            tagged = {"tokens": words.split(), "tags": [("O", "B-A")[i % 2] for i in range(length)]}
            texts.append({**row, **tagged, **_asked(words, answer)})
        clients.append(texts)
    return tuple(clients)


def _asked(words: str, answer: str) -> dict[str, Any]:
    """Columns of questions and of pairs of answers, of the words of a row. Each fits a model's longest row."""
    some, others = words.split()[: LONGEST // 2], answer.split()[: LONGEST // 4]
    place = " ".join(some).rindex(some[2])
    return {
        "context": " ".join(some),
        "question": " ".join(others[:4]),
        "answers": {"text": [some[2]], "answer_start": [place]},
        "prompt": some[0],  # what both answers have would cancel in their gradients, down to rounding
        "chosen": f" {' '.join(others)}",
        "rejected": f" {' '.join(some[1:])}",
    }


def pictures() -> tuple[list[dict[str, Any]], ...]:
    """As many rows of pictures."""
    draw, lengths = torch.Generator().manual_seed(0), WORDS_PER_ROW
    return tuple(
        [
            {"image": torch.randint(256, (16, 16, 3), generator=draw).to(torch.uint8).numpy(), "label": LABELS[n % 2]}
            for n in rows
        ]
        for rows in lengths
    )


def classes(config: RunConfig) -> tuple[str, ...]:
    """The names of the classes; none of a language model."""
    return TAGS if config.task.tags else LABELS if config.task.label else ()


def encoded(task: Task) -> tuple[list[Any], ...]:
    """The examples of three clients."""
    rows = sentences() if task.padded else pictures()
    return tuple(list(task.encode(of_client)) for of_client in rows)


def opened(config: RunConfig) -> tuple[AdaptedTransformer, Task, tuple[list[Any], ...]]:
    """The model, its task and the clients' examples, after the trial. Raises :class:`ConfigError`."""
    outline = look(config, classes(config))
    if outline.problems:
        raise ConfigError(list(outline.problems))
    model = outline.load(config, CPU)
    assert isinstance(model, AdaptedTransformer)
    examples = encoded(outline.task)
    try_out(config.model.name, model.network, outline.task, [e for client in examples for e in client])
    return model, outline.task, examples


def trained(
    model: AdaptedTransformer,
    task: Task,
    config: RunConfig,
    examples: Sequence[Sequence[Any]],
    params: Params,
    numbers: Any,
    prefix: Prefix | None = None,
    states: States | None = None,
) -> Params:
    """The tensors of some clients after a round, with a client axis."""
    clients = tuple(Client(f"c{k}", len(examples[k])) for k in numbers)
    trainer = CohortTrainer(
        model.network, task, clients, tuple(examples[k] for k in numbers), Round(0, 1, 0, 3), config.train,
        config.clients, {}, prefix, states,
    )  # fmt: skip
    return trainer.fit(params).params


def drawn(model: AdaptedTransformer, seed: int) -> Params:
    """One client's tensors, none of them zero."""
    g = torch.Generator().manual_seed(seed)
    return {n: t + 0.3 * torch.randn(t.shape, generator=g) for n, t in model.network.initial.items()}


def assert_close(found: Tensor, expected: Tensor, allowed: float) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= allowed
