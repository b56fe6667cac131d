"""Embedding: one model that gives every text a vector, near those of texts that mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from rondo.config.inputs import TaskConfig
from rondo.tasks.language.embedding.pairs import (
    NO_SCORE,
    Passage,
    TextGroup,
    TextGroupStore,
    opening,
    passages,
    pooled,
    similarity_losses,
)
from rondo.tasks.language.embedding.retrieval import EmbeddingTally
from rondo.tasks.language.text import TextExample, TextTask, inputs_of
from rondo.tasks.row_checks import Row, RowProblem, is_missing, number_problem, text_problem
from rondo.tasks.task import Batch, Predictor, Shortcut, batches

SCALE = 20.0
"""Of cosines in the loss, as in sentence-transformers: a temperature of 0.05."""


class Embedding(TextTask):
    """Sentence embedding on an anchor, a positive and any number of negatives, scored by retrieval.

    ``config``: has the columns, and the pooling of the model.

    In training, the other rows of a client's batch are a row's negatives, and never those of another client.
    """

    primary = "recall_at_1"
    higher_is_better = True
    unfit: ClassVar[Mapping[Shortcut, str]] = {
        **TextTask.unfit,
        "prefix": "a row is several texts",
        "targets_only": "the model has no output layer",
    }

    def __init__(self, tokenizer: Any, config: TaskConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.pooling = config.pooling or "mean"
        negative = config.negative or ()
        self.columns = [config.anchor or "", config.positive or ""]
        self.negatives = [negative] if isinstance(negative, str) else list(negative)

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        return cls(tokenizer, config)

    def completed(self, config: TaskConfig) -> TaskConfig:
        known = {"pooling": self.pooling, "unit_length": bool(self.config.unit_length)}
        return config.model_copy(update=known)

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        """Negatives of a row with a score are not read."""
        if config.score is not None and not is_missing(row.get(config.score)) and row[config.score] != "":
            if (problem := number_problem(row, number, config.score)) is not None:
                return problem
            if not -1 <= float(row[config.score]) <= 1:
                reason = f"a score is a cosine, from -1 to 1, and this is {row[config.score]!r:.60}: divide all"
                return RowProblem(number, config.score, reason)
            return None
        negative = config.negative or ()
        columns = [negative] if isinstance(negative, str) else negative
        return next(filter(None, (text_problem(row, number, column) for column in columns)), None)

    def encode(self, rows: Sequence[Row]) -> list[TextGroup]:
        """Texts longer than ``max_length`` tokens are cut."""
        scores, columns = list[float](), list[list[str]]()
        for row in rows:
            value = row.get(self.config.score) if self.config.score is not None else None
            rated = not is_missing(value) and value != ""
            scores.append(float(value) if rated else NO_SCORE)  # type: ignore[arg-type]
            columns.append([*self.columns, *([] if rated else self.negatives)])
        targets = [score for score, names in zip(scores, columns, strict=True) for _ in names]
        texts = [row[name] for row, names in zip(rows, columns, strict=True) for name in names]
        coded = iter(self._coded(texts, targets))
        return [TextGroup(tuple(next(coded) for _ in names)) for names in columns]

    def _coded(self, texts: Sequence[str], targets: Sequence[float]) -> list[TextExample]:
        if not texts:
            return []
        size = self.config.max_length
        coded = self.tokenizer(list(texts), truncation=True, max_length=size)
        segments = coded.get("token_type_ids") or [None] * len(texts)
        full = [i for i, ids in enumerate(coded["input_ids"]) if len(ids) >= size]
        whole = self.tokenizer([texts[i] for i in full], verbose=False)["input_ids"] if full else []
        lost = dict(zip(full, (len(ids) - size for ids in whole), strict=True))
        columns = zip(coded["input_ids"], targets, segments, strict=True)
        return [
            TextExample(tuple(ids), target, None if part is None else tuple(part), lost.get(i, 0))
            for i, (ids, target, part) in enumerate(columns)
        ]

    def sequences(self, example: TextGroup | Passage) -> list[Passage]:
        return passages([example])

    def lengths(self, example: TextGroup | Passage) -> tuple[int, ...]:
        return (example.cost,)

    def trained(self, examples: Sequence[TextGroup | Passage]) -> list[Passage]:
        return passages(examples)

    def scored(self, examples: Sequence[TextGroup]) -> list[Passage]:
        return passages(examples)

    def opening(self, example: Any, size: int) -> Any:
        return opening(example, size)

    def collate(self, examples: Sequence[TextGroup | Passage]) -> tuple[Batch, Batch]:
        """Targets, one per passage: ``mask`` of its tokens, (passages, tokens); ``row``, ``place``, ``name`` and
        ``score``, (passages,)."""
        texts = passages(examples)
        inputs = inputs_of(texts, self.tokenizer.pad_token_id)
        targets = {key: torch.tensor([getattr(text, key) for text in texts]) for key in ("row", "place", "name")}
        score = torch.tensor([text.target for text in texts], dtype=torch.float64)
        return inputs, {**targets, "score": score, "mask": inputs["attention_mask"]}

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """See :func:`rondo.tasks.language.embedding.pairs.similarity_losses`; output (passages, tokens, width)."""
        vectors = pooled(output, targets["mask"], self.pooling)
        return similarity_losses(vectors, targets, self.config.scale or SCALE)

    def tally(self) -> EmbeddingTally:
        return EmbeddingTally(self.pooling)

    def store(self) -> TextGroupStore:
        return TextGroupStore()

    def predictions(self, rows: Sequence[Row], model: Predictor) -> list[dict[str, Any]]:
        """The ``embedding`` of each row's anchor, a list of numbers, of length 1 if the model's are."""
        texts = self._coded([row[self.columns[0]] for row in rows], [NO_SCORE] * len(rows))
        result: list[dict[str, Any]] = [{}] * len(rows)
        for batch in batches([text.cost for text in texts], model.batch_size):
            inputs = inputs_of([texts[i] for i in batch], self.tokenizer.pad_token_id)
            output = model.output(inputs)
            vectors = pooled(output, inputs["attention_mask"].to(output.device), self.pooling)
            vectors = functional.normalize(vectors, dim=-1) if self.config.unit_length else vectors
            for i, vector in zip(batch, vectors.tolist(), strict=True):
                result[i] = {"embedding": vector}
        return result
