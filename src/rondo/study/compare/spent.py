"""The privacy budget that several runs on the same rows have spent together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rondo.errors import ConfigError
from rondo.privacy.accounts.account import Account, Steps, read
from rondo.privacy.guarantee import Guarantee, alike, composed
from rondo.privacy.masking.integers import epsilon_of_shares
from rondo.records.directory import RunDirectory
from rondo.records.durable import Journal


def spent_together(folders: Iterable[Path]) -> str | None:
    """The sentence on the runs in ``folders``, finished or not; None where fewer than two have an account.

    Accounts add up client by client, if all runs dealt the same rows to the same clients. Otherwise a row may be at any
    client of each division, so each division counts as its costliest client would.
    """
    spent = list(filter(None, map(_read, folders)))
    if len(spent) < 2:
        return None
    divisions: dict[str, dict[str, Counter[tuple[float, float]]]] = {}
    for _, account, dealt in spent:
        of_clients = divisions.setdefault(dealt, {})
        for who, steps in account.steps.items():
            of_clients.setdefault(who, Counter()).update(steps)
    if len(divisions) == 1:
        (every,) = divisions.values()
    else:
        every = {"": Counter()}
        for of_clients in divisions.values():
            every[""].update(_most(of_clients))
    delta = min(promise.delta or 1.0 for promise, _, _ in spent)
    shares = sum(account.shares for _, account, _ in spent)
    epsilon = max((epsilon_of_shares(steps, shares, delta) for steps in every.values()), default=0.0)
    secret = all(account.noisy for _, account, _ in spent) and alike(promise for promise, _, _ in spent)
    return composed(len(spent), epsilon if secret else float("inf"), delta)


def _read(folder: Path) -> tuple[Guarantee, Account, str] | None:
    """The promise and the account of a run, and its division of the rows; None for a run that keeps none."""
    directory = RunDirectory(folder)
    if not directory.account.is_file():
        return None
    account = Account(_unwritten)
    try:
        for entry in read(Journal(directory.account).whole()):
            account.count(entry)
    except (OSError, ValueError) as error:
        message = f"{directory.account.name} is damaged, so nobody knows what was spent: {error}"
        raise ConfigError.at(str(folder), message) from None
    return directory.config().guarantee, account, str(directory.read("partition.json").get("clients_sha256"))


def _unwritten(lines: bytes) -> None:
    raise AssertionError("an account that is only read")


def _most(of_clients: Mapping[str, Steps]) -> Counter[tuple[float, float]]:
    """At least as many steps, at as little noise and as large a probability, as any client's."""
    kinds = [kind for steps in of_clients.values() for kind in steps]
    if not kinds:
        return Counter()
    least, largest = min(noise for noise, _ in kinds), max(sampled for _, sampled in kinds)
    return Counter({(least, largest): max(sum(steps.values()) for steps in of_clients.values())})
