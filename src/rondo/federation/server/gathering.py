"""The start of a federation's run: its sites are waited for, and agree on the labels."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping

from rondo.config.schema import RunConfig
from rondo.data.labels import MOST, disagreement, merged
from rondo.errors import ConfigError, Problem
from rondo.federation.server.remote_run import loaded, plan_of
from rondo.federation.server.sites import Sites
from rondo.runs.assembling.assembly import Assembly

_BETWEEN = 1.0
"""Seconds between lines about the wait."""
_LONGEST = 20_000
"""Characters of label names up to which a line to paste is printed."""


def started(
    config: RunConfig,
    device: str,
    assembly: Assembly | None,
    sites: Sites,
    run: str,
    clients: Mapping[str, str],
    seconds: float,
    told: Callable[[str], None],
) -> Assembly:
    """Offer the run to its sites and wait for them, so many ``seconds`` at most. Returns the run without its clients.
    Raises :class:`ConfigError`.

    ``assembly``: the same where the labels are known; None asks the sites for them first."""
    if assembly is None:
        sites.offer(plan_of(config, run, None, ""))
        assembly = loaded(config, device, _agreed_labels(config, sites, clients, seconds, told))
    sites.offer(plan_of(config, run, assembly.labels, assembly.model_sha256))
    gather(config, sites, clients, seconds, told)
    if config.guarantee.units == "rows":  # of persons it is told no number
        config.guarantee.check_units(sites.examples())
    return assembly


def _agreed_labels(
    config: RunConfig, sites: Sites, clients: Mapping[str, str], seconds: float, told: Callable[[str], None]
) -> tuple[str, ...]:
    """The label names of all sites, which are asked for them and waited for. Raises :class:`ConfigError` if a site does
    not tell its labels within so many ``seconds``, or if they are not the same at all sites."""
    waiting = _Waiting(sites, clients, len(clients), seconds, told)

    def all_have_told() -> bool:
        return sites.consents().keys() >= set(clients.values()) or waiting.tell()

    if not sites.wait(seconds, all_have_told):
        consents = sites.consents()
        missing = [problem for name, problem in sites.missing().items() if name not in consents]
        message = f"after {seconds:g} s not all labels are known: wait longer, or name them in task.labels"
        raise ConfigError([Problem("--wait", message), *missing])
    parts = {name: consent.labels for name, consent in sites.consents().items()}
    labels = merged(parts.values())
    if len(labels) < 2:
        hint = "" if labels or config.task.several_labels else ": set task.multi_label = true if they are in lists"
        message = f"the sites have {len(labels)} distinct labels; classification needs two{hint}"
        raise ConfigError.at("task.label", message)
    if len(labels) > MOST:
        message = f"the sites have {len(labels)} distinct labels, and {MOST} are the most: name them in task.labels"
        raise ConfigError.at("task.label", message)
    if faults := list(disagreement(parts)):
        message = "the sites do not have the same labels: mend their rows, or name the classes"
        if sum(map(len, labels)) <= _LONGEST:
            message += f", for instance by task.labels = [{', '.join(map(_toml, labels))}]"
        raise ConfigError([Problem("task.labels", message), *(Problem("task.labels", fault) for fault in faults)])
    return labels


def gather(
    config: RunConfig,
    sites: Sites,
    clients: Mapping[str, str],
    seconds: float,
    told: Callable[[str], None],
    *,
    resumed: bool = False,
) -> None:
    """Wait until all clients take part, at most so many ``seconds``. Raises :class:`ConfigError` if they are too few
    then: fewer than ``clients.min_clients``, or fewer than all where the user has not set it and the run is new."""
    by_user = resumed or "min_clients" in config.clients.model_fields_set
    waiting = _Waiting(sites, clients, config.clients.min_clients if by_user else len(clients), seconds, told)

    def all_take_part() -> bool:
        return clients.keys() <= sites.present().keys() or waiting.tell()

    if sites.wait(seconds, all_take_part):
        return
    count, needed = waiting.count, config.clients.min_clients if by_user else len(clients)
    if count < needed:
        rule = f"clients.min_clients is {needed}" if by_user else "all must, as clients.min_clients is not set"
        least = 2 if config.guarantee.masks_uploads else 1
        fewer = f"; clients.min_clients = {count} goes on with fewer" if count >= least else ""
        take = "takes" if count == 1 else "take"
        remedy = "mend what the sites refuse" if waiting.refused else "wait longer"
        message = f"after {seconds:g} s {count} of {len(clients)} clients {take} part, and {rule}: {remedy}{fewer}"
        raise ConfigError([Problem("--wait", message), *sites.missing().values()])


class _Waiting:
    """Lines about the sites that are waited for, one per change of them."""

    def __init__(
        self, sites: Sites, clients: Mapping[str, str], needed: int, seconds: float, told: Callable[[str], None]
    ) -> None:
        self._sites, self._clients, self._needed, self._seconds, self._told = sites, clients, needed, seconds, told
        self._said, self._when = "", -math.inf

    @property
    def count(self) -> int:
        """The number of clients that take part."""
        return len(self._clients.keys() & self._sites.present().keys())

    @property
    def settled(self) -> bool:
        """Whether every site has answered."""
        return all(state in ("takes part", "refuses") for state, _ in self._sites.states().values())

    @property
    def refused(self) -> bool:
        """Whether every site has answered, and one refuses."""
        return self.settled and any(state == "refuses" for state, _ in self._sites.states().values())

    def tell(self) -> bool:
        """Tell of the sites if their states have changed, not too often. Always False: the wait goes on."""
        line = self._line()
        if line != self._said and time.monotonic() - self._when > _BETWEEN:
            self._told(line)
            self._said, self._when = line, time.monotonic()
        return False

    def _line(self) -> str:
        start, count = "waiting for", self.count
        if count < self._needed and self.settled:
            start = f"all sites have answered, and too few take part; waiting on, up to {self._seconds:g} s in all, for"
        take = "takes" if count == 1 else "take"
        return f"{start} {len(self._clients)} clients; {count} {take} part, {self._sites.absence()}"


def _toml(label: str) -> str:
    """A label as a string of TOML that a terminal can show."""
    quoted = json.dumps(label, ensure_ascii=False)
    escaped = {c: f"\\u{ord(c):04x}" if ord(c) < 2**16 else f"\\U{ord(c):08x}" for c in quoted}
    return "".join(c if c.isprintable() else escaped[c] for c in quoted)
