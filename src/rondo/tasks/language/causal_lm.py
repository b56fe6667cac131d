"""Causal language modelling on plain text, or on instructions or conversations with the loss on the answers only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Self

from torch.nn import functional

from rondo.config.inputs import TaskConfig
from rondo.tasks.language import conversation
from rondo.tasks.language.conversation import Frame, frame_of
from rondo.tasks.language.language_model import IGNORED, LanguageModel
from rondo.tasks.language.text import TextExample, inputs_of, pad, text_ids, without
from rondo.tasks.row_checks import Row, RowProblem
from rondo.tasks.task import AnswerEnd, Batch, Predictor


class CausalLM(LanguageModel):
    """Causal language modelling on ``text``, on ``prompt`` and ``response``, or on ``messages``.

    ``text``: one column of plain text.
    ``prompt``: columns joined by ``separator``, or by a blank line without one; empty ones are left out.
    ``response``: the response column. Only the response, and the end token after it, have a loss.
    ``messages``: a column of conversations (:mod:`rondo.tasks.language.conversation`). Only the answers have a loss.

    With a chat template the prompt is the user's turn and the response the assistant's. Without one the prompt ends
    with ``separator``, or with a newline without one.

    ``today``: the date for a chat template that prints today's, as YYYY-MM-DD; left out, that of the clock.
    """

    ahead = 1

    def __init__(
        self,
        tokenizer: Any,
        text: str | None,
        prompt: Sequence[str],
        response: str | None,
        max_length: int,
        *,
        messages: str | None = None,
        separator: str | None = None,
        today: str | None = None,
    ) -> None:
        super().__init__(tokenizer, prompt, response, max_length, separator)
        self.text, self.messages = text, messages
        self.today = None
        """The date that the chat template prints; None if it prints none."""
        if text is None and conversation.tells_the_date(tokenizer):
            self.today = today or date.today().isoformat()
        self.before_response = "\n" if separator is None else separator

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        text = config.text if isinstance(config.text, str) else None
        prompt = [config.prompt] if isinstance(config.prompt, str) else list(config.prompt or ())
        return cls(
            tokenizer,
            text,
            prompt,
            config.response,
            config.max_length,
            messages=config.messages,
            separator=config.separator,
            today=config.today,
        )

    def completed(self, config: TaskConfig) -> TaskConfig:
        """The date, if the chat template prints it."""
        return config if config.today is not None else config.model_copy(update={"today": self.today})

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        if config.messages is not None:
            try:
                conversation.turns(row[config.messages])
            except ValueError as reason:
                return RowProblem(number, config.messages, str(reason))
        return None

    def encode(self, rows: Sequence[Row]) -> list[TextExample]:
        """Rows are cut to ``max_length`` tokens. A row that loses its whole response to the cut has no target and is
        left out."""
        examples = []
        for row in rows:
            whole, learned = self._ids(row)
            ids = whole[: self.max_length]
            target = tuple(token if has_loss else IGNORED for token, has_loss in zip(ids, learned, strict=False))
            # Targets are shifted by one, so the first token is never predicted.
            if any(t != IGNORED for t in target[1:]):
                examples.append(TextExample(tuple(ids), target, lost=len(whole) - len(ids)))
        return examples

    def _ids(self, row: Row) -> tuple[list[int], list[bool]]:
        """A row's token ids, and whether each has a loss."""
        if self.messages is not None:
            return conversation.encoded(self.tokenizer, conversation.turns(row[self.messages]), self.today)
        ids, start = self._text_ids(row)
        return ids, [place >= start for place in range(len(ids))]

    def _text_ids(self, row: Row) -> tuple[list[int], int]:
        """The token ids of a row of texts, and the position where the loss starts."""
        end_ids = self.end_ids
        if self.text is not None:
            ids = self.tokenizer(row[self.text])["input_ids"]
            return ids + [e for e in end_ids if ids[-1:] != end_ids], 0
        question = self._joined(row)
        if self.tokenizer.chat_template:
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": row[self.response]}]
            opening = self._opening(turns[:1])
            chat = conversation.rendered(self.tokenizer, turns, self.today, tokenize=False)
            # Some templates (reasoning models) open a section in the generation prompt that a finished turn lacks.
            rest = chat[len(opening) :] if chat.startswith(opening) else None
            if rest is None:
                rest = row[self.response] + conversation.closing(self.tokenizer, turns[:1], self.today)
            prompt_ids = text_ids(self.tokenizer, opening)
            return prompt_ids + text_ids(self.tokenizer, rest), len(prompt_ids)
        prompt_ids = self.begun(question + self.before_response)
        return prompt_ids + text_ids(self.tokenizer, row[self.response]) + end_ids, len(prompt_ids)

    def _opening(self, turns: Sequence[conversation.Turn]) -> str:
        """The text of ``turns`` by the chat template, and of the generation prompt."""
        text: str = conversation.rendered(self.tokenizer, turns, self.today, tokenize=False, add_generation_prompt=True)
        return text

    @property
    def answer_end(self) -> AnswerEnd:
        """With what the chat template puts behind an answer: its first token that is no part of a text, such as
        ``<|im_end|>``, which a base model's own settings do not name."""
        end = super().answer_end
        if self.text is not None or not self.tokenizer.chat_template:
            return end
        return conversation.answer_end(self.tokenizer, end, self.today)

    def begun(self, text: str) -> list[int]:
        """The token ids of a text that goes on: without what the tokenizer puts behind every text."""
        return without(list(self.tokenizer(text)["input_ids"]), self.ending)

    def prompt_ids(self, row: Row) -> list[int]:
        """A row's prompt, its conversation up to the last turn by the user, or its plain text without the end token."""
        if self.messages is not None:
            return conversation.prompt_ids(self.tokenizer, row[self.messages], self.today)
        if self.text is not None:
            return self.begun(row[self.text])
        ids, start = self._text_ids({**row, self.response: ""})
        return ids[:start]

    def prompt_and_answer(self, example: TextExample) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of all before the last answer in ``example``, and of that answer. Plain text, which is no answer
        to anything, is cut in its middle."""
        learned = [t != IGNORED for t in example.target] if isinstance(example.target, tuple) else []
        end = max((place + 1 for place, is_learned in enumerate(learned) if is_learned), default=0)
        start = max((place + 1 for place, is_learned in enumerate(learned[:end]) if not is_learned), default=0)
        if start == 0:
            start, end = (len(example.ids) + 1) // 2, len(example.ids)
        return example.ids[:start], example.ids[start:end]

    def shown(self, example: TextExample) -> tuple[str, str]:
        """The prompt and the answer, without the words of a chat template."""
        prompt, answer = super().shown(example)
        if (frame := self._frame) is None:
            return prompt, answer
        plain = frame.turns(self.tokenizer.decode(list(self.prompt_and_answer(example)[0])))
        return prompt if plain is None else plain, frame.answer(answer)

    def _said(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """Without the words of a chat template."""
        texts, frame = super()._said(answers), self._frame
        return texts if frame is None else [frame.answer(text) for text in texts]

    @property
    def _frame(self) -> Frame | None:
        return frame_of(self.tokenizer, self.today) if self.text is None and self.tokenizer.chat_template else None

    def completions(self, texts: Sequence[str], model: Predictor) -> list[str]:
        prompts = [self.begun(text) for text in texts]
        return continuations(self.tokenizer, prompts, model.generated(prompts))

    def opening(self, example: TextExample, size: int) -> TextExample:
        """Every token is a target: a prompt alone would have no loss."""
        return TextExample(example.ids[:size], example.ids[:size])

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        """Targets:
        ``labels``: (rows, tokens), padding ignored.
        ``places``: the tokens, counted over all rows, whose next token has a loss.
        """
        targets = [e.target if isinstance(e.target, tuple) else (int(e.target),) for e in examples]
        labels = pad(targets, IGNORED)
        # Find the places here, on the CPU: nonzero would have to wait for a GPU.
        followed = functional.pad(labels[:, 1:] != IGNORED, (0, 1))
        inputs = inputs_of(examples, self.tokenizer.pad_token_id)
        return inputs, {"labels": labels, "places": followed.flatten().nonzero().flatten()}


def continuations(tokenizer: Any, prompts: Sequence[Sequence[int]], made: Sequence[Sequence[int]]) -> list[str]:
    """The texts of ``made`` as they go on behind their prompts. Alone, some tokenizers (Llama's) read no blank at a
    text's start."""
    before = tokenizer.batch_decode([list(p) for p in prompts], skip_special_tokens=True)
    whole = tokenizer.batch_decode([[*p, *m] for p, m in zip(prompts, made, strict=True)], skip_special_tokens=True)
    alone = tokenizer.batch_decode([list(m) for m in made], skip_special_tokens=True)
    texts = zip(before, whole, alone, strict=True)
    return [text[len(start) :] if text.startswith(start) else bare for start, text, bare in texts]
