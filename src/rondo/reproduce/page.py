"""The page of an entry, with its picture, and the page of all entries."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rondo.report import pictures
from rondo.reproduce.findings import Decided, Finding, findings, finished
from rondo.reproduce.paired import Paired
from rondo.reproduce.trials import Trials
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory
from rondo.tune.trial import Curve

_FACTS = "facts"
"""The folder of the facts from which the page of all is made, a file per entry."""


def write(trials: Trials, pages: Path) -> list[Finding]:
    """Write the page of an entry, its picture, and the page of all entries that have one. Returns the findings."""
    of_claims = findings(trials)
    curves: dict[str, list[Curve]] = {}
    for trial in finished(trials):
        curves.setdefault(trial.arm, []).append(trials.curve(trial))
    durable.make_folder(pages / _FACTS)
    contents = {f"{trials.name}.md": _page(trials, of_claims, curves).encode()}
    if curves:
        contents[f"{trials.name}.png"] = _picture(trials, curves)
    durable.write_all(pages, contents)
    facts = json.dumps(_facts(trials, of_claims), indent=2, ensure_ascii=False).encode()
    durable.write_all(pages / _FACTS, {f"{trials.name}.json": facts})
    durable.write_all(pages, {"README.md": _index(pages).encode()})
    return of_claims


def shown(value: float | None) -> str:
    """A number with three digits that count."""
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def interval(paired: Paired) -> str:
    """A mean with its 95 % interval."""
    if paired.interval is None:
        return shown(paired.mean)
    return f"{shown(paired.mean)} [{shown(paired.interval[0])}, {shown(paired.interval[1])}]"


def _cells(decided: Decided | None) -> tuple[str, str]:
    """The cells of differences and of their verdict."""
    if decided is None:
        return "-", "a run has no score at so few bytes"
    verdict = decided.verdict
    more = f"; {verdict.seeds} seeds would decide" if verdict.seeds is not None else ""
    return f"{interval(decided.paired)}, p = {decided.p:.2g}", f"**{verdict.word}**: {verdict.reason}{more}"


def _spread(values: Iterable[float | None], sign: str = "") -> str:
    """Mean and deviation of the values that are there."""
    present = [value for value in values if value is not None]
    if not present:
        return "-"
    mean = statistics.fmean(present)
    deviation = f" +- {shown(statistics.stdev(present))}" if len(present) > 1 else ""
    return f"{sign if mean > 0 else ''}{shown(mean)}{deviation}"


def _page(trials: Trials, of_claims: Iterable[Finding], curves: Mapping[str, list[Curve]]) -> str:
    entry = trials.entry
    lines = [
        f"# {entry.title}",
        "",
        f"{entry.paper}, {entry.item}. {entry.differs}",
        "",
        f"    rondo reproduce {trials.name}",
        "",
        f"Score: `{entry.metric}`{', its decimal logarithm' if entry.log10 else ''}"
        + (f", the mean of the last {entry.last}" if entry.last > 1 else ", after the last round")
        + f". Seeds {_listed(entry.seeds)}; differences are paired by seed, intervals are of 95 % (Student's t), p is "
        "corrected by Holm for the claims of this page. At equal bytes, each run is scored when it has sent what the "
        "run that sends least sends in all.",
        "",
        "| claim | paper | at equal rounds | verdict | at equal bytes | verdict | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for finding in of_claims:
        contrast = finding.contrast
        paper = f"{shown(contrast.paper)} ({contrast.source})" if contrast.paper is not None else contrast.source
        cells = [contrast.claim, paper, *_cells(finding), *_cells(finding.equal_bytes)]
        lines.append(f"| {' | '.join(cells)} | {len(finding.paired.differences)} |")
    lines += [
        "",
        "| arm | score, mean and deviation | its change over the last tenth of the rounds | seeds | MB sent in all | "
        "tuned |",
        "|---|---|---|---|---|---|",
    ]
    for arm, of_arm in curves.items():
        scores = _spread([curve.score(entry.last) for curve in of_arm])
        changes = _spread([curve.late_change(entry.last) for curve in of_arm], sign="+")
        tuned = ", ".join(f"{key} = {value}" for key, value in trials.tuned(arm).items()) or "-"
        megabytes = statistics.fmean(curve.bytes[-1] for curve in of_arm) / 1e6
        lines.append(f"| {arm} | {scores} | {changes} | {len(of_arm)} | {megabytes:.3g} | {tuned} |")
    if curves:
        lines += [
            "",
            f"![Scores over rounds]({trials.name}.png)",
            "",
            "Lines are means over seeds, bands 95 % intervals.",
        ]
    if entry.tuning is not None:
        grid = "; ".join(f"{key}: {_listed(values)}" for key, values in entry.tuning.grid.items())
        share = entry.tuning.held_out
        rows = f"on {100 * share:g} % of the training rows, held out" if share else "scored as the runs are"
        lines += ["", f"Every arm was tuned over {grid}, by the seeds {_listed(entry.tuning.seeds)}, {rows}."]
        edges = {arm: entry.tuning.at_edge(trials.tuned(arm)) for arm in curves}
        if at_edge := [f"{arm} ({_listed(keys)})" for arm, keys in edges.items() if keys]:
            lines += ["", f"At an edge of the grid, so that a wider one may suit them better: {', '.join(at_edge)}."]
    for folder, why in trials.stopped.items():
        counts = "is the worst of its arm's trials" if folder.startswith("tuning/") else "counts with its last score"
        lines += ["", f"{folder} stopped and {counts}: {why}"]
    lines += ["", _made(trials), ""]
    return "\n".join(lines)


def _made(trials: Trials) -> str:
    """Machine, versions and cost."""
    runs = finished(trials)
    if not runs:
        return f"No run is there yet; all of them take about {trials.seconds() / 3600:.1f} h on two cores."
    manifest = RunDirectory(runs[0].folder).manifest()
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest["versions"].items()))
    left = (
        f" {len(trials.missing())} runs are missing, about {trials.seconds() / 3600:.1f} h." if trials.missing() else ""
    )
    return (
        f"{trials.spent() / 3600:.2f} h of runs, tuning included, on {manifest['device']} with {manifest['threads']} "
        f"threads ({platform.machine()}); {versions}.{left}"
    )


def _facts(trials: Trials, of_claims: Iterable[Finding]) -> dict[str, Any]:
    entry = trials.entry
    claims = [
        {
            "claim": finding.contrast.claim,
            "paper": shown(finding.contrast.paper) if finding.contrast.paper is not None else "no number",
            "here": interval(finding.paired),
            "seeds": len(finding.paired.differences),
            "verdict": finding.verdict.word,
            "equal_bytes": "-" if finding.equal_bytes is None else finding.equal_bytes.verdict.word,
        }
        for finding in of_claims
    ]
    open_claims = [] if claims else [{"claim": c.claim, "paper": shown(c.paper)} for c in entry.contrasts]
    hours = (trials.spent(), trials.seconds() if trials.missing() else 0.0)
    return {"paper": entry.paper, "item": entry.item, "claims": claims or open_claims, "seconds": hours}


def _index(pages: Path) -> str:
    lines = [
        "# Claims of the papers",
        "",
        "Each by its own command, with what would count written before the runs. A difference is held against half of",
        "the paper's: significantly above zero and at least the half *holds*, above zero only *holds in direction*;",
        "where the interval excludes the half it is *refuted*, and the rest is *open*.",
        "",
        "| paper | claim | paper's difference | here | seeds | verdict | at equal bytes | hours spent, missing | "
        "command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted((pages / _FACTS).glob("*.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        spent, missing = (f"{seconds / 3600:.1f}" for seconds in facts["seconds"])
        for claim in facts["claims"]:
            lines.append(
                f"| {facts['paper']}, {facts['item']} | [{claim['claim']}]({file.stem}.md) | {claim['paper']} | "
                f"{claim.get('here', '-')} | {claim.get('seeds', 0)} | {claim.get('verdict', 'open')} | "
                f"{claim.get('equal_bytes', '-')} | "
                f"{spent}, {missing} | `rondo reproduce {file.stem}` |"
            )
    return "\n".join([*lines, ""])


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _picture(trials: Trials, curves: Mapping[str, list[Curve]]) -> bytes:
    """A line per arm: the mean over seeds and its 95 % interval."""
    lines = {}
    for arm, of_arm in curves.items():
        points = [Paired.of(scores) for scores in zip(*(curve.scores for curve in of_arm), strict=False)]
        bands = [point.interval or (point.mean, point.mean) for point in points]
        lines[arm] = [(r, p.mean, *band) for r, p, band in zip(of_arm[0].rounds, points, bands, strict=False)]
    return pictures.bands(lines, trials.entry.metric + (", log10" if trials.entry.log10 else ""))
