"""The protection of a site's rows: the terms of it in a plan, what a run may spend, and the refusal of what is beyond.

What a training or a masked vector spends is written down before it leaves. The site cannot know whether a sum is
opened, so each vector counts; the same vector again counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rondo.algorithm import Client, ClientFailed
from rondo.algorithms.trial import trial_fits
from rondo.config.schema import RunConfig
from rondo.data.files.tables import Rows
from rondo.errors import ConfigError
from rondo.federation.site.contract.document import Contract, PrivacyTerms, Term
from rondo.federation.site.ledger import SiteLedger, added
from rondo.privacy.accounts.account import Entry, Steps
from rondo.privacy.guarantee import unprotected
from rondo.privacy.masking.session import Refused
from rondo.privacy.mechanism.draws import Draws, private_steps
from rondo.runs.assembling.assembly import Assembly
from rondo.tasks.row_checks import value_name


def said(config: RunConfig) -> Iterator[str]:
    """The protections of a plan and their adversary, to the site's owner."""
    guarantee = config.guarantee
    if guarantee.promises:
        has = ", ".join(guarantee.protections) or "noise of the server alone"
        yield f"protection: {has}, against {guarantee.against}"


def ledger_of(contract: Contract, folder: Path, rows: Mapping[str, Rows]) -> SiteLedger:
    """The ledger in ``folder``, of the rows or persons that the contract protects."""
    return SiteLedger(folder, rows, contract.rows.inputs, contract.privacy.persons)


def of_plan(config: RunConfig, contract: Contract) -> Iterator[Term]:
    """The terms that show without rows."""
    allowed, promise = contract.privacy, config.guarantee
    has = promise.protections
    own = {"example-dp", "client-dp"}  # noise of this site, the only kind that it can count
    enough = allowed.max_epsilon is None or not own.isdisjoint(has)
    if allowed.require or has or not enough:
        words: list[str] = [*allowed.require]
        if allowed.max_epsilon is not None and own.isdisjoint(words):
            words.append("example-dp or client-dp")
        told = f"plans with {' and '.join(words)}" if words else "any"
        lacking = promise.without_own_noise
        plan_has = (", ".join(has) or "none") + ("" if lacking is None else f" ({lacking})")
        yield Term("protection", plan_has, told, set(allowed.require) <= set(has) and enough)
    if promise.of_rows:
        asked, column = promise.group, allowed.persons
        words_of = "rows as units" if column is None else f"persons as units: privacy.group = {column}"
        yield Term("unit of privacy", "rows" if asked is None else f"persons by {asked}", words_of, asked == column)
    if promise.noise_from == "sites":
        least, most = allowed.least_colluding, promise.colluding
        yield Term("sites that may collude", str(most), f"plans that count on {least} at least", most >= least)


def of_names(config: RunConfig, allowed: str) -> Term:
    """The term of class names that are asked of the site's rows. ``allowed``: the contract's word on them."""
    noisy = config.guarantee.noise_from is not None
    allowed = "none of its rows under differential privacy: the server names them" if noisy else allowed
    return Term("class names", "asked: they leave", allowed, not noisy)


def check_delta(contract: Contract, rows: Mapping[str, Rows]) -> None:
    """Raise :class:`ConfigError` where the contract's delta protects no row, or person, of a client."""
    allowed = contract.privacy
    if allowed.max_epsilon is None:
        return
    if allowed.persons is None:
        counts, what = {client: len(own) for client, own in rows.items()}, "rows"
    else:
        persons = {client: {value_name(row.get(allowed.persons)) for row in own} for client, own in rows.items()}
        counts, what = {client: len(own) for client, own in persons.items()}, "persons"
    if (reason := unprotected(allowed.delta, counts, what)) is not None:
        raise ConfigError.at("--contract", f"[privacy] delta = {reason}")


def of_training(
    config: RunConfig, assembly: Assembly, contract: Contract, ledger: SiteLedger, run: str
) -> Iterator[Term]:
    """The terms that show once model and rows are there: epsilon of each client's rows after all rounds of ``run``,
    and whatever was spent on them before."""
    allowed = contract.privacy
    if allowed.max_epsilon is None:
        return
    for name, steps in _steps(config, assembly, ledger):
        spent, so_far = (ledger.epsilon(name, allowed.delta, apart_from=apart) for apart in (run, ""))
        after = max(so_far, ledger.epsilon(name, allowed.delta, steps, apart_from=run))
        kept = after <= allowed.max_epsilon
        words = f"{allowed.max_epsilon:g} at delta {allowed.delta:g}, over all runs on the same rows"
        with_this = f"{so_far:.3g} with what a run of this name has, " if so_far > spent else ""
        own = f"{spent:.3g} spent by other runs, {with_this}{after:.3g} after all rounds of this one"
        yield Term(f"epsilon of {name}", "within" if kept else "more, after all rounds", words, kept, own)


def _steps(config: RunConfig, assembly: Assembly, ledger: SiteLedger) -> Iterator[tuple[str, Steps]]:
    """The private steps of all rounds, by client."""
    has, noise, members = config.guarantee.protections, config.guarantee.noise, assembly.population.members
    if "client-dp" in has:
        assert noise is not None
        for name in members:
            yield name, {kind: n * config.rounds for kind, n in steps_of(ledger, noise, name, members).items()}
    elif "example-dp" in has:
        assert noise is not None
        state, planned = assembly.first_state(), dict[str, Steps]()
        for name, member in members.items():
            draws, steps = Draws(config.train.batch_size, member.client.num_examples), 0
            for round in map(assembly.round, range(config.rounds)):
                shared = assembly.algorithm.broadcast(state, member.client, round)
                fits = trial_fits(assembly.algorithm, shared, member.client, round)
                steps += private_steps(fits, config.train, member.client.num_examples)
            planned[name] = {(noise, draws.probability): steps}
        for name in members:
            yield name, added(*(planned[other] for other in ledger.sharing(name, members)))


def steps_of(ledger: SiteLedger, noise: float, client: str, clients: Collection[str]) -> dict[tuple[float, float], int]:
    """The steps on the rows of ``client`` that a vector of ``clients`` is, as the ledger adds them up: those on the
    rows of the clients that share one with it count too.

    ``noise``: the run's.
    """
    steps: dict[tuple[float, float], int] = {}
    for other in ledger.sharing(client, clients):
        kind = (_of_rows(ledger, noise, other, clients), 1.0)  # the server knows who took part
        steps[kind] = steps.get(kind, 0) + 1
    return steps


def _of_rows(ledger: SiteLedger, noise: float, client: str, clients: Collection[str]) -> float:
    """The noise multiplier of a sum for a row of ``client``. ``noise``, z, is for an upload that is there or zero; with
    one row more or less, an upload of norm ``clip`` can turn around, and so moves by twice the clip, and so do those of
    the clients that have the row too."""
    return noise / (2 * len(ledger.sharing(client, clients)))


@dataclass(frozen=True)
class Allowance:
    """Writes the private trainings, or the vectors, of a run down, and refuses those that would exceed the contract.

    ``protection``: the run's.
    """

    ledger: SiteLedger
    allowed: PrivacyTerms
    run: str
    protection: Entry
    told: Callable[[str], None]

    def train(self, client: Client, draws: Draws, steps: int) -> None:
        """Called before the first of ``steps`` private steps. Raises :class:`ClientFailed`."""
        most = self.allowed.max_epsilon
        entry = replace(self.protection, run=self.run, sampled=draws.probability, count=steps)
        after = self.ledger.epsilon(client.id, self.allowed.delta, {entry.kind: steps})
        if most is not None and after > most:
            detail = f"its owner allows epsilon {most:g} over all runs on these rows, and this training would exceed it"
            raise ClientFailed(client.id, "refused", detail)
        self.ledger.spend(client.id, entry)
        self._tell(client.id, after)

    def beyond(self, clients: Collection[str]) -> str | None:
        """The reason why no vector of ``clients`` may leave; None if one may."""
        most = self.allowed.max_epsilon
        if most is None or all(self._after(client, clients) <= most for client in clients):
            return None
        return f"its owner allows epsilon {most:g} over all runs on these rows, and this round would exceed it"

    def spend(self, clients: Collection[str]) -> None:
        """Note a vector of ``clients``, which is on the disk when this returns. Raises :class:`Refused`, and then
        nothing is noted, and OSError."""
        if (reason := self.beyond(clients)) is not None:
            raise Refused("budget", reason)
        for client in clients:
            noise = _of_rows(self.ledger, self.protection.noise, client, clients)
            self.ledger.spend(client, replace(self.protection, run=self.run, noise=noise))
        for client in clients:
            self._tell(client, self.ledger.epsilon(client, self.allowed.delta))

    def _tell(self, client: str, epsilon: float) -> None:
        limit = "" if self.allowed.max_epsilon is None else f" of {self.allowed.max_epsilon:g}"
        spent = f"epsilon {epsilon:.3g}{limit} at delta {self.allowed.delta:g}"
        self.told(f"{client}: {spent}, over all runs on these rows")

    def _after(self, client: str, clients: Collection[str]) -> float:
        """Epsilon of the rows of ``client`` after a vector of ``clients``."""
        more = steps_of(self.ledger, self.protection.kind[0], client, clients)
        return self.ledger.epsilon(client, self.allowed.delta, more)


def allowance(
    config: RunConfig, contract: Contract, ledger: SiteLedger, run: str, told: Callable[[str], None]
) -> Allowance:
    """Counts the private steps, or vectors, of a run before they are taken or leave."""
    return Allowance(ledger, contract.privacy, run, Entry.of(config), told)
