"""Extractive question answering: the answer is a span of a context, which may be longer than the model reads."""

from __future__ import annotations

import itertools
import json
import sys
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.tasks.language.answering.answer_scores import AnswerReader, AnswerTally, span_losses
from rondo.tasks.language.answering.windows import IGNORED, Question, Window, WindowStore, row_sizes
from rondo.tasks.language.text import TRIAL_TEXTS, TextTask, inputs_of
from rondo.tasks.row_checks import Row, RowProblem, is_missing
from rondo.tasks.task import Batch, Predictor, batches

_FORMS = 'expected {"text": [...], "answer_start": [...]}, or texts with task.answer_start'


def answers_of(context: str, value: Any, starts: Any, *, separate: bool) -> list[tuple[str, int]]:
    """The answers in ``value``, with the character of ``context`` where each starts.

    ``value`` is SQuAD's ``{"text": [...], "answer_start": [...]}`` as ``datasets`` stores it, or a list of
    ``{"text", "answer_start"}`` as in SQuAD's own files. With ``separate``, it is a text or a list of texts, and
    ``starts`` the start or starts. Each may be JSON, as in a CSV file. An empty cell is no answer.

    Raises :class:`ValueError` with the reason for another form, and for an answer that is not in the context at its
    start.
    """
    if _empty(value) and (not separate or _empty(starts)):
        return []
    if separate:
        starts = _parsed(starts)
        texts = value if isinstance(value, str) and not isinstance(starts, list | tuple) else _parsed(value)
        pair = {"text": texts, "answer_start": starts}
    else:
        value = _parsed(value)
        if isinstance(value, list | tuple) and all(isinstance(answer, Mapping) for answer in value):
            pair = {key: [answer.get(key) for answer in value] for key in ("text", "answer_start")}
        elif isinstance(value, Mapping) and value.keys() >= {"text", "answer_start"}:
            pair = {key: value[key] for key in ("text", "answer_start")}
        else:
            raise ValueError(f"{_FORMS}, got {value!r:.60}")
    texts, places = (
        list(part) if isinstance(part, list | tuple) else [part]
        for part in (_list(pair["text"]), _list(pair["answer_start"]))
    )
    if len(texts) != len(places):
        raise ValueError(f"{len(texts)} answers and {len(places)} starts")
    return [(text, _checked(context, text, place)) for text, place in zip(texts, places, strict=True)]


def _empty(value: Any) -> bool:
    return is_missing(value) or value == ""


def _parsed(value: Any) -> Any:
    """Content of a text read as JSON, and the numbers of an array; anything else as it is."""
    value = _list(value)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f"{_FORMS}, got the text {value!r:.60}, which is not JSON") from None


def _list(value: Any) -> Any:
    """An array's or a NumPy number's values in Python's types; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _checked(context: str, text: Any, value: Any) -> int:
    """The start of an answer. Raises :class:`ValueError` if ``text`` is not in ``context`` there."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"an answer should be a text, and is {text!r:.60}")
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise ValueError(f"the start of {text!r:.60} should be a number of characters, and is {value!r:.60}")
    start = int(value)
    if start >= 0 and context[start : start + len(text)] == text:
        return start
    place = context.find(text)
    where = f"it is at {place}" if place >= 0 else "it is nowhere in the context"
    raise ValueError(f"{text!r:.60} is not at character {start} of the context (counted in characters); {where}")


_MAX_ANSWER = 30
"""Tokens of the longest answer, if ``task.max_answer_tokens`` is left out, as in BERT's and transformers' scripts."""


class QuestionAnswering(TextTask):
    """Extractive question answering, scored by F1 and exact match.

    An example is a window: the question and as much of the context as fits beside it. Windows of a long context overlap
    by ``stride`` tokens. The answer to learn is the first of a row; where a window lacks it, the window's first token
    (CLS, or BOS) stands for no answer.

    ``context``, ``question``, ``answers``: columns.
    ``answer_start``: the column with the answers' starts, if they are not with the answers.
    ``stride``: tokens that neighbouring windows share.
    ``max_answer_tokens``: most tokens of a predicted answer.
    ``unanswerable``: whether a question may have no answer.
    """

    primary = "f1"
    higher_is_better = True

    def __init__(
        self,
        tokenizer: Any,
        context: str,
        question: str,
        answers: str,
        answer_start: str | None,
        *,
        max_length: int,
        stride: int,
        max_answer_tokens: int,
        unanswerable: bool,
    ) -> None:
        self.tokenizer, self.max_length, self.stride = tokenizer, max_length, stride
        self.context, self.question, self.answers, self.answer_start = context, question, answers, answer_start
        self.max_answer_tokens, self.unanswerable = max_answer_tokens, unanswerable
        self._numbers = itertools.count()
        self._questions: weakref.WeakValueDictionary[int, Question] = weakref.WeakValueDictionary()
        """Questions by number, for as long as an example has them: targets are tensors and hold no text."""

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """Raises :class:`ConfigError` for a tokenizer that does not tell which characters a token stands for."""
        if not getattr(tokenizer, "is_fast", False):
            message = "its tokenizer does not tell a token's characters (no fast tokenizer), by which an answer is "
            raise ConfigError.at("model.name", f"{message}found: name another model")
        return cls(
            tokenizer,
            config.context or "",
            config.question or "",
            config.answers or "",
            config.answer_start,
            max_length=config.max_length,
            stride=config.max_length // 4 if config.stride is None else config.stride,
            max_answer_tokens=config.max_answer_tokens or _MAX_ANSWER,
            unanswerable=config.unanswerable,
        )

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        if config.answers is None or config.context is None:
            return None
        separate = config.answer_start is not None
        starts = row[config.answer_start] if config.answer_start is not None else None
        try:
            answers = answers_of(row[config.context], row[config.answers], starts, separate=separate)
        except ValueError as error:
            return RowProblem(number, config.answers, str(error))
        if not answers and not config.unanswerable:
            reason = "no answer; if questions may have none, set task.unanswerable = true"
            return RowProblem(number, config.answers, reason)
        return None

    def encode(self, rows: Sequence[Row]) -> list[Window]:
        """A row gives one window or more, side by side. A question is cut to a quarter of ``max_length``. A row whose
        answer no window holds whole is scored and not learned."""
        answers = [self._answers(row) for row in rows]
        return self._windows(rows, answers)

    def unlabelled(self, rows: Sequence[Row]) -> list[Window]:
        return self._windows(rows, [[]] * len(rows))

    def row_sizes(self, examples: Sequence[Window]) -> list[int]:
        return row_sizes(examples)

    def _answers(self, row: Row) -> list[tuple[str, int]]:
        starts = row[self.answer_start] if self.answer_start is not None else None
        return answers_of(row[self.context], row[self.answers], starts, separate=self.answer_start is not None)

    def _windows(self, rows: Sequence[Row], answers: Sequence[list[tuple[str, int]]]) -> list[Window]:
        if not rows:
            return []
        questions, lost = zip(*self._short_questions([row[self.question] for row in rows]), strict=True)
        contexts = [sys.intern(str(row[self.context])) for row in rows]  # several questions have one context
        coded = self.tokenizer(
            list(questions),
            contexts,
            truncation="only_second",
            max_length=self.max_length,
            stride=self.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        windows: list[Window] = []
        by_row = itertools.groupby(range(len(coded["input_ids"])), coded["overflow_to_sample_mapping"].__getitem__)
        for row, numbers in by_row:
            windows += self._of_row(coded, list(numbers), contexts[row], answers[row], lost[row])
        return windows

    def _short_questions(self, questions: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Each question, cut to a quarter of ``max_length``, and the number of its tokens that are lost. Without the
        cut a long one would leave the context no room."""
        room = self.max_length // 4
        coded = self._alone(list(questions))
        for text, ids, offsets in zip(questions, coded["input_ids"], coded["offset_mapping"], strict=True):
            size, end = len(ids), min(room, len(ids))
            while size > room and end > 0:  # the start of a text may have more tokens than the start of its tokens
                text = text[: offsets[end - 1][1]]
                size, end = len(self._alone([text])["input_ids"][0]), end - 1
            yield text, len(ids) - size if len(ids) > room else 0

    def _alone(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)

    def _of_row(
        self, coded: Any, numbers: list[int], context: str, answers: list[tuple[str, int]], lost: int
    ) -> list[Window]:
        """The windows of a row, from the beginning of its context to the end. ``numbers``: theirs in ``coded``."""
        if self.tokenizer.truncation_side == "left":
            numbers = numbers[::-1]
        ranges = [_context(coded.sequence_ids(number)) for number in numbers]
        spans, skipped = array("i"), list[int]()
        for number, inside in zip(numbers, ranges, strict=True):
            shared = self.stride if skipped else 0  # with the window before it
            skipped.append(len(spans) // 2 - shared)
            for place in inside[shared:]:
                spans.extend(coded["offset_mapping"][number][place])
        question = Question(next(self._numbers), context, tuple(text for text, _ in answers), spans)
        self._questions[question.number] = question
        target = _tokens(spans, *answers[0]) if answers else None
        windows, held = [], not answers
        for number, inside, before in zip(numbers, ranges, skipped, strict=True):
            ids = tuple(coded["input_ids"][number])
            nothing = ids.index(self.tokenizer.cls_token_id) if self.tokenizer.cls_token_id in ids else 0
            places = (nothing, nothing)
            if target is not None and before <= target[0] and target[1] < before + len(inside):
                places = (inside.start + target[0] - before, inside.start + target[1] - before)
                held = True
            segments = coded["token_type_ids"][number] if "token_type_ids" in coded else None
            windows.append(
                Window(
                    ids,
                    question,
                    inside.start,
                    len(inside),
                    before,
                    nothing,
                    places,
                    tuple(segments) if segments is not None else None,
                    lost,
                )
            )
        return windows if held else [replace(w, target=(IGNORED, IGNORED)) for w in windows]

    def collate(self, examples: Sequence[Window]) -> tuple[Batch, Batch]:
        """All targets are (rows,):

        ``start``, ``end``: places of the answer's first and last token.
        ``cost``: tokens, without padding.
        ``question``, ``first``, ``tokens``, ``skipped``, ``nothing``: as in :class:`Window`, for the scores.
        """
        targets = {
            "start": [e.target[0] for e in examples],
            "end": [e.target[1] for e in examples],
            "cost": [e.cost for e in examples],
            "question": [e.question.number for e in examples],
            **{name: [getattr(e, name) for e in examples] for name in ("first", "tokens", "skipped", "nothing")},
        }
        inputs = inputs_of(examples, self.tokenizer.pad_token_id)
        return inputs, {name: torch.tensor(values) for name, values in targets.items()}

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """The mean of two cross-entropies over a window's tokens, of the answer's first and of its last, one target per
        window; output (rows, tokens, 2)."""
        return span_losses(output, targets)

    def reader(self) -> AnswerReader:
        return AnswerReader(self.max_answer_tokens, unanswerable=self.unanswerable)

    def predictions(self, rows: Sequence[Row], model: Predictor) -> list[dict[str, Any]]:
        """The ``answer`` to each row's question, its ``probability`` among the answers that its window allows, and
        ``answer_start``, its character in the context or None."""
        windows, reader = self.unlabelled(rows), self.reader()
        for batch in batches([w.cost for w in windows], model.batch_size):
            inputs, targets = self.collate([windows[i] for i in batch])
            reader.add(model.output(inputs), targets)
        answers = [reader.answer(question) for question in dict.fromkeys(w.question for w in windows)]
        return [{"answer": a.text, "probability": a.probability, "answer_start": a.start} for a in answers]

    def trial_batch(self) -> tuple[Batch, Tensor | None]:
        """Pairs of short texts, by whose separators Longformer tells the question; outputs at padding mean nothing."""
        inputs = dict(self.tokenizer(list(TRIAL_TEXTS), list(TRIAL_TEXTS), padding=True, return_tensors="pt"))
        return inputs, inputs["attention_mask"].bool()

    def tally(self) -> AnswerTally:
        return AnswerTally(self.reader(), self._questions)

    def store(self) -> WindowStore:
        return WindowStore()


def _context(sequence_ids: Sequence[int | None]) -> range:
    """The places of the context's tokens in a window; an empty range where it has none."""
    places = [place for place, part in enumerate(sequence_ids) if part == 1]
    return range(places[0], places[-1] + 1) if places else range(0)


def _tokens(spans: Sequence[int], text: str, start: int) -> tuple[int, int] | None:
    """The first and the last token of a context that have a character of ``text``, which is at character ``start``,
    without the white space around it; None where no token has one. ``spans``: as in :class:`Question`."""
    first = start + len(text) - len(text.lstrip())
    end = start + len(text.rstrip())
    touching = [
        token for token in range(len(spans) // 2) if max(spans[2 * token], first) < min(spans[2 * token + 1], end)
    ]
    return (touching[0], touching[-1]) if touching else None
