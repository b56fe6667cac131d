"""The commands of a federation between real parties: federate keys make, revoke and show."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rondo.cli.process import user_errors
from rondo.errors import ConfigError, headed, visible

federate = typer.Typer(help="Run a federation between real parties.", no_args_is_help=True)
keys = typer.Typer(help="Make, revoke and show the keys of a federation.", no_args_is_help=True)
federate.add_typer(keys, name="keys")

ServerKeys = Annotated[Path, typer.Option("--keys", help="the server's folder of keys")]


@keys.command()
def make(
    server: Annotated[
        str | None,
        typer.Option(help="host names and IP addresses of the server, HOST[,HOST...]; the first is told to clients"),
    ] = None,
    clients: Annotated[str | None, typer.Option(help="new sites of one client each, NAME[,NAME...]")] = None,
    site: Annotated[
        list[str] | None, typer.Option(metavar="NAME=CLIENT[,CLIENT...]", help="a new site of several clients")
    ] = None,
    to: Annotated[Path, typer.Option(help="the folder of keys; new sites are added to one that is there")] = Path(
        "keys"
    ),
    days: Annotated[int, typer.Option(help="days that the certificate and the sites' keys are valid")] = 825,
) -> None:
    """Make the keys of a federation: an authority, the server's certificate, and one key per site."""
    with user_errors(), headed("rondo federate keys make"):
        several = dict(_site(text) for text in site or [])
        if len(several) < len(site or []):
            raise ConfigError.at("--site", "names a site twice; give all of its clients in one --site")
        from rondo.federation import keys as federation_keys

        sites = [*_names(clients), *several]
        made = federation_keys.make(_names(server), sites, to, days=days, clients=several)
        if made.authority:
            print(f"{to / 'ca'}: the authority; keep ca.key offline: its holder can pose as the server")
        if made.certificate:
            print(f"{to / 'server'}: for the server's host ({', '.join(made.hosts)})")
        elif made.sites:
            print(f"{to / 'server' / 'roster.json'}: for the server's host, in place of the one there")
        for new in made.sites:
            print(f"{to / new.name}: for the owner of {new.name}, over a private channel; then delete it here")
        if made.sites:
            print("\nstart, at the server:")
            print(f"  rondo federate server config.toml --keys {shlex.quote(str(to / 'server'))}")
            print("start, at each site, for instance:")
            name = shlex.quote(made.sites[0].name)
            print(f"  rondo federate client --server {made.hosts[0]} --keys {name} --data rows.csv")


@keys.command()
def revoke(
    site: Annotated[str, typer.Argument(help="the site's name")], folder: ServerKeys = Path("keys/server")
) -> None:
    """Revoke a site's key: the server takes no more uploads that it signed."""
    with user_errors(), headed("rondo federate keys revoke"):
        from rondo.federation import keys as federation_keys

        federation_keys.revoke(folder, site)
        print(visible(f"revoked the key of {site} in {folder / 'roster.json'}"))


@keys.command()
def show(folder: ServerKeys = Path("keys/server")) -> None:
    """Show the sites with their clients and keys, and how long the server's certificate is valid."""
    with user_errors(), headed("rondo federate keys show"):
        from rich.table import Table

        from rondo.federation import certificates
        from rondo.federation.roster import Roster
        from rondo.report.terminal import plain_console

        roster, certificate = Roster.read(folder / "roster.json"), certificates.read(folder / "server.crt")
        table = Table(box=None, pad_edge=False)
        for column in ("site", "clients", "fingerprint (SHA-256)", "expires", "revoked"):
            table.add_column(column, overflow="fold")
        for site in roster.sites:
            expires = "never" if site.expires is None else site.expires.isoformat()
            table.add_row(
                site.name, ", ".join(site.clients), site.fingerprint, expires, "revoked" if site.revoked else "no"
            )
        # Without a terminal, print one line per site, so that grep finds it.
        console = plain_console()
        console = console if console.is_terminal else plain_console(width=250)
        console.print(table)
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        state = "expired" if certificates.now() > end else "valid"
        hosts = ", ".join(certificates.hosts_of(certificate))
        console.print(f"\ncertificate of {hosts}: {state}, {start:%Y-%m-%d} to {end:%Y-%m-%d}")


def _names(text: str | None) -> list[str]:
    """Names separated by commas."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def _site(text: str) -> tuple[str, list[str]]:
    """A site's name and its clients. Raises :class:`ConfigError`."""
    name, equals, clients = text.partition("=")
    if not equals:
        raise ConfigError.at(f"--site {text}", "expected NAME=CLIENT[,CLIENT...], for instance north=st-anna,st-mary")
    return name.strip(), _names(clients)
