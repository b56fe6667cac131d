"""Numbers as people read them: no more digits than their deviations leave, differences with their intervals, and p."""

from __future__ import annotations

import math
from typing import Any

from rondo.records.paired import Paired, one_value

_LEAST_P = 1e-12
"""Below it a probability is what is left of one less another, near one, and none of its digits count."""


def number(value: Any) -> str:
    """Four digits that count; "-" without a value."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{THIN SPACE}") if abs(value) >= 10_000 else str(value)
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e5 or value == 0 else f"{value:.2e}"


def plus_minus(mean: float | None, spread: float | None) -> str:
    """``0.7512 ± 0.0031``: two digits of the spread, and the mean to the same place. Without a spread the mean has four
    digits; "-" without a mean."""
    if mean is None or spread is None or not (math.isfinite(spread) and math.isfinite(mean)):
        return number(mean)
    return f"{number(mean)} ± 0" if spread == 0 else f"{_placed(mean, spread)} ± {_placed(spread, spread)}"


def difference(paired: Paired) -> str:
    """``+0.012 [-0.003, +0.027]``: a mean difference, and its 95 % interval if there is one."""
    if paired.interval is None:
        return f"{paired.mean:+.3g}"
    if one_value(paired.differences):
        return f"{paired.mean:+.3g}, the same for all seeds"
    low, high = paired.interval
    mean, *ends = (_placed(value, (high - low) / 2, "+" if value else "") for value in (paired.middle, low, high))
    return f"{mean} [{', '.join(ends)}]"


def told_of_differences(of: str, *, seeds: bool) -> str:
    """The sentence below a table that names its differences, intervals and p. ``seeds``: whether it has the latter."""
    p = "p is two-sided and corrected for all differences of the table (Holm)"
    more = f"with 95 % intervals (Student's t); {p}" if seeds else "of one seed, so without an interval"
    return f"Differences are of {of}, paired by seed, {more}."


def probability(p: float | None) -> str:
    """Two digits of a probability; "-" for none."""
    return "-" if p is None else f"< {_LEAST_P:g}" if p < _LEAST_P else f"{p:.2g}"


def share_interval(share: float, rows: int) -> tuple[float, float]:
    """The 95 % interval of a share of right answers, by the number of rows that were asked (Wilson, 1927)."""
    z = 1.959964
    middle, half = share + z * z / (2 * rows), z * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    low, high = ((middle + sign * half) / (1 + z * z / rows) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def _placed(value: float, spread: float, sign: str = "") -> str:
    """``value`` to the place of the second digit of ``spread``; very small and very large ones as powers of ten."""
    if not 1e-7 < spread < 1e6:
        return f"{value:{sign}.3g}"
    return f"{value:{sign}.{max(0, 1 - math.floor(math.log10(spread)))}f}"
