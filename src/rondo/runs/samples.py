"""Generated answers to test rows, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.algorithm import Round
from rondo.engine.scoring import Scorer
from rondo.errors import ConfigError
from rondo.models.forms.generation import Generation, answers
from rondo.models.forms.model import Model
from rondo.models.forms.transformer import Transformer
from rondo.models.networks.network import Base
from rondo.models.shortcuts.target_logits import put_back
from rondo.params import Params
from rondo.runs.assemble import Assembly
from rondo.tasks.language.language_model import LanguageModel


def check_samples(assembly: Assembly) -> None:
    """Raise :class:`ConfigError` if ``evaluation.generate`` asks for answers that the run cannot give."""
    if not assembly.config.evaluation.generate:
        return
    reason = None
    if not generates(assembly.model, assembly.task):
        reason = "only a language model of transformers generates: remove it"
    elif not assembly.population.test:
        reason = "there is no test set to answer: name data.test_source, or remove it"
    if reason is not None:
        raise ConfigError.at("evaluation.generate", reason)


def generated(assembly: Assembly, scorer: Scorer, state: Any, round: Round) -> list[str]:
    """Answers of the newcomer's model before ``round`` to ``evaluation.generate`` test rows; empty if none is asked
    for."""
    if not assembly.config.evaluation.generate:
        return []
    seen, base = scorer.newcomer(state, round)
    return answers_of(assembly, seen, base, _chosen(assembly))


def answers_of(assembly: Assembly, seen: Params, base: Base, examples: Sequence[Any]) -> list[str]:
    """The text that the model ``seen`` (no client axis) generates after the prompt of each example. Raises
    :class:`ConfigError` for a prompt that leaves no room."""
    task, evaluation = assembly.task, assembly.config.evaluation
    assert isinstance(task, LanguageModel)
    how = Generation(evaluation.max_new_tokens, evaluation.batch_size)
    prompts = [task.prompt_and_answer(e)[0] for e in examples]
    return _texts(task, answers_to(assembly, seen, base, prompts, how))


def answers_to(
    assembly: Assembly,
    seen: Params,
    base: Base,
    prompts: Sequence[Sequence[int]],
    how: Generation,
    option: str = "evaluation.max_new_tokens",
) -> list[list[int]]:
    """The token ids that the model ``seen`` (no client axis) generates after each prompt. Raises :class:`ConfigError`,
    about ``option``, for a prompt that leaves no room."""
    task, model = assembly.task, assembly.model
    assert isinstance(task, LanguageModel)
    assert isinstance(model, Transformer)
    longest = max(map(len, prompts), default=0)
    if (fault := model.limits.fault(longest, how.max_new_tokens, f"a prompt of {longest} tokens")) is not None:
        raise ConfigError.at(option, fault)
    with put_back(model.network, task.output), model.network.lent(seen, base) as module:
        return answers(module, task.tokenizer, prompts, how)


def continuations(tokenizer: Any, prompts: Sequence[Sequence[int]], made: Sequence[Sequence[int]]) -> list[str]:
    """The texts of ``made`` as they go on behind their prompts. Alone, some tokenizers (Llama's) read no blank at a
    text's start."""
    before = tokenizer.batch_decode([list(p) for p in prompts], skip_special_tokens=True)
    whole = tokenizer.batch_decode([[*p, *m] for p, m in zip(prompts, made, strict=True)], skip_special_tokens=True)
    alone = tokenizer.batch_decode([list(m) for m in made], skip_special_tokens=True)
    texts = zip(before, whole, alone, strict=True)
    return [text[len(start) :] if text.startswith(start) else own for start, text, own in texts]


def samples(assembly: Assembly, before: Sequence[str], after: Sequence[str]) -> list[Mapping[str, str]]:
    """One record per test row that was answered: its prompt, the expected answer, and the model's before and after
    training."""
    if not assembly.config.evaluation.generate:
        return []
    task = assembly.task
    assert isinstance(task, LanguageModel)
    halves = [task.prompt_and_answer(e) for e in _chosen(assembly)]
    prompts, expected = (_texts(task, [half[side] for half in halves]) for side in (0, 1))
    names = ("prompt", "expected", "before", "after")
    return [dict(zip(names, row, strict=True)) for row in zip(prompts, expected, before, after, strict=True)]


def sample_scores(assembly: Assembly, before: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
    """Scores of these answers by metric, where the task has any: the number of answers, before and after."""
    task, chosen = assembly.task, _chosen(assembly) if before else ()
    if not isinstance(task, LanguageModel) or not chosen:
        return {}
    first, last = (task.scores_of_answers(chosen, texts) for texts in (before, after))
    return {"answers": len(chosen), "before": first, "after": last} if first else {}


def _chosen(assembly: Assembly) -> Sequence[Any]:
    """``evaluation.generate`` test rows, spread over all of them: neighbours are often alike."""
    test, count = assembly.population.test, assembly.config.evaluation.generate
    count = min(count, len(test))
    return [test[i * len(test) // count] for i in range(count)]


def _texts(task: LanguageModel, ids: Sequence[Sequence[int]]) -> list[str]:
    texts: list[str] = task.tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts


def generates(model: Model, task: Any) -> bool:
    """Whether the run's model is a language model of transformers."""
    return isinstance(model, Transformer) and isinstance(task, LanguageModel)
