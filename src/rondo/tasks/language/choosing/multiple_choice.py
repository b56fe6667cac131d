"""Multiple choice with a language model: which of a row's choices is the likeliest after its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.params import on_device
from rondo.tasks.language import conversation
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.choosing.choices import (
    LETTERS,
    Choice,
    ChoiceExample,
    ChoiceStore,
    choices_of,
    first_mentioned,
    right_of,
)
from rondo.tasks.language.language_model import IGNORED
from rondo.tasks.language.text import TextExample, text_ids
from rondo.tasks.row_checks import Row, RowProblem, UnusableRows, value_problem
from rondo.tasks.task import Batch, Predictor, Scores, Tally, batches


class MultipleChoice(CausalLM):
    """Multiple choice on ``prompt``, ``choices`` and ``answer``.

    Training has a loss on the right choice's text after the prompt, and on the end token. A choice is scored by the
    log-probability of its tokens after the prompt, without the end token.

    ``choices``: a column with lists of texts or with texts that end in them, or one column per choice.
    ``answer``: the column with the right choice's text, letter or number; ``answer_is`` says which.
    ``answer_text``: the text of an answer, with ``{}`` in place of the choice.
    ``letters``: list the choices below the question, ``A. ...``, and answer by letter.

    Prompt and choice are divided into tokens as lm-eval does: together, with the blanks between them given to the
    choice. A prompt that is too long loses its beginning.
    """

    primary = "accuracy_likelihood"
    higher_is_better = True

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[str],
        choices: str | Sequence[str],
        answer: str | None,
        max_length: int,
        *,
        separator: str | None = None,
        answer_is: str | None = None,
        answer_text: str = "{}",
        letters: bool = False,
        today: str | None = None,
    ) -> None:
        super().__init__(tokenizer, None, prompt, None, max_length, separator=separator, today=today)
        self.before_choice, self.after_choice = answer_text.split("{}")
        self.choices, self.answer, self.answer_is, self.letters = choices, answer, answer_is, letters

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        prompt = [config.prompt] if isinstance(config.prompt, str) else list(config.prompt or ())
        return cls(
            tokenizer,
            prompt,
            config.choices or [],
            config.answer,
            config.max_length,
            separator=config.separator,
            answer_is=config.answer_is,
            answer_text=config.answer_text or "{}",
            letters=bool(config.letters),
            today=config.today,
        )

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        column = config.choices or []
        name = column if isinstance(column, str) else column[0]
        try:
            choices = choices_of(row, column)
            _must_have_letters(choices, bool(config.letters))
            if config.answer is not None:
                name = config.answer
                if (missing := value_problem(row, number, name)) is not None:
                    return missing
                right_of(row[name], choices, config.answer_is)
        except ValueError as reason:
            return RowProblem(number, name, str(reason))
        return None

    def encode(self, rows: Sequence[Row]) -> list[TextExample]:
        """Rows of which a choice does not fit into ``max_length`` tokens are left out."""
        return [example for row in rows if (example := self._example(row, self.answer)) is not None]

    def predictions(self, rows: Sequence[Row], model: Predictor) -> list[dict[str, Any]]:
        """The likeliest ``choice`` and its ``probability`` among the row's choices. A choice that does not fit makes
        its row unusable."""
        examples, problems = [], []
        for number, row in enumerate(rows):
            if (example := self._example(row, None)) is not None:
                examples.append(example)
            else:
                reason = f"a choice does not fit into task.max_length = {self.max_length} tokens"
                problems.append(RowProblem(number, self._column, reason))
        if problems:
            raise UnusableRows(problems)
        parts, texts = self.scored(examples), [choices_of(row, self.choices) for row in rows]
        likelihoods = [torch.full((len(choices),), -math.inf, dtype=torch.float64) for choices in texts]
        for batch in batches([part.cost for part in parts], model.batch_size):
            inputs, targets = self.collate([parts[i] for i in batch])
            output = model.output(inputs)
            losses, _ = self.loss(output, on_device(targets, output.device))
            for i, loss in zip(batch, losses.tolist(), strict=True):
                likelihoods[parts[i].row][parts[i].place] = -loss
        chosen = [(int(row.argmax()), row.softmax(-1)) for row in likelihoods]
        return [{"choice": t[i], "probability": float(p[i])} for t, (i, p) in zip(texts, chosen, strict=True)]

    @property
    def _column(self) -> str:
        """The column of the choices, or the first of them."""
        return self.choices if isinstance(self.choices, str) else self.choices[0]

    def _example(self, row: Row, answer: str | None) -> ChoiceExample | None:
        texts = choices_of(row, self.choices)
        _must_have_letters(texts, self.letters)
        right = 0 if answer is None else right_of(row[answer], texts, self.answer_is)
        names = LETTERS[: len(texts)] if self.letters else texts
        said = [self.before_choice + name + self.after_choice for name in names]
        prompt, choices, end = self._ids_of(self._question(row, texts), said, right)
        room = self.max_length - max(map(len, choices)) - len(end)
        if room < 1:
            return None
        kept = prompt[-room:]
        answered = choices[right] + end
        return ChoiceExample(
            tuple(kept + answered),
            (IGNORED,) * len(kept) + tuple(answered),
            lost=len(prompt) - len(kept),
            prompt=len(kept),
            choices=tuple(map(tuple, choices)),
            sizes=tuple(len(text.encode()) for text in said),
            right=right,
        )

    def _question(self, row: Row, texts: Sequence[str]) -> str:
        question = self._joined(row)
        if not self.letters:
            return question
        listed = (f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
        return "\n".join([question, *listed, "Answer:"])

    def _ids_of(self, question: str, said: Sequence[str], right: int) -> tuple[list[int], list[list[int]], list[int]]:
        """Token ids of the prompt, of every choice, and of the end of an answer."""
        chat = bool(self.tokenizer.chat_template)
        if chat:
            turns = [{"role": "user", "content": question}]
            opening = self._opening(turns)
            end = text_ids(self.tokenizer, conversation.closing(self.tokenizer, turns, self.today))
        else:
            opening = question + (" " if self.letters else self.before_response)
            end = self.end_ids
        bare = opening.rstrip()
        blanks = opening[len(bare) :]
        coded = self.begun if not chat else partial(text_ids, self.tokenizer)
        prompt = coded(bare)
        choices = [coded(bare + blanks + text)[len(prompt) :] for text in said]
        # A tokenizer may have one token for the end of the prompt and all of a choice.
        alone = (text_ids(self.tokenizer, text) for text in said)
        return prompt, [choice or bare for choice, bare in zip(choices, alone, strict=True)], end

    def scored(self, examples: Sequence[Any]) -> Sequence[Choice]:
        return [part for row, example in enumerate(examples) for part in example.parts(row, IGNORED)]

    def prompt_and_answer(self, example: TextExample) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert isinstance(example, ChoiceExample)
        return example.ids[: example.prompt], example.choices[example.right]

    def scores_of_answers(self, examples: Sequence[Any], answers: Sequence[str]) -> Scores:
        """``accuracy_generation``: the share of generated answers in which the right choice is the first one named
        (:func:`rondo.tasks.language.choosing.choices.first_mentioned`)."""
        hits = 0
        for example, answer in zip(examples, answers, strict=True):
            said = self.tokenizer.batch_decode(list(example.choices), skip_special_tokens=True)
            before, after = self.before_choice.strip(), self.after_choice.strip()
            texts = [text.strip().removeprefix(before).removesuffix(after).strip() for text in said]
            hits += first_mentioned(answer, texts) == example.right
        return {"accuracy_generation": hits / len(answers) if answers else None}

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        """Targets of choices to score also have the number of their ``row``, the ``place`` in it, whether each is
        ``right``, and the ``size`` of its text."""
        inputs, targets = super().collate(examples)
        choices = [e for e in examples if isinstance(e, Choice)]
        if not choices:
            return inputs, targets
        names = ("row", "place", "right", "size")
        return inputs, {**targets, **{n: torch.tensor([int(getattr(c, n)) for c in choices]) for n in names}}

    def tally(self) -> _Tally:  # type: ignore[override]
        """An empty tally of accuracy by likelihood, as it is and per byte of the choice's text, and of the right
        choices' loss per token."""
        return _Tally(self)

    def store(self) -> ChoiceStore:
        return ChoiceStore()


def _must_have_letters(choices: Sequence[str], letters: bool) -> None:
    """Raise ValueError for choices that are answered by ``letters`` and more than these."""
    if letters and len(choices) > len(LETTERS):
        raise ValueError(f"{len(choices)} choices, and only {len(LETTERS)} letters")


class _Tally(Tally):
    def __init__(self, task: MultipleChoice) -> None:
        self.task = task
        self.rows: dict[int, dict[int, tuple[float, int, bool]]] = {}
        """Figures of every choice by its place: its log-probability, its size, and whether it is right."""
        self.loss, self.tokens = 0.0, 0

    def add(self, output: Tensor, targets: Batch) -> None:
        losses, counts = (part.tolist() for part in self.task.loss(output, targets))
        columns = (losses, counts, *(targets[n].tolist() for n in ("row", "place", "size", "right")))
        for loss, count, row, place, size, right in zip(*columns, strict=True):
            self.rows.setdefault(row, {})[place] = (-loss, size, bool(right))
            if right:
                self.loss, self.tokens = self.loss + loss, self.tokens + count

    def scores(self) -> Scores:
        count = len(self.rows)
        rows = [[row[place] for place in sorted(row)] for row in self.rows.values()]
        if not count or any(math.isnan(choice[0]) for row in rows for choice in row):
            return {"accuracy_likelihood": None, "accuracy_normalised": None, "loss": None, "examples": count}
        plain = sum(max(row, key=lambda choice: choice[0])[2] for row in rows)
        per_byte = sum(max(row, key=lambda choice: choice[0] / choice[1])[2] for row in rows)
        return {
            "accuracy_likelihood": plain / count,
            "accuracy_normalised": per_byte / count,
            "loss": self.loss / self.tokens,
            "examples": count,
        }
