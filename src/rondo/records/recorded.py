"""A run as its directory records it: all that a page shows, and what it says of its protection. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic

from rondo.algorithms.table import TABLE
from rondo.config import task_kinds as tasks
from rondo.config.schema import RunConfig
from rondo.privacy.guarantee import Guarantee, added, sentence, sentences


@dataclass(frozen=True)
class Recorded:
    """A run, finished or not. Everything but ``name`` and ``travels`` is as its files have it.

    - ``name``: the name of its folder.
    - ``label``: its name in a comparison; None outside of one.
    - ``config``: all keys of its configuration, by section.
    - ``travels``: a line that says which tensors are trained and sent.
    - ``higher_is_better``: whether this holds of the primary metric.
    - ``partition``: empty where the file is not there yet.
    - ``summary``: None of a run that is not finished.
    - ``before``, ``measures_before``: scores and measures before the first round.
    - ``rounds``: the lines of ``metrics.jsonl``. Only the last that has scores per client keeps them.
    - ``sites``: of a federation, each site's standing by its name.
    """

    name: str
    label: str | None
    config: Mapping[str, Any]
    travels: str
    higher_is_better: bool
    manifest: Mapping[str, Any]
    partition: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    before: Mapping[str, Any]
    measures_before: Mapping[str, float]
    rounds: Sequence[Mapping[str, Any]]
    sites: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def planned(self) -> int:
        """The number of rounds of its configuration."""
        return int(self.config["rounds"])

    @property
    def primary(self) -> str | None:
        """The name of the primary metric, the first of all scores; None before the first score."""
        if self.summary is not None:
            return str(self.summary["primary"])
        for scores in (self.before, *(record["scores"] for record in self.rounds)):
            for kind in ("global", "cold_start", "clients", "personal"):
                if kind in scores:
                    return next((str(m) for m in scores[kind] if m != "per_client"), None)
        return None

    @property
    def guarantee(self) -> Guarantee:
        """The promise of its ``[privacy]``."""
        return promise(self.config)

    @property
    def private(self) -> bool:
        """Whether it has differential privacy: then nothing that depends on a single client without noise is shown."""
        return self.guarantee.noise_from is not None

    @property
    def secret_turnout(self) -> bool:
        """Whether how many clients took part in a round is a secret, and so what follows from it: bytes, seconds,
        failures."""
        return self.guarantee.secret_turnout

    @property
    def titles(self) -> Mapping[str, str]:
        """The names of metrics that are other than their keys."""
        return self.rounds[-1].get("titles", {}) if self.rounds else {}


WITHHELD = "not told: how many clients took part is a secret"
"""The words in place of costs where the turnout is a secret (:class:`rondo.privacy.guarantee.Guarantee`)."""


def promise(of: Mapping[str, Any]) -> Guarantee:
    """The promise of a record, ``summary.json`` or a run in ``comparison.json``, or of a configuration."""
    return Guarantee.of(of.get("privacy"))


def said(of: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of a protection, with its adversary, and how far it goes, by a record; none without a promise."""
    if (section := _section(of)) is not None:
        yield from sentences(section)


def weakest_guarantee(of_runs: Iterable[Mapping[str, Any]]) -> str | None:
    """The sentence on the promise with the largest epsilon of these records; None where none has one."""
    private = filter(None, map(_section, of_runs))
    weakest = max(private, key=lambda p: math.inf if (e := p.get("epsilon")) is None else e, default=None)
    return None if weakest is None else sentence(weakest)


def added_up(of_runs: Iterable[Mapping[str, Any]]) -> str | None:
    """The sentence on all of these records together; None where none has an epsilon."""
    spent = [(s, Guarantee.of(s)) for s in map(_section, of_runs) if s is not None and "epsilon" in s]
    return added(spent) if spent else None


def _section(of: Mapping[str, Any]) -> dict[str, Any] | None:
    """The promise in a record. Published ones may be older than the key ``simulation``, and are of them."""
    section = of.get("privacy")
    return None if section is None else {"simulation": True, **section}


class Claim(pydantic.BaseModel):
    """A claim of a paper that runs of ``rondo reproduce`` decide, as the facts beside its page have it: the paper's
    number, the number of these runs with its 95 % interval, and the verdicts at the end of each run and at equal bytes
    per client. ``source``: the paper, and the place in it."""

    claim: str
    paper: str
    here: str = "-"
    seeds: int = 0
    verdict: str = "open"
    equal_bytes_per_client: str = "-"
    source: str = ""


_WHOLE = {
    "all": "all whole tensors",
    "body": "the body",
    "head": "the head",
    "none": "no whole tensors",
    "twice all": "all whole tensors and as many control variates",
}


def trained(config: RunConfig) -> str:
    """The tensors that ``config`` trains, and those that a client sends in a round."""
    entry, whole = TABLE.get(config.algorithm.name), config.whole_tensors
    kind = tasks.TABLE.get(config.task.kind)
    trains, sends = [], []
    if config.has_factors:
        trains.append(f"factors of rank {config.adapter.r}")
        sends += [f"{entry.up} numbers per adapted layer"] if entry is not None else []
    if whole is not None:
        tensors = {"all": "all whole tensors", "head": "the head"}.get(str(whole), f"the tensors {whole}")
        trains.append(tensors if not config.has_factors or whole != "all" else "all other tensors")
        sends += [_WHOLE[entry.whole]] if entry is not None else []
    text = f"trains {' and '.join(trains)}; sends {', '.join(sends) or 'as its own code says'}"
    head = config.model.head or (entry.traits.default_head if entry is not None else None)
    if head is None or (kind is not None and not kind.head):
        return text
    is_head = {"shared": "sent", "local": "kept by its client", "frozen": "not trained"}
    return f"{text}; the head is {is_head[head]}"
