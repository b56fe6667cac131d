"""The result of a comparison, and its files. Imports no torch."""

from __future__ import annotations

import csv
import io
import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.records import durable
from rondo.records.recorded import trained
from rondo.study.compare.numbers import Question, differences, only, over_seeds, run_rows
from rondo.study.compare.table import comparison_table
from rondo.study.compare.variants import Variant, references

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
    ``together``: of private runs, what all runs on the same rows have spent together, in a sentence.
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


def written(
    folder: Path,
    variants: Sequence[Variant],
    question: Question,
    runs: list[dict[str, Any]],
    stopped: list[dict[str, Any]],
) -> Comparison:
    """Write the files of a comparison to ``folder`` and return it. ``runs``: their :func:`numbers`. Raises
    :class:`rondo.RunStopped` where they cannot be written."""
    from rondo.study.compare.spent import spent_together

    values: dict[str, list[Any]] = {}
    for variant in variants:
        for key, value in variant.values.items():
            values.setdefault(key, []).extend([value] if value not in values.get(key, []) else [])
    comparison = Comparison(
        folder,
        primary=runs[0]["primary"] if runs else "",
        title=runs[0]["title"] if runs else "",
        rounds=only([variant.config.rounds for variant in variants]),
        clients=only([run["clients"] for run in runs]),
        seeds=list(dict.fromkeys(variant.config.seed for variant in variants)),
        varied=values,
        last=question.last,
        target=question.target,
        at_mb=question.at_mb,
        algorithms=_algorithms(variants, question, runs),
        columns=list(question.columns),
        together=spent_together([folder / run["run_dir"] for run in (*runs, *stopped)]),
        runs=runs,
        stopped=stopped,
    )
    content = {key: value for key, value in vars(comparison).items() if key != "out"}
    files = {"comparison.json": (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()}
    if runs:
        from rondo.report import drawing
        from rondo.study import pictures as comparisons

        files["comparison.csv"] = _csv(content)
        files["comparison.tex"] = comparison_table(content).latex().encode()
        files["comparison.png"] = drawing.png(comparisons.comparison(content))
        files["comparison.svg"] = drawing.drawn(comparisons.comparison(content), "svg")
        if (over := comparisons.varied(content)) is not None:
            files["varied.png"] = drawing.png(over)
    with durable.written(folder):
        set_aside(folder, [*runs, *stopped])
        durable.write_all(folder, files)
    return comparison


def set_aside(folder: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Rename the files of the comparison in ``folder`` if it is of other runs than ``runs`` under the same labels and
    seeds: ``comparison-1.json`` and so on. Their settings have changed since."""
    try:
        before = json.loads((folder / "comparison.json").read_bytes())["runs"]
        known = {(run["algorithm"], run["seed"]): run["run_dir"] for run in before}
    except (OSError, ValueError, LookupError, TypeError):
        return
    if all(known.get((run["algorithm"], run["seed"]), run["run_dir"]) == run["run_dir"] for run in runs):
        return
    number = next(n for n in itertools.count(1) if not (folder / f"comparison-{n}.json").exists())
    # The JSON file is the last: without it, no other would be set aside after a crash.
    files = [*folder.glob("comparison.*"), *folder.glob("varied.png")]
    for path in sorted(files, key=lambda path: path.suffix == ".json"):
        path.rename(path.with_stem(f"{path.stem}-{number}"))
    message = f"{str(folder)!r} has a comparison by other settings, which is comparison-{number}.json from now on"
    warnings.warn(message, stacklevel=2)


def _algorithms(
    variants: Sequence[Variant], question: Question, runs: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The trained numbers of each label, its scores over seeds, and its difference to the reference."""
    of_pairs = differences(runs, references(variants, question.against))
    found: dict[str, dict[str, Any]] = {}
    for label, variant in {variant.label: variant for variant in variants}.items():
        if of_label := [run for run in runs if run["algorithm"] == label]:
            numbers = {"trains": trained(variant.config), **over_seeds(of_label)}
            found[label] = {**numbers, "difference": of_pairs.get(label)}
    return found


def _csv(content: Mapping[str, Any]) -> bytes:
    """A row per run."""
    rows, file = run_rows(content), io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()
