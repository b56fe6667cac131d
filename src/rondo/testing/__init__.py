"""The public laws, which every federated algorithm must obey, ours or a third party's.

:func:`check_algorithm` runs them all and returns one :class:`LawResult` per law; ``rondo check`` prints the results.
The laws train with :class:`SgdTrainer` on :class:`TwoLayers`, for methods that do not need factors on
:class:`WholeLayers` too, and for the linear methods on a regression of their own.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.algorithm import Algorithm
from rondo.algorithms.formulas import WholeNumbers
from rondo.testing.laws import LAWS, TOLERANCE, Formulas, Law, law_bytes
from rondo.testing.run import LawBroken, NotApplicable, problems
from rondo.testing.testbed import SgdTrainer, TwoLayers, WholeLayers

__all__ = ["LAWS", "TOLERANCE", "LawResult", "SgdTrainer", "TwoLayers", "WholeLayers", "check_algorithm"]


@dataclass(frozen=True)
class LawResult:
    """The result of one law.

    ``outcome``: "passed", "failed" or "not applicable".
    ``detail``: the measurement, or the reason.
    ``error``: the exception that ended the law, in a line; empty without one.
    ``place``: the line of the method's own file that it came from: file, line, function and code.

    >>> from rondo import algorithms
    >>> from rondo.testing import check_algorithm
    >>> result = check_algorithm(algorithms.get("ffa-lora"), seeds=[0])[0]
    >>> result.law, result.outcome, result.detail
    ('form', 'passed', 'A (r, in), B (out, r)')
    """

    law: str
    outcome: str
    detail: str = ""
    error: str = ""
    place: str = ""


def check_algorithm(
    algorithm: Algorithm[Any],
    *,
    formulas: Formulas | None = None,
    whole: WholeNumbers | None = None,
    seeds: Sequence[int] = (0, 1, 2),
) -> list[LawResult]:
    """Check every law on ``algorithm``, on the problems of each seed: factors, at odd seeds beside whole tensors, and
    whole tensors alone unless the method needs factors.

    ``formulas``: the numbers that it should send, up and down, for the law of bytes.
    ``whole``: the same for whole tensors, whose numbers are not checked without it.

    A law that raises anything but :class:`NotApplicable` has failed. Raises ValueError without a seed, since nothing
    would be checked.

    >>> from rondo import algorithms
    >>> from rondo.testing import check_algorithm
    >>> results = check_algorithm(algorithms.get("fedit"), seeds=[0])
    >>> [result.law for result in results if result.outcome == "failed"]
    []
    >>> {result.law: result.detail for result in results}["exactness"]
    'the algorithm does not claim to be exact'
    """
    if not seeds:
        raise ValueError("no seeds: nothing would be checked")
    laws = {**LAWS, "bytes": lambda a, seed, problem: law_bytes(a, seed, formulas, problem, whole_numbers=whole)}
    return [_check(name, law, algorithm, seeds) for name, law in laws.items()]


def _check(name: str, law: Law, algorithm: Algorithm[Any], seeds: Sequence[int]) -> LawResult:
    """The result of ``law`` on all problems of ``seeds``. It is not applicable if it applies to none of them."""
    outcome, detail, reason = "not applicable", "", ""
    for seed in seeds:
        for problem in problems(algorithm, seed):
            where = f"({type(problem).__name__}, seed {seed})"
            try:
                detail = law(algorithm, seed, problem)
                outcome = "passed"
            except NotApplicable as why:
                reason = str(why)
            except LawBroken as broken:
                return LawResult(name, "failed", f"{broken} {where}")
            except Exception as error:  # an exception in a third party's code is a finding, not a crash of ours
                text = " ".join(f"{type(error).__name__}: {error}".split())
                return LawResult(name, "failed", f"{text} {where}", text, _place(error, algorithm))
    return LawResult(name, outcome, detail if outcome == "passed" else reason)


def _place(error: Exception, algorithm: Algorithm[Any]) -> str:
    """The innermost line of the file of ``algorithm`` that ``error`` went through; empty if there is none."""
    try:
        own = Path(inspect.getfile(type(algorithm))).resolve()
    except (OSError, TypeError):  # a class that is in no file
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve() == own:
            return f"{own.name}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return ""
