"""The content of a federation's letters, field by field: what it tells, and the contract's key that limits it.

``docs/explanation/what-each-party-sees.md`` has these tables. A field or a kind without a line here fails a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


_DIGEST = "nothing more: it is compared with this site's own"

LEAVES: Mapping[type, Mapping[str, Exposed]] = {
    Consent: {
        "clients": Exposed(
            "each client's id, as the roster has it, and its number of training rows",
            "a consent; `training.least_rows`",
        ),
        "labels": Exposed(
            "the class names in the site's rows, where the run does not name its classes",
            "`rows.labels`, `rows.label_names`, `rows.most_labels`",
        ),
        "refused": Exposed(
            "the reason why the site takes no part: terms of its contract, or keys of the configuration; no row, no "
            "number of rows, no file's name",
            "`outgoing.letters_per_day`",
        ),
        "environment": Exposed("torch's version, the number of threads, the processor's instructions", "a consent"),
        "fewest": Exposed(
            "how many sites must open a masked sum with this one: by its contract, or by the number of its peers",
            "`training.least_sites`",
        ),
    },
    Reply: {
        "upload": Exposed(
            "the tensors that were trained, every number of them; they can be searched for the rows behind them. In a "
            "run with masked uploads there is none: an empty reply says that the client has trained",
            "`training.tensors`, `training.embeddings`, `training.least_rows`, `training.least_steps`, "
            "`training.least_clients`, `outgoing.uploads_per_day`, `outgoing.largest_mb`",
        ),
        "loss": Exposed(
            "the mean training loss of the client in this round",
            "`outgoing.losses`, `outgoing.decimals`, `outgoing.least_rows_scored`",
        ),
        "held": Exposed(
            "digests of what the client was sent before, or made as the server did, where it lacks something",
            "none: it is the server's, or follows from the plan",
        ),
        "scores": Exposed(
            "metrics of the client's model on its held-back rows, and on test rows of its own (`--test`)",
            "`outgoing.scores`, `outgoing.decimals`, `outgoing.least_rows_scored`, `rows.largest_held_back`",
        ),
        "reason": Exposed(
            "a short code, where a client has no upload: refused, out of memory, a loss that is not finite",
            "`outgoing.letters_per_day`",
        ),
        "detail": Exposed("the term of the contract that refuses; of a training that failed, nothing", "none"),
    },
    Envelope: {
        "run": Exposed("the run's name, as the server sent it", "none"),
        "round": Exposed("the round's number, as the server sent it", "none"),
        "client": Exposed("the client's id", "none"),
        "model": Exposed("SHA-256 of the base model, of which the server has the same", "none"),
        "examples": Exposed("the client's number of training rows, as in the consent", "a consent"),
        "weight": Exposed(
            "the upload's weight in the mean: that number again, 1, or what the method sets", "`training.methods`"
        ),
    },
    Ready: {
        "site": Exposed("nothing: it is in no letter from the site, the line says it", "none"),
        "session": Exposed("the number of the set, as the server sent it", "none"),
        "terms": Exposed(
            "SHA-256 of run, round, plan, what was sent and form of the numbers, of which the server has the same",
            "none",
        ),
        "key": Exposed("a fresh key, for this set alone", "none"),
        "signature": Exposed("the site's signature under it, which the other sites check", "none"),
    },
    Sent: {
        "site": Exposed("nothing: as above", "none"),
        "session": Exposed("the number of the set", "none"),
        "vector": Exposed(
            "the sum of the changes of this site's clients, masked: without the other sites' masks, random numbers",
            "`training.tensors`, `training.embeddings`, `training.least_rows`, `training.least_steps`, "
            "`training.least_sites`, `outgoing.uploads_per_day`, `outgoing.largest_mb`",
        ),
        "sealed": Exposed("shares of the own mask's seed, which only the other sites can open", "none"),
    },
    Shares: {
        "site": Exposed("nothing: as above", "none"),
        "session": Exposed("the number of the set", "none"),
        "shares": Exposed(
            "shares of the seeds of all sites of the set: with those of two thirds of them, and of as many as the "
            "contract asks for, the sum of all and no part of it",
            "`training.least_sites`; one set per round",
        ),
    },
    Refusal: {
        "reason": Exposed("a short code, where a site gives no key, no vector or no shares", "none"),
        "detail": Exposed("the circumstances, of which the server wrote all", "none"),
    },
}
"""Letters that leave a site."""

COMES: Mapping[type, Mapping[str, Exposed]] = {
    Plan: {
        "run": Exposed("a name for the run", ""),
        "config": Exposed("the whole configuration of the server, with its paths", ""),
        "clients": Exposed("the ids of the site's own clients", ""),
        "labels": Exposed("the class names of all sites", ""),
        "model": Exposed(f"SHA-256 of the base model; {_DIGEST}", ""),
        "rondo": Exposed("the server's version of Rondo", ""),
        "threads": Exposed("the number of threads at the server", ""),
    },
    Request: {
        "identity": Exposed("the run and the base model", ""),
        "round": Exposed("the round's number, the run's seed, the number of clients in the run", ""),
        "client": Exposed("the site's own client, with its rank", ""),
        "parcel": Exposed(
            "the broadcast: the aggregate of all clients, or what the method sends in its place; digests of the rest, "
            "which the client holds or makes itself",
            "",
        ),
        "counted": Exposed("the client's last round that counted", ""),
        "scores": Exposed("whether scores are asked, and no training", ""),
        "asked": Exposed(
            "the number of clients in the round; with client-level privacy, where that is a secret, the expected one",
            "",
        ),
        "protocol": Exposed("the version of the letters", ""),
    },
    AskReady: {
        "run": Exposed("the run's name", ""),
        "attempt": Exposed("the round's number", ""),
        "session": Exposed("the number of the set in the round", ""),
        "threshold": Exposed("how many sites open a sum", ""),
        "largest": Exposed("the largest number of examples of a client in the run; 1 where all weigh the same", ""),
        "clients": Exposed("the ids of the site's own clients that are to be in the sum", ""),
    },
    AskMasked: {
        "run": Exposed("the run's name", ""),
        "attempt": Exposed("the round's number", ""),
        "named": Exposed("the set: name, fresh key and signature of every site that is ready", ""),
    },
    AskShares: {
        "run": Exposed("the run's name", ""),
        "attempt": Exposed("the round's number", ""),
        "unmask": Exposed("the same set, whose sites have all sent a vector; shares sealed for this site", ""),
    },
    End: {"reason": Exposed("the reason, where the run failed", "")},
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
    "activate-node": "the site's public key, its program's id, the time: the site is there",
    "deactivate-node": "the site leaves",
    "send-node-heartbeat": "the site is there still, also while it trains",
    "pull-messages": "the site asks for a letter",
    "pull-object": "the site fetches a part of a letter",
    "confirm-message-received": "the site has a letter",
    "push-messages": "the site has an answer: number, size and digests of its parts",
    "push-object": "a part of an answer",
}
"""Requests of the line that letters travel over, by route."""


def markdown() -> str:
    """The tables of the page."""
    lines = ["### What leaves a site", "", "| in answer to | field | it tells | limited by |", "|---|---|---|---|"]
    for kind, (_, parts) in KINDS.items():
        lines += [
            f"| {kind} | {_name(part, key)} | {e.tells} | {e.limit} |" for part in parts for key, e in _of(LEAVES, part)
        ]
    lines += ["", "### What comes to a site", "", "| letter | field | it tells |", "|---|---|---|"]
    for kind, (letter, _) in KINDS.items():
        lines += [f"| {kind} | {_name(letter, key)} | {entry.tells} |" for key, entry in _of(COMES, letter)]
    lines += ["", "### Requests around the letters", "", "| request | it tells |", "|---|---|"]
    lines += [f"| `{route}` | {tells} |" for route, tells in BESIDE.items()]
    return "\n".join(lines) + "\n"


def _of(table: Mapping[type, Mapping[str, Exposed]], part: type) -> Iterator[tuple[str, Exposed]]:
    yield from table[part].items()


def _name(part: type[Any], key: str) -> str:
    return f"`{part.__name__}.{key}`"
