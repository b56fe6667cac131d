"""The page of an entry, with its picture."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rondo.config import toml_file
from rondo.privacy.guarantee import added
from rondo.records import durable
from rondo.records.curve import Curve
from rondo.records.directory import RunDirectory, as_written
from rondo.records.summary import WITHHELD, weakest_guarantee
from rondo.report.terminal import human_bytes
from rondo.study import pictures as comparisons
from rondo.study.claims import index
from rondo.study.claims.entry import Bound, Contrast, Entry
from rondo.study.claims.findings import Decided, Finding, ended, findings, finished
from rondo.study.claims.index import row
from rondo.study.claims.paired import ROUNDING, Paired, one_value
from rondo.study.claims.trials import Trials
from rondo.study.claims.verdict import Verdict

_LEAST_P = 1e-12
"""Below it a probability is what is left of one less another, near one, and none of its digits count."""
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
    index.write(pages, trials.name, _facts(trials, of_claims))
    return of_claims


def shown(value: float | None) -> str:
    """A number with three digits that count."""
    return "-" if value is None else f"{value:.2f}" if 1 <= abs(value) < 1e4 else f"{value:.3g}"


def _page(trials: Trials, of_claims: Sequence[Finding], curves: Mapping[str, list[Curve]]) -> str:
    entry = trials.entry
    secret = _secret(curves)
    lines = [
        f"# {entry.title}",
        "",
        f"{entry.paper}, {entry.item}. {entry.differs}",
        "",
        *([f"Changed after runs that had been seen: {entry.changed}", ""] if entry.changed else []),
        f"    rondo reproduce {shlex.quote(trials.target)}",
        "",
        f"Score: `{entry.metric}`{', its decimal logarithm' if entry.log10 else ''}"
        + _taken(entry)
        + f". Seeds {_listed(entry.seeds)}; differences are paired by seed, intervals are of 95 % (Student's t), p is "
        f"corrected by Holm for all claims of this page that have one{_family(of_claims)}, and decides both *seen* and "
        "*not seen here*. Where the runs of a claim end after different numbers of rounds, each arm's is given. At "
        "equal bytes per client, a run is scored when its clients, in the mean, have sent and received what those of "
        "the most frugal run do in all."
        + (f" Of private clients, bytes are {WITHHELD}." if secret else "")
        + _targets(entry),
        "",
        "| claim | paper | what counts | at the end of each run | verdict | at equal bytes per client | verdict | "
        "seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for claim, finding in zip_longest(entry.claims, of_claims):
        numbers = (*_cells(finding, trials, secret), len(finding.paired.differences)) if finding else _UNDECIDED
        lines.append(row(claim.claim, _paper(claim, entry), _counts(claim), *numbers))
    once = any(len(of_arm[0].rounds) == 1 for of_arm in curves.values())
    lines += _presupposed(entry, of_claims)
    if entry.remarks:
        lines += ["", f"Seen in the runs: {entry.remarks}"]
    if curves:
        lines += [
            "",
            "| arm | score, mean and deviation | change to the last tenth of the rounds from the tenth before | "
            "seeds | rounds | clients | up and down per client | tuned |",
            "|---|---|---|---|---|---|---|---|",
            *(_arm(trials, arm, of_arm) for arm, of_arm in curves.items()),
            "",
            *_guarantees(curves),
            f"![{_pictured(_lines(trials, curves))}]({quote(trials.name)}.png)",
            "",
            "Means over seeds, with 95 % intervals."
            + (" An arm without a change is scored at its end alone: nothing tells whether it is flat." * once)
            + (" Dashed: bounds." if any(bound.less is None for bound in entry.bounds) else ""),
        ]
    if entry.tuning is not None:
        grid = "; ".join(f"{key}: {_listed(values)}" for key, values in entry.tuning.grid.items())
        share = entry.tuning.held_out
        rows = f"on {100 * share:g} % of the training rows, held out" if share else "scored as the runs are"
        if (score := entry.score_of_trials) != entry.score:
            sought = "smallest" if score.lower_is_better else "largest"
            rows += f", where the {sought} `{score.metric}` is the best"
        if entry.tuning.config:
            rows += f", and with `{toml_file.inline(entry.tuning.config)}` in the trials"
        lines += ["", f"Every arm is tuned over {grid}, by the seeds {_listed(entry.tuning.seeds)}, {rows}."]
        edges = {arm: entry.tuning.at_edge(trials.tuned(arm)) for arm in curves}
        if at_edge := [f"{arm} ({_listed(keys)})" for arm, keys in edges.items() if keys]:
            lines += ["", f"At an edge of the grid, so that a wider one may suit them better: {', '.join(at_edge)}."]
    for folder, why in trials.stopped_here().items():
        counts = "is the worst of its arm's trials" if folder.startswith("tuning/") else "counts with its last score"
        lines += ["", f"{folder} stopped and {counts}: {why}"]
    lines += ["", _made(trials), ""]
    return "\n".join(lines)


def _presupposed(entry: Entry, of_claims: Sequence[Finding]) -> list[str]:
    """A line per precondition, with what the runs have of it."""
    here = {one.of.says: one.here for finding in of_claims for one in finding.presupposed}
    lines = []
    for one in entry.preconditions:
        of_claim = f" (for: {'; '.join(one.claims)})" if one.claims else ""
        asked = f"at most {one.at_most:g}" if one.at_least is None else f"at least {one.at_least:g}"
        met = "not measured yet" if one.says not in here else "met" if one.is_met(here[one.says]) else "**not met**"
        lines.append(f"- Presupposed{of_claim}: {one.says}. Here {shown(here.get(one.says))}, {asked} needed: {met}.")
    return ["", *lines] if lines else []


def _pictured(lines: Mapping[str, comparisons.Band]) -> str:
    """The words in place of the picture."""
    if comparisons.over_nothing(lines):
        return "Scores"
    return "Scores over rounds and over bytes per client" if comparisons.over_bytes(lines) else "Scores over rounds"


def _taken(entry: Entry) -> str:
    """The values of a run that its score is of."""
    over = f", every {entry.every} rounds" if entry.every > 1 else ""
    if entry.take == "smallest":
        return f"{over}, the smallest of the run"
    return over + (f", the mean of the last {entry.last} values" if entry.last > 1 else ", after the last round")


def _family(of_claims: Sequence[Finding]) -> str:
    """How many claims p is corrected for, at the end and at equal bytes."""
    ends = sum(finding.p is not None for finding in of_claims)
    of_bytes = sum(finding.equal_bytes is not None for finding in of_claims)
    if not ends:
        return ""
    return f", {ends} at the end" + (f" and {of_bytes} at equal bytes" if of_bytes else "")


def _targets(entry: Entry) -> str:
    """The measure of claims with a target, in a sentence; empty without any."""
    targets = sorted({contrast.target for contrast in entry.contrasts if contrast.target is not None})
    if not targets:
        return ""
    values, beyond = _listed(f"{target:g}" for target in targets), "less" if entry.lower_is_better else "more"
    return (
        " Claims on bytes are on the decimal logarithm of the bytes per client, up and down, at the first value of "
        f"{values} or {beyond}. A run that never has one counts with all its bytes, less than it would need: where "
        "that may have helped a verdict, the claim is open."
    )


def _guarantees(curves: Mapping[str, list[Curve]]) -> list[str]:
    """A line per guarantee of ``[privacy]``, that of an arm's largest epsilon, and the arms that have it."""
    of_arms: dict[str, list[str]] = {}
    for arm, of_arm in curves.items():
        if (guarantee := weakest_guarantee(curve.privacy for curve in of_arm)) is not None:
            of_arms.setdefault(guarantee, []).append(arm)
    lines = [f"- {_listed(arms)}: {guarantee}." for guarantee, arms in of_arms.items()]
    records = [curve.privacy for of_arm in curves.values() for curve in of_arm if curve.privacy is not None]
    spent = [(record, record.get("delta")) for record in records if "epsilon" in record]
    together = f", {added(spent)}" if spent else ""
    return [f"Of what clients share{together}:", "", *lines, ""] if lines else []


def _arm(trials: Trials, arm: str, of_arm: Sequence[Curve]) -> str:
    """The line of an arm."""
    score = trials.entry.score
    return row(
        arm,
        _spread([score.of_values(curve.values) for curve in of_arm]),
        _spread([score.late_change(curve) for curve in of_arm], sign="+"),
        len(of_arm),
        ended(of_arm),
        of_arm[0].clients,
        human_bytes(statistics.fmean(sent)) if (sent := [c.bytes[-1] for c in of_arm if c.bytes is not None]) else "-",
        ", ".join(f"{key} = {value}" for key, value in trials.tuned(arm).items()) or "-",
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
    middle, interval = decided.paired.mean, decided.paired.interval or ()
    if interval and abs(middle) < ROUNDING * (interval[1] - interval[0]):
        middle = 0.0  # equal scores, in sums that are rounded
    numbers = (middle, *interval)
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
    return f", p < {_LEAST_P:g}" if decided.p < _LEAST_P else f", p = {decided.p:.2g}"


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


def _made(trials: Trials) -> str:
    """Machine, versions and cost."""
    runs = finished(trials)
    if not runs:
        hours = f"about {trials.seconds() / 3600:.1f} h of a core"
        if not (tried := trials.tried()):
            return f"No run is there yet; all of them take {hours}."
        return (
            f"No run that counts is there yet, only trials of the tuning: {tried}, in {trials.spent() / 3600:.2f} h. "
            f"What is missing takes {hours}."
        )
    pairs, ways = set[tuple[str, str]](), set[str]()
    for run in runs:
        with as_written(run.folder):
            manifest = RunDirectory(run.folder).manifest()
            pairs |= {(str(name), str(version)) for name, version in manifest["versions"].items()}
            ways.add(_way(manifest))
    of_names: dict[str, list[str]] = {}
    for name, version in sorted(pairs):
        of_names.setdefault(name, []).append(version)
    versions = ", ".join(f"{name} {' and '.join(several)}" for name, several in of_names.items())
    left = ""
    if missing := trials.missing():
        seeds = _listed(dict.fromkeys(trial.seed for trial in missing))
        left = f" {len(missing)} runs are missing, of the seeds {seeds}, about {trials.seconds() / 3600:.1f} h."
    return f"{trials.spent() / 3600:.2f} h of runs, tuning included, on {' and '.join(sorted(ways))}; {versions}.{left}"


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
    return comparisons.bands(_lines(trials, curves), score, limits)


def _lines(trials: Trials, curves: Mapping[str, list[Curve]]) -> Mapping[str, comparisons.Band]:
    """The points of each arm's line. Bytes are means over seeds too; all are 0 where those of an arm are a secret."""
    return {arm: _line(trials, of_arm, secret=bool(_secret(curves))) for arm, of_arm in curves.items()}


def _secret(curves: Mapping[str, list[Curve]]) -> set[str]:
    """The arms whose bytes are a secret."""
    return {arm for arm, of_arm in curves.items() if any(curve.bytes is None for curve in of_arm)}


def _line(trials: Trials, of_arm: Sequence[Curve], *, secret: bool) -> comparisons.Band:
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
