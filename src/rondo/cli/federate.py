"""The commands of a federation between real parties."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import AllowCode, Device, Sets
from rondo.cli.process import quiet_libraries, stoppable, user_errors
from rondo.cli.run import shown
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


@federate.command()
def server(
    config: Annotated[str, typer.Argument(help="a TOML file, as for rondo run; its sites have the rows")],
    keys: ServerKeys = Path("keys/server"),
    listen: Annotated[str, typer.Option(help="address to listen on, HOST:PORT")] = "0.0.0.0:9092",
    sets: Sets = None,
    run_dir: Annotated[str | None, typer.Option(help="where to write; default: runs/ALGORITHM-TIME")] = None,
    device: Device = "auto",
    wait: Annotated[float, typer.Option(help="seconds to wait for all clients before the first round")] = 600.0,
    patience: Annotated[float, typer.Option(help="seconds to wait for a site that is not connected any more")] = 60.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="without TLS, on the loopback address only")] = False,
) -> None:
    """Run a configuration with the sites of a roster: they have the rows and train, and only factors travel."""
    with user_errors():
        from rondo.config.load import load
        from rondo.federation.extra import needed

        needed()
        from rondo.federation.elsewhere import ELSEWHERE
        from rondo.federation.listening import Listening

        settings = load(config, [*(sets or []), *ELSEWHERE], check_paths=False)

        host, port = _host_and_port(listen)
        listening = Listening(keys, host, port, insecure, wait, patience)

        def started(observer: Any, stop: Any) -> Any:
            from rondo.federation.server import serve

            return serve(settings, listening, run_dir=run_dir, device=device, observer=observer, told=_told, stop=stop)

        shown(settings.rounds, started)


def serve_on(settings: Any, run_dir: str, device: str, *, whatever: bool, code: bool, roster_changed: bool) -> None:
    """Continue the run of a federation in ``run_dir``."""
    from rondo.federation.extra import needed

    needed()

    def started(observer: Any, stop: Any) -> Any:
        from rondo.federation.server import resume

        return resume(
            run_dir,
            device=device,
            allow_nondeterministic=whatever,
            allow_code=code,
            roster_changed=roster_changed,
            observer=observer,
            told=_told,
            stop=stop,
        )

    shown(settings.rounds, started)


@federate.command()
def client(
    server: Annotated[str, typer.Option(help="the server's address, HOST or HOST:PORT")],
    data: Annotated[Path, typer.Option(help="a file with this client's rows, or a folder with one file per client")],
    keys: Annotated[Path, typer.Option("--keys", help="the site's folder of keys")],
    model: Annotated[str | None, typer.Option(help="the site's copy of the base model: a folder or a file")] = None,
    state: Annotated[
        Path | None, typer.Option(help="where the site keeps its state and its log; default: runs/site-NAME")
    ] = None,
    device: Device = "auto",
    memory_mb: Annotated[int | None, typer.Option(help="memory for training, in MiB")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="methods to take part in, NAME[,NAME...]; default: any")
    ] = None,
    uploads_per_day: Annotated[int | None, typer.Option(help="most uploads that leave in a day")] = None,
    upload_mb: Annotated[float | None, typer.Option(help="largest upload, in MB")] = None,
    min_clients: Annotated[int, typer.Option(help="fewest clients that a round must ask")] = 1,
    wait: Annotated[float, typer.Option(help="seconds to wait for a server that is not there yet")] = 0.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="without TLS")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="wait for further runs when one is over")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Take part in a federation: train on this site's rows, which do not leave it."""
    with user_errors(), stoppable() as stop:
        from rondo.federation.extra import needed

        needed()
        quiet_libraries()
        from rondo.federation.keys import SiteKeys
        from rondo.federation.limits import Limits
        from rondo.federation.site import Site, take_part

        folder = state
        if folder is None:
            with headed("rondo federate client"):
                folder = Path("runs", f"site-{SiteKeys.read(keys).site}")
        names = tuple(_names(algorithms)) if algorithms is not None else None
        limits = Limits(names, uploads_per_day, upload_mb, min_clients)
        site = Site(server, keys, data, folder, device, model, memory_mb, limits, insecure, stay, wait, allow_code)
        take_part(site, told=_told, stop=stop)


@federate.command()
def app(
    folder: Annotated[Path, typer.Argument(help="where to write the app; run it by: flwr run FOLDER FEDERATION")],
    config: Annotated[str, typer.Option(help="a TOML file, as for rondo federate server")],
    nodes: Annotated[int, typer.Option(help="SuperNodes to wait for")],
) -> None:
    """Write a run as a Flower app, for a federation of Flower's that is there already."""
    with user_errors(), headed("rondo federate app"):
        from rondo.federation.extra import needed

        needed()
        from rondo.federation import app as flower

        flower.write(folder, config, nodes)
        print(f"wrote {folder}; run it by: flwr run {shlex.quote(str(folder))} FEDERATION")
        print('start each SuperNode with --node-config \'rondo-data="rows.csv" rondo-state="state"\'')


@federate.command()
def status(run_dir: Annotated[Path, typer.Argument(help="the run directory of a federation")]) -> None:
    """Show a federation's run: its last round, its clients, its bytes and its scores."""
    with user_errors(), headed("rondo federate status"):
        from rondo.federation.status import status_lines

        for line in status_lines(run_dir):
            print(visible(line))


def _told(line: str) -> None:
    print(visible(line), file=sys.stderr, flush=True)


def _host_and_port(text: str) -> tuple[str, int]:
    """An address to listen on. Raises :class:`ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) >= 2**16:
        message = f"{text!r} is no address: give HOST:PORT, for instance 0.0.0.0:9092"
        raise ConfigError.at("--listen", message, "rondo federate server")
    return host.strip("[]"), int(port)
