"""Answers read off a model's scores of tokens, and their exact match and F1 as SQuAD's own scripts define them.

Sources: evaluate-v1.1.py (Rajpurkar et al. 2016); evaluate-v2.0.py (Rajpurkar et al. 2018) where questions may have no
answer. The scripts give percentages; these scores are shares.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.language.answering.windows import IGNORED, Question
from rondo.tasks.task import Batch, Scores, Tally, wide

_MOST_SPANS = 2**22
"""Scores of spans that are computed at a time."""


def normalised(answer: str) -> str:
    """``answer`` in lower case, without punctuation, articles and needless white space."""
    kept = "".join(sign for sign in answer.lower() if sign not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def exact_match_and_f1(predicted: str, answers: Sequence[str], *, unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 of the words, each for the true answer that gives the most.

    ``unanswerable``: a question may have no true answer, and the right prediction is then an empty one.
    """
    truths = [normalised(answer) for answer in answers]
    guess = normalised(predicted)
    if unanswerable and not any(truths):
        right = float(not guess)
        return right, right
    if unanswerable:
        truths = [truth for truth in truths if truth]
    return float(guess in truths), max((_f1(guess.split(), truth.split()) for truth in truths), default=0.0)


def _f1(predicted: Sequence[str], true: Sequence[str]) -> float:
    same = sum((Counter(predicted) & Counter(true)).values())
    return 2 * same / (len(predicted) + len(true)) if same else 0.0


def span_losses(output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
    """The mean of the cross-entropies of an answer's first and last token, as
    :meth:`rondo.tasks.task.Task.loss` gives it; output (rows, tokens, 2). Padding has no share in it, and a row
    without a target no loss. Raises ValueError for an output of another shape."""
    if output.dim() != 3 or output.shape[-1] != 2 or len(output) != len(targets["start"]):
        wanted = f"({len(targets['start'])}, tokens, 2)"
        raise ValueError(f"the network's output is {tuple(output.shape)}, and should be {wanted}")
    scores = wide(output)
    padding = torch.arange(scores.shape[1], device=scores.device) >= targets["cost"][:, None]
    scores = scores.masked_fill(padding[:, :, None], -math.inf)
    losses = [
        functional.cross_entropy(scores[:, :, i], targets[end], ignore_index=IGNORED, reduction="none")
        for i, end in enumerate(("start", "end"))
    ]
    return (losses[0] + losses[1]) / 2, (targets["start"] != IGNORED).long()


@dataclass(frozen=True)
class SpanAnswer:
    """A model's answer to a question: text of the context, or an empty one."""

    text: str
    start: int | None
    """The character of the context where it starts; None without an answer."""
    probability: float
    """Its share among all answers that its window allows."""


@dataclass(frozen=True)
class _Candidate:
    """A span of a window. The higher ``rank`` is the better one."""

    rank: tuple[float, int, int]
    """The sum of the scores of first and last token; minus the first token and minus the last: of equals, the earlier
    and shorter one."""
    log_probability: float

    @property
    def score(self) -> float:
        return self.rank[0]

    @property
    def first(self) -> int:
        return -self.rank[1]

    @property
    def last(self) -> int:
        return -self.rank[2]


class AnswerReader:
    """Reads answers off the outputs of windows, which may come in any order.

    A question's answer is the span of at most ``max_tokens`` tokens, in any of its windows, with the largest sum of the
    scores of its first and last token. With ``unanswerable`` it is empty where the token for no answer has a larger sum
    in every window.
    """

    def __init__(self, max_tokens: int, *, unanswerable: bool) -> None:
        self.max_tokens, self.unanswerable = max_tokens, unanswerable
        self._best: dict[int, _Candidate] = {}
        self._nothing: dict[int, tuple[float, float]] = {}
        """The lowest score of no answer over a question's windows, and its logarithmic probability there."""
        self.seen: dict[int, None] = {}

    def add(self, output: Tensor, targets: Batch) -> None:
        """Take the windows of a batch; output (rows, tokens, 2)."""
        scores = output.detach().double().cpu()
        places = {name: targets[name].tolist() for name in ("question", "first", "tokens", "skipped", "nothing")}
        length = min(self.max_tokens, scores.shape[1])
        size = max(1, _MOST_SPANS // (scores.shape[1] * length))
        for start in range(0, len(scores), size):
            rows = range(start, min(start + size, len(scores)))
            spans = _spans(scores[rows.start : rows.stop], places["first"], places["tokens"], rows, length)
            best, place = spans.flatten(1).max(1)
            allowed = torch.logsumexp(spans.flatten(1), 1)
            for i, row in enumerate(rows):
                self._take(
                    places["question"][row],
                    float(scores[row, places["nothing"][row]].sum()),
                    float(best[i]),
                    divmod(int(place[i]), length),
                    float(allowed[i]),
                    places["skipped"][row] - places["first"][row],
                )

    def _take(
        self, number: int, nothing: float, best: float, span: tuple[int, int], allowed: float, shift: int
    ) -> None:
        """Take one window. ``shift``: from places in the window to tokens of the context."""
        self.seen[number] = None
        if math.isnan(nothing) or math.isnan(best):
            return
        total = max(allowed, nothing) + math.log1p(math.exp(-abs(allowed - nothing))) if self.unanswerable else allowed
        if number not in self._nothing or nothing < self._nothing[number][0]:
            self._nothing[number] = (nothing, nothing - total)
        if best > -math.inf:
            first = span[0] + shift
            candidate = _Candidate((best, -first, -(first + span[1])), best - total)
            if number not in self._best or candidate.rank > self._best[number].rank:
                self._best[number] = candidate

    def answer(self, question: Question) -> SpanAnswer:
        """The answer to a question whose windows were all taken."""
        best, nothing = self._best.get(question.number), self._nothing.get(question.number)
        if best is None or (self.unanswerable and nothing is not None and nothing[0] > best.score):
            return SpanAnswer("", None, math.exp(nothing[1]) if nothing is not None and self.unanswerable else 0.0)
        text = question.text(best.first, best.last)
        start = question.spans[2 * best.first] + len(text) - len(text.lstrip())
        return SpanAnswer(text.strip(), start, math.exp(best.log_probability))


def _spans(scores: Tensor, first: Sequence[int], tokens: Sequence[int], rows: range, length: int) -> Tensor:
    """The score of every span, (rows, tokens, length), by its first token and its number of further ones; -inf for
    those that leave the context. ``scores``: (rows, tokens, 2)."""
    place = torch.arange(scores.shape[1])
    begin = torch.tensor([first[row] for row in rows])[:, None]
    end = torch.tensor([first[row] + tokens[row] for row in rows])[:, None]
    inside = (place >= begin) & (place < end)
    starts, ends = scores.masked_fill(~inside[:, :, None], -math.inf).unbind(-1)
    ends = functional.pad(ends, (0, length - 1), value=-math.inf)
    return starts[:, :, None] + ends.unfold(1, length, 1)


class AnswerTally(Tally):
    """A tally of F1, exact match and loss. ``questions``: by number."""

    def __init__(self, reader: AnswerReader, questions: Mapping[int, Question]) -> None:
        self.reader, self.questions = reader, questions
        self.loss, self.windows = 0.0, 0

    def add(self, output: Tensor, targets: Batch) -> None:
        self.reader.add(output, targets)
        losses, counts = span_losses(output, targets)
        self.loss += float(losses.sum())
        self.windows += int(counts.sum())

    def scores(self) -> Scores:
        """F1 and exact match are means over questions, the loss over windows."""
        count, loss = len(self.reader.seen), self.loss / self.windows if self.windows else None
        if count == 0:
            return {"f1": None, "exact_match": None, "loss": None, "examples": 0}
        questions = [self.questions[number] for number in self.reader.seen]
        pairs = [
            exact_match_and_f1(self.reader.answer(q).text, q.answers, unanswerable=self.reader.unanswerable)
            for q in questions
        ]
        return {
            "f1": math.fsum(f1 for _, f1 in pairs) / count,
            "exact_match": math.fsum(exact for exact, _ in pairs) / count,
            "loss": loss,
            "examples": count,
        }
