"""The other sites of a federation, as a site knows them: ``peers.json`` beside its own keys.

A masked sum hides a site among others, and the server could invent others. So each site of a set signs its fresh key,
and a site counts only signatures by keys in this file. It comes from the server's owner (``rondo federate sites
peers``), whom it need not trust: the sites' owners compare its fingerprints by telephone (``rondo federate site
peers``). The file has the form of a roster::

    {"sites": [{"name": "st-anna", "public_key": "-----BEGIN PUBLIC KEY-----...", "expires": "2029-02-25"}]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rondo.errors import ConfigError
from rondo.federation.extra import missing
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.roster import PEERS, Enrolled, Roster

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError as error:
    raise missing(error) from None


@dataclass(frozen=True)
class Voice:
    """A site's part in signatures under fresh keys.

    ``name``: its own name.
    ``sign``: signs a text by its own key.
    ``peers``: verifies a signature of each other site.
    """

    name: str
    sign: Callable[[bytes], bytes]
    peers: Mapping[str, Callable[[bytes, bytes], bool]]

    @classmethod
    def of(cls, keys: SiteKeys) -> Voice | None:
        """The voice of the site with these keys; None without ``peers.json`` beside them. Keys that have expired count
        no more. Raises :class:`ConfigError`."""
        path = Path(keys.key).parent / PEERS
        if not path.exists():
            return None
        today = datetime.now(UTC).date()
        verifiers = {site.name: _verifier(site) for site in others(path, keys) if site.valid(today)}
        return cls(keys.site, partial(sign, keys.private_key), verifiers)


def others(path: Path, keys: SiteKeys) -> tuple[Enrolled, ...]:
    """The sites in a file of peers without the one that ``keys`` are of, which may have a new key since. Raises
    :class:`ConfigError`, also where this site's key stands under another name: it would count itself twice."""
    sites = Roster.read(path).sites
    for i, site in enumerate(sites):
        if site.name != keys.site and site.public_key == keys.public_key:
            message = f"{site.name!r} has the key of this site, {keys.site!r}: ask the server's owner for another file"
            raise ConfigError.at(f"{path}: sites.{i}", message)
    return tuple(site for site in sites if site.name != keys.site)


def sign(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """The signature of ``text`` by ``key``: ECDSA over SHA-384, in DER."""
    signature: bytes = key.sign(text, ec.ECDSA(hashes.SHA384()))
    return signature


def _verifier(site: Enrolled) -> Callable[[bytes, bytes], bool]:
    """Tells whether the site has signed a text."""
    key = serialization.load_pem_public_key(site.public_key.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return partial(signed, key)


def signed(key: ec.EllipticCurvePublicKey, signature: bytes, text: bytes) -> bool:
    """Whether the owner of ``key`` has signed ``text``."""
    try:
        key.verify(signature, text, ec.ECDSA(hashes.SHA384()))
        return True
    except InvalidSignature:
        return False
