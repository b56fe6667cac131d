"""The result of a comparison. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.study.compare.over_seeds import run_rows
from rondo.study.compare.table import comparison_table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison, which a notebook shows as a table; all but ``out`` is also in ``comparison.json``.

    ``title``: the name of ``primary`` in tables, which says the class whose F1 it is.
    ``rounds``, ``clients``: None where they are varied.
    ``varied``: the values of each key that is varied.
    ``last``, ``target``, ``at_mb``: what is asked of each curve.
    ``algorithms``: per label, means and standard deviations over seeds, and the ``difference`` to the reference.
    ``columns``: the columns of its tables; none: all.
    ``together``: with differential privacy, what all runs on the same rows have spent together, in a sentence.
    ``runs``: one dict per run.
    ``stopped``: runs that could not finish, with the reason.

    >>> comparison = rondo.compare(["fedavg"], digits, seeds=[0, 1], out="runs/seeds")
    >>> comparison.to_frame()[["method", "seed"]].values.tolist()
    [['fedavg', 0], ['fedavg', 1]]
    """

    out: Path
    primary: str
    title: str
    rounds: int | None
    clients: int | None
    seeds: list[int]
    varied: dict[str, list[Any]]
    last: int
    target: float | None
    at_mb: float | None
    algorithms: dict[str, dict[str, Any]]
    columns: list[str]
    together: str | None
    runs: list[dict[str, Any]]
    stopped: list[dict[str, Any]]

    def to_frame(self) -> pandas.DataFrame:
        """One row per run: its method, seed and varied values, scores with the model of each, bytes, seconds (none
        where they are a secret). It is the content of ``comparison.csv``."""
        import pandas

        return pandas.DataFrame(run_rows(vars(self)))

    def _repr_html_(self) -> str:
        return comparison_table(vars(self)).html(str(self.out))
