"""The other sites of a federation, as a site knows them: ``peers.json`` beside its own keys.

A masked sum hides a site among others, and the server could invent others. So each site of a set signs its fresh key,
and a site counts only signatures by keys in this file. It comes from the server's owner (``rondo federate sites
peers``), whom it need not trust: the sites' owners compare its fingerprints by telephone (``rondo federate site
peers``). What a later file changes is shown to the site's owner and accepted by it, and a site uses no other file. The
file has the form of a roster::

    {"sites": [{"name": "st-anna", "public_key": "-----BEGIN PUBLIC KEY-----...", "expires": "2029-02-25"}]}
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from rondo.errors import ConfigError
from rondo.federation.identity import files
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.roster import ACCEPTED, PEERS, Enrolled, Roster, drawn


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
        """The voice of the site with these keys; None without ``peers.json`` beside them. Keys that are revoked or have
        expired count no more. Raises :class:`ConfigError`, also for a file that its owner has not accepted."""
        path = Path(keys.key).parent / PEERS
        if not path.exists():
            return None
        accepted = path.with_name(ACCEPTED)
        if not accepted.is_file() or files.content(accepted) != files.content(path):
            command = f"rondo federate site peers --keys {shlex.quote(str(path.parent))}"
            raise ConfigError.at(str(path), f"is not the file that this site's owner has taken in: {command}")
        today = datetime.now(UTC).date()
        verifiers = {site.name: partial(signed, site.key) for site in others(path, keys) if site.valid(today)}
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


@dataclass(frozen=True)
class Change:
    """The changes that a file of peers makes for a site's owner. ``keys``: fingerprints to compare by telephone, by
    what they are of."""

    said: str
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offered:
    """A file of peers that a site's owner has not accepted yet.

    ``content``: its bytes.
    ``others``: see :func:`others`.
    ``changes``: against the file that was accepted last, and names that look alike.
    """

    content: bytes
    others: tuple[Enrolled, ...]
    changes: tuple[Change, ...]

    @classmethod
    def read(cls, path: Path, keys: SiteKeys) -> Self:
        """The file ``path`` as the site with ``keys`` sees it. Raises :class:`ConfigError`, also where it has another
        key for this site itself."""
        last = keys.key.parent / ACCEPTED
        before, now = Roster.read(last).sites if last.is_file() else None, Roster.read(path).sites
        known = {keys.public_key, *(site.public_key for site in before or () if site.name == keys.site)}
        for i, site in enumerate(now):
            if site.name == keys.site and site.public_key not in known:
                message = (
                    f"another key for this site, {keys.site!r}, than {keys.key}: ask the server's owner whose it is. "
                    "After a renewal put the new key in its place first"
                )
                raise ConfigError.at(f"{path}: sites.{i}.public_key", message)
        return cls(files.content(path), others(path, keys), (*_changes(before, now), *_alike(before, now, keys.site)))

    def accept(self, folder: Path) -> None:
        """Take the file into a site's ``folder`` of keys. Raises :class:`ConfigError`."""
        files.write(folder / PEERS, self.content)
        files.write(folder / ACCEPTED, self.content)


def _changes(before: Sequence[Enrolled] | None, now: Sequence[Enrolled]) -> Iterator[Change]:
    """The changes since ``before``, which is None for a site's first file."""
    if before is None:
        return
    old, new = {site.name: site for site in before}, {site.name: site for site in now}
    for name in sorted(old.keys() | new.keys()):
        was, site = old.get(name), new.get(name)
        if was is None and site is not None:
            yield Change(f"{name!r} is new", {f"{name}": site.fingerprint})
        elif was is not None and site is None:
            yield Change(f"{name!r} is not in it any more")
        elif was is not None and site is not None:
            yield from _changed(was, site)


def _changed(was: Enrolled, site: Enrolled) -> Iterator[Change]:
    """The changes of a site."""
    name = site.name
    if was.public_key != site.public_key:
        keys = {f"{name}": site.fingerprint, f"{name}, before": was.fingerprint}
        yield Change(f"{name!r} has another key", keys)
    if was.revoked != site.revoked:
        yield Change(f"{name!r} is revoked" if site.revoked else f"{name!r} was revoked, and is not any more")
    if was.expires != site.expires:
        until = site.expires or "without end"
        yield Change(f"{name!r} is valid until {until}, before: {was.expires or 'without end'}")


def _alike(before: Sequence[Enrolled] | None, now: Sequence[Enrolled], own: str) -> Iterator[Change]:
    """Names that look like another of the file, of the one ``before``, or like the site's ``own``."""
    known = {site.name for site in before or ()}
    new = {site.name for site in now} - known
    first: dict[str, str] = {}
    for name in sorted({own, *known, *new}, key=lambda name: (name not in known, name != own, name)):
        other = first.setdefault(drawn(name), name)
        if name != other and name in new:
            yield Change(f"{name!r} ({name!a}) looks like {other!r} ({other!a}), and is another site")


def sign(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """The signature of ``text`` by ``key``: ECDSA over SHA-384, in DER."""
    return key.sign(text, ec.ECDSA(hashes.SHA384()))


def signed(key: ec.EllipticCurvePublicKey, signature: bytes, text: bytes) -> bool:
    """Whether the owner of ``key`` has signed ``text``."""
    try:
        key.verify(signature, text, ec.ECDSA(hashes.SHA384()))
        return True
    except InvalidSignature:
        return False
