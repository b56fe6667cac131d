"""A run's rows: the account of them in sentences (sampled, left out, moved, cut), and tables of rows and labels of each
client before a run is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rondo.errors import first_of, visible
from rondo.report.table import Table


def account(partition: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence about every way in which not all rows are used whole, then the warnings. ``partition``: as in
    ``partition.json``."""
    for split, prefix in (("training", ""), ("test", "test_")):
        rows, used, unsampled = (partition[prefix + key] for key in ("rows", "rows_used", "rows_not_sampled"))
        if unsampled:
            by = partition[f"{prefix}sampled_by"]
            shares = f", which keeps the shares of {' and '.join(by)}" if by else ""
            yield f"{rows - unsampled} of {rows} {split} rows are taken, a random sample{shares}"
        reasons = {
            "bad": partition[f"{prefix}rows_bad"],
            "given to no client": partition.get(f"{prefix}rows_without_client", 0),
            "with nothing to learn within task.max_length": partition[f"{prefix}rows_without_target"],
        }
        if lost := sum(reasons.values()):
            why = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
            yield f"{lost} of {rows - unsampled} {split} rows are not used: {why}"
        text = partition[f"{prefix}text"]
        if text.get("rows_cut"):
            yield (
                f"{text['rows_cut']} of {used} {split} rows ({_percent(text['rows_cut'], used)}) are cut to "
                f"task.max_length, and {_percent(text['tokens_lost'], text['tokens'])} of all tokens are lost"
            )
        if count := text.get("pictures_of_floats"):
            low, high = text["lowest"], text["highest"]
            kind = "as bytes divided by 255 are" if low >= 0 and high <= 1 else "so taken as normalised already"
            yield f"float pixels of {count} {split} pictures are from {low:.3g} to {high:.3g}, {kind}: none is changed"
        yield from _in_windows(text, used, split)
    if moved := partition["rows_moved"]:
        dealt = partition["rows"] - partition["rows_bad"] - partition["rows_not_sampled"]
        few = "clients with fewer than partition.min_size"
        yield f"{moved} of {dealt} training rows are moved to {few}: no draw gave every client enough"
    if count := partition["clients_not_sampled"]:
        yield f"{count} clients are not in the sample"
    too_small = partition["clients_too_small"]
    for reason, names in (
        (", since none of their rows can be used", [name for name, count in too_small.items() if not count]),
        (" for too few examples", [name for name, count in too_small.items() if count]),
        (", since there is nothing to learn within task.max_length", partition["clients_without_examples"]),
    ):
        if names:
            yield f"left out{reason}: {first_of(names)}"
    yield from (f"warning: {text}" for text in partition["warnings"])


def _in_windows(text: Mapping[str, Any], used: int, split: str) -> Iterator[str]:
    """Sentences about rows that are read in windows."""
    if count := text.get("words_without_token"):
        start = f"of {count} words in {split} rows the tokenizer makes no token of their own"
        yield f"{start}: each goes with the word before it"
    if beyond := text.get("answers_beyond_windows"):
        scored = "are scored only" if split == "test" else "are not trained on"
        yield (
            f"{beyond} of {used} {split} rows have an answer that is whole in no window and {scored}: raise "
            "task.max_length or task.stride"
        )


def _percent(part: int, whole: int) -> str:
    """ "3.6 %"; a share that rounds to nothing is "below 0.1 %"."""
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.05 else "below 0.1 %"


_LABELS, _CLIENTS = 6, 40
"""Most columns of labels, and most rows of clients."""


def clients_table(partition: Mapping[str, Any]) -> Table:
    """Rows by client and split, and training and validation rows by label. ``partition``: as in ``partition.json``."""
    clients = partition["clients"]
    labels = _common(clients)
    splits = [split for split in ("train", "validation", "test") if any(c.get(split) for c in clients.values())]
    others = bool({label for client in clients.values() for label in client["labels"] or {}} - set(labels))
    columns = ("client", *splits, *map(visible, labels), *(["other labels"] if others else []))
    shown = list(clients.items())[:_CLIENTS]
    rows = [(visible(name), *_cells(client, splits, labels, others=others)) for name, client in shown]
    if len(clients) > _CLIENTS:
        rows.append((f"and {len(clients) - _CLIENTS} more", *[""] * (len(columns) - 1)))
    total = {split: sum(c.get(split, 0) for c in clients.values()) for split in splits}
    counts: Counter[str] = Counter()
    for client in clients.values():
        counts.update(client["labels"] or {})
    all_rows = ("all", *_cells({**total, "labels": counts}, splits, labels, others=others))
    return Table(f"{len(clients)} clients", columns, [*rows, all_rows], breaks=(len(rows),), plain=True)


def _common(clients: Mapping[str, Any]) -> list[str]:
    """The labels with the most rows, the most common first."""
    counts: Counter[str] = Counter()
    for client in clients.values():
        counts.update(client["labels"] or {})
    return [label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LABELS]]


def _cells(client: Mapping[str, Any], splits: Sequence[str], labels: Sequence[str], *, others: bool) -> Iterator[str]:
    yield from (str(client.get(split, 0)) for split in splits)
    counts = client["labels"] or {}
    yield from (str(counts.get(label, 0)) for label in labels)
    if others:
        yield str(sum(counts.values()) - sum(counts.get(label, 0) for label in labels))


def lengths_line(what: str, tokens: Sequence[int], most: int) -> str:
    """The tokens of rows in a sentence. ``tokens``: of each row, as it is trained on; ``most``: ``task.max_length``."""
    ordered = sorted(tokens)
    middle, long = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9))
    return f"{what}: {middle} tokens in the median row, {long} at 90 %, {ordered[-1]} in the longest, of {most} at most"
