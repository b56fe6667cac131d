"""Answers to test rows, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.algorithm import Round
from rondo.engine.scoring import Scorer
from rondo.errors import ConfigError
from rondo.models.forms.generation import Generation
from rondo.models.forms.model import NetworkPredictor
from rondo.models.networks.network import Base
from rondo.params import Params
from rondo.runs.assembling.assembly import Assembly


def check_samples(assembly: Assembly) -> None:
    """Raise :class:`ConfigError` if ``evaluation.generate`` asks for answers that the run cannot give."""
    if not assembly.config.evaluation.generate:
        return
    if not assembly.population.test:
        message = "there is no test set to answer: name data.test_source, or remove it"
        raise ConfigError.at("evaluation.generate", message)
    assembly.task.shown(assembly.population.test[0])


def predictor(assembly: Assembly, seen: Params, base: Base) -> NetworkPredictor:
    """The model ``seen`` (no client axis), to predict with as ``[evaluation]`` says."""
    evaluation = assembly.config.evaluation
    how = Generation(evaluation.max_new_tokens, evaluation.batch_size)
    return NetworkPredictor(assembly.model, seen, base, how)


def answered(assembly: Assembly, scorer: Scorer, state: Any, round: Round) -> list[str]:
    """Answers of the newcomer's model before ``round`` to ``evaluation.generate`` test rows; empty if none is asked
    for."""
    if not assembly.config.evaluation.generate:
        return []
    seen, base = scorer.newcomer(state, round)
    return assembly.task.answered(_chosen(assembly), predictor(assembly, seen, base))


def samples(assembly: Assembly, before: Sequence[str], after: Sequence[str]) -> list[Mapping[str, str]]:
    """One record per test row that was answered: its prompt, the expected answer, and the model's before and after
    training."""
    if not assembly.config.evaluation.generate:
        return []
    shown = [assembly.task.shown(example) for example in _chosen(assembly)]
    return [
        {"prompt": prompt, "expected": expected, "before": first, "after": last}
        for (prompt, expected), first, last in zip(shown, before, after, strict=True)
    ]


def sample_scores(assembly: Assembly, before: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
    """Scores of these answers by metric, where the task has any: the number of answers, before and after."""
    chosen = _chosen(assembly) if before else ()
    if not chosen:
        return {}
    first, last = (assembly.task.scores_of_answers(chosen, texts) for texts in (before, after))
    return {"answers": len(chosen), "before": first, "after": last} if first else {}


def _chosen(assembly: Assembly) -> Sequence[Any]:
    """``evaluation.generate`` test rows, spread over all of them: neighbours are often alike."""
    test, count = assembly.population.test, assembly.config.evaluation.generate
    count = min(count, len(test))
    return [test[i * len(test) // count] for i in range(count)]
