"""The roster of a federation: which key signs for which clients.

An upload is the upload of the site whose key signed it, whatever it says of itself. The roster is a JSON file at the
server, ``roster.json``::

    {"sites": [{"name": "st-anna", "public_key": "-----BEGIN PUBLIC KEY-----...", "clients": ["st-anna"],
                "expires": "2029-02-25", "revoked": false}]}

``clients`` is by default one client with the site's name, ``expires`` null and ``revoked`` false.

A site asks to be in it by a request, ``NAME.request.json``, and ``NAME.renewal.json`` for another key: its name, its
clients and its public key. A request is public, and may come by any channel: both owners compare the key's fingerprint
by telephone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rondo.config.checks import nothing_at
from rondo.errors import ConfigError
from rondo.federation.identity import files

FILE, PEERS, ACCEPTED = "roster.json", "peers.json", "peers.accepted"
"""The server's file, the file of a site with the others (:mod:`rondo.federation.identity.peers`), and its content when
the site's owner took it in."""

_CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""Curves that Flower takes (the NIST curves), without those below 128 bits of security."""

_LONGEST_NAME = 128
"""Bytes of the longest name of a site in UTF-8: files are named after it."""


@dataclass(frozen=True)
class Enrolled:
    """A site of the federation, with its key.

    - ``name``: the site's name.
    - ``public_key``: PEM of the SubjectPublicKeyInfo, as text.
    - ``clients``: ids of the clients whose uploads this key signs.
    - ``expires``: the last day on which the key counts (UTC); None: it does not expire.
    - ``revoked``: whether the key was withdrawn.
    """

    name: str
    public_key: str
    clients: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False

    @property
    def key(self) -> ec.EllipticCurvePublicKey:
        """The public key itself."""
        return public_key(self.public_key.encode())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key's DER, in hexadecimal: ``openssl pkey -in site.key -pubout -outform DER |
        sha256sum`` prints the same at the site."""
        der = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(der).hexdigest()

    def valid(self, today: date) -> bool:
        """Whether the key counts on this day: neither revoked nor expired."""
        return not self.revoked and (self.expires is None or today <= self.expires)


@dataclass(frozen=True)
class Roster:
    """The sites of a federation, in the order of the file."""

    sites: tuple[Enrolled, ...]

    def site_of(self, public_key: bytes) -> Enrolled | None:
        """The site that has this key (PEM, as Flower names a node's key), valid or not. None: no site has it."""
        try:
            key = canonical(public_key)
        except ValueError:
            return None
        return next((site for site in self.sites if site.public_key == key), None)

    def valid(self, today: date) -> tuple[Enrolled, ...]:
        """The sites whose keys count on this day (UTC)."""
        return tuple(site for site in self.sites if site.valid(today))

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Read a roster. Raises :class:`ConfigError` at the first fault."""
        tree = files.checked(files.json_object(path), str(path), {"sites": list}, {})
        sites = tuple(read_site(entry, f"{path}: sites.{i}") for i, entry in enumerate(tree["sites"]))
        if (fault := shared(sites)) is not None:
            i, field, message = fault
            raise ConfigError.at(f"{path}: sites.{i}.{field}", f"{message}; remove it from one place")
        return cls(sites)

    def write(self, path: Path) -> None:
        """Replace the file ``path`` in one step. Raises :class:`ConfigError` if it cannot be written."""
        files.write(path, self.content())

    def content(self) -> bytes:
        """The bytes of the file."""
        sites = [dataclasses.asdict(site) for site in self.sites]
        return (json.dumps({"sites": sites}, indent=2, ensure_ascii=False, default=date.isoformat) + "\n").encode()


def peers(sites: Sequence[Enrolled], today: date) -> bytes:
    """The bytes of a file for sites: the names and keys of those of ``sites`` whose keys count today, and of those that
    are revoked, so that every site learns of it."""
    entries = [
        {"name": s.name, "public_key": s.public_key, "expires": s.expires, **({"revoked": True} if s.revoked else {})}
        for s in sites
        if s.revoked or s.valid(today)
    ]
    return (json.dumps({"sites": entries}, indent=2, ensure_ascii=False, default=date.isoformat) + "\n").encode()


def canonical(pem: bytes) -> str:
    """PEM of an EC public key, the same text for the same key. Raises ValueError with the reason."""
    key = public_key(pem)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def public_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    """The EC public key in PEM. Raises ValueError with the reason."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("not a public key in PEM (-----BEGIN PUBLIC KEY-----)") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise ValueError(f"not a key on an elliptic curve of {', '.join(_CURVES)}")
    return key


def name_fault(name: str) -> str | None:
    """The reason why ``name`` cannot name a site, and so a folder. None: it can."""
    if not name or not name.isprintable() or name != name.strip():
        return "should be a name without control characters, and without space at its ends"
    if len(name.encode()) > _LONGEST_NAME:
        return f"is longer than {_LONGEST_NAME} bytes; choose a shorter one"
    if set(name) & set("/\\:,=") or name[0] in ".-":
        return "is used as a folder's name: it may neither hold / \\ : , = nor start with . or -"
    if name.casefold() in ("ca", "server"):
        return "is the name of a folder of the server's owner; choose another"
    return None


def shared(sites: Sequence[Enrolled]) -> tuple[int, str, str] | None:
    """The first name, key or client of two sites: the second site's number, the field and a message."""
    owners: dict[tuple[str, str], tuple[int, str]] = {}
    for i, site in enumerate(sites):
        values = [("name", site.name), ("public_key", site.public_key), *(("clients", c) for c in site.clients)]
        for field, value in values:
            is_key = field == "public_key"
            owner, other = owners.setdefault((field, value if is_key else alike(value)), (i, value))
            if owner != i or values.count((field, value)) > 1 or other != value:
                what = "this key" if is_key else files.quoted(value)
                but = "" if other == value else f" except for case or Unicode form ({files.quoted(other)})"
                return i, field, f"{what} is there already{but}, at the site {sites[owner].name!r}"
    return None


def alike(name: str) -> str:
    """The same text for names that are one folder on some disks, or one name when spoken: of another case or Unicode
    form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


_DRAWN = str.maketrans(
    "АВЕЅІЈКМНОРСТУХавеѕіјкмнорстухгһԁԛԝьӏՕօոսհցզΑΒΕΖΗΙΚΜΝΟΡΤΥΧαβεικνορτυχıɑɡ",
    "ABESIJKMHOPCTYXabesijkmhopctyxrhdqwblOonuhgqABEZHIKMNOPTYXabeikvoptuxiag",
)
"""Letters of other scripts by the Latin ones that they are drawn as."""


def drawn(name: str) -> str:
    """The same text for names that a reader can take for each other: Latin letters for those of other scripts, no
    accents, and nothing but letters and digits. Not every such pair is known here."""
    plain = unicodedata.normalize("NFKD", name).translate(_DRAWN)
    letters = "".join(c for c in unicodedata.normalize("NFKD", alike(plain)) if c.isalnum())
    return letters.translate(str.maketrans("01i", "oll")).replace("rn", "m").replace("vv", "w")


def read_site(entry: Any, place: str) -> Enrolled:
    """The site in an entry of a roster. Raises :class:`ConfigError` at ``place``."""
    optional = {"clients": list, "expires": str, "revoked": bool}
    tree = files.checked(entry, place, {"name": str, "public_key": str}, optional)
    if (fault := name_fault(tree["name"])) is not None:
        raise ConfigError.at(f"{place}.name", f"{files.quoted(tree['name'])} {fault}")
    try:
        key = canonical(tree["public_key"].encode(errors="replace"))
    except ValueError as error:
        raise ConfigError.at(f"{place}.public_key", f"{error}; copy the site's public key there") from None
    named = tree.get("clients")
    clients = (tree["name"],) if named is None else files.texts(named, f"{place}.clients")
    return Enrolled(tree["name"], key, clients, _day(tree.get("expires"), place), bool(tree.get("revoked")))


def _day(text: str | None, place: str) -> date | None:
    try:
        day = None if text is None else date.fromisoformat(text)
    except ValueError:
        day = None
    if text is not None and (day is None or day.isoformat() != text):
        raise ConfigError.at(f"{place}.expires", f"{text!r} is not a day; write it as in 2029-02-25, or null")
    return day


_LARGEST_REQUEST = 2**18
"""Bytes of the largest request, which names thousands of clients."""


def request_of(site: Enrolled) -> bytes:
    """The bytes of the request of ``site``."""
    tree = {"name": site.name, "public_key": site.public_key, "clients": list(site.clients)}
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def read_request(path: Path) -> Enrolled:
    """The site that a request, which anybody may have written, is for. Raises :class:`ConfigError`."""
    if not os.path.exists(path) and (reason := nothing_at(str(path), "file")) is not None:
        raise ConfigError.at("REQUEST", reason)
    text = files.content(path, _LARGEST_REQUEST)
    if b"PRIVATE KEY-----" in text:
        message = (
            "holds a private key, which should never leave its site: anybody with it can upload as that site. Delete "
            "the file; the site makes new keys in another folder (rondo federate site keys) and sends the "
            "request from there"
        )
        raise ConfigError.at(str(path), message)
    tree = files.parsed(path, text, "have the site send its request again, as it is")
    if {"site", "clients"} <= tree.keys():
        raise ConfigError.at(str(path), "a site's site.json, not its request: NAME.request.json beside it")
    place = str(path)
    tree = files.checked(tree, place, {"name": str, "public_key": str, "clients": list}, {})
    site = read_site(tree, place)
    if (fault := shared((site,))) is not None:
        raise ConfigError.at(f"{place}.{fault[1]}", f"{fault[2]}; have the site name each client once")
    return site
