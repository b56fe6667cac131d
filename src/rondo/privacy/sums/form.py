"""Facts about a sum of masked uploads that its server and its sites compute alike: the form of its numbers, the noise
of a site, the weight of an upload, and the upload of a client that learned nothing."""

from __future__ import annotations

from typing import Any

from rondo.algorithm import Algorithm, Client, Round, Shared
from rondo.algorithms.trial import trial_upload
from rondo.config.schema import ClientsConfig, RunConfig
from rondo.errors import ConfigError
from rondo.privacy.masking.changes import Changes
from rondo.privacy.masking.fixed_point import LEAST_FRACTION, FixedPoint
from rondo.privacy.masking.noise_share import NoiseShare
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.sums.sampling import most


def fixed_point(config: RunConfig, population: int) -> FixedPoint | None:
    """The integers of a run with ``population`` clients; None where no upload is masked. Raises :class:`ConfigError`
    where the ring is too small for the bound and the number of clients."""
    privacy, guarantee = config.privacy, config.guarantee
    if not guarantee.masks_uploads:
        return None
    largest, count, noise = guarantee.largest_change, most(config.clients, population), ""
    try:
        if guarantee.noise_from != "sites":
            return FixedPoint.of(privacy.ring, largest, count)
        assert privacy.noise is not None
        noise = f" and noise of {privacy.noise:g} times that"
        return NoiseShare.of(privacy.ring, largest, count, privacy.noise, privacy.colluding).points
    except ValueError:
        message = f"{count} changes of norm {largest:g}{noise} leave fewer than {LEAST_FRACTION} fractional bits"
        otherwise = "set privacy.ring = 64, or lower it" if privacy.ring == 32 else "lower it"
        key = "privacy.upload_clip" if guarantee.of_rows else "privacy.clip"
        raise ConfigError.at(key, f"{message} in {privacy.ring} bits: {otherwise}") from None


def noise_share(config: RunConfig, population: int) -> NoiseShare | None:
    """The noise of a site of a run with ``population`` clients; None where sites add none. Raises :class:`ConfigError`
    as :func:`fixed_point` does, and where too few sites can be in a sum."""
    points, privacy = fixed_point(config, population), config.privacy
    if points is None or config.guarantee.noise_from != "sites":
        return None
    assert privacy.noise is not None
    check_colluding(config, most(config.clients, population))
    return NoiseShare(points, privacy.noise, privacy.colluding)


def check_colluding(config: RunConfig, sites: int) -> None:
    """Raise :class:`ConfigError` where the noise of a sum of ``sites`` sites would be that of colluding ones."""
    colluding, enough = config.privacy.colluding, threshold_of(sites)
    if config.guarantee.noise_from == "sites" and enough <= colluding:
        message = f"{enough} of {sites} sites open a sum, and if {colluding} collude, nobody's noise is left"
        raise ConfigError.at("privacy.colluding", f"{message}: lower it, or have more sites")


def weighs_by_examples(config: ClientsConfig, algorithm: Algorithm[Any]) -> bool:
    """Whether an upload weighs as much as its client has examples. Otherwise all weigh 1."""
    return config.weighting == "examples" and algorithm.traits.weighting == "run"


def changes_of(algorithm: Algorithm[Any], shared: Shared, client: Client, round: Round) -> Changes:
    """The changes of the uploads of clients that were sent ``shared``. Every client gives the same, in an order of the
    tensors that follows from their names alone."""
    nothing = trial_upload(algorithm, shared, client, round).params
    return Changes.around({name: nothing[name] for name in sorted(nothing)})
