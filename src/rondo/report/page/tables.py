"""Tables of a page about its runs: results, traffic, failures, privacy, machines."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from rondo.privacy.guarantee import added
from rondo.records.curve import Spread
from rondo.records.paired import Difference, against
from rondo.records.recorded import Claim, Recorded
from rondo.records.summary import totals
from rondo.report.numbers import difference, number, plus_minus, probability, told_of_differences
from rondo.report.page.charts import Score, last, over_seeds
from rondo.report.page.groups import Group
from rondo.report.page.scores import primary_of, worst_tenth
from rondo.report.table import Table
from rondo.report.terminal import human_bytes

_TEXT, _STRONG = Markup('<span class="text">{}</span>'), Markup("<strong>{}</strong>")
_OUTCOMES = {"nonfinite_loss": "loss not finite", "nonfinite_parameters": "parameters not finite"}


def results(groups: Sequence[Group], found: Sequence[Score], reference: Group) -> Table:
    """A row per group: its scores before and after, its difference to ``reference``, bytes, seconds, failures.
    ``found``: all scores, in their order."""
    columns, cells = ["method", "seeds", "rounds"], []
    parts: list[tuple[str, Score | None]] = [
        ("test", primary_of(found, "test")),
        ("at the clients", primary_of(found, "clients")),
        ("worst tenth", worst_tenth(found)),
    ]
    for said, score in parts:
        if score is not None:
            name = score.name.split(",")[0]
            cells += [_first(score), _last(score)] if said == "test" else [_last(score)]
            columns += ["test before", f"test {name}"] if said == "test" else [f"{name}, {said}"]
    of_pairs = differences(groups, found[0], reference) if found else {}
    if of_pairs:
        cells += [lambda group: difference(of_pairs[group.label].paired) if group.label in of_pairs else "-"]
        columns += [f"difference to {reference.label}"]
    if any(one.p is not None for one in of_pairs.values()):
        cells += [lambda group: probability(of_pairs[group.label].p if group.label in of_pairs else None)]
        columns += ["Holm's p"]
    measured = {name: None for group in groups for run in group.runs for name in run.measures_before}
    for name in measured:
        columns.append(name.replace("_", " "))
        cells.append(_measure(name))
    private = any("epsilon" in record for group in groups for run in group.runs for record in run.rounds)
    columns += ["up", "down", "seconds", *(["epsilon"] if private else []), "failures"]
    rows = []
    for group in groups:
        sums = [totals(run.rounds) for run in group.runs]
        up, down = (statistics.fmean(s["bytes"][way] for s in sums) for way in ("up", "down"))
        seconds = [sum(record["seconds"] for record in run.rounds) for run in group.runs]
        rounds = sorted({len(run.rounds) for run in group.runs})
        failures = sum(s["failed_clients"] for s in sums)
        row = [group.label, _seeds(group.seeds), " to ".join(map(str, {rounds[0]: 0, rounds[-1]: 0}))]
        row += [cell(group) for cell in cells]
        costs = [human_bytes(up), human_bytes(down), _shown(Spread.of(seconds)), str(failures)]
        *costs, lost = ["-"] * 4 if group.secret_turnout else costs
        rows.append([*row, *costs, *([_epsilon(group)] if private else []), lost])
    several = any(len(group.runs) > 1 for group in groups)
    title = "After the last round" + ("; means over seeds ± half of the 95 % interval (Student's t)" if several else "")
    if of_pairs:
        seeds = any(one.paired.interval for one in of_pairs.values())
        title += f". {told_of_differences(f'{found[0].name} ({found[0].family})', seeds=seeds)}"
    return Table(title, columns, rows)


def differences(groups: Sequence[Group], score: Score, reference: Group) -> dict[str, Difference]:
    """The difference of each group's last score to that of ``reference``, by label. Runs are a pair if they have one
    seed and dealt the same rows to the same clients."""
    values: dict[str, dict[str, float]] = {group.label: {} for group in groups}
    for group in groups:
        for run in (run for run in group.runs if run.summary is not None):
            if points := score.points(run):
                pair = json.dumps([run.seed, run.partition.get("clients")], sort_keys=True)
                values[group.label][pair] = points[max(points)]
    return against(values, {label: reference.label for label in values if label != reference.label})


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds one by one, or from the first to the last where there are many in a row."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _first(score: Score) -> Any:
    return lambda group: _shown(over_seeds(group, score).get(0))


def _last(score: Score) -> Any:
    return lambda group: _shown(last(group, score))


def _measure(name: str) -> Any:
    def cell(group: Group) -> str:
        values = [run.rounds[-1].get("measures", {}).get(name) for run in group.runs if run.rounds]
        known = [value for value in values if value is not None]
        return _shown(Spread.of(known) if known else None)

    return cell


def _shown(spread: Spread | None) -> str:
    return "-" if spread is None else plus_minus(spread.mean, spread.half)


def _epsilon(group: Group) -> str:
    records = [run.rounds[-1] for run in group.runs if run.rounds and "epsilon" in run.rounds[-1]]
    if not records:
        return "-"
    values = [record["epsilon"] for record in records]
    shown = "infinite" if None in values else number(max(values))
    return shown if all(record["epsilon_valid"] for record in records) else f"{shown} (not valid)"


def traffic(groups: Sequence[Group]) -> Table | None:
    """A row per group: the tensors that travel, and bytes per client and round and in all."""
    rows = []
    for group in (group for group in groups if not group.secret_turnout):
        sums = [totals(run.rounds)["bytes"] for run in group.runs]
        keys = ("up_per_client_round", "down_per_client_round", "up", "down", "first_contact")
        means = (statistics.fmean(s[key] for s in sums) for key in keys)
        rows.append([group.label, group.runs[0].travels, *map(human_bytes, means)])
    columns = ("method", "tensors", "up, client and round", "down, client and round", "up", "down", "first contact")
    title = "Bytes of tensors; down includes the first contact, but not per round"
    return Table(title, columns, rows, words=(0, 1)) if rows else None


def failures(groups: Sequence[Group]) -> Table | None:
    """A row per run that lost clients, uploads or rounds, with the reasons; None if there is none."""
    rows = []
    for run in (run for group in groups for run in group.runs):
        failed = Counter(f["reason"] for record in run.rounds for f in record["failed"])
        rejected = Counter[str]()
        for record in run.rounds:
            rejected.update(record["rejected"])
        skipped = [f"{record['round'] + 1}: {record['skipped']}" for record in run.rounds if record["skipped"]]
        if failed or rejected or skipped:
            rows.append([run.name, _counted(failed), _counted(rejected), "; ".join(skipped[:5]) or "-"])
    columns = ("run", "clients that failed", "uploads rejected", "rounds skipped")
    return Table("Failures, by reason", columns, rows, words=None) if rows else None


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{_OUTCOMES.get(r, r.replace('_', ' '))}: {n}" for r, n in reasons.most_common()) or "-"


def last_failures(groups: Sequence[Group], most: int = 20) -> Table | None:
    """The last failures with their details, but for private runs."""
    found = [
        [run.name, str(record["round"] + 1), f["client"], f["reason"].replace("_", " "), f["detail"]]
        for group in groups
        for run in group.runs
        for record in run.rounds
        for f in record["failed"]
        if not run.private
    ]
    columns = ("run", "round", "client", "reason", "detail")
    return Table("The last failures", columns, found[-most:], words=None) if found else None


def guarantees(groups: Sequence[Group]) -> Table | None:
    """The guarantee of each run with ``[privacy]``, in a sentence."""
    runs = [run for group in groups for run in group.runs if run.rounds]
    rows = [[run.name, said] for run in runs if (said := run.rounds[-1].get("guarantee")) is not None]
    spent = [(run.rounds[-1], run.guarantee) for run in runs if "epsilon" in run.rounds[-1]]
    title = "What is protected, and from whom" + (f"; {added(spent)}" if len(spent) > 1 else "")
    return Table(title, ("run", "guarantee"), rows, words=None) if rows else None


def answers(run: Recorded) -> Table | None:
    """The answers that a run generated, before and after training."""
    samples = (run.summary or {}).get("samples") or []
    columns = ("prompt", "expected", "before", "after")
    rows = [[_TEXT.format(sample[column]) for column in columns] for sample in samples]
    return Table(f"Answers before and after training, {run.name}", columns, rows, words=None) if rows else None


def claims(decided: Sequence[Claim]) -> Table:
    """Claims of papers with the published number, the one here, and the verdict."""
    rows = [
        [c.claim, c.source, c.paper, c.here, str(c.seeds), _STRONG.format(c.verdict), c.equal_bytes_per_client]
        for c in decided
    ]
    here = ("at the end of each run [95 % interval]", "seeds", "verdict", "at equal bytes per client")
    columns = ("claim", "paper", "published", *here)
    return Table("Published numbers, and what these runs say", columns, rows, words=None)


def machines(groups: Sequence[Group]) -> Table:
    """A row per run: its state, machine and versions."""
    rows = []
    for run in (run for group in groups for run in group.runs):
        done = len(run.rounds)
        early = run.summary is not None and done < run.planned
        state = "not finished" if run.summary is None else "stopped early" if early else "finished"
        manifest, versions = run.manifest, run.manifest.get("versions")
        versions = versions if isinstance(versions, Mapping) else {}
        machine = ", ".join(str(manifest[key]) for key in ("device", "precision", "processor") if manifest.get(key))
        known = " ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        started = str(manifest.get("started", "-"))
        rows.append([run.name, str(run.seed), f"{state}, {done} of {run.planned}", started, machine, known])
    columns = ("run", "seed", "rounds", "started", "machine", "versions")
    return Table("Each run, its machine and versions", columns, rows, words=None)


def sites(run: Recorded) -> Table | None:
    """The sites of a federation's run."""
    rows = list(_sites(run))
    columns = ("site", "state", "since", "rounds that counted")
    return Table(f"Sites, {run.name}", columns, rows, words=None) if rows else None


def _sites(run: Recorded) -> Iterator[list[str]]:
    for name, site in run.sites.items():
        if isinstance(site, Mapping):
            reason = f": {site['reason']}" if site.get("reason") else ""
            state = f"{site.get('state', '-')}{reason}"
            rounds = "-" if run.secret_turnout else str(site.get("rounds", 0))
            yield [name, state, str(site.get("since", "-")), rounds]
