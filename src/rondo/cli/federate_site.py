"""The commands of a site's owner: the contract, a look at a plan, and the account of what left."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Device
from rondo.cli.federate_keys import names
from rondo.cli.process import FAILED, quiet_libraries, stoppable, user_errors
from rondo.errors import ConfigError, StopRequested, headed, visible

site = typer.Typer(help="For a site's owner: the contract, a plan beside it, and what left.", no_args_is_help=True)

Server = Annotated[str, typer.Option(help="the server's address, HOST or HOST:PORT")]
Data = Annotated[Path, typer.Option(help="a file with this client's rows, or a folder with one file per client")]
Test = Annotated[
    Path | None, typer.Option("--test", help="test rows of its own, a file or folder as --data; runs score on them")
]
Keys = Annotated[Path, typer.Option("--keys", help="the site's folder of keys")]
ContractFile = Annotated[
    Path, typer.Option("--contract", help="the site's contract; rondo federate site init writes one")
]
BaseModel = Annotated[str | None, typer.Option(help="the site's copy of the base model: a folder or a file")]
State = Annotated[
    Path | None, typer.Option(help="where the site keeps its state and its audit; default: runs/site-NAME")
]
Wait = Annotated[float, typer.Option(help="seconds to wait for a server that is not there yet")]
Insecure = Annotated[bool, typer.Option("--insecure", help="without TLS")]


@site.command()
def init(
    data: Annotated[Path, typer.Argument(help="a file with this client's rows, or a folder with one file per client")],
    inputs: Annotated[str | None, typer.Option(help="columns that runs may read, NAME[,NAME...]")] = None,
    labels: Annotated[str | None, typer.Option(help="columns that runs may predict, NAME[,NAME...]")] = None,
    separator: Annotated[
        str | None, typer.Option(help='character between columns, such as ";", which Excel writes in German')
    ] = None,
    encoding: Annotated[str, typer.Option(help="encoding of text files, such as cp1252")] = "utf-8",
    to: Annotated[Path, typer.Option(help="where to write it")] = Path("site.toml"),
) -> None:
    """Look at the site's rows, and write a commented contract to start from. Nothing leaves."""
    with user_errors(), headed("rondo federate site init"):
        from rondo.federation.extra import needed

        needed()
        from rondo.data.files.room import Room, TextForm
        from rondo.federation.site import survey
        from rondo.federation.site.run import clients_in

        form = TextForm(separator, encoding, "--")
        columns = survey.columns(clients_in(data, Room(key=None, form=form)))
        text = survey.contract(columns, names(inputs), names(labels), form)
        if to.exists():
            raise ConfigError.at("--to", f"{str(to)!r} exists already; name another file")
        try:
            to.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError.at("--to", f"{str(to)!r} cannot be written: {error.strerror}") from None
        for column in columns:
            print(visible(f"{column.name}: {column.words}"))
        print(f"\nwrote {to}: read it, and change what should be another")
        if not inputs:
            print("it allows no column yet: name those that runs may read in rows.inputs, and predict in rows.labels")


@site.command()
def show_plan(
    server: Server,
    data: Data,
    keys: Keys,
    test: Test = None,
    contract: ContractFile = Path("site.toml"),
    model: BaseModel = None,
    device: Device = "auto",
    wait: Wait = 0.0,
    insecure: Insecure = False,
) -> None:
    """Connect, print the server's plan beside the contract, and what would leave, and go. Nothing is answered."""
    with (
        user_errors(),
        stoppable() as stop,
        program(server, data, test, keys, contract, model, None, device) as options,
    ):
        from rondo.federation.site.run import SiteSetup

        shown(SiteSetup(**options, wait=wait, insecure=insecure), stop)


@site.command()
def log(
    state: Annotated[Path, typer.Argument(help="the site's folder: runs/site-NAME unless --state named another")],
    every: Annotated[bool, typer.Option("--letters", help="print each letter that came or left, in clear")] = False,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="close the file of the audit, and go on in another; the limits stay")
    ] = False,
) -> None:
    """Print what left this site, per day and run, and whether the audit is whole. If it is not, the exit code is 1."""
    with user_errors(), headed("rondo federate site log"):
        from rondo.federation.extra import needed

        needed()
        from rondo.federation.program import only_program
        from rondo.federation.site import account, audit
        from rondo.federation.site.audit_state import STATE

        path = state / audit.FILE
        if not any((state / name).is_file() for name in (audit.FILE, STATE, audit.CONSENTED)):
            raise ConfigError.at(
                "STATE", f"no {audit.FILE} in {str(state)!r}: name the folder that a site has as --state"
            )
        if rotate:
            with only_program(state):
                closed = audit.Audit(path).rotate()
            print(f"{closed} is closed: keep it, here or elsewhere. The next letter begins another file")
            return
        lines = list(audit.lines(path))
        for line in account.letters(lines) if every else account.account(lines):
            print(visible(line))
        for line in account.spent(state):
            print(visible(line))
        if not all(line.linked for line in lines):
            raise typer.Exit(FAILED)


@site.command()
def start_over(state: Annotated[Path, typer.Argument(help="the site's folder, which is older than its run")]) -> None:
    """Go on in a run with a folder that is older than the server knows: what its clients kept is given up."""
    with user_errors(), headed("rondo federate site start-over"):
        from rondo.federation.extra import needed

        needed()
        from rondo.federation.site.start_over import start_over as given_up

        run, clients = given_up(state)
        print(visible(f"run {run}: {', '.join(clients)} begins again, without what it has kept for itself"))
        print("what left and what was spent since this folder was copied is in neither its audit nor its accounts")


@contextmanager
def program(
    server: str,
    data: Path,
    test: Path | None,
    keys: Path,
    contract: Path,
    model: str | None,
    state: Path | None,
    device: str,
) -> Iterator[dict[str, Any]]:
    """The options of a site's program, read."""
    from rondo.federation.extra import needed

    needed()
    quiet_libraries()
    from rondo.federation.identity.keys import SiteKeys
    from rondo.federation.site.contract import Contract

    with headed("rondo federate client"):
        folder = state if state is not None else Path("runs", f"site-{SiteKeys.read(keys).site}")
    yield {
        "server": server,
        "keys": keys,
        "data": data,
        "test": test,
        "folder": folder,
        "contract": Contract.read(contract),
        "device": device,
        "model": model,
    }


def shown(site: Any, stop: Any) -> None:
    """Print the plan that a site is offered, and go."""
    from rondo.federation.site.run import show_plan as offered
    from rondo.federation.site.terms import refusal

    offer = offered(site, told=told, stop=stop)
    print_offer(offer)
    kept = refusal(offer.terms) is None
    print(
        "\nnothing has left; take part by rondo federate client" if kept else "\nnothing has left; it would be refused"
    )


def print_offer(offer: Any) -> None:
    """Print a plan beside the contract, line by line, and what would leave."""
    from rich.table import Table

    from rondo.report.terminal import plain_console

    table = Table(box=None, pad_edge=False)
    for column in ("", "the plan asks", "the contract allows", ""):
        table.add_column(column, overflow="fold")
    for term in offer.terms:
        table.add_row(
            visible(term.subject),
            visible(term.own or term.asked),
            visible(term.allowed),
            "" if term.kept else "REFUSED",
        )
    console = plain_console()
    console = console if console.is_terminal else plain_console(width=250)
    print(f"\nrun {visible(offer.plan.run)}")
    console.print(table)
    if offer.leaving:
        print("\nwhat would leave this site:")
        for line in offer.leaving:
            print(visible(f"  {line}"))


def by_hand(stop: Any) -> Any:
    """Asks the owner about a plan, at a terminal. Without one the answer is no."""

    def asked(offer: Any) -> bool:
        print_offer(offer)
        if not sys.stdin.isatty():
            hint = "nobody can be asked without a terminal: look at it by rondo federate site show-plan, then set --yes"
            told(hint)
            return False
        print("\ntake part in this run, and in later ones with the same configuration? [y/N] ", end="", flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            if stop.is_set():
                raise StopRequested
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return asked


def told(line: str) -> None:
    """Print a line about what a program does. It goes on where nobody can read it: the terminal is gone, or the log's
    disk is full."""
    with suppress(OSError):
        print(visible(line), file=sys.stderr, flush=True)
