"""The secrets and the account of a run with client-level differential privacy, in its directory.

``privacy.key`` has the key of sampling and noise, readable by its owner alone; it is in no letter, no result and no
manifest. ``privacy.json`` lists every sum that was given noise, and is only ever added to: a run that goes back to an
earlier checkpoint still knows what may have been seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rondo.config.schema import RunConfig
from rondo.engine.server.private_sum import PrivateSum, Releases
from rondo.errors import ConfigError
from rondo.privacy.noise import KEY_BYTES
from rondo.runs.storage.directory import RunDirectory

_KEY, _RELEASES = "privacy.key", "privacy.json"


def private_sum(config: RunConfig, population: int, directory: RunDirectory) -> PrivateSum | None:
    """The sum of a run with ``privacy.unit = "client"``, with what was published before; None for other runs. Raises
    :class:`ConfigError` where the budget does not allow a round, or a file of the directory is missing or damaged."""
    if config.privacy.unit != "client":
        return None
    begun = (directory.path / _RELEASES).is_file()
    releases: Releases = {}
    if begun:
        content = directory.read(_RELEASES)
        try:
            releases = {int(attempt): [str(digest) for digest in sums] for attempt, sums in content["sums"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError.at("RUN_DIR", f"{_RELEASES} is no account of sums: the run cannot go on") from None

    def keep(now: Mapping[int, Sequence[str]]) -> None:
        directory.write(_RELEASES, {"sums": {str(attempt): list(sums) for attempt, sums in now.items()}})

    key = _key(config, directory.path / _KEY, begun=begun)
    private = PrivateSum(config, population, key, releases, keep)
    if not releases and private.exhausted:
        budget, first = config.privacy.budget, private.epsilon(1)
        message = f"{budget:g}, and the first round takes {first:.3g}: raise it, or privacy.noise"
        raise ConfigError.at("privacy.budget", message)
    if not begun:
        keep(releases)
    return private


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
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
