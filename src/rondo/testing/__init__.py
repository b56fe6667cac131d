"""The public laws, which every federated algorithm must obey, ours or a third party's.

:func:`check_algorithm` runs them all and returns one :class:`LawResult` per law; ``rondo check`` prints the results.
The laws train with :class:`SgdTrainer` on :class:`LinearProblem`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.algorithm import Algorithm
from rondo.testing.laws import LAWS, TOLERANCE, Formulas, law_bytes
from rondo.testing.problem import LinearProblem, SgdTrainer
from rondo.testing.run import LawBroken, NotApplicable

__all__ = ["LAWS", "TOLERANCE", "LawResult", "LinearProblem", "SgdTrainer", "check_algorithm"]


@dataclass(frozen=True)
class LawResult:
    """The result of one law.

    ``outcome``: "passed", "failed" or "not applicable".
    ``detail``: the measurement, or the reason.
    """

    law: str
    outcome: str
    detail: str = ""


def check_algorithm(
    algorithm: Algorithm[Any], *, formulas: Formulas | None = None, seeds: Sequence[int] = (0, 1, 2)
) -> list[LawResult]:
    """Check every law on ``algorithm``, on one problem per seed.

    ``formulas``: the numbers that it should send, up and down, for the law of bytes. A law that raises anything but
    :class:`NotApplicable` has failed. Raises ValueError without a seed, since nothing would be checked.
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
        except Exception as error:  # an exception in a third party's code is a finding, not a crash of ours
            return LawResult(name, "failed", f"{type(error).__name__}: {error} (seed {seed})")
    return LawResult(name, "passed", detail)
