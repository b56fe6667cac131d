"""The command by which a site makes its own keys (``rondo federate site keys``)."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.federate_keys import print_fingerprint
from rondo.cli.process import user_errors
from rondo.errors import ConfigError, headed, visible


def site_keys(
    name: Annotated[str, typer.Argument(help="the site's name")],
    client: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="a client of the site; default: one with the site's name")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="the certificate of the federation's authority, from the server's owner")
    ] = None,
    server: Annotated[str | None, typer.Option(help="the server's host name or IP address")] = None,
    to: Annotated[Path, typer.Option(help="the site's folder of keys")] = Path("keys"),
    renew: Annotated[bool, typer.Option("--renew", help="make a new key beside the one in the folder")] = False,
) -> None:
    """Make the site's own keys, and the request that the server's owner gets. The private key never leaves the site."""
    with user_errors(), headed("rondo federate site keys"):
        from rondo.federation.identity import site_keys as own_keys

        if renew:
            if client or ca is not None or server is not None:
                raise ConfigError.at("--renew", "changes the key alone; leave out --client, --ca and --server")
            made = own_keys.renew(name, to)
        elif ca is None:
            raise ConfigError.at("--ca", "name the ca.crt that the server's owner sent")
        else:
            made = own_keys.make(name, to, ca=ca, clients=client or (), server=server)
        _told(made, to, renewed=renew)


def _told(made: Any, to: Path, *, renewed: bool) -> None:
    """Print what was made, what to compare, and what comes next."""
    from rondo.federation.identity.site_keys import KEY, NEW_KEY

    key = to / (NEW_KEY if renewed else KEY)
    print(f"{key}: stays here, nobody else gets it" if made.is_new else f"{key}: is there already and stays as it is")
    print(visible(f"{made.request}: send it to the server's owner, by any channel"))
    print(visible(f"  clients: {', '.join(made.site.clients)}"))
    print("\ncompare with the server's owner by telephone:")
    print_fingerprint("key", made.site.fingerprint)
    print_fingerprint("authority (ca.crt)", made.authority)
    if renewed:
        print("\nthe key from before counts until the server's owner has run:")
        print(visible(f"  rondo federate sites renew {shlex.quote(made.request.name)}"))
        print("then stop the site's program, and start it again after:")
        print(f"  mv {shlex.quote(str(key))} {shlex.quote(str(to / KEY))}")
    else:
        print("\nonce the server's owner has added the site (rondo federate sites add):")
        host, folder = made.server or "HOST", shlex.quote(str(to))
        data = "rows.csv" if len(made.site.clients) == 1 else "FOLDER"
        print(f"  rondo federate client --server {host} --keys {folder} --data {data}")


def site_peers(
    file: Annotated[
        Path | None, typer.Argument(help="the file that the server's owner sent; left out, the one that is there")
    ] = None,
    folder: Annotated[Path, typer.Option("--keys", help="the site's folder of keys")] = Path("keys"),
    accept: Annotated[
        bool, typer.Option("--accept", help="accept what the file changes, for scripts; default: show it and ask")
    ] = False,
) -> None:
    """Take in the keys of the other sites, for secure aggregation, and show them to be compared by telephone."""
    with user_errors(), headed("rondo federate site peers"):
        from rondo.federation.identity.keys import SiteKeys
        from rondo.federation.identity.peers import Offered
        from rondo.federation.identity.roster import PEERS

        keys, path = SiteKeys.read(folder), folder / PEERS
        offered = Offered.read(path if file is None else file, keys)
        if offered.changes:
            _accepted(offered, accept=accept)
        offered.accept(folder)
        if file is not None:
            print(f"{path}: {len([site for site in offered.others if not site.revoked])} other sites")
        print("compare by telephone with the owner of each site:")
        print_fingerprint(visible(f"{keys.site}, this site"), keys.fingerprint)
        for site in offered.others:
            until = "without end" if site.expires is None else f"until {site.expires}"
            until = "revoked: this site masks for it no more" if site.revoked else until
            print_fingerprint(visible(f"{site.name}, {until}"), site.fingerprint)
        if offered.changes:
            print("the site's program knows it once it is started again")


def _accepted(offered: Any, *, accept: bool) -> None:
    """Print what a file of peers changes, and have the owner accept it. Raises :class:`ConfigError` otherwise."""
    print("look at these first, against the file that was taken in last:")
    for change in offered.changes:
        print(visible(f"  {change.said}"))
        for of, fingerprint in change.keys.items():
            print_fingerprint(visible(of), fingerprint)
    if accept:
        return
    if not sys.stdin.isatty():
        raise ConfigError.at("--accept", "nobody can be asked without a terminal: compare the keys, then set it")
    print("\ntake it in? Compare the keys with the owner of each of these sites first, by telephone [y/N] ", end="")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError.at("FILE", "was not taken in: the file from before stays")
