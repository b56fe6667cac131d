"""A site makes its own keys. Its private key never leaves it; the server's owner gets a request with the public half.

The site's folder::

    site.key  site.json  ca.crt     see rondo.federation.identity.keys
    NAME.request.json               for the server's owner
    site.new.key NAME.renewal.json  a new key that the server does not know yet, and its request
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from rondo.config.checks import nothing_at
from rondo.errors import ConfigError
from rondo.federation.identity import certificates, files, roster
from rondo.federation.identity.keys import SiteKeys, about
from rondo.federation.identity.roster import Enrolled
from rondo.records import durable

KEY, NEW_KEY = "site.key", "site.new.key"


@dataclass(frozen=True)
class NewSiteKeys:
    """A site's keys, made now or earlier.

    - ``site``: name, clients and public key.
    - ``authority``: the fingerprint of the authority's certificate.
    - ``server``: the server's host, if it was named.
    - ``request``: the file for the server's owner.
    - ``is_new``: whether the key was made now.
    """

    site: Enrolled
    authority: str
    server: str | None
    request: Path
    is_new: bool


def make(name: str, folder: Path, *, ca: Path, clients: Sequence[str] = (), server: str | None = None) -> NewSiteKeys:
    """Make the keys of the site ``name`` in ``folder``. A key that is there is never replaced: for the same site, its
    request is written again, and for another one this is an error.

    ``ca``: the certificate of the federation's authority.
    ``clients``: ids of the site's clients; by default one with the site's name.
    ``server``: the server's host.

    Raises :class:`ConfigError`.
    """
    if (fault := roster.name_fault(name)) is not None:
        raise ConfigError.at("NAME", f"{files.quoted(name)} {fault}")
    ids = files.texts(clients or [name], "--client")
    if (twice := roster.shared((Enrolled(name, "", ids),))) is not None:
        raise ConfigError.at("--client", f"{twice[2]}; name each client once")
    host = None if server is None else certificates.host(server, "--server")
    if not os.path.exists(ca) and (reason := nothing_at(str(ca), "file")) is not None:
        raise ConfigError.at("--ca", reason)
    authority = certificates.pem(certificates.read_authority(ca))
    _make_folder(folder)
    with files.alone(folder):
        if is_new := not os.path.lexists(folder / KEY):
            _begin(folder, {"ca.crt": authority, "site.json": about(name, ids, host)})
            key = certificates.site_key()
            # The last step but for the request, which is written again by the next call: a key has its other files.
            files.write_private(folder / KEY, certificates.private_pem(key))
        keys = SiteKeys.read(folder)
        if (keys.site, keys.clients) != (name, ids):
            raise _other(folder, f"has the keys of {keys.site!r} with the clients {', '.join(keys.clients)}")
        if certificates.pem(certificates.read(keys.ca)) != authority:
            raise _other(folder, f"has keys for another authority than that of {ca}")
        if host is not None and host != keys.server:
            raise _other(folder, f"has keys for the server {keys.server}")
        return _requested(keys, keys.private_key, folder / f"{name}.request.json", is_new=is_new)


def renew(name: str, folder: Path) -> NewSiteKeys:
    """Make a new key of the site whose keys are in ``folder``, beside the one there, which counts until the server's
    owner has taken the new one. A new key that is there already stays. Raises :class:`ConfigError`."""
    with files.alone(folder):
        keys = SiteKeys.read(folder)
        if keys.site != name:
            raise ConfigError.at("NAME", f"{str(folder)!r} has the keys of {keys.site!r}, not of {files.quoted(name)}")
        if is_new := not os.path.lexists(folder / NEW_KEY):
            files.write_private(folder / NEW_KEY, certificates.private_pem(certificates.site_key()))
        key = certificates.read_curve(folder / NEW_KEY)
        return _requested(keys, key, folder / f"{name}.renewal.json", is_new=is_new)


def _make_folder(folder: Path) -> None:
    with files.writing(folder):
        if not folder.is_dir():
            durable.make_folder(folder.absolute().parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            durable.sync(folder.absolute().parent)


def _begin(folder: Path, contents: dict[str, bytes]) -> None:
    """Write the files of a site that come before its key."""
    for file, content in contents.items():
        path = folder / file
        # An earlier call that was cut off has left the same.
        if os.path.lexists(path) and files.content(path) != content:
            raise ConfigError.at(str(path), "is there already and is not overwritten; name another folder by --to")
    for file, content in contents.items():
        files.write(folder / file, content)


def _other(folder: Path, what: str) -> ConfigError:
    message = f"{str(folder)!r} {what}, and nothing is overwritten; name another folder, or make a new key by --renew"
    return ConfigError.at("--to", message)


def _requested(keys: SiteKeys, key: ec.EllipticCurvePrivateKey, path: Path, *, is_new: bool) -> NewSiteKeys:
    site = Enrolled(keys.site, certificates.public_pem(key.public_key()).decode(), keys.clients)
    files.write(path, roster.request_of(site))
    return NewSiteKeys(site, certificates.fingerprint(certificates.read(keys.ca)), keys.server, path, is_new)
