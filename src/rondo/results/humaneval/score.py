"""HumanEval: a run's model completes functions, and tests say which are right.

Source: Chen et al. (2021), "Evaluating Large Language Models Trained on Code", https://arxiv.org/abs/2107.03374.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.config import task_kinds as tasks
from rondo.data.files.placed import places_of
from rondo.data.files.room import Room
from rondo.data.files.tables import Rows
from rondo.data.sources import read_rows
from rondo.errors import ConfigError, Problem, headed
from rondo.models.forms.generation import Generation
from rondo.models.forms.model import NetworkPredictor
from rondo.results.evaluate import Scored, model_of
from rondo.results.humaneval.sandbox import Trial, Unavailable, attempt, check

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Texts that end a completion (Chen et al., section 2.2 and the paper's own list)."""
TOP_P = 0.95
"""Share of the probability that samples are drawn from (Chen et al., section 2.3)."""
_COLUMNS = ("task_id", "prompt", "entry_point", "test")
_FILE = "--humaneval"


@dataclass(frozen=True)
class HumanEval:
    """Settings of HumanEval.

    ``file``: the problems, with the columns of HumanEval.
    ``samples``: completions per problem; with one it is the likeliest, with more they are drawn at ``temperature``.
    ``allow_execution``: run what the model wrote.
    """

    file: str
    samples: int = 1
    temperature: float = 0.8
    max_new_tokens: int = 384
    allow_execution: bool = False

    def check(self, sandbox: Callable[[], None] = check) -> None:
        """Raises :class:`ConfigError` without the consent to run code, or without what ``sandbox`` tries."""
        problems = []
        if not self.allow_execution:
            message = "code that a model wrote is not run unasked; set this to run it, locked up"
            problems.append(Problem("--allow-execution", f"{message} (Python: allow_execution=True)"))
        if self.samples < 1:
            problems.append(Problem("--samples", f"must be at least 1, got {self.samples}"))
        if self.temperature <= 0:
            problems.append(Problem("--temperature", f"must be above 0, got {self.temperature:g}"))
        if problems:
            raise ConfigError(problems)
        try:
            sandbox()
        except Unavailable as reason:
            raise ConfigError.at(_FILE, f"this machine has no sandbox for code that a model wrote: {reason}") from None


@headed("rondo evaluate")
def evaluate_code(
    path: str | Path,
    how: HumanEval,
    *,
    client: str | None = None,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
    tried: Callable[[int, int], None] = lambda count, of: None,
    attempt: Callable[[Trial], str | None] = attempt,
    sandbox: Callable[[], None] = check,
) -> dict[str, Any]:
    """HumanEval of a run directory, or of a folder that it handed over; for a run of the newcomer's model, or of that
    of ``client``. The other options are those of :func:`rondo.evaluate`.

    The result has ``pass@k``, the numbers of ``problems`` and of completions ``executed``, and under ``completions``
    every completion with its ``reason``, None if it passed. Completions are drawn from the run's seed. ``tried`` is
    told how many completions of how many are tried. ``attempt`` and ``sandbox`` run one, and try that any can be run.
    Raises :class:`ConfigError`.
    """
    how.check(sandbox)
    problems = read_problems(how.file)
    model = model_of(path, client, device, allow_code=allow_code, allow_changed=allow_changed)
    kind = tasks.TABLE.get(model.assembly.config.task.kind)
    if kind is None or not kind.completes:
        raise ConfigError.at(_FILE, "only a causal model of transformers completes code: name the run of one")
    rows = [problem for problem in problems for _ in range(how.samples)]
    completions = [cut(text) for text in _completed(model, how, rows)]
    records = []
    for number, (row, completion) in enumerate(zip(rows, completions, strict=True), 1):
        prompt = _prompt(row)
        trial = Trial(prompt + completion, prompt, row["test"], row["entry_point"])
        try:
            reason = attempt(trial)
        except Unavailable as error:
            raise ConfigError.at(_FILE, f"the sandbox failed: {error}") from None
        records.append({"task_id": row["task_id"], "completion": completion, "reason": reason})
        tried(number, len(rows))
    return {**summary(records), "completions": records}


def read_problems(file: str) -> Rows:
    """The problems. Raises :class:`ConfigError` if the file cannot be read or has no such columns."""
    rows = read_rows(Path(file), _FILE, Room(64, None))
    place = places_of(rows)
    for number, row in enumerate(rows):
        for column in _COLUMNS:
            if not isinstance(row.get(column), str) or not row[column].strip():
                message = f"{place(number)} has no text in column {column!r}: name a file with HumanEval's columns"
                raise ConfigError.at(_FILE, message)
    if not rows:
        raise ConfigError.at(_FILE, f"{file!r} has no rows")
    return rows


def _completed(model: Scored, how: HumanEval, rows: Rows) -> list[str]:
    config = model.assembly.config
    generation = Generation(
        how.max_new_tokens,
        config.evaluation.batch_size,
        temperature=how.temperature if how.samples > 1 else None,
        top_p=TOP_P,
        seed=config.seed,
        stop=STOPS,
        option="--max-new-tokens",
    )
    predictor = NetworkPredictor(model.assembly.model, model.seen, model.base, generation)
    return model.assembly.task.completions([_prompt(row) for row in rows], predictor)


def _prompt(row: Mapping[str, Any]) -> str:
    """A problem's prompt with one line break at its end. The blanks of the next line are the model's to write, as its
    tokens begin with them."""
    return str(row["prompt"]).rstrip("\n") + "\n"


def cut(completion: str) -> str:
    """A completion up to the first text that ends it."""
    places = [place for stop in STOPS if (place := completion.find(stop)) >= 0]
    return completion[: min(places, default=len(completion))]


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``pass@k`` for k = 1, 10, 100 up to the number of samples, and counts."""
    by_task: dict[str, list[bool]] = {}
    for record in records:
        by_task.setdefault(record["task_id"], []).append(record["reason"] is None)
    fewest = min(map(len, by_task.values()))
    scores = {
        f"pass@{k}": sum(pass_at_k(len(p), sum(p), k) for p in by_task.values()) / len(by_task)
        for k in (1, 10, 100)
        if k <= fewest
    }
    return {**scores, "problems": len(by_task), "executed": len(records)}


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimate of the probability that one of ``k`` completions is right, from ``samples`` of which
    ``right`` are: 1 - C(samples - right, k) / C(samples, k) (Chen et al., equation 1)."""
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k} of {samples} samples")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)
