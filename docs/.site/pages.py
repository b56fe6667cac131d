"""The pages of docs/results from the records beside them and from headlines.toml, without a run.

python docs/.site/pages.py [NAME ...]    # of some entries, or of all: make results
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rondo.study.claims import entry as entries
from rondo.study.claims import page
from rondo.study.claims.entry import Entry
from rondo.study.claims.page import row
from rondo.study.claims.trials import Trials
from rondo.study.claims.verdict import WORDS

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PAPERS = {"RoLoRA": "rolora", "FLoRG": "florg", "FedRep": "fedrep", "FedLoRU": "fedloru", "No paper": "ours"}
"""The page of each paper's claims, and of ours."""


def unpacked(name: str, folder: Path) -> Trials:
    """The runs of the entry ``name`` in ``folder``, where its data need not be."""
    archive = RESULTS / "runs" / f"{name}.tar.xz"
    if archive.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "out", filter="data")
    entry = entries.read(name)
    for file in entry.files:
        (folder / file).mkdir(parents=True)
    return Trials(name, entry, folder / "out", folder)


def facts(name: str) -> dict[str, Any]:
    """What the page of an entry says, as data."""
    content: dict[str, Any] = json.loads((RESULTS / "facts" / f"{name}.json").read_text(encoding="utf-8"))
    return content


def contents() -> dict[str, str]:
    """The pages that are of several entries, by name: the headlines, and one of each paper."""
    headlines = tomllib.loads((HERE / "headlines.toml").read_text(encoding="utf-8"))["headline"]
    return {"README.md": _first(headlines), **{f"{PAPERS[paper]}.md": _paper(paper, headlines) for paper in PAPERS}}


def _first(headlines: list[dict[str, Any]]) -> str:
    lines = [
        "# What we saw of the papers' headlines",
        "",
        "| headline | here | what we saw | verdict | tested as stated? |",
        "|---|---|---|---|---|",
    ]
    for one in headlines:
        entry, claim = entries.read(one["entry"]), _claim(one)
        link, words = f"[{one['paper']}]({PAPERS[one['paper']]}.md): {one['said']}", f"*{claim['verdict']}*"
        lines.append(row(link, one["here"], _shown(claim["here"], one["claim"], entry), words, _as_stated(claim)))
    lines += [
        "",
        "Differences are in favour of the claim, with 95 % intervals over seeds. Points are of accuracy.",
        "[How a verdict comes about](../reproduce.md). [All claims in one table](all.md).",
        "The claims of each paper with their settings and reasons: "
        + ", ".join(f"[{paper}]({PAPERS[paper]}.md)" for paper in PAPERS if paper != "No paper")
        + f"; and [our own]({PAPERS['No paper']}.md), on privacy, compression and exact methods.",
        "",
        counted(),
        "",
        "## Why",
        "",
    ]
    for one in headlines:
        if "why" in one:
            lines += [f"**{one['paper']}: {one['said']}.** {one['why']}", ""]
    return "\n".join(lines)


def _as_stated(claim: dict[str, Any]) -> str:
    """Whether a claim is tested as stated, and what is not as it is there."""
    if "rates of their own" in claim["why"]:
        return "no: rate"
    if claim["verdict"] != "not tested as stated":
        return "yes"
    kinds = (part.partition(":")[0].removesuffix(" not met") for part in claim["why"].split("; "))
    return f"no: {', '.join(dict.fromkeys(kinds))}"


def counted() -> str:
    """The numbers of claims and of their verdicts, the papers' and our own."""
    lines = []
    for ours in (False, True):
        of_all = [of for name in entries.names() if ((of := facts(name))["paper"] == "No paper") is ours]
        words = Counter(claim.get("verdict", "open") for of in of_all for claim in of["claims"])
        before = sum(len(of["claims"]) for of in of_all if of["written_before_the_runs"])
        told = "; ".join(f"{words[word]} {word}" for word in WORDS if words[word])
        whose = "of our own" if ours else "of the papers"
        lines.append(
            f"{words.total()} claims {whose}: {told}. {before} of them were written down before the runs; "
            "the pages of the others say what was changed after one."
        )
    return " ".join(lines)


def _claim(headline: dict[str, Any]) -> dict[str, Any]:
    """The facts of a headline's claim."""
    return next(one for one in facts(headline["entry"])["claims"] if one["claim"] == headline["claim"])


def _shown(here: str, claim: str, entry: Entry) -> str:
    """The numbers of a claim: differences of accuracies in points, those of logarithms as ratios."""
    on_bytes = any(one.target is not None and one.claim == claim for one in entry.contrasts)
    if entry.log10 or on_bytes:
        return _each(here, lambda number: f"{10**number:.2g}") + " times"
    points = entry.metric.endswith("accuracy")
    return _each(here, lambda number: f"{100 * number:.1f}") + " points" if points else here.partition(" (")[0]


def _each(here: str, told: Callable[[float], str]) -> str:
    """A mean with its interval, every number told in another way."""
    return re.sub(r"-?\d+\.?[\de-]*", lambda number: told(float(number[0])), here.partition(" (")[0])


def _paper(paper: str, headlines: list[dict[str, Any]]) -> str:
    """The page of a paper: its claims by entry, with the setting, the numbers, the verdict and why."""
    title = "Our own claims" if paper == "No paper" else f"The claims of {paper}"
    lines = [f"# {title}", "", "[All papers](README.md)", ""]
    for name in entries.names():
        if (of := facts(name))["paper"] != paper:
            continue
        entry = entries.read(name)
        lines += [
            f"## {entry.item[0].upper()}{entry.item[1:]}: {entry.title}",
            "",
            f"[The page of its runs]({name}.md). {entry.differs}",
            "",
        ]
        lines += ["| claim | paper | here | verdict | because |", "|---|---|---|---|---|"]
        for one in of["claims"]:
            said = (
                one["claim"],
                one["paper"],
                one.get("here", "-"),
                f"*{one.get('verdict', 'open')}*",
                one.get("why", "no run yet"),
            )
            lines.append(row(*said))
        why = [one["why"] for one in headlines if one["entry"] == name and "why" in one]
        lines += ["", *(f"{text}\n" for text in why)]
        lines += [f"Seen in the runs: {entry.remarks}", ""] if entry.remarks else []
    return "\n".join(lines)


if __name__ == "__main__":
    for one in sys.argv[1:] or entries.names():
        with tempfile.TemporaryDirectory() as made:
            page.write(unpacked(one, Path(made)), RESULTS)
    for name, content in contents().items():
        (RESULTS / name).write_text(content, encoding="utf-8")
