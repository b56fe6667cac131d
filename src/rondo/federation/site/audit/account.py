"""The account of an audit, for people: what left this site, per day and run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rondo.errors import first_of
from rondo.federation.site.audit.audit import AuditLine
from rondo.federation.site.ledger import SiteLedger
from rondo.report.terminal import human_bytes


def account(lines: Iterable[AuditLine]) -> Iterator[str]:
    """The letters that left, per day and run, and whether the audit is whole."""
    days: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    count, faults = 0, list[str]()
    for line in lines:
        count += line.number > 0
        if (fault := _fault(line)) is not None:
            faults.append(fault)
        if line.entry is not None:
            key = (line.entry["time"][:10], line.entry["run"])
            days.setdefault(key, []).append(line.entry)
    for (day, run), of_day in days.items():
        yield f"{day}, run {run}" if run else f"{day}, before a run"
        yield from (f"  {sentence}" for sentence in _sentences(of_day))
    yield f"{count} letters; " + ("; ".join(faults) if faults else "each line follows the one before it")


def _fault(line: AuditLine) -> str | None:
    """The fault of ``line``; None without one."""
    if line.said:
        return f"{line.file} {line.said}"
    place = f"{line.file}, line {line.number}"
    if line.entry is None:
        return f"{place} is not whole: the machine stopped while it was written, or it was changed"
    return None if line.linked else f"{place} does not follow the line before it: one was changed, taken out or put in"


def spent(folder: Path, delta: float = 1e-5) -> Iterator[str]:
    """Epsilon of the private trainings in a site's ``folder``, per file of rows."""
    for file, runs, epsilon in SiteLedger(folder, {}).accounts(delta):
        many = "run" if runs == 1 else "runs"
        told = f"epsilon {epsilon:.3g} at delta {delta:g}"
        yield f"rows {file}, private in {runs} {many}: {told}, with all private runs on rows among them"


def letters(lines: Iterable[AuditLine]) -> Iterator[str]:
    """Every letter in clear, a line each."""
    for line in lines:
        if line.entry is None:
            yield f"{line.file} {line.said}" if line.said else f"{line.file}, line {line.number}: not whole"
            continue
        e = line.entry
        client = "" if not e["client"] else f", {e['client']}"
        attempt = "" if e["round"] is None else f", round {e['round'] + 1}"
        yield f"{e['time']} {e['direction']} {e['kind']}{client}{attempt}, {e['bytes']} bytes: {_clear(e['content'])}"


def _clear(content: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} {_value(value)}" for key, value in content.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)


def _sentences(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for entry in entries:
        if entry["direction"] == "in" and entry["kind"] == "plan":
            content = entry["content"]
            method = content.get("config", {}).get("algorithm", {}).get("name", "?")
            changes = ", ".join(c["key"] for c in content.get("changes", ()))
            yield f"a plan came: {method}" + (f"; changed since the last one: {changes}" if changes else "")
        if entry["direction"] == "out" and entry["kind"] == "consent":
            content = entry["content"]
            clients = ", ".join(f"{name} ({rows})" for name, rows in content["clients"].items())
            names = f", class names {', '.join(content['labels'])}" if content["labels"] else ""
            yield f"refused: {content['refused']}" if content["refused"] else f"consented: {clients}{names}"
    left = [entry for entry in entries if entry["direction"] == "out"]
    uploads = [entry for entry in left if entry["kind"] == "upload"]
    if uploads:
        yield from _uploads(uploads)
    yield from _sums(left)
    answers = [entry for entry in left if entry["kind"] == "scores"]
    scores = [entry for entry in answers if entry["content"].get("scores")]
    if scores:
        yield f"{_of(scores, 'letters with scores')}, such as {_value(scores[-1]['content']['scores'])}"
    if len(scores) < len(answers):  # the contract keeps them, or there are no rows to score on
        yield _of([entry for entry in answers if entry not in scores], "answers without the scores asked for")
    reasons: dict[str, int] = {}
    for entry in left:
        if entry["kind"] in ("reason", "failure"):
            reason = f"{entry['content'].get('reason')}: {entry['content'].get('detail', '')}"
            reasons[reason] = reasons.get(reason, 0) + 1
    yield from (f"{number} refusals: {reason}" for reason, number in reasons.items())
    held = [entry for entry in left if entry["kind"] == "held"]
    if held:
        yield _of(held, "letters with the digests of what it had been sent")
    came = [entry for entry in entries if entry["direction"] == "in"]
    yield f"out {human_bytes(_bytes(left))} in {len(left)} letters; in {human_bytes(_bytes(came))} in {len(came)}"


def _uploads(uploads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    clients = ", ".join(sorted({entry["client"] for entry in uploads}))
    losses = [entry["content"]["loss"] for entry in uploads if "loss" in entry["content"]]
    tensors = sorted({name for entry in uploads for name in entry["content"]["tensors"]})
    minutes = sum(entry["seconds"] for entry in uploads) / 60
    yield f"{_of(uploads, 'uploads')} of {clients}, {minutes:.1f} minutes of training"
    yield f"  tensors: {first_of(tensors, 4)}"
    yield f"  losses: {losses[0]:.3f} to {losses[-1]:.3f}" if losses else "  losses: none left"


def _sums(left: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The masked vectors and the sums that were opened."""
    vectors = [entry for entry in left if entry["kind"] == "masked vector"]
    opened = [entry for entry in left if entry["kind"] == "shares"]
    if vectors:
        clients = ", ".join(sorted({client for entry in vectors for client in entry["content"]["clients"]}))
        yield f"{_of(vectors, 'masked vectors')} of {clients}"
    if opened:
        rounds = len({entry["round"] for entry in opened})
        fewest = min(len(entry["content"]["sites"]) for entry in opened)
        yield f"  of which {rounds} in sums that were opened, each of {fewest} sites at least"


def _of(entries: Sequence[Mapping[str, Any]], what: str) -> str:
    return f"{len(entries)} {what} ({human_bytes(_bytes(entries))})"


def _bytes(entries: Sequence[Mapping[str, Any]]) -> int:
    return sum(entry["bytes"] for entry in entries)
