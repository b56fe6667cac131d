"""The commands privacy plan and privacy rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from rondo.cli.process import user_errors
from rondo.errors import ConfigError

privacy = typer.Typer(help="Plan differential privacy before a run.", no_args_is_help=True)

_LOUD = 3.0
"""Noise over signal above which a method seldom learns."""
_MOST_NOISE, _MOST_STEPS = 1e6, 1_000_000
"""The accountant's numbers overflow above the first, and take minutes above the second."""
_QUIETER = "few methods learn: take more clients, fewer numbers, or a larger epsilon"
"""The warning's words."""


class Adversary(StrEnum):
    """The adversary, where clients are protected."""

    READER = "reader"
    SERVER = "server"


@privacy.callback()
def _group() -> None:
    """Plan differential privacy before a run."""


@privacy.command()
def plan(
    clients: Annotated[int, typer.Option(help="clients in the population", min=1)],
    rounds: Annotated[int, typer.Option(help="rounds", min=1)],
    epsilon: Annotated[float | None, typer.Option(help="find the noise for this epsilon")] = None,
    noise: Annotated[float | None, typer.Option(help="find epsilon for this noise multiplier")] = None,
    per_round: Annotated[int | None, typer.Option(help="expected clients per round; left out, all", min=1)] = None,
    delta: Annotated[float | None, typer.Option(help="delta; left out, 1 over ten times the clients")] = None,
    numbers: Annotated[int | None, typer.Option(help="numbers in an upload, for noise over signal", min=1)] = None,
    adversary: Annotated[
        Adversary, typer.Option(help="reader, or server: then sites add the noise")
    ] = Adversary.READER,
    colluding: Annotated[int, typer.Option(help="sites that may collude with the server", min=0)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Noise for an epsilon, or epsilon for a noise, where clients are protected; with --numbers, how loud it is."""
    with user_errors():
        _check("rondo privacy plan", epsilon, noise)
        _check_steps("rondo privacy plan", rounds, 1)
        if per_round is not None and per_round > clients:
            message = f"{per_round} of {clients} clients: lower it"
            raise ConfigError.at("--per-round", message, "rondo privacy plan")
        chosen = 1 / (10 * clients) if delta is None else delta
        if not 0 < chosen < 1:
            raise ConfigError.at("--delta", f"{chosen} is not between 0 and 1: mend it", "rondo privacy plan")
        if adversary is Adversary.SERVER:
            sites = clients if per_round is None else per_round
            found = {"clients": clients, "rounds": rounds} | _shares(
                epsilon, noise, sites, rounds, chosen, numbers, colluding
            )
            print(json.dumps(found, indent=2)) if as_json else _print_shares(found)
            return
        plans = {}
        for sampling, expected in (("poisson", per_round), ("full", clients)):
            if expected is not None:
                plans[sampling] = _planned(epsilon, noise, expected, clients, rounds, chosen, numbers)
        if as_json:
            print(json.dumps({"clients": clients, "rounds": rounds, "delta": chosen, "plans": plans}, indent=2))
            return
        print(f"{clients} clients, {rounds} rounds, delta {chosen:g}")
        for sampling, found in plans.items():
            who = f"{per_round} per round by chance" if sampling == "poisson" else "all in every round"
            loud = "" if numbers is None else f", noise {found['noise_over_signal']:.3g} times the largest signal"
            print(
                f'sampling = "{sampling}" ({who}): noise = {found["noise"]:.4g}, epsilon {found["epsilon"]:.3g}{loud}'
            )
        if chosen >= 1 / clients:
            print(f"warning: delta is not below 1 over the number of clients, {1 / clients:g}")
        loud_ones = [name for name, found in plans.items() if found.get("noise_over_signal", 0.0) > _LOUD]
        if loud_ones:
            among = f" ({loud_ones[0]})" if len(loud_ones) < len(plans) else ""
            print(f"warning: above {_LOUD:g}{among} {_QUIETER}")


@privacy.command()
def rows(
    rows: Annotated[int, typer.Option(help="training rows of a client; of texts in windows, the windows", min=1)],
    rounds: Annotated[int, typer.Option(help="rounds", min=1)],
    epsilon: Annotated[float | None, typer.Option(help="find the noise for this epsilon")] = None,
    noise: Annotated[float | None, typer.Option(help="find epsilon for this noise multiplier")] = None,
    batch_size: Annotated[int, typer.Option(help="train.batch_size", min=1)] = 16,
    local_epochs: Annotated[int, typer.Option(help="train.local_epochs", min=1)] = 1,
    local_steps: Annotated[int | None, typer.Option(help="train.local_steps, in place of epochs", min=1)] = None,
    persons: Annotated[int | None, typer.Option(help="persons among them, with privacy.group", min=1)] = None,
    delta: Annotated[float, typer.Option(help="delta; below 1 over the rows, or persons")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Noise for an epsilon, or epsilon for a noise, where the rows of a client are protected."""
    with user_errors():
        source = "rondo privacy rows"
        _check(source, epsilon, noise)
        from rondo.privacy.accounts import accountant
        from rondo.privacy.mechanism.draws import Draws

        if persons is not None and persons > rows:
            raise ConfigError.at("--persons", f"{persons} persons of {rows} rows: lower it", source)
        units = f"{rows} rows" if persons is None else f"{persons} persons"
        if not 0 < delta < 1 / (persons or rows):
            raise ConfigError.at("--delta", f"{delta} is not above 0 and below 1 over {units}: mend it", source)
        draws = Draws(batch_size, rows)
        steps = draws.steps(local_steps, local_epochs)
        _check_steps(source, rounds, steps)
        if noise is None:
            assert epsilon is not None
            noise = accountant.noise_for(epsilon, draws.probability, rounds * steps, delta)
        found = {"noise": noise, "epsilon": accountant.epsilon(noise, draws.probability, rounds * steps, delta)}
        if as_json:
            told = {
                "rows": rows,
                "persons": persons,
                "rounds": rounds,
                "steps": steps,
                "probability": draws.probability,
                "delta": delta,
            }
            print(json.dumps(told | found, indent=2))
            return
        unit, among = ("row", "") if persons is None else ("person", f" of {persons} persons")
        chance = f"{rounds} rounds of {steps} steps, each {unit} in a step with probability {draws.probability:.3g}"
        print(f"{rows} rows{among}, {chance}, delta {delta:g}: noise = {noise:.4g}, epsilon {found['epsilon']:.3g}")
        print("for methods that train once a round; a method that trains more often spends more (rondo run tells)")


def _check(source: str, epsilon: float | None, noise: float | None) -> None:
    """Raises :class:`ConfigError` unless one of the two is given, and is a number that protects."""
    from rondo.config.rules.privacy import LEAST_NOISE, too_quiet

    if (epsilon is None) == (noise is None):
        raise ConfigError.at("--epsilon", "give it or --noise, one of the two", source)
    for name, value in (("--epsilon", epsilon), ("--noise", noise)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError.at(name, f"{value} is not above 0 and finite: mend it", source)
    if noise is not None and noise < LEAST_NOISE:
        raise ConfigError.at("--noise", too_quiet(noise), source)
    if noise is not None and noise > _MOST_NOISE:
        raise ConfigError.at("--noise", f"{noise:g} leaves nothing of a signal: {_MOST_NOISE:g} at most", source)


def _check_steps(source: str, rounds: int, steps: int) -> None:
    """Raises :class:`ConfigError` for more steps than are counted in seconds."""
    if rounds * steps > _MOST_STEPS:
        message = f"{rounds * steps:,} steps, and no more than {_MOST_STEPS:,} are counted: lower it"
        raise ConfigError.at("--rounds", message, source)


def _planned(
    wanted: float | None,
    noise: float | None,
    expected: int,
    clients: int,
    rounds: int,
    delta: float,
    numbers: int | None,
) -> dict[str, float]:
    """Noise multiplier and epsilon, and the noise's norm over that of the mean of clipped changes that all agree."""
    from rondo.privacy.accounts.accountant import epsilon, noise_for

    share = expected / clients
    if noise is None:
        assert wanted is not None
        noise = noise_for(wanted, share, rounds, delta)
    found = {"noise": noise, "epsilon": epsilon(noise, share, rounds, delta)}
    if numbers is not None:
        found["noise_over_signal"] = noise * math.sqrt(numbers) / expected
    return found


def _shares(
    wanted: float | None,
    noise: float | None,
    sites: int,
    rounds: int,
    delta: float,
    numbers: int | None,
    colluding: int,
) -> dict[str, Any]:
    """The plan of noise that ``sites`` sites add to each masked sum. Raises :class:`ConfigError` where no noise
    counts."""
    from rondo.privacy.accounts.accountant import epsilon, noise_for
    from rondo.privacy.masking.integers import epsilon_of_shares
    from rondo.privacy.masking.shares import threshold_of

    threshold = threshold_of(sites)
    if threshold <= colluding:
        message = (
            f"{threshold} of {sites} sites open a sum, and if {colluding} collude, nobody's noise is left: lower it"
        )
        raise ConfigError.at("--colluding", message, "rondo privacy plan")
    if noise is None:
        assert wanted is not None
        noise = noise_for(wanted, 1.0, rounds, delta)
    found = {"sites": sites, "threshold": threshold, "colluding": colluding, "delta": delta, "noise": noise}
    found |= {"share": noise / math.sqrt(threshold - colluding)}
    found |= {"epsilon": epsilon_of_shares({(noise, 1.0): rounds}, rounds, delta)}
    found |= {"epsilon_of_rows": epsilon(noise / 2, 1.0, rounds, delta)}
    if numbers is not None:
        found["noise_over_signal"] = found["share"] * math.sqrt(numbers / sites)
    return found


def _print_shares(found: Mapping[str, Any]) -> None:
    sites, threshold, colluding = found["sites"], found["threshold"], found["colluding"]
    counted = f"{threshold} of {sites} sites open a sum, {colluding} may collude"
    print(f"{sites} sites a round, {found['rounds']} rounds, delta {found['delta']:g}; {counted}")
    loud = f", noise {found['noise_over_signal']:.3g} times the largest signal" if "noise_over_signal" in found else ""
    share = f"of which each site adds {found['share']:.4g}"
    print(f"noise = {found['noise']:.4g}, {share}: epsilon {found['epsilon']:.3g}{loud}")
    print(f"epsilon of a row in a site's own ledger: {found['epsilon_of_rows']:.3g}")
    if found["delta"] >= 1 / found["clients"]:
        print(f"warning: delta is not below 1 over the number of clients, {1 / found['clients']:g}")
    if found.get("noise_over_signal", 0.0) > _LOUD:
        print(f"warning: above {_LOUD:g} {_QUIETER}")
