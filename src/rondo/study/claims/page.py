"""The page of an entry, with its picture; and the page of all entries that have one, made from a file of facts of
each."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from rondo.config import toml_file
from rondo.records import durable
from rondo.records.curve import Curve
from rondo.records.directory import RunDirectory, as_written
from rondo.records.paired import Paired, one_value
from rondo.records.recorded import WITHHELD, added_up, weakest_guarantee
from rondo.report import drawing
from rondo.report.numbers import probability
from rondo.report.terminal import human_bytes
from rondo.study import pictures
from rondo.study.claims.entry import Bound, Contrast, Entry
from rondo.study.claims.findings import Decided, Finding, ended, findings, finished
from rondo.study.claims.trials import Trials
from rondo.study.claims.verdict import Verdict
from rondo.study.runs import Trial

_UNDECIDED = ("-", "**open**: no seed has all runs yet", "-", "-", 0)
"""The cells of a claim without a seed whose runs are all there."""


def write(trials: Trials, pages: Path) -> list[Finding]:
    """Write the page of an entry, its picture, and the page of all entries that have one. Returns the findings."""
    of_claims = findings(trials)
    curves: dict[str, list[Curve]] = {}
    for trial in finished(trials):
        curves.setdefault(trial.arm, []).append(trials.curve(trial))
    durable.make_folder(pages)
    contents = {f"{trials.name}.md": _page(trials, of_claims, curves).encode()}
    if curves:
        contents[f"{trials.name}.png"] = _picture(trials, curves)
    durable.write_all(pages, contents)
    write_facts(pages, trials.name, _facts(trials, of_claims))
    return of_claims


def _page(trials: Trials, of_claims: Sequence[Finding], curves: Mapping[str, list[Curve]]) -> str:
    entry, secret, lines = trials.entry, _secret(curves), _lines(trials, curves)
    claims = []
    for claim, finding in zip_longest(entry.claims, of_claims):
        numbers = (*_cells(finding, trials, secret), len(finding.paired.differences)) if finding else _UNDECIDED
        claims.append((claim.claim, _paper(claim, entry), _counts(claim), *numbers))
    ends = sum(finding.p is not None for finding in of_claims)
    of_bytes = sum(finding.equal_bytes is not None for finding in of_claims)
    over = "Scores over rounds and over bytes per client" if pictures.over_bytes(lines) else "Scores over rounds"
    tuned = [] if entry.tuning is None else [arm for arm in curves if arm in entry.searched]
    edges = {arm: entry.tuning.at_edge(trials.tuned(arm)) for arm in tuned if entry.tuning is not None}
    ways, versions = _made(finished(trials))
    return template("entry.md").render(
        trials=trials,
        entry=entry,
        claims=claims,
        corrected={"ends": ends, "bytes": of_bytes},
        secret=secret,
        withheld=WITHHELD,
        targets=[f"{target:g}" for target in sorted({one.target for one in entry.contrasts if one.target is not None})],
        presupposed={one.of.says: one.here for finding in of_claims for one in finding.presupposed},
        arms=[_arm(trials, arm, of_arm) for arm, of_arm in curves.items()],
        guarantees=_guarantees(curves),
        together=added_up(curve.summary for of_arm in curves.values() for curve in of_arm),
        picture="Scores" if pictures.over_nothing(lines) else over,
        ends_alone=any(len(of_arm[0].rounds) == 1 for of_arm in curves.values()),
        edges=[f"{arm} ({', '.join(keys)})" for arm, keys in edges.items() if keys],
        ways=ways,
        versions=versions,
        missing=trials.missing() if ways else [],
    )


def _guarantees(curves: Mapping[str, list[Curve]]) -> dict[str, list[str]]:
    """Each guarantee, that of an arm's largest epsilon, and the arms that have it."""
    of_arms: dict[str, list[str]] = {}
    for arm, of_arm in curves.items():
        if (guarantee := weakest_guarantee(curve.summary for curve in of_arm)) is not None:
            of_arms.setdefault(guarantee, []).append(arm)
    return of_arms


def _arm(trials: Trials, arm: str, of_arm: Sequence[Curve]) -> tuple[Any, ...]:
    """The cells of an arm."""
    score = trials.entry.score
    given = {key: f"{value}, given" for key, value in trials.entry.given(arm).items()}
    return (
        arm,
        _spread([score.of_values(curve.values) for curve in of_arm]),
        _spread([score.late_change(curve) for curve in of_arm], sign="+"),
        len(of_arm),
        ended(of_arm),
        of_arm[0].clients,
        human_bytes(statistics.fmean(sent)) if (sent := [c.bytes[-1] for c in of_arm if c.bytes is not None]) else "-",
        ", ".join(f"{key} = {value}" for key, value in (trials.tuned(arm) or given).items()) or "-",
    )


def _paper(claim: Contrast | Bound, entry: Entry) -> str:
    """The paper's number, if it has one, with its source."""
    number = _number(claim, entry)
    return claim.source if number is None else f"{number} ({claim.source})"


def _number(claim: Contrast | Bound, entry: Entry) -> str | None:
    if isinstance(claim, Contrast):
        return None if claim.paper is None else shown(claim.paper)
    if claim.factor is not None:
        return f"each at most {claim.factor:.4g} times the one before"
    ends = (("at least", claim.at_least), ("at most", claim.at_most))
    stated = " and ".join(f"{word} {limit:.4g}" for word, limit in ends if limit is not None)
    if claim.less is not None:
        stated += f" times {claim.less}" if entry.log10 else f" above {claim.less}"
    return f"{stated} in the mean" if claim.of == "mean" else stated


def _counts(claim: Contrast | Bound) -> str:
    """The condition under which a claim is seen."""
    if isinstance(claim, Bound):
        return "every run keeps it" if claim.of == "runs" else "the mean is significantly within"
    if claim.paper is None:
        return "significantly above zero"
    return f"significantly above zero, and at least {shown(claim.paper / 2)}"


def at_end(finding: Finding, trials: Trials) -> str:
    """The mean of a claim's numbers at the end of each run, the rounds of each arm where they are not the same, and the
    runs that never reach a target."""
    return here(finding.of, finding, trials) + _rounds(finding) + _never(finding)


def _rounds(finding: Finding) -> str:
    if len({*finding.rounds.values()}) == 1:
        return ""
    return f" (rounds: {_listed(f'{arm} {rounds}' for arm, rounds in finding.rounds.items())})"


def _never(finding: Finding) -> str:
    if not finding.unreached:
        return ""
    of_arms = _listed(f"{arm} in {count}" for arm, count in finding.unreached.items())
    return f" (never reached by {of_arms} of {len(finding.paired.differences)} runs, which count with all their bytes)"


def here(claim: Contrast | Bound, decided: Decided, trials: Trials) -> str:
    """The mean of a claim's numbers with its 95 % interval; of a bound in the unit of the metric."""
    in_scores = isinstance(claim, Bound) and claim.of == "mean"
    numbers = (decided.paired.middle, *(decided.paired.interval or ()))
    mean, *ends = (shown(trials.entry.score.unscaled(number) if in_scores else number) for number in numbers)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _cells(finding: Finding, trials: Trials, secret: Set[str]) -> tuple[str, str, str, str]:
    """The cells of a claim's numbers and of their verdict, at the end and at equal bytes. ``secret``: the arms whose
    bytes are."""
    of_end = (
        here(finding.of, finding, trials) + _p(finding) + _at_common_rate(finding) + _rounds(finding) + _never(finding),
        _said(finding.verdict),
    )
    if (of_bytes := finding.equal_bytes) is None:
        if isinstance(finding.of, Contrast) and finding.of.rounds_alone:
            return *of_end, "-", finding.of.rounds_alone
        contrast = isinstance(finding.of, Contrast) and finding.of.target is None
        none = not contrast or not secret.isdisjoint(finding.of.arms)
        return *of_end, "-", "-" if none else "a run has no score at so few bytes"
    return *of_end, here(finding.of, of_bytes, trials) + _p(of_bytes), _said(of_bytes.verdict)


def _at_common_rate(decided: Decided) -> str:
    if decided.common is None:
        return ""
    ends = ", ".join(shown(end) for end in decided.common.interval or ())
    return f"; at a common rate {shown(decided.common.mean)} [{ends}]"


def _p(decided: Decided) -> str:
    if decided.p is None:
        return ""
    if one_value(decided.paired.differences):
        return ", the same for all seeds"
    said = probability(decided.p)
    return f", p {said}" if said.startswith("<") else f", p = {said}"


def _said(verdict: Verdict) -> str:
    more = f"; {verdict.seeds} seeds would decide" if verdict.seeds is not None else ""
    return f"**{verdict.word}**: {verdict.reason}{more}"


def _spread(values: Iterable[float | None], sign: str = "") -> str:
    """Mean and deviation of the values that are there."""
    present = [value for value in values if value is not None]
    if not present:
        return "-"
    mean = statistics.fmean(present)
    deviation = f" +- {shown(statistics.stdev(present))}" if len(present) > 1 else ""
    return f"{sign if mean > 0 else ''}{shown(mean)}{deviation}"


def _made(runs: Iterable[Trial]) -> tuple[list[str], list[str]]:
    """The machines of ``runs``, and the versions."""
    of_names: dict[str, set[str]] = {}
    ways = set[str]()
    for run in runs:
        with as_written(run.folder):
            manifest = RunDirectory(run.folder).manifest()
            for name, version in manifest["versions"].items():
                of_names.setdefault(str(name), set()).add(str(version))
            ways.add(_way(manifest))
    return sorted(ways), [f"{name} {' and '.join(sorted(several))}" for name, several in sorted(of_names.items())]


def _way(manifest: Mapping[str, Any]) -> str:
    """How a run was computed, as far as its record tells: of two types of products, the same seeds differ."""
    kernels = manifest.get("kernels") or {}
    products = kernels.get("products", kernels.get("dtype"))
    more = [manifest.get("processor"), f"products in {products}" if products else None]
    told = ", ".join(str(part) for part in more if part)
    return f"{manifest['device']} with {manifest['threads']} threads" + (f" ({told})" if told else "")


def _facts(trials: Trials, of_claims: Sequence[Finding]) -> dict[str, Any]:
    entry = trials.entry
    claims: list[dict[str, Any]] = [{"claim": claim.claim, "paper": _paper(claim, entry)} for claim in entry.claims]
    of_a_run = trials.seconds_of_a_run()
    for claim, finding in zip(claims, of_claims, strict=False):
        claim |= {
            "here": at_end(finding, trials),
            "seeds": len(finding.paired.differences),
            "verdict": finding.verdict.word,
            "why": finding.verdict.reason,
            "equal_bytes_per_client": "-" if finding.equal_bytes is None else finding.equal_bytes.verdict.word,
        }
        if (seeds := finding.verdict.seeds) is not None:
            more = seeds - len(finding.paired.differences)
            claim |= {"deciding_seeds": seeds, "deciding_seconds": more * len(finding.of.arms) * of_a_run}
    hours = (trials.spent(), trials.seconds() if trials.missing() else 0.0)
    target = {} if trials.target == trials.name else {"target": trials.target}
    before = not entry.changed
    of_entry = {"paper": entry.paper, "item": entry.item, **target, "written_before_the_runs": before}
    return {**of_entry, "claims": claims, "seconds": hours}


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _picture(trials: Trials, curves: Mapping[str, list[Curve]]) -> bytes:
    """A line per arm: the mean over seeds and its 95 % interval; and a dashed one per bound."""
    bounds = [bound for bound in trials.entry.bounds if bound.arm in curves and bound.less is None]
    limits = [(bound.arm, limit) for bound in bounds for limit in _limits(trials, bound, curves[bound.arm])]
    score = trials.entry.metric + (", log10" if trials.entry.log10 else "")
    return drawing.png(pictures.bands(_lines(trials, curves), score, limits))


def _lines(trials: Trials, curves: Mapping[str, list[Curve]]) -> Mapping[str, pictures.Band]:
    """The points of each arm's line. Bytes are means over seeds too; all are 0 where those of an arm are a secret."""
    return {arm: _line(trials, of_arm, secret=bool(_secret(curves))) for arm, of_arm in curves.items()}


def _secret(curves: Mapping[str, list[Curve]]) -> set[str]:
    """The arms whose bytes are a secret."""
    return {arm for arm, of_arm in curves.items() if any(curve.bytes is None for curve in of_arm)}


def _line(trials: Trials, of_arm: Sequence[Curve], *, secret: bool) -> pictures.Band:
    by_round: dict[int, list[tuple[float, float]]] = {}
    for curve in of_arm:
        bytes_so_far = [0.0] * len(curve.rounds) if secret or curve.bytes is None else curve.bytes
        for done, sent, value in zip(curve.rounds, bytes_so_far, curve.values, strict=True):
            by_round.setdefault(done, []).append((sent, trials.entry.score.scaled(value)))
    points = []
    for done, of_seeds in by_round.items():
        scores = Paired.of([score for _, score in of_seeds])
        megabytes = statistics.fmean(sent for sent, _ in of_seeds) / 1e6
        points.append((done, megabytes, scores.mean, *(scores.interval or (scores.mean, scores.mean))))
    return points


def _limits(trials: Trials, bound: Bound, of_arm: list[Curve]) -> list[list[tuple[int, float]]]:
    """The lines of a bound over rounds. A factor's starts at the mean of the runs' first values."""
    rounds = of_arm[0].rounds
    if bound.factor is None:
        levels = [limit for limit in (bound.at_least, bound.at_most) if limit is not None]
        return [[(done, trials.entry.score.scaled(level)) for done in (rounds[0], rounds[-1])] for level in levels]
    first = statistics.fmean(curve.values[0] for curve in of_arm)
    return [[(done, trials.entry.score.scaled(first * bound.factor**k)) for k, done in enumerate(rounds)]]


_FACTS = "facts"
"""The folder of the facts, a file per entry."""


def write_facts(pages: Path, name: str, facts: Mapping[str, Any]) -> None:
    """Write the facts of the entry ``name``, and the page of all."""
    durable.make_folder(pages / _FACTS)
    content = json.dumps(facts, indent=2, ensure_ascii=False).encode()
    durable.write_all(pages / _FACTS, {f"{name}.json": content})
    durable.write_all(pages, {"all.md": _index(pages).encode()})


def _index(pages: Path) -> str:
    claims = []
    for file in sorted((pages / _FACTS).glob("*.json")):
        with as_written(file):
            facts = RunDirectory(file.parent).read(file.name)
            claims += [_index_cells(facts, claim, file.stem) for claim in facts["claims"]]
    return template("all.md").render(claims=claims)


def _index_cells(facts: Mapping[str, Any], claim: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The cells of a claim in the page of all entries; of an open one with the seeds that would decide it, and the
    hours of their runs."""
    spent, missing = (f"{seconds / 3600:.1f}" for seconds in facts["seconds"])
    decide = ""
    if (seeds := claim.get("deciding_seeds")) is not None:
        decide = f"; {seeds} seeds would decide, {math.ceil(claim['deciding_seconds'] / 360) / 10} h more"
    return (
        f"{facts['paper']}, {facts['item']}",
        f"[{claim['claim']}]({quote(name)}.md)",
        claim["paper"],
        claim.get("here", "-"),
        claim.get("seeds", 0),
        claim.get("verdict", "open") + decide,
        claim.get("equal_bytes_per_client", "-"),
        f"{spent}, {missing}",
        f"`rondo reproduce {shlex.quote(facts.get('target', name))}`",
    )


@cache
def template(name: str) -> jinja2.Template:
    """The text of a page, ``name``, with the filters that its cells and numbers go through."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {
        "row": lambda cells: row(*cells),
        "listed": lambda values: ", ".join(map(str, values)),
        "quoted": shlex.quote,
        "inline": toml_file.inline,
        "shown": shown,
        "g": lambda value: f"{value:g}",
    }
    return environment.from_string((files("rondo.study.claims") / name).read_text(encoding="utf-8"))


def shown(value: float | None) -> str:
    """A number with three digits that count."""
    return "-" if value is None else f"{value:.2f}" if 1 <= abs(value) < 1e4 else f"{value:.3g}"


def row(*cells: Any) -> str:
    """A line of a table, which a stroke in a cell, as of a norm, or a new line would end."""
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", r"\|") for cell in cells) + " |"
