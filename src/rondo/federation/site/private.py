"""The terms of a plan's protection: what a contract requires, whose rows are one unit, and what may be spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rondo.algorithms.trial import trial_fits
from rondo.config.checks import unprotected
from rondo.config.schema import RunConfig
from rondo.data.files.tables import Rows
from rondo.errors import ConfigError
from rondo.federation.site.contract import PrivacyTerms
from rondo.federation.site.ledger import SiteLedger, added
from rondo.federation.site.sum_allowance import steps_of
from rondo.federation.site.term import Term
from rondo.privacy.accounts.account import Steps
from rondo.privacy.mechanism.draws import Draws, private_steps
from rondo.runs.assembling.assembly import Assembly
from rondo.tasks.row_checks import value_name


def said(config: RunConfig) -> Iterator[str]:
    """The protections of a plan and their adversary, to the site's owner."""
    guarantee = config.guarantee
    if guarantee.promises:
        has = ", ".join(guarantee.protections) or "noise of the server alone"
        yield f"protection: {has}, against {guarantee.against}"


def of_plan(config: RunConfig, allowed: PrivacyTerms) -> Iterator[Term]:
    """The terms that show without rows."""
    has = config.guarantee.protections
    own = {"example-dp", "client-dp"}  # noise of this site, the only kind that it can count
    enough = allowed.max_epsilon is None or not own.isdisjoint(has)
    if allowed.require or has or not enough:
        words: list[str] = [*allowed.require]
        if allowed.max_epsilon is not None and own.isdisjoint(words):
            words.append("example-dp or client-dp")
        told = f"plans with {' and '.join(words)}" if words else "any"
        plan_has = (", ".join(has) or "none") + _without(config, has)
        yield Term("protection", plan_has, told, set(allowed.require) <= set(has) and enough)
    if config.guarantee.of_rows:
        asked, column = config.privacy.group, allowed.persons
        words_of = "rows as units" if column is None else f"persons as units: privacy.group = {column}"
        yield Term("unit of privacy", "rows" if asked is None else f"persons by {asked}", words_of, asked == column)
    if config.guarantee.noise_from == "sites":
        least, most = allowed.least_colluding, config.privacy.colluding
        yield Term("sites that may collude", str(most), f"plans that count on {least} at least", most >= least)


def _without(config: RunConfig, has: Sequence[str]) -> str:
    """The reason why a plan has no noise that a site counts; empty where it has some."""
    privacy = config.privacy
    if "example-dp" in has or "client-dp" in has:
        return ""
    if config.guarantee.noise_from is None:
        return " (no noise: privacy.unit is not set)"
    if not privacy.noise:
        return " (no noise: privacy.noise is 0)"
    if privacy.debug_seed is not None:
        return " (no noise that counts: privacy.debug_seed is known to the server)"
    return " (the server adds the noise, not this site)"


def check_delta(allowed: PrivacyTerms, rows: Mapping[str, Rows]) -> None:
    """Raise :class:`ConfigError` where the contract's delta protects no row, or person, of a client."""
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
    config: RunConfig, assembly: Assembly, allowed: PrivacyTerms, ledger: SiteLedger, run: str
) -> Iterator[Term]:
    """The terms that show once model and rows are there: epsilon of each client's rows after all rounds of ``run``,
    and whatever was spent on them before."""
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
    has, noise, members = config.guarantee.protections, config.privacy.noise, assembly.population.members
    if "client-dp" in has:
        assert noise is not None
        for name in members:
            yield name, {kind: n * config.rounds for kind, n in steps_of(ledger, noise, name, members).items()}
    elif "example-dp" in has:
        assert noise is not None
        state, planned = assembly.first_state(), dict[str, Steps]()
        for name, member in members.items():
            draws, steps = Draws(config.train.batch_size, len(member.train)), 0
            for round in map(assembly.round, range(config.rounds)):
                shared = assembly.algorithm.broadcast(state, member.client, round)
                fits = trial_fits(assembly.algorithm, shared, member.client, round)
                steps += private_steps(fits, config.train, len(member.train))
            planned[name] = {(noise, draws.probability): steps}
        for name in members:
            yield name, added(*(planned[other] for other in ledger.sharing(name, members)))
