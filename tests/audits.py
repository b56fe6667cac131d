"""Audits of differential privacy in one run: canaries are in or out by coins, and guesses from the result must not be
better than the claim allows.

Source: Mahloujifar, Melis and Chaudhuri 2025 ("Auditing f-Differential Privacy in One Run"), for Gaussian and for any
(epsilon, delta) claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.stats import beta, binom, norm

Inverse = Callable[[float], float]
"""Smallest probability that an event of probability x can have for a neighbour."""


def gaussian(mu: float) -> Inverse:
    """That of one look at N(0, 1) or N(mu, 1)."""
    return lambda x: float(norm.cdf(norm.ppf(x) - mu))


def of_epsilons(epsilon: Mapping[float, float]) -> Inverse:
    """That of a mechanism with each of ``epsilon``, by delta."""
    pairs = [(np.exp(value), delta) for delta, value in epsilon.items()]
    return lambda x: max(0.0, *(max((x - d) / e, 1 - d - e * (1 - x)) for e, d in pairs))


def refuted(claim: Inverse, canaries: int, guesses: int, right: int, level: float = 0.05) -> bool:
    """Whether ``right`` of ``guesses`` right is too good for ``claim``, at this level.

    The claim bounds, from the last guess to the first, the chance of so many right ones and of one less; a chance of
    ``level`` at the end would need more than all of the probability there is.
    """
    share = level * guesses / canaries
    total, chance = share * right / guesses, share * (guesses - right) / guesses
    for i in range(right - 1, -1, -1):
        before = chance
        chance = max(chance, claim(min(total, 1.0)))
        total += i / (guesses - i) * (chance - before)
        if total + chance > guesses / canaries:
            return True
    return False


def right_guesses(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """The number of right guesses: the canaries with the largest scores were in, those with the smallest out."""
    order, half = np.argsort(scores), guesses // 2
    return int(included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum())


def least_mu(scores: np.ndarray, included: np.ndarray, guesses: int, level: float = 0.05) -> float:
    """The largest mu, to a hundredth, that the guesses refute: a lower bound on that of the mechanism."""
    right, low, high = right_guesses(scores, included, guesses), 0.0, 8.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(gaussian(middle), len(scores), guesses, right, level) else (low, middle)
    return low


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Epsilon at ``delta`` of N(0, 1) or N(mu, 1) (Balle and Wang 2018, theorem 8)."""
    low, high = 0.0, 200.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        there = norm.cdf(mu / 2 - middle / mu) - np.exp(middle + norm.logcdf(-mu / 2 - middle / mu))
        low, high = (middle, high) if there > delta else (low, middle)
    return high


def least_mu_at(threshold: float, scores: np.ndarray, included: np.ndarray, level: float = 0.05) -> float:
    """A lower bound on mu from how often canaries that are in and out have a score above ``threshold``, which follows
    from no score. Canaries count as tries by themselves, as in Andrew et al. 2024: their directions are nearly
    orthogonal, and each adds to the score of another next to nothing."""
    above = scores > threshold
    hits, misses = int(above[included].sum()), int((~above[included]).sum())
    alarms, rest = int(above[~included].sum()), int((~above[~included]).sum())
    least_hits = float(beta.ppf(level / 2, hits, misses + 1)) if hits else 0.0
    most_alarms = float(beta.ppf(1 - level / 2, alarms + 1, rest)) if rest else 1.0
    return max(0.0, float(norm.ppf(least_hits) - norm.ppf(most_alarms)))


def found(mu: float, delta: float, scores: np.ndarray, included: np.ndarray) -> tuple[float, bool]:
    """A lower bound on epsilon at ``delta``, at 95 %, and whether guesses alone refute the claim of ``mu``. The mean
    score of canaries that are in is 1."""
    guesses = len(scores) // 3
    bold = refuted(gaussian(mu), len(scores), guesses, right_guesses(scores, included, guesses))
    return epsilon_of_mu(least_mu_at(0.5, scores, included), delta), bold


def steinke(canaries: int, guesses: int, right: int, delta: float, level: float = 0.05) -> float:
    """The largest epsilon, to a hundredth, that ``right`` of ``guesses`` right refute at ``delta``: a lower bound
    (Steinke, Nasr and Jagielski 2023, theorem 5.2)."""
    low, high = 0.0, 20.0
    while high - low > 0.01:
        middle = (low + high) / 2
        honest = 1 / (1 + np.exp(-middle))
        tail, most = float(binom.sf(right - 1, guesses, honest)), 0.0
        # The chance of ``right`` or more is at most that of honest guesses, and what delta can add to it.
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, honest))
        if right:
            most = float((below / np.arange(1, right + 1)).max())
        low, high = (middle, high) if tail + 2 * canaries * delta * most < level else (low, middle)
    return low
