"""The commands of a site's owner: the contract, the site's keys, a look at a plan, and the account of what left."""

from __future__ import annotations

import select
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Device
from rondo.cli.federate_keys import names, print_fingerprint
from rondo.cli.process import FAILED, quiet_libraries, stoppable, user_errors, written
from rondo.errors import ConfigError, StopRequested, headed, visible
from rondo.federation.notify import Log

site = typer.Typer(help="For a site's owner: the contract, a plan beside it, and what left.", no_args_is_help=True)

Server = Annotated[str, typer.Option(help="the server's address, HOST or HOST:PORT")]
Data = Annotated[Path, typer.Option(help="a file with this client's rows, or a folder with one file per client")]
Test = Annotated[
    Path | None, typer.Option("--test", help="the site's test rows, a file or folder as --data; runs score on them")
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
Monitor = Annotated[
    str | None, typer.Option(help="HOST:PORT for /healthz and /metrics, for instance 127.0.0.1:9464; default: none")
]
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
        from rondo.data.files.room import Room, TextForm
        from rondo.federation.site.contract import survey
        from rondo.federation.site.run import clients_in

        form = TextForm(separator, encoding, "--")
        columns = survey.columns(clients_in(data, Room(key=None, form=form)))
        text = survey.contract(columns, names(inputs), names(labels), form)
        if to.exists():
            raise ConfigError.at("--to", f"{str(to)!r} exists already; name another file")
        with written(to, "--to"):
            to.write_text(text, encoding="utf-8")
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
    with user_errors(), stoppable() as stop:
        shown(program(server, data, test, keys, contract, model, None, device, wait=wait, insecure=insecure), stop)


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
        from rondo.federation.program import only_program
        from rondo.federation.site.audit import account, audit
        from rondo.federation.site.audit.state import STATE

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
        from rondo.federation.site.disk import start_over as given_up

        run, clients = given_up(state)
        print(visible(f"run {run}: {', '.join(clients)} begins again, without what it has kept for itself"))
        print("what left and what was spent since this folder was copied is in neither its audit nor its accounts")


def program(
    server: str,
    data: Path,
    test: Path | None,
    keys: Path,
    contract: Path,
    model: str | None,
    state: Path | None,
    device: str,
    **more: Any,
) -> Any:
    """A site, as its options say. ``more``: fields of :class:`rondo.federation.site.run.SiteSetup`."""
    quiet_libraries()
    from rondo.federation.identity.keys import SiteKeys
    from rondo.federation.site.contract.document import Contract

    with headed("rondo federate client"):
        folder = state if state is not None else Path("runs", f"site-{SiteKeys.read(keys).site}")
    allowed = Contract.read(contract)
    from rondo.federation.site.run import SiteSetup  # last, since it takes seconds

    return SiteSetup(server, keys, data, folder, allowed, device, model, test=test, **more)


def shown(site: Any, stop: Any) -> None:
    """Print the plan that a site is offered, and go."""
    from rondo.federation.site.contract.terms import refusal
    from rondo.federation.site.run import show_plan as offered

    offer = offered(site, told=Log(), stop=stop)
    print_offer(offer)
    kept = refusal(offer.terms) is None
    print(
        "\nnothing has left; take part by rondo federate client" if kept else "\nnothing has left; it would be refused"
    )


def print_offer(offer: Any) -> None:
    """Print a plan beside the contract, line by line, and what would leave."""
    from rondo.report.terminal import folded, plain_console

    table = folded("", "the plan asks", "the contract allows", "")
    for term in offer.terms:
        words = map(visible, (term.subject, term.own or term.asked, term.allowed))
        table.add_row(*words, "" if term.kept else "REFUSED")
    print(f"\nrun {visible(offer.plan.run)}")
    plain_console(width=250).print(table)
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
            Log()(hint)
            return False
        print("\ntake part in this run, and in later ones with the same configuration? [y/N] ", end="", flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            if stop.is_set():
                raise StopRequested
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return asked


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
