"""The promise of ``[privacy]``: what is hidden, from whom, whose noise hides it, and the sentences that say so.

Every room asks a :class:`Guarantee`. Only ``config`` and ``privacy`` read the section's switches themselves. Imports no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rondo.errors import ConfigError, Problem

NoiseFrom = Literal["server", "sites", "steps"]
"""The adder of noise: the server to the sum, each site a share to its masked upload, or each client to its steps."""
Asked = Literal["client DP", "client DP, masked", "example DP", "secure aggregation"]
_ASKED: Mapping[NoiseFrom, Asked] = {"server": "client DP", "sites": "client DP, masked", "steps": "example DP"}
_AGAINST = {"reader": "who reads the released model", "server": "the server too"}


@dataclass(frozen=True)
class Guarantee:
    """The promise of a section ``[privacy]``. Its fields are keys of the section; without one it promises nothing."""

    adversary: Literal["reader", "server"] | None = None
    unit: Literal["client", "example"] | None = None
    secure_aggregation: bool = False
    ring: Literal[32, 64] = 32
    clip: float | Literal["adaptive"] | None = None
    upload_clip: float | None = None
    noise: float | None = None
    delta: float | None = None
    budget: float | None = None
    colluding: int = 1
    group: str | None = None
    debug_seed: int | None = None

    @classmethod
    def of(cls, section: Mapping[str, Any] | None) -> Guarantee:
        """The promise of a section as a configuration or a record has it; keys that are no part of it are left out."""
        own = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in (section or {}).items() if key in own})

    @property
    def promises(self) -> bool:
        """Whether anything is protected."""
        return self.adversary is not None

    @property
    def of_rows(self) -> bool:
        """Whether the secret is that a row, or a person, is among a client's rows."""
        return self.unit == "example"

    @property
    def noise_from(self) -> NoiseFrom | None:
        """The party that adds the noise; None without differential privacy."""
        if self.unit is None:
            return None
        return "steps" if self.of_rows else "sites" if self.secure_aggregation else "server"

    @property
    def masks_uploads(self) -> bool:
        """Whether the server opens the sum of a round's uploads and no upload by itself."""
        return self.secure_aggregation

    @property
    def hides_uploads(self) -> bool:
        """Whether nothing that single uploads show may be looked at or recorded."""
        return self.masks_uploads or self.noise_from == "server"

    @property
    def hides_scores(self) -> bool:
        """Whether no score on a client's rows may be taken: it has no noise."""
        return self.masks_uploads or self.unit is not None

    @property
    def bares_own_tensors(self) -> bool:
        """Whether the tensors that a client keeps have no noise, although what it shares is protected."""
        return self.promises and self.noise_from != "steps"

    @property
    def secret_turnout(self) -> bool:
        """Whether nobody but the server may learn how many clients take part in a round: with one client more or less
        that number changes, and nobody adds noise to it. Bytes, seconds and failures follow from it."""
        return self.noise_from == "server"

    @property
    def hides_row_counts(self) -> bool:
        """Whether the numbers of rows are a client's secret. Where rows are the units, these numbers are public."""
        return self.unit == "client"

    @property
    def draws_noise(self) -> bool:
        """Whether there is noise that no seed gives: then no run has the bits of another one."""
        return self.unit is not None and bool(self.noise) and self.debug_seed is None

    @property
    def largest_change(self) -> float:
        """The largest norm of the change in a masked upload."""
        largest = self.upload_clip if self.of_rows else self.clip
        assert isinstance(largest, float)
        return largest

    @property
    def units(self) -> Literal["clients", "rows", "persons"]:
        """The units that differential privacy hides."""
        return "clients" if not self.of_rows else "rows" if self.group is None else "persons"

    @property
    def against(self) -> str:
        """The adversary, in words."""
        assert self.adversary is not None
        colluding = f" with {self.colluding} of the sites" if self.noise_from == "sites" and self.colluding else ""
        return _AGAINST[self.adversary] + colluding

    @property
    def protections(self) -> tuple[str, ...]:
        """The protections that a site can count on, as its contract names them. Noise from a seed that the server knows
        is none, and the server's own noise is not the site's."""
        there = {
            "example-dp": self.draws_noise and self.noise_from == "steps",
            "client-dp": self.draws_noise and self.noise_from == "sites",
            "secure-aggregation": self.masks_uploads,
        }
        return tuple(name for name, has in there.items() if has)

    @property
    def without_own_noise(self) -> str | None:
        """The reason why a site can count on no noise, by the key that says so; None if it can."""
        if self.unit is None:
            return "no noise: privacy.unit is not set"
        if not self.noise:
            return "no noise: privacy.noise is 0"
        if self.debug_seed is not None:
            return "no noise that counts: privacy.debug_seed is known to the server"
        return "the server adds the noise, not this site" if self.noise_from == "server" else None

    @property
    def asks_of_methods(self) -> Iterator[tuple[Asked, str]]:
        """The properties that a method must have, as the table of methods names it, and the key that asks for it."""
        if self.noise_from is not None:
            yield _ASKED[self.noise_from], "privacy.unit"
        if self.masks_uploads and self.noise_from != "sites":
            yield "secure aggregation", "privacy.secure_aggregation"

    def must_not_mask(self, why: str) -> None:
        """Raise :class:`ConfigError` if uploads are masked, where masks hide nothing. ``why``: the reason."""
        if self.masks_uploads:
            raise ConfigError.at("privacy.secure_aggregation", f"{why}, or remove it")

    def no_noise_for(self, what: str) -> ConfigError:
        """The refusal of a method that asks for ``what``, where steps have noise."""
        message = f"the method asks for {what}, to which no noise can be added: take another method"
        return ConfigError.at("privacy.unit", message)

    def must_not_search(self) -> None:
        """Raise :class:`ConfigError` if a search would take scores on rows that are held out of the clients' own."""
        if self.promises:
            message = (
                "under [privacy] no scores of clients' rows are taken, so no trial has one on rows held out. A search "
                "without [privacy] would release these rows without a guarantee: search on public rows (data.source), "
                "or by the test rows with noise in every trial, whose epsilons add up: rondo compare --vary, or "
                "held_out = 0 of an entry"
            )
            raise ConfigError.at("privacy.adversary", message)

    def unprotected_clients(self, count: int) -> Iterator[Problem]:
        """The fault of a delta that protects none of ``count`` clients."""
        if self.unit == "client" and self.delta is not None and self.delta * count >= 1:
            message = f"{self.delta:g} is not below 1 over {count} clients, and telling all of one client keeps to it"
            yield Problem("privacy.delta", f"{message}: set it to {0.1 / count:.0e} or so")

    def check_units(self, counts: Mapping[str, int]) -> None:
        """Raise :class:`ConfigError` where delta protects none of a client's rows, or persons. ``counts``: their
        numbers by client."""
        if (reason := unprotected(self.delta, counts, self.units)) is not None:
            raise ConfigError.at("privacy.delta", reason)

    @property
    def answers(self) -> dict[str, Any]:
        """The rules for all that a run shows, by key, as its manifest has it."""
        return {
            "units": None if self.unit is None else self.units,
            "noise_from": self.noise_from,
            "hides_uploads": self.hides_uploads,
            "secret_turnout": self.secret_turnout,
        }

    def record(self, spent: Mapping[str, Any], *, simulated: bool) -> dict[str, Any]:
        """All that ``summary.json`` says of the promise: keys of the section, :attr:`answers` and :meth:`sentences`.

        ``spent``: with differential privacy, ``epsilon`` of everything published so far, None if it is infinite, and
        ``epsilon_valid``: whether nobody can know the noise.
        ``simulated``: whether the rows of all clients are on one machine.
        """
        keys = ["unit", "adversary", "secure_aggregation"]
        if self.unit is not None:
            keys += ["delta", "clip", "noise", "budget", "group"]
        if self.noise_from == "sites":
            keys.append("colluding")
        record = {**spent, **{key: getattr(self, key) for key in keys}, "simulation": simulated, **self.answers}
        return {**record, "sentences": [list(pair) for pair in self.sentences(record)]}

    def sentences(self, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Pairs of a protection, with its adversary, and how far it goes. ``record``: as :meth:`record` makes it."""
        if self.unit is not None:
            epsilon, valid = record["epsilon"], record["epsilon_valid"]
            bound = "none" if epsilon is None else f"epsilon {epsilon:.3g} at delta {self.delta:g}"
            why = "it had no noise" if self.noise == 0 else "its noise came from a known seed"
            known = "" if valid else f", NOT VALID: {why}"
            public = " (numbers of rows are public)" if self.of_rows else ""
            yield f"differential privacy of {self.units}, against {self.against}", f"{bound}{known}{public}"
        if self.masks_uploads:
            yield "masked sums, against the server", "it sees sums alone"
        if record["simulation"] and (self.masks_uploads or self.adversary == "server"):
            yield "against the machine of this simulation", "nothing"


def unprotected(delta: float | None, counts: Mapping[str, int], what: str) -> str | None:
    """The reason why ``delta`` protects none of the rows, or persons, of a client, since telling all of one keeps to
    it; None where it protects them. ``counts``: their numbers by client. ``what`` they are."""
    count, client = max(((count, client) for client, count in counts.items()), default=(0, ""))
    if delta is None or delta * count < 1:
        return None
    return f"{delta:g} is not below 1 over the {count} {what} of {client}: set it to {0.1 / count:.0e} or so"


def composed(runs: int, epsilon: float, delta: float) -> str:
    """The sentence on several runs on the same rows, whose guarantees are told one by one. ``epsilon``: of all
    together, infinite if one of them has no noise that nobody knows."""
    bound = "none" if math.isinf(epsilon) else f"epsilon {epsilon:.3g} at delta {delta:g}"
    return f"each run by itself; all {runs} together: {bound}"


def added(spent: Iterable[tuple[Mapping[str, Any], Guarantee]]) -> str:
    """The sentence on runs of which records alone are known, on the same rows or not: epsilons add up, and so do deltas
    (basic composition). Promises of different units, or against different adversaries, do not add up to one.
    ``spent``: of each run ``epsilon`` and ``epsilon_valid`` as its rounds have them, and its promise."""
    runs = list(spent)
    sums = (math.inf if not r["epsilon_valid"] or r["epsilon"] is None else r["epsilon"] for r, _ in runs)
    epsilon, delta = math.fsum(sums), math.fsum(promise.delta or 0.0 for _, promise in runs)
    bounded = delta < 1 and alike(promise for _, promise in runs)
    return composed(len(runs), epsilon if bounded else math.inf, delta)


def alike(promises: Iterable[Guarantee]) -> bool:
    """Whether promises are of one unit against one adversary, so that they compose."""
    return len({(promise.units, promise.against) for promise in promises}) == 1


def of_model(said: str | None, *, bare: str | None) -> str | None:
    """The sentences of a model's card on its protection; None where nothing is promised.

    ``said``: the :func:`sentence` of its run.
    ``bare``: what is in the model that no noise reached; None if there is none.
    """
    if said is None:
        return None
    shared = f"Of what clients share, in this run by itself: {said}. Other runs on the same rows add to it."
    return shared if bare is None else f"No guarantee holds for this model: no noise reached {bare}. {shared}"


def sentences(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The :meth:`Guarantee.sentences` of a record."""
    yield from Guarantee.of(record).sentences(record)


def sentence(record: Mapping[str, Any]) -> str:
    """The :func:`sentences` of a record in one."""
    return "; ".join(": ".join(pair) for pair in sentences(record))
