"""Keys of a federation: the server's owner makes the authority and the server's certificate, and server and sites read
their folders.

A folder of keys::

    ca/      ca.key ca.crt                              the authority; ca.key stays offline
    server/  ca.crt server.crt server.key roster.json   for the server
    SITE/    ca.crt site.key site.json peers.json       of a site; peers.accepted beside it

A site makes its own folder (:mod:`rondo.federation.identity.site_keys`). For a rehearsal on one machine, :func:`make`
makes those of sites too.

The server proves itself by its certificate (TLS). A site proves itself by its key's signature under each of its
messages, which the server looks up in the roster.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from rondo.errors import ConfigError
from rondo.federation.identity import certificates, files, roster
from rondo.federation.identity.roster import Enrolled, Roster
from rondo.records import durable


@dataclass(frozen=True)
class NewKeys:
    """The files and names that :func:`make` made.

    - ``folder``: the folder of keys.
    - ``hosts``: the server's host names and addresses.
    - ``fingerprint``: of the authority's certificate.
    - ``authority``, ``certificate``: whether the authority and the server's certificate are new.
    - ``sites``: the new sites.
    """

    folder: Path
    hosts: tuple[str, ...]
    fingerprint: str
    authority: bool
    certificate: bool
    sites: tuple[Enrolled, ...]


@dataclass(frozen=True)
class ServerKeys:
    """The server's keys: paths of its files, and its roster."""

    certificate: Path
    key: Path
    ca: Path
    roster: Roster

    @classmethod
    def read(cls, folder: Path) -> ServerKeys:
        """Read and check ``folder``: every file is there, the certificate is valid today and signed by the authority or
        by others that it signed, sites accept it, and its owner alone can read the private key. Raises
        :class:`ConfigError` at the first fault."""
        folder = check_folder(folder)
        keys = cls(folder / "server.crt", folder / "server.key", folder / "ca.crt", Roster.read(folder / roster.FILE))
        authority = certificates.read_authority(keys.ca)
        chain = certificates.read_chain(keys.certificate)
        certificate = chain[0]
        certificates.check_time(keys.certificate, certificate, "make another by rondo federate keys renew")
        certificates.check_issuer(keys.certificate, chain, authority, keys.ca)
        certificates.check_pair(keys.key, certificates.read_private(keys.key), certificate, keys.certificate)
        hosts = certificates.hosts_of(certificate)
        if not hosts:
            raise ConfigError.at(str(keys.certificate), "is for no host: it needs the server's as subjectAltName")
        certificates.check_accepted(keys.certificate, keys.key, keys.ca, hosts[0].replace("*", "any"))
        return keys


@dataclass(frozen=True)
class SiteKeys:
    """A site's keys.

    - ``site``, ``clients``: the site's name, and the ids of its clients.
    - ``server``: the server's host; None if it was left out.
    - ``ca``, ``key``: paths of the authority's certificate and of the private key.
    - ``private_key``: the key itself.
    """

    site: str
    clients: tuple[str, ...]
    server: str | None
    ca: Path
    key: Path
    private_key: ec.EllipticCurvePrivateKey

    @property
    def fingerprint(self) -> str:
        """That of the site in a roster."""
        return Enrolled(self.site, self.public_key, self.clients).fingerprint

    @property
    def public_key(self) -> str:
        """The public key in PEM, as a roster has it."""
        return certificates.public_pem(self.private_key.public_key()).decode()

    @classmethod
    def read(cls, folder: Path) -> SiteKeys:
        """Read and check ``folder``: every file is there, the authority is valid today, and its owner alone can read
        the private key. Raises :class:`ConfigError` at the first fault."""
        folder = check_folder(folder)
        path = folder / "site.json"
        about = files.checked(files.json_object(path), str(path), {"site": str, "clients": list}, {"server": str})
        if (fault := roster.name_fault(about["site"])) is not None:
            raise ConfigError.at(f"{path}.site", f"{files.quoted(about['site'])} {fault}")
        named = about.get("server")
        server = None if named is None else certificates.host(named, f"{path}.server")
        clients = files.texts(about["clients"], f"{path}.clients")
        certificates.read_authority(folder / "ca.crt")
        key = folder / "site.key"
        return cls(about["site"], clients, server, folder / "ca.crt", key, certificates.read_curve(key))


def make(
    server: Sequence[str], sites: Sequence[str], folder: Path, *, days: int, clients: Mapping[str, Sequence[str]]
) -> NewKeys:
    """Make keys in ``folder``, all or none: the authority and the server's certificate where they are missing, and a
    key for each new site, for a rehearsal. Nothing that is there is changed, but for the roster, which gets the new
    sites.

    ``server``: its host names and IP addresses; clients are told the first. Without: those of its certificate.
    ``days``: how long the certificate and the new sites' keys are valid.
    ``clients``: ids of a site's clients; by default one with the site's name.

    Raises :class:`ConfigError`.
    """
    end, hosts = certificates.last_day(days), _hosts(server)
    with files.alone(folder / "server"):
        return _make(folder, hosts, sites, days, end, clients)


def renew(server: Sequence[str], folder: Path, *, days: int) -> tuple[tuple[str, ...], date]:
    """Make another certificate for the key of the server that is there, in one step, and return its hosts and its last
    day. ``folder`` has the authority's private key at ``ca/ca.key``. ``server``: its hosts from now on; without, as
    before. Raises :class:`ConfigError`."""
    hosts = _hosts(server)
    path = check_folder(folder / "server", "--to") / "server.crt"
    certificates.last_day(days)
    with files.alone(path.parent):
        old = certificates.read(path)
        secret, authority = _authority(folder)
        certificates.check_issuer(path, [old], authority, path.parent / "ca.crt")
        hosts = hosts or certificates.hosts_of(old)
        new = certificates.of_server(hosts, days, old.public_key(), secret, authority)
        files.write(path, certificates.pem(new))
    return hosts, new.not_valid_after_utc.date()


def _hosts(texts: Sequence[str]) -> tuple[str, ...]:
    """Hosts as a certificate has them. Raises :class:`ConfigError`."""
    return tuple(dict.fromkeys(certificates.host(text, "--server") for text in texts))


def _make(
    folder: Path,
    hosts: tuple[str, ...],
    sites: Sequence[str],
    days: int,
    end: date,
    clients: Mapping[str, Sequence[str]],
) -> NewKeys:
    new_files, certificate, authority = _server_files(folder, hosts, days)
    hosts = hosts or certificates.hosts_of(certificate)
    old = Roster(()) if "ca/ca.crt" in new_files else Roster.read(folder / "server" / roster.FILE)
    secrets = {name: certificates.site_key() for name in sites}
    new_sites = _new_sites(secrets, end, sites, clients)
    _check_sites(folder, old.sites, new_sites)
    for site in new_sites:
        new_files[f"{site.name}/ca.crt"] = certificates.pem(authority)
        new_files[f"{site.name}/site.key"] = certificates.private_pem(secrets[site.name])
        new_files[f"{site.name}/site.json"] = about(site.name, site.clients, hosts[0])
    if not new_files:
        raise ConfigError.at("--clients", f"nothing to make: {str(folder)!r} has its server's keys; name new sites")
    known = (*old.sites, *new_sites)
    for site in new_sites:
        for file in (roster.PEERS, roster.ACCEPTED):
            new_files[f"{site.name}/{file}"] = roster.peers(known, certificates.now().date())
    new_files[f"server/{roster.FILE}"] = Roster(known).content()
    try:
        _appear(folder, new_files)
    except OSError as error:
        message = f"{str(error.filename or folder)!r} cannot be written: {error.strerror}; name another folder"
        raise ConfigError.at("--to", message) from None
    fingerprint = certificates.fingerprint(authority)
    return NewKeys(folder, hosts, fingerprint, "ca/ca.crt" in new_files, "server/server.crt" in new_files, new_sites)


def about(site: str, clients: Sequence[str], server: str | None) -> bytes:
    """The content of ``site.json``."""
    tree = {"site": site, "server": server, "clients": list(clients)}
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def check_folder(folder: Path, option: str = "--keys") -> Path:
    """``folder``, which ``option`` names. Raises :class:`ConfigError` if it is none."""
    if not folder.is_dir():
        raise ConfigError.at(option, f"{str(folder)!r} is not a folder; name one that rondo federate keys make wrote")
    return folder


def _server_files(
    folder: Path, hosts: tuple[str, ...], days: int
) -> tuple[dict[str, bytes], x509.Certificate, x509.Certificate]:
    """The files of the authority and the server that are missing, the server's certificate, and the authority's."""
    new: dict[str, bytes] = {}
    server = folder / "server"
    if not any((folder / part).exists() for part in ("ca", "server")):
        secret, authority = certificates.authority(days)
        new["ca/ca.key"], new["ca/ca.crt"] = certificates.private_pem(secret), certificates.pem(authority)
        new["server/ca.crt"] = new["ca/ca.crt"]
    elif any((server / name).exists() for name in ("server.crt", "server.key")):
        certificate = certificates.read(server / "server.crt")
        valid_hosts = certificates.hosts_of(certificate)
        if other := [h for h in hosts if h not in valid_hosts]:
            message = (
                f"{other[0]!r} is not in {server / 'server.crt'}, which is for {', '.join(valid_hosts)}; leave it out, "
                f"or make another certificate by rondo federate keys renew"
            )
            raise ConfigError.at("--server", message)
        return new, certificate, certificates.read_authority(server / "ca.crt")
    else:
        secret, authority = _authority(folder)
    if not hosts:
        raise ConfigError.at("--server", "name the host at which clients reach the server, as in fed.example.org")
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = certificates.of_server(hosts, days, key.public_key(), secret, authority)
    new["server/server.crt"], new["server/server.key"] = certificates.pem(certificate), certificates.private_pem(key)
    return new, certificate, authority


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The authority's private key and its certificate. Raises :class:`ConfigError`."""
    key, certificate = folder / "ca" / "ca.key", folder / "server" / "ca.crt"
    authority = certificates.read_authority(certificate)
    if not os.path.lexists(key):
        message = "no such file: bring the authority's key there for this command, then take it offline again"
        raise ConfigError.at(str(key), message)
    secret = certificates.read_curve(key)
    certificates.check_pair(key, secret, authority, certificate)
    return secret, authority


def _new_sites(
    secrets: Mapping[str, ec.EllipticCurvePrivateKey],
    end: date,
    sites: Sequence[str],
    clients: Mapping[str, Sequence[str]],
) -> tuple[Enrolled, ...]:
    """Sites as the roster will have them. Raises :class:`ConfigError` if a name or an id cannot be one."""
    for name in (*sites, *clients):
        if (fault := roster.name_fault(name)) is not None:
            raise ConfigError.at("--clients", f"{files.quoted(name)} {fault}")
        if name not in sites:
            raise ConfigError.at("--clients", f"{name!r} has clients and is not among the sites; add it")
    public = {name: certificates.public_pem(secret.public_key()).decode() for name, secret in secrets.items()}
    return tuple(
        Enrolled(name, public[name], files.texts(clients.get(name, [name]), f"--site {name}"), end) for name in sites
    )


def _check_sites(folder: Path, old: tuple[Enrolled, ...], new: tuple[Enrolled, ...]) -> None:
    """Raise :class:`ConfigError` if a new site is there already, or has a client of another."""
    if (fault := roster.shared((*old, *new))) is not None:
        raise ConfigError.at("--clients", f"{fault[2]}; choose another")
    for site in new:
        if (path := folder / site.name).exists() or path.is_symlink():
            message = f"{str(path)!r} is there already and is not overwritten; choose another name or move it away"
            raise ConfigError.at("--clients", message)


def _appear(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, given by "PART/NAME", under ``folder``: each part that is new appears in one step, and all if the
    folder is new. The server's, and the roster as the very last, come after the sites': a site that the roster names
    has its key. Raises OSError and has then changed nothing."""
    folder = folder.absolute()
    base = folder if folder.is_dir() else folder.parent
    durable.make_folder(base)
    temporary = base / f".{folder.name}.rondo{durable.TEMPORARY}"
    moved: list[Path] = []
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
        for name, content in contents.items():
            _write(temporary / name, content)
        if base is not folder:
            os.rename(temporary, folder)
        else:
            for source in _moves(folder, temporary):
                target = folder / source.relative_to(temporary)
                is_new = not target.exists()
                os.replace(source, target)
                moved += [target] if is_new else []
                durable.sync(target.parent)
    except BaseException:
        for path in moved:
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    durable.sync(base)


def _moves(folder: Path, temporary: Path) -> list[Path]:
    """The new files and folders to move from ``temporary``, in order."""
    moves: list[Path] = []
    for part in sorted(temporary.iterdir(), key=lambda p: p.name == "server"):
        is_there = (folder / part.name).exists()
        moves += sorted(part.iterdir(), key=lambda p: p.name == roster.FILE) if is_there else [part]
    return moves


def _write(path: Path, content: bytes) -> None:
    """Write a new file. Nobody but its owner can ever read a private key."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    durable.create(path, content, 0o600 if path.suffix == ".key" else 0o644)
    durable.sync(path.parent)
