"""The commands of a federation between real parties."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Device, Sets
from rondo.cli.federate_keys import ServerKeys, keys, sites
from rondo.cli.federate_site import (
    BaseModel,
    ContractFile,
    Data,
    Insecure,
    Keys,
    Monitor,
    Server,
    State,
    Test,
    Wait,
    by_hand,
    program,
    site,
    site_keys,
    site_peers,
)
from rondo.cli.federate_site import shown as shown_plan
from rondo.cli.process import LogJson, shown, stoppable, user_errors
from rondo.errors import ConfigError, headed, visible
from rondo.federation.notify import Log

federate = typer.Typer(help="Run a federation between real parties.", no_args_is_help=True)
federate.add_typer(keys, name="keys")
federate.add_typer(sites, name="sites")
federate.add_typer(site, name="site")
site.command("keys")(site_keys)
site.command("peers")(site_peers)


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
    monitor: Monitor = None,
    log_json: LogJson = False,
) -> None:
    """Run a configuration with the sites of a roster: they have the rows and train, and only factors travel."""
    with user_errors():
        from rondo.config.load import load
        from rondo.federation.server.listening import Listening
        from rondo.federation.server.remote_run import ROWS_AT_SITES

        settings = load(config, [*(sets or []), *ROWS_AT_SITES], check_paths=False)

        host, port = _host_and_port(listen)
        listening, told = Listening(keys, host, port, insecure, wait, patience, monitor), Log(log_json)

        def started(observer: Any, stop: Any) -> Any:
            from rondo.federation.server.run import serve

            return serve(settings, listening, run_dir=run_dir, device=device, observer=observer, told=told, stop=stop)

        shown(settings.rounds, started, told)


@federate.command()
def client(
    server: Server,
    data: Data,
    keys: Keys,
    test: Test = None,
    contract: ContractFile = Path("site.toml"),
    model: BaseModel = None,
    state: State = None,
    device: Device = "auto",
    wait: Wait = 0.0,
    insecure: Insecure = False,
    stay: Annotated[bool, typer.Option("--stay", help="wait for further runs when one is over")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="consent to every plan within the contract, for services; default: ask")
    ] = False,
    monitor: Monitor = None,
    log_json: LogJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the plan beside the contract, and go, as site show-plan does")
    ] = False,
) -> None:
    """Take part in a federation: train on this site's rows, within its contract."""
    with user_errors(), stoppable() as stop:
        more = {"wait": wait, "insecure": insecure, "stay": stay, "monitor": monitor}
        site = program(server, data, test, keys, contract, model, state, device, **more)
        if dry_run:
            shown_plan(site, stop)
        else:
            from rondo.federation.site.run import take_part

            take_part(site, asked=(lambda offer: True) if yes else by_hand(stop), told=Log(log_json), stop=stop)


@federate.command()
def app(
    folder: Annotated[Path, typer.Argument(help="where to write the app; run it by: flwr run FOLDER FEDERATION")],
    config: Annotated[str, typer.Option(help="a TOML file, as for rondo federate server")],
    nodes: Annotated[int, typer.Option(help="SuperNodes to wait for")],
) -> None:
    """Write a run as a Flower app, for a federation of Flower's that is there already."""
    with user_errors(), headed("rondo federate app"):
        from rondo.federation import needed

        needed("flwr", "cryptography")
        from rondo.federation import app as flower

        flower.write(folder, config, nodes)
        print(f"wrote {folder}; run it by: flwr run {shlex.quote(str(folder))} FEDERATION")
        print('start each SuperNode with --node-config \'rondo-data="rows.csv" rondo-contract="site.toml" ...\'')


@federate.command()
def status(
    run_dir: Annotated[Path, typer.Argument(help="the run directory of a federation")],
    as_json: Annotated[bool, typer.Option("--json", help="print it for programs")] = False,
) -> None:
    """Show a federation's run: its last round, its clients, its bytes and its scores."""
    with user_errors(), headed("rondo federate status"):
        from rondo.federation.server import status as of_run

        if as_json:
            print(json.dumps(of_run.status(run_dir), indent=2))
            return
        for line in of_run.status_lines(run_dir):
            print(visible(line))


def _host_and_port(text: str) -> tuple[str, int]:
    """An address to listen on. Raises :class:`ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) >= 2**16:
        message = f"{text!r} is not an address: give HOST:PORT, for instance 0.0.0.0:9092"
        raise ConfigError.at("--listen", message, "rondo federate server")
    return host.strip("[]"), int(port)
