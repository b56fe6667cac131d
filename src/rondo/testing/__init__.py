"""The public laws: what every federated algorithm must obey, ours or a third party's.

:func:`check_algorithm` runs them all and returns one :class:`LawResult` a law; ``rondo check`` prints them.
:class:`SgdTrainer` and :class:`LinearProblem` are what they run on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.algorithm import Algorithm
from rondo.testing.laws import LAWS, TOLERANCE, Formulas, LawBroken, NotApplicable, law_bytes
from rondo.testing.problem import LinearProblem, SgdTrainer

__all__ = ["LAWS", "TOLERANCE", "LawResult", "LinearProblem", "SgdTrainer", "check_algorithm"]


@dataclass(frozen=True)
class LawResult:
    """``outcome`` is "passed", "failed" or "not applicable"; ``detail`` says what was seen, or why not."""

    law: str
    outcome: str
    detail: str = ""


def check_algorithm(
    algorithm: Algorithm[Any], *, formulas: Formulas | None = None, seeds: Sequence[int] = (0, 1, 2)
) -> list[LawResult]:
    """Every law on ``algorithm``, each on one problem a seed.

    ``formulas`` are the numbers that it should send, up and down, for the law of bytes. A law that raises anything but
    :class:`NotApplicable` has failed. Raises ValueError without a seed: nothing would be checked.
    """
    if not seeds:
        raise ValueError("no seeds: nothing would be checked")
    laws = {**LAWS, "bytes": lambda a, seed: law_bytes(a, seed, formulas)}
    return [_check(name, law, algorithm, seeds) for name, law in laws.items()]


def _check(
    name: str, law: Callable[[Algorithm[Any], int], str], algorithm: Algorithm[Any], seeds: Sequence[int]
) -> LawResult:
    detail = ""
    for seed in seeds:
        try:
            detail = law(algorithm, seed)
        except NotApplicable as reason:
            return LawResult(name, "not applicable", str(reason))
        except LawBroken as broken:
            return LawResult(name, "failed", f"{broken} (seed {seed})")
        except Exception as error:  # whatever a third party's code raises is a finding about it, not a crash of ours
            return LawResult(name, "failed", f"{type(error).__name__}: {error} (seed {seed})")
    return LawResult(name, "passed", detail)
