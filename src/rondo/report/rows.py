"""The account of a run's rows in sentences: sampled, left out, moved, cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rondo.errors import first_of


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
