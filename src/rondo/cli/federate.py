"""The commands of a federation between real parties."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import AllowCode, Device, Sets
from rondo.cli.federate_keys import ServerKeys, keys, names, sites
from rondo.cli.federate_site_keys import site_keys
from rondo.cli.process import quiet_libraries, stoppable, user_errors
from rondo.cli.run import shown
from rondo.errors import ConfigError, headed, visible

federate = typer.Typer(help="Run a federation between real parties.", no_args_is_help=True)
federate.add_typer(keys, name="keys")
federate.add_typer(sites, name="sites")
site = typer.Typer(help="For a site's owner: the site's keys.", no_args_is_help=True)
federate.add_typer(site, name="site")
site.command("keys")(site_keys)


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


def serve_on(settings: Any, run_dir: str, device: str, *, whatever: bool, code: bool) -> None:
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
        methods = tuple(names(algorithms)) if algorithms is not None else None
        limits = Limits(methods, uploads_per_day, upload_mb, min_clients)
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
