"""The secrets and the account of a run with differential privacy, in its directory.

``privacy.key`` has the key of sampling and noise, readable by its owner alone; it is in no letter, no result and no
manifest. Where sites add the noise, there is none. ``privacy.json`` is the account: every sum with noise, with the
probability of a client to be in it, and each attempt's clip where it is adaptive; or the private steps on each client's
rows. It only ever grows: a run that goes back to an earlier checkpoint still knows what may have been seen. A full disk
raises :class:`~rondo.errors.DiskFailed`, and what could not be written down is not used.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

from rondo.algorithm import Client
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.privacy.accounts.rows import RowAccount, Steps
from rondo.privacy.accounts.sums import Account, Releases, Sampled
from rondo.privacy.masking.noise_share import epsilon_of_shares
from rondo.privacy.mechanism.noise import KEY_BYTES
from rondo.privacy.sums.masked_sum import MaskedSum, masked_sum
from rondo.privacy.sums.private_sum import Clips, PrivateSum
from rondo.privacy.sums.sum import SingleUploads, Sum
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.durable import write_private, written

_KEY, _ACCOUNT = "privacy.key", "privacy.json"
_LEAST = 1e-8
"""Smallest probability of an account: no run has more clients, and no client more rows, than a hundred million."""


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
    account: Account | PrivateSum | None


def protection(config: RunConfig, clients: Sequence[Client], directory: RunDirectory) -> Protection:
    """The protection of a run with ``clients``. Raises :class:`ConfigError` where the budget does not allow a round, or
    a file of the directory is missing or damaged."""
    rows = row_account(config, directory)
    if (private := private_sum(config, len(clients), directory)) is not None:
        return Protection(private, rows, None, private)
    shares = account_of_shares(config, directory)
    masked = masked_sum(config, clients, _uncounted if shares is None else partial(spend, shares, directory))
    return Protection(SingleUploads(config.clients) if masked is None else masked, rows, masked, shares)


def rehearsal(config: RunConfig, clients: Sequence[Client]) -> Protection:
    """The protection of rounds of which nothing is kept or shown, as an estimate of a run's cost: masked uploads are
    added up as integers, and the server adds no noise and keeps no account."""
    masked = masked_sum(config, clients, _uncounted)
    return Protection(SingleUploads(config.clients) if masked is None else masked, None, masked, None)


def _uncounted(attempt: int, digest: str) -> None:
    """A sum without noise spends nothing."""


def private_sum(config: RunConfig, population: int, directory: RunDirectory) -> PrivateSum | None:
    """The sum of a run whose server adds noise to it, with what was published before; None for other runs. Raises
    :class:`ConfigError` where the budget does not allow a round, or a file of the directory is missing or damaged."""
    if config.guarantee.noise_from != "server":
        return None
    begun = _begun(directory)
    releases, sampled, clips = _read(directory) if begun else ({}, {}, {})
    key = _key(config, directory.path / _KEY, begun=begun)
    private = PrivateSum(config, population, key, releases, sampled, partial(_keep, directory), clips)
    _must_allow(config, private, releases)
    if not begun:
        _keep(directory, releases, sampled, clips)
    return private


def account_of_shares(config: RunConfig, directory: RunDirectory) -> Account | None:
    """The account of a run whose sites add the noise, with the sums that were opened before; None for other runs.
    Raises :class:`ConfigError` as :func:`private_sum` does, and where rounds were recorded without an account."""
    privacy = config.privacy
    if config.guarantee.noise_from != "sites":
        return None
    noise, delta = privacy.noise, privacy.delta
    assert noise is not None
    assert delta is not None

    def epsilon_of(rounds: Mapping[tuple[int, float], int]) -> float:
        return epsilon_of_shares(noise, {sums: count for (sums, _), count in rounds.items()}, delta)

    releases, sampled, _ = _read(directory) if _begun(directory) else ({}, {}, {})
    account = Account(epsilon_of, privacy.budget, privacy.debug_seed is None, releases, sampled)
    _must_allow(config, account, releases)
    _keep(directory, releases, sampled, {})
    return account


def row_account(config: RunConfig, directory: RunDirectory) -> RowAccount | None:
    """The account of a run with example-level privacy, with the steps before; None for other runs. Raises
    :class:`ConfigError` where it is damaged, or where rounds were recorded without one."""
    if not config.guarantee.of_rows:
        return None
    begun = _begun(directory)
    steps = _read_steps(directory) if begun else {}
    account = RowAccount(config, steps, partial(_keep_steps, directory))
    account.settle()
    return account


def spend(account: Account, directory: RunDirectory, attempt: int, digest: str) -> None:
    """Note a sum that was opened, in the file too, before anything is made of it."""
    if account.spend(attempt, digest):
        _keep(directory, account.releases, account.sampled, {})


def _begun(directory: RunDirectory) -> bool:
    """Whether there is an account. Raises :class:`ConfigError` where there is none of rounds that were recorded."""
    begun = (directory.path / _ACCOUNT).is_file()
    if not begun and directory.metrics.is_file() and directory.metrics.stat().st_size:
        raise ConfigError.at("RUN_DIR", f"{_ACCOUNT} is missing: nobody knows what was spent, so start another run")
    return begun


def _must_allow(config: RunConfig, account: Account | PrivateSum, releases: Releases) -> None:
    if not releases and account.exhausted:
        budget, first = config.privacy.budget, account.epsilon(1)
        message = f"{budget:g}, and the first round takes {first:.3g}: raise it, or privacy.noise"
        raise ConfigError.at("privacy.budget", message)


def _read(directory: RunDirectory) -> tuple[Releases, Sampled, Clips]:
    content = directory.read(_ACCOUNT)
    try:
        sampled = {int(attempt): _number(share, _LEAST, 1) for attempt, share in content.get("sampled", {}).items()}
        clips = {int(attempt): _number(clip, sys.float_info.min) for attempt, clip in content.get("clips", {}).items()}
        releases = {int(attempt): sums for attempt, sums in content["sums"].items()}
        if not all(attempt >= 0 and _are_digests(sums) for attempt, sums in releases.items()):
            raise ValueError("not as it was written")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError.at("RUN_DIR", f"{_ACCOUNT} is no account of sums: the run cannot go on") from None
    return releases, sampled, clips


def _are_digests(sums: Any) -> bool:
    """Whether ``sums`` are those of an attempt: one at least, and none of them twice."""
    texts = isinstance(sums, list) and all(isinstance(digest, str) for digest in sums)
    return texts and 0 < len(sums) == len(set(sums))


def _number(value: Any, least: float, most: float = sys.float_info.max) -> Any:
    """``value``, from ``least`` to ``most``. Raises ValueError or TypeError for all else, NaN and true too."""
    if isinstance(value, bool) or not least <= value <= most:
        raise ValueError("out of its range")
    return value


def _keep(directory: RunDirectory, releases: Releases, sampled: Sampled, clips: Clips) -> None:
    content: dict[str, Any] = {
        "sums": {str(attempt): list(sums) for attempt, sums in releases.items()},
        "sampled": {str(attempt): share for attempt, share in sampled.items()},
    }
    if clips:
        content["clips"] = {str(attempt): clip for attempt, clip in clips.items()}
    with written(directory.path):
        directory.write(_ACCOUNT, content)


def _read_steps(directory: RunDirectory) -> dict[str, Mapping[float, int]]:
    content, steps = directory.read(_ACCOUNT), dict[str, Mapping[float, int]]()
    try:
        for client, kinds in content["steps"].items():
            steps[client] = {_number(share, _LEAST, 1): index(_number(count, 1)) for share, count in kinds}
            if not isinstance(kinds, list) or len(steps[client]) < len(kinds):
                raise ValueError("not as it was written")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError.at("RUN_DIR", f"{_ACCOUNT} is no account of steps: the run cannot go on") from None
    return steps


def _keep_steps(directory: RunDirectory, steps: Steps) -> None:
    content = {"steps": {client: [list(kind) for kind in own.items()] for client, own in steps.items()}}
    with written(directory.path):
        directory.write(_ACCOUNT, content)


def _key(config: RunConfig, path: Path, *, begun: bool) -> bytes:
    """The key, made at the start of a run."""
    seed = config.privacy.debug_seed
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
