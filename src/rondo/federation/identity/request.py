"""A site's request to be in the roster: its name, its clients and its public key, in a file for the server's owner.

``NAME.request.json``, and ``NAME.renewal.json`` for another key of a site that is there. A request is public, and may
come by any channel: both owners compare the key's fingerprint by telephone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rondo.errors import ConfigError
from rondo.federation.identity import files, roster
from rondo.federation.identity.roster import Enrolled

_LARGEST = 2**18
"""Bytes of the largest request, which names thousands of clients."""


def content(site: Enrolled) -> bytes:
    """The bytes of the request of ``site``."""
    tree = {"name": site.name, "public_key": site.public_key, "clients": list(site.clients)}
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def read(path: Path) -> Enrolled:
    """The site that a request, which anybody may have written, is for. Raises :class:`ConfigError`."""
    path = Path(path)
    if not os.path.lexists(path):
        raise ConfigError.at("REQUEST", f"no such file: {str(path)!r}; mend the path")
    text = files.content(path, _LARGEST)
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
    site = roster.read_site(tree, place)
    if (fault := roster.shared((site,))) is not None:
        raise ConfigError.at(f"{place}.{fault[1]}", f"{fault[2]}; have the site name each client once")
    return site
