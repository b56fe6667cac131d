"""The secrets and the account of a run with differential privacy, in its directory.

``privacy.key`` has the key of sampling and noise, readable by its owner alone; it is in no letter, no result and no
manifest. Where sites add the noise, there is none. ``privacy.jsonl`` is the account
(:mod:`rondo.privacy.accounts.account`). It only ever grows: a run that goes back to an earlier checkpoint still knows
what may have been seen. A full disk raises :class:`~rondo.errors.DiskFailed`, and what could not be written down is not
used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.algorithm import Client
from rondo.config.rules.privacy import missing_accountant
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.privacy.accounts.account import Account, Entry, RowAccount, SumAccount, read
from rondo.privacy.mechanism.draws import Draws
from rondo.privacy.mechanism.noise import KEY_BYTES
from rondo.privacy.sums.masked_sum import MaskedSum, fixed_point, masked_sum
from rondo.privacy.sums.private_sum import PrivateSum
from rondo.privacy.sums.sum import SingleUploads, Sum
from rondo.records import durable
from rondo.records.directory import RunDirectory
from rondo.records.durable import Journal, write_private, written

_KEY, _FORMER = "privacy.key", "privacy.json"
_CLOSE = 0.99
"""The part of an epsilon by which versions of dp-accounting may agree."""


@dataclass(frozen=True)
class Protection:
    """The protection of a run: what its server is handed when it is made, and the account that a run's end reads.

    ``sum``: who takes part, and what the server learns of their uploads.
    ``rows``: the account of private steps; None where no rows are protected.
    ``masked``: ``sum`` where sites mask their uploads, else None.
    ``account``: of the sums with noise; None where no sum has any.
    """

    sum: Sum
    rows: RowAccount | None
    masked: MaskedSum | None
    account: SumAccount | PrivateSum | None


def check_sum(config: RunConfig, clients: int) -> None:
    """Raise :class:`ConfigError` where the numbers of a masked sum are too small for so many clients."""
    fixed_point(config, clients)


def check_accountant(config: RunConfig) -> None:
    """Raise :class:`ConfigError` without the package that computes epsilon, if it is needed."""
    if problems := list(missing_accountant(config)):
        raise ConfigError(problems)


def check_patience(config: RunConfig, *, tested: bool) -> None:
    """Raise :class:`ConfigError` where ``patience`` waits for scores of clients' rows. ``tested``: by test rows."""
    if config.evaluation.patience and config.guarantee.promises and not tested:
        message = "no round is scored without test rows, since [privacy] shows no scores of clients: set"
        raise ConfigError.at("evaluation.patience", f"{message} data.test_source, or remove it")


def protection(config: RunConfig, clients: Sequence[Client], directory: RunDirectory) -> Protection:
    """The protection of a run with ``clients``. Raises :class:`ConfigError` where the budget does not allow a round, or
    a file of the directory is missing or damaged."""
    rows = row_account(config, directory)
    if (private := private_sum(config, len(clients), directory)) is not None:
        return Protection(private, rows, None, private)
    shares = account_of_shares(config, directory)
    masked = masked_sum(config, clients, _uncounted if shares is None else shares.spend)
    return Protection(SingleUploads(config.clients) if masked is None else masked, rows, masked, shares)


def rehearsal(config: RunConfig, clients: Sequence[Client]) -> Protection:
    """The protection of rounds of which nothing is kept or shown, as an estimate of a run's cost: masked uploads are
    added up as integers, and the server adds no noise and keeps no account."""
    masked = masked_sum(config, clients, _uncounted)
    return Protection(SingleUploads(config.clients) if masked is None else masked, None, masked, None)


def counted_by_the_server(client: Client, draws: Draws, steps: int) -> None:
    """Counts nothing: the private steps of a simulated client are in its server's :class:`RowAccount`."""


def _uncounted(attempt: int, digest: str) -> None:
    """A sum without noise spends nothing."""


def private_sum(config: RunConfig, population: int, directory: RunDirectory) -> PrivateSum | None:
    """The sum of a run whose server adds noise to it, with what was published before; None for other runs. Raises
    :class:`ConfigError` where the budget does not allow a round, or a file of the directory is missing or damaged."""
    if config.guarantee.noise_from != "server":
        return None
    key = _key(config, directory.path / _KEY, begun=_begun(directory))
    private = PrivateSum(config, population, key, _account(directory))
    _must_allow(private.spent)
    _must_know(directory, private.record(0))
    return private


def account_of_shares(config: RunConfig, directory: RunDirectory) -> SumAccount | None:
    """The account of a run whose sites add the noise, with the sums that were opened before; None for other runs.
    Raises :class:`ConfigError` as :func:`private_sum` does, and where rounds were recorded without an account."""
    if config.guarantee.noise_from != "sites":
        return None
    account = SumAccount(_account(directory), Entry.of(config), config.guarantee.budget)
    _must_allow(account)
    _must_know(directory, account.record(0))
    return account


def row_account(config: RunConfig, directory: RunDirectory) -> RowAccount | None:
    """The account of a run with example-level privacy, with the steps before; None for other runs. Raises
    :class:`ConfigError` where it is damaged, or where rounds were recorded without one."""
    if not config.guarantee.of_rows:
        return None
    account = RowAccount(config, _account(directory))
    _must_know(directory, account.record(()))
    return account


def _account(directory: RunDirectory) -> Account:
    """The account in ``directory``, made at the start of a run."""
    journal = Journal(directory.account)
    if not _begun(directory):
        with written(directory.path):
            durable.write(journal.path, b"")

    def write(lines: bytes) -> None:
        with written(directory.path):
            journal.append(lines.removesuffix(b"\n"))

    account = Account(write)
    try:
        for entry in read(journal.whole()):
            account.count(entry)
    except (OSError, ValueError) as error:
        message = f"{directory.account.name} is damaged, so nobody knows what was spent ({error}): start another run"
        raise ConfigError.at("RUN_DIR", message) from None
    return account


def _begun(directory: RunDirectory) -> bool:
    """Whether there is an account. Raises :class:`ConfigError` where there is none of rounds that were recorded, or one
    of another version."""
    if (directory.path / _FORMER).exists():
        message = f"{_FORMER} is an account of a former version, which does not tell the noise of each sum"
        raise ConfigError.at("RUN_DIR", f"{message}: start another run")
    begun = directory.account.is_file()
    if not begun and directory.metrics.is_file() and directory.metrics.stat().st_size:
        raise ConfigError.at(
            "RUN_DIR", f"{directory.account.name} is missing: nobody knows what was spent, so start another run"
        )
    return begun


def _must_know(directory: RunDirectory, known: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` where the account lacks something that the last record tells of: it was cut, or is of
    a copy."""
    lines = Journal(directory.metrics).whole()
    try:
        told = json.loads(lines[-1])["epsilon"] if lines else 0.0
        lacks = known["epsilon"] is not None and (told is None or known["epsilon"] < _CLOSE * told)
    except (ValueError, TypeError, LookupError):
        raise ConfigError.at("RUN_DIR", "metrics.jsonl is not one that a private run has written") from None
    if lacks:
        message = f"{directory.account.name} lacks what metrics.jsonl tells of, so nobody knows what was spent"
        raise ConfigError.at("RUN_DIR", f"{message}: start another run")


def _must_allow(account: SumAccount) -> None:
    if not account.account.steps and account.exhausted:
        message = f"{account.budget:g}, and the first round takes {account.epsilon(1):.3g}: raise it, or privacy.noise"
        raise ConfigError.at("privacy.budget", message)


def _key(config: RunConfig, path: Path, *, begun: bool) -> bytes:
    """The key, made at the start of a run."""
    seed = config.guarantee.debug_seed
    if seed is not None:
        return hashlib.sha256(f"rondo privacy.debug_seed {seed}".encode()).digest()
    if path.is_file():
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    if begun:
        message = f"{_KEY} is missing or damaged: sums that were seen cannot get the same noise, so start another run"
        raise ConfigError.at("RUN_DIR", message)
    key = os.urandom(KEY_BYTES)
    with written(path.parent):
        write_private(path, key)
    return key
