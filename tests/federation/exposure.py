"""The content of a federation's letters, field by field: what it tells, and the contract's key that limits it.

``docs/explanation/what-each-party-sees.md`` has these tables. A field or a kind without a line here fails a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rondo.engine.wire.envelope import Envelope
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.masked import AskMasked, AskReady, AskShares, Refusal
from rondo.federation.plan import Consent, End, Plan
from rondo.privacy.masking.session import Ready, Sent, Shares


@dataclass(frozen=True)
class Exposed:
    """A field of a letter."""

    tells: str
    limit: str
    """The contract's word on it."""


_KNOWN = "nothing: names, ids, numbers and digests that the server knows"

LEAVES: Mapping[type, Mapping[str, Exposed]] = {
    Consent: {
        "clients": Exposed(
            "each client's id, as the roster has it, and its number of training rows",
            "a consent; `training.least_rows`",
        ),
        "labels": Exposed(
            "class names, if the run does not name its classes", "`rows.labels`, `rows.label_names`, `rows.most_labels`"
        ),
        "refused": Exposed(
            "why the site takes no part: terms of its contract or keys of the configuration; no row, number of "
            "rows or file's name",
            "`outgoing.letters_per_day`",
        ),
        "environment": Exposed(
            "Rondo's and torch's versions, the number of threads, the processor's instructions", "a consent"
        ),
        "fewest": Exposed("fewest sites that must open a masked sum with this one", "`training.least_sites`"),
    },
    Reply: {
        "upload": Exposed(
            "every number of the trained tensors, which can be searched for the rows behind them; empty in a run with "
            "masked uploads",
            "`training.tensors`, `training.embeddings`, `training.least_rows`, `training.least_steps`, "
            "`training.least_clients`, `outgoing.uploads_per_day`, `outgoing.largest_mb`",
        ),
        "loss": Exposed(
            "the client's mean training loss in this round",
            "`outgoing.losses`, `outgoing.decimals`, `outgoing.least_rows_scored`",
        ),
        "held": Exposed("digests of what the client has, if it lacks something", "none"),
        "scores": Exposed(
            "metrics of the client's model on its held-back rows and its test rows (`--test`); a model made for it "
            "counts the rows that it was made for",
            "`outgoing.scores`, `outgoing.decimals`, `outgoing.least_rows_scored`, `rows.largest_held_back`",
        ),
        "reason": Exposed(
            "a short code if a client has no upload: refused, out of memory, a loss that is not finite",
            "`outgoing.letters_per_day`",
        ),
        "detail": Exposed("the contract's term that refuses; nothing of a failed training", "none"),
    },
    Envelope: {
        "run": Exposed(_KNOWN, "none"),
        "round": Exposed(_KNOWN, "none"),
        "client": Exposed(_KNOWN, "none"),
        "model": Exposed(_KNOWN, "none"),
        "examples": Exposed(_KNOWN, "none"),
        "weight": Exposed(
            "the upload's weight in the mean: the number of examples, 1, or the method's weight", "`training.methods`"
        ),
    },
    Ready: {
        "site": Exposed(_KNOWN, "none"),
        "session": Exposed(_KNOWN, "none"),
        "terms": Exposed(_KNOWN, "none"),
        "key": Exposed("a fresh key, only for this set", "none"),
        "signature": Exposed("the site's signature of it, which the other sites check", "none"),
    },
    Sent: {
        "site": Exposed(_KNOWN, "none"),
        "session": Exposed(_KNOWN, "none"),
        "vector": Exposed(
            "the masked sum of the changes of this site's clients: random numbers without the other sites' masks",
            "`training.tensors`, `training.embeddings`, `training.least_rows`, `training.least_steps`, "
            "`training.least_sites`, `outgoing.uploads_per_day`, `outgoing.largest_mb`",
        ),
        "sealed": Exposed("shares of this site's mask seed, which only the other sites can open", "none"),
    },
    Shares: {
        "site": Exposed(_KNOWN, "none"),
        "session": Exposed(_KNOWN, "none"),
        "shares": Exposed(
            "shares of the seeds of all sites of the set; enough sites' shares open the sum of all, and no part of it",
            "`training.least_sites`; one set per round",
        ),
    },
    Refusal: {
        "reason": Exposed("a short code if a site gives no key, vector or shares", "none"),
        "detail": Exposed("the circumstances, all written by the server", "none"),
    },
}
"""Letters that leave a site."""

COMES: Mapping[type, Mapping[str, Exposed]] = {
    Plan: {
        "run": Exposed("a name for the run", ""),
        "config": Exposed("the server's whole configuration, with its paths", ""),
        "clients": Exposed("the ids of the site's own clients", ""),
        "labels": Exposed("the class names of all sites", ""),
        "model": Exposed("SHA-256 of the base model", ""),
        "rondo": Exposed("the server's version of Rondo", ""),
        "threads": Exposed("the number of threads at the server", ""),
    },
    Request: {
        "identity": Exposed("the run and the base model", ""),
        "round": Exposed("the round's number, the run's seed, the number of clients in the run", ""),
        "client": Exposed("the site's own client, with its rank", ""),
        "parcel": Exposed(
            "the broadcast: the aggregate of all clients, or what the method sends instead; digests of what the client "
            "has",
            "",
        ),
        "counted": Exposed("the client's last round that counted", ""),
        "scores": Exposed("whether the server asks for scores instead of training", ""),
        "asked": Exposed("the number of clients in the round, or the expected number if it is secret", ""),
        "protocol": Exposed("the version of the letters", ""),
    },
    AskReady: {
        "run": Exposed("the run's name", ""),
        "attempt": Exposed("the round's number", ""),
        "session": Exposed("the number of the set in the round", ""),
        "threshold": Exposed("how many sites open a sum", ""),
        "largest": Exposed("the largest number of a client's examples; 1 if all weigh the same", ""),
        "clients": Exposed("the ids of the site's clients in the sum", ""),
    },
    AskMasked: {
        "run": Exposed("the run's name", ""),
        "attempt": Exposed("the round's number", ""),
        "named": Exposed("the set: name, fresh key and signature of every ready site", ""),
    },
    AskShares: {
        "run": Exposed("the run's name", ""),
        "attempt": Exposed("the round's number", ""),
        "unmask": Exposed("the same set, after all its sites sent a vector; shares sealed for this site", ""),
    },
    End: {"reason": Exposed("the reason, if the run failed", "")},
}
"""Letters that come to a site."""

KINDS: Mapping[str, tuple[type, tuple[type, ...]]] = {
    "plan": (Plan, (Consent,)),
    "round": (Request, (Reply, Envelope)),
    "ready": (AskReady, (Ready, Refusal)),
    "masked": (AskMasked, (Sent, Refusal)),
    "unmask": (AskShares, (Shares, Refusal)),
    "end": (End, ()),
}
"""By kind of letter: the letter that comes, and the parts of its answer."""

BESIDE: Mapping[str, str] = {
    "activate-node": "the site's public key, its program's id, the time",
    "deactivate-node": "the site leaves",
    "send-node-heartbeat": "the site is still there, even while it trains",
    "pull-messages": "the site asks for a letter",
    "pull-object": "the site fetches a part of a letter",
    "push-object": "a part of an answer, up to 5 MiB",
}
"""Requests of the line that letters travel over, by route."""


def markdown() -> str:
    """The tables of the page: fields that tell the same share a line."""
    leaves = _shared((part, key, (entry.tells, entry.limit)) for part in LEAVES for key, entry in LEAVES[part].items())
    comes = _shared((part, key, (entry.tells,)) for part in COMES for key, entry in COMES[part].items())
    lines = ["### What leaves a site", "", "| field | it tells | limited by |", "|---|---|---|", *leaves]
    lines += ["", "### What comes to a site", "", "| field | it tells |", "|---|---|", *comes]
    lines += ["", "### Requests around the letters", "", "| request | it tells |", "|---|---|"]
    lines += [f"| `{route}` | {tells} |" for route, tells in BESIDE.items()]
    return "\n".join(lines) + "\n"


def _shared(fields: Iterable[tuple[type, str, tuple[str, ...]]]) -> list[str]:
    lines: dict[tuple[str, ...], list[str]] = {}
    for part, key, cells in fields:
        lines.setdefault(cells, []).append(f"`{part.__name__}.{key}`")
    return [" | ".join(("| " + ", ".join(names), *cells)) + " |" for cells, names in lines.items()]
