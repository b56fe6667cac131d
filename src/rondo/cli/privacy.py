"""The command privacy plan."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer

from rondo.cli.process import user_errors

privacy = typer.Typer(help="Plan differential privacy before a run.", no_args_is_help=True)

_LOUD = 3.0
"""Noise over signal above which a method seldom learns."""


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
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Noise for an epsilon, or epsilon for a noise, of privacy.unit = "client"; with --numbers, how loud it is."""
    with user_errors():
        from rondo.errors import ConfigError

        if (epsilon is None) == (noise is None):
            raise ConfigError.at("--epsilon", "give it or --noise, one of the two", "rondo privacy plan")
        for name, value in (("--epsilon", epsilon), ("--noise", noise)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError.at(name, f"{value} is not above 0 and finite: mend it", "rondo privacy plan")
        if per_round is not None and per_round > clients:
            message = f"{per_round} of {clients} clients: lower it"
            raise ConfigError.at("--per-round", message, "rondo privacy plan")
        chosen = 1 / (10 * clients) if delta is None else delta
        if not 0 < chosen < 1:
            raise ConfigError.at("--delta", f"{chosen} is not between 0 and 1: mend it", "rondo privacy plan")
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
        if numbers is not None and min(found["noise_over_signal"] for found in plans.values()) > _LOUD:
            print(f"warning: above {_LOUD:g} few methods learn: take more clients, fewer numbers, or a larger epsilon")


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
    from rondo.privacy.accountant import epsilon, noise_for

    share = expected / clients
    if noise is None:
        assert wanted is not None
        noise = noise_for(wanted, share, rounds, delta)
    found = {"noise": noise, "epsilon": epsilon(noise, share, rounds, delta)}
    if numbers is not None:
        found["noise_over_signal"] = noise * math.sqrt(numbers) / expected
    return found
