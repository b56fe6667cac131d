"""The commands of the server's owner on keys (``rondo federate keys``) and sites (``rondo federate sites``)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rondo.cli.process import user_errors
from rondo.errors import ConfigError, headed, visible

if TYPE_CHECKING:
    from rondo.federation.identity.roster import Enrolled

keys = typer.Typer(help="Make and renew the authority and the server's certificate.", no_args_is_help=True)
sites = typer.Typer(help="Add, renew, revoke and show the sites of a federation.", no_args_is_help=True)

ServerKeys = Annotated[Path, typer.Option("--keys", help="the server's folder of keys")]
Days = Annotated[int, typer.Option(help="days that the key is valid")]
Name = Annotated[str, typer.Argument(metavar="SITE", help="the site's name")]
_SERVER_KEYS = Path("keys/server")

_TABLE = 60
"""Columns of a terminal from which a table of sites can be read."""


@keys.command()
def make(
    server: Annotated[
        str | None,
        typer.Option(help="host names and IP addresses of the server, HOST[,HOST...]; the first is told to clients"),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            help="for a rehearsal: new sites of one client each, NAME[,NAME...]. Their private keys are made here, and "
            "then travel; otherwise a site makes its own (rondo federate site keys)"
        ),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=CLIENT[,CLIENT...]", help="for a rehearsal: a new site of several clients"),
    ] = None,
    to: Annotated[Path, typer.Option(help="the folder of keys")] = Path("keys"),
    days: Annotated[int, typer.Option(help="days that the certificate and the sites' keys are valid")] = 825,
) -> None:
    """Make the keys of a server: an authority, and the server's certificate."""
    with user_errors(), headed("rondo federate keys make"):
        several = dict(_site(text) for text in site or [])
        if len(several) < len(site or []):
            raise ConfigError.at("--site", "names a site twice; give all of its clients in one --site")
        from rondo.federation.identity import keys as federation_keys

        rehearsed = [*names(clients), *several]
        made = federation_keys.make(names(server), rehearsed, to, days=days, clients=several)
        folder = shlex.quote(str(to / "server"))
        if made.authority:
            print(f"{to / 'ca'}: the authority; keep ca.key offline: its holder can pose as the server")
        if made.certificate:
            print(f"{to / 'server'}: for the server's host ({', '.join(made.hosts)})")
        elif made.sites:
            print(f"{to / 'server' / 'roster.json'}: for the server's host, in place of the one there")
        for new in made.sites:
            print(visible(f"{to / new.name}: for the owner of {new.name}, over a private channel; then delete it here"))
        if made.sites:
            print("\nstart, at the server:")
            print(f"  rondo federate server config.toml --keys {folder}")
            print("start, at each site, for instance:")
            name = shlex.quote(made.sites[0].name)
            print(visible(f"  rondo federate client --server {made.hosts[0]} --keys {name} --data rows.csv"))
        if made.authority:
            certificate = to / "server" / "ca.crt"
            print(f"\nsend {certificate} to every site, by any channel, and compare by telephone:")
            print_fingerprint("authority (ca.crt)", made.fingerprint)
            print("the site then makes its keys, and sends a request:")
            print(f"  rondo federate site keys NAME --ca ca.crt --server {made.hosts[0]}")
            print("take it in:")
            print(f"  rondo federate sites add NAME.request.json --keys {folder}")


@keys.command("renew")
def renew_certificate(
    server: Annotated[
        str | None, typer.Option(help="the server's hosts from now on, HOST[,HOST...]; default: as before")
    ] = None,
    to: Annotated[Path, typer.Option(help="the folder of keys, with ca/ca.key")] = Path("keys"),
    days: Annotated[int, typer.Option(help="days that the certificate is valid")] = 825,
) -> None:
    """Renew the server's certificate, for the key that is there. Sites change nothing."""
    with user_errors(), headed("rondo federate keys renew"):
        from rondo.federation.identity import keys as federation_keys

        hosts, end = federation_keys.renew(names(server), to, days=days)
        print(f"{to / 'server' / 'server.crt'}: for {', '.join(hosts)}, until {end}")
        print("a server that runs takes it at its next start; rondo resume continues its run")


@sites.command()
def add(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="the file that the site sent, NAME.request.json")],
    folder: ServerKeys = _SERVER_KEYS,
    days: Days = 825,
) -> None:
    """Add a site by its request. A running server knows its key at once."""
    with user_errors(), headed("rondo federate sites add"):
        from rondo.federation.identity import enrolment

        site = enrolment.add(folder, request, days=days)
        print(visible(f"added {site.name} to {folder / 'roster.json'}, until {site.expires}"))
        print(visible(f"  clients: {', '.join(site.clients)}"))
        print_fingerprint("key", site.fingerprint)
        _compare(site.name, folder)


@sites.command()
def renew(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="the file that the site sent, NAME.renewal.json")],
    folder: ServerKeys = _SERVER_KEYS,
    days: Days = 825,
) -> None:
    """Replace a site's key by the one of its request, also after it was revoked. A running server knows it at once."""
    with user_errors(), headed("rondo federate sites renew"):
        from rondo.federation.identity import enrolment

        old, new = enrolment.renew(folder, request, days=days)
        print(visible(f"renewed the key of {new.name} in {folder / 'roster.json'}, until {new.expires}"))
        if old.clients != new.clients:
            print(visible(f"  clients: {', '.join(new.clients)}"))
            print(visible(f"  clients before: {', '.join(old.clients)}"))
        print_fingerprint("key", new.fingerprint)
        print_fingerprint("key before, which counts no more", old.fingerprint)
        _compare(new.name, folder)


@sites.command()
def extend(site: Name, folder: ServerKeys = _SERVER_KEYS, days: Days = 825) -> None:
    """Let a site's key count for longer."""
    with user_errors(), headed("rondo federate sites extend"):
        from rondo.federation.identity import enrolment

        old, new = enrolment.extend(folder, site, days=days)
        print(visible(f"the key of {site} is valid until {new.expires} (before: {old.expires})"))


@sites.command()
def revoke(site: Name, folder: ServerKeys = _SERVER_KEYS) -> None:
    """Revoke a site's key: the server takes no more uploads that it signed."""
    with user_errors(), headed("rondo federate sites revoke"):
        from rondo.federation.identity import enrolment

        enrolment.revoke(folder, site)
        print(visible(f"revoked the key of {site} in {folder / 'roster.json'}"))
        print("if uploads are masked, every site needs to know: rondo federate sites peers writes the file to send")


@sites.command()
def show(folder: ServerKeys = _SERVER_KEYS) -> None:
    """Show the sites with their clients and keys, and how long the server's certificate is valid."""
    with user_errors(), headed("rondo federate sites show"):
        from rondo.federation.identity import certificates
        from rondo.federation.identity.roster import Roster
        from rondo.report.terminal import plain_console

        roster, certificate = Roster.read(folder / "roster.json"), certificates.read(folder / "server.crt")
        authority = certificates.read(folder / "ca.crt")
        console = plain_console(width=10_000)
        if console.is_terminal and console.width < _TABLE:
            _list(roster.sites)
        else:
            console.print(_table(roster.sites, lines=console.is_terminal))
        console.print()
        hosts = ", ".join(certificates.hosts_of(certificate))
        for of, shown in ((f"certificate of {hosts}", certificate), ("authority (ca.crt)", authority)):
            start, end = shown.not_valid_before_utc, shown.not_valid_after_utc
            state = "expired" if certificates.now() > end else "valid"
            console.print(f"{of}: {state}, {start:%Y-%m-%d} to {end:%Y-%m-%d}")
        print_fingerprint("authority (ca.crt)", certificates.fingerprint(authority))


@sites.command()
def peers(
    folder: ServerKeys = _SERVER_KEYS,
    to: Annotated[Path, typer.Option(help="the file to write")] = Path("peers.json"),
) -> None:
    """Write the names and keys of all sites, for secure aggregation: every site takes the file in."""
    with user_errors(), headed("rondo federate sites peers"):
        from datetime import UTC, datetime

        from rondo.federation.identity import files, roster

        today = datetime.now(UTC).date()
        known = roster.Roster.read(folder / roster.FILE)
        files.write(to, roster.peers(known.sites, today))
        print(f"{to}: {len(known.valid(today))} sites; send it to every site, by any channel. Each takes it in by:")
        print(f"  rondo federate site peers {shlex.quote(to.name)} --keys keys")


def _table(known: Sequence[Enrolled], *, lines: bool) -> Any:
    """The sites, each in one line so that grep finds it, or in ``lines``, as many as its fingerprint has."""
    from rondo.federation.identity import certificates
    from rondo.report.terminal import folded

    table = folded("site", "clients", "fingerprint (SHA-256)", "expires", "revoked")
    for site in known:
        fingerprint = ("\n" if lines else " ").join(certificates.grouped(site.fingerprint))
        revoked = "revoked" if site.revoked else "no"
        table.add_row(site.name, ", ".join(site.clients), fingerprint, _end(site), revoked)
    return table


def _list(known: Sequence[Enrolled]) -> None:
    """Print the sites one below the other."""
    for site in known:
        print(visible(site.name))
        print(visible(f"  clients: {', '.join(site.clients)}"))
        print_fingerprint("key", site.fingerprint)
        print(f"  expires: {_end(site)}{', revoked' if site.revoked else ''}")


def _end(site: Enrolled) -> str:
    return "never" if site.expires is None else site.expires.isoformat()


def print_fingerprint(of: str, digits: str) -> None:
    """Print a fingerprint so that it can be read aloud, also on a narrow terminal."""
    from rondo.federation.identity import certificates

    print(f"  {of}, SHA-256:")
    for line in certificates.grouped(digits):
        print(f"    {line}")


def _compare(site: str, folder: Path) -> None:
    print("compare the key by telephone with what the site's owner sees. If it is another:")
    print(visible(f"  rondo federate sites revoke {shlex.quote(site)} --keys {shlex.quote(str(folder))}"))


def names(text: str | None) -> list[str]:
    """Names separated by commas."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def _site(text: str) -> tuple[str, list[str]]:
    """A site's name and its clients. Raises :class:`ConfigError`."""
    name, equals, clients = text.partition("=")
    if not equals:
        raise ConfigError.at(f"--site {text}", "expected NAME=CLIENT[,CLIENT...], for instance north=st-anna,st-mary")
    return name.strip(), names(clients)
