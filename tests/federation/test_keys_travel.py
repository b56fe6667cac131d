"""Two sites make their own keys, and only public halves travel: real processes, from keys to the adapter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w
from parties import OPEN, ROWS, SITES, TEST, write_configuration
from test_certificates import issued, write
from test_processes import Processes

from small_runs import save_tiny_bert, write_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, rows and configuration, without any keys."""
    path = tmp_path_factory.mktemp("made")
    save_tiny_bert(path / "bert")
    (path / "site.toml").write_text(tomli_w.dumps(OPEN.model_dump(exclude_none=True)))
    for site, clients in SITES.items():
        for client in clients:
            write_rows(path / "data" / site / f"{client}.csv", ROWS[client])
    write_rows(path / "data" / "test.csv", TEST)
    write_configuration(path, rounds=3, train={"local_epochs": 2})
    return path


@dataclass
class Carried(Processes):
    """Server and sites, whose files travel by :meth:`carry` alone."""

    def command(self, *arguments: str) -> str:
        """Run a command of Rondo to its end; return what it printed."""
        command = [sys.executable, "-c", "from rondo.cli import main; main()", "federate", *arguments]
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def carry(self, source: str, target: str) -> None:
        """Send a file from one party to another: none with a private key."""
        content = (self.folder / source).read_bytes()
        assert b"PRIVATE KEY" not in content
        path = self.folder / target
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def site_keys(self, site: str) -> None:
        """A site makes its keys, and its request goes to the server."""
        clients = [word for client in SITES[site] for word in ("--client", client)]
        self.carry("keys/server/ca.crt", f"at-{site}/ca.crt")
        ca, to = str(self.folder / f"at-{site}" / "ca.crt"), str(self.folder / "keys" / site)
        self.command("site", "keys", site, *clients, "--ca", ca, "--to", to, "--server", "localhost")
        self.carry(f"keys/{site}/{site}.request.json", f"inbox/{site}.request.json")

    def enrol(self, *sites: str) -> None:
        """Sites make their keys, and the server's owner adds them."""
        for site in sites:
            self.site_keys(site)
            self.sites("add", f"{site}.request.json")

    def sites(self, action: str, file: str) -> str:
        """The server's owner adds or renews a site."""
        return self.command(
            "sites", action, str(self.folder / "inbox" / file), "--keys", str(self.folder / "keys/server")
        )


@pytest.fixture
def processes(made: Path, tmp_path: Path) -> Iterator[Carried]:
    folder = Path(shutil.copytree(made, tmp_path / "folder"))
    (tmp_path / "work").mkdir()
    started = Carried(folder, tmp_path / "work")
    yield started
    for process in started.running.values():
        process.kill()


def made_here(processes: Carried) -> None:
    processes.command("keys", "make", "--server", "localhost", "--to", str(processes.folder / "keys"))


def of_the_hospital(processes: Carried) -> None:
    """RSA keys, and an intermediate authority."""
    root = issued("Hospital root", None)
    middle = issued("Hospital intermediate", root)
    server = issued("server", middle, ca=False, hosts=["localhost"])
    (processes.folder / "keys" / "server").mkdir(parents=True)
    write(processes.folder / "keys" / "server", server, server.pem + middle.pem, root.pem)
    (processes.folder / "keys" / "server" / "roster.json").unlink()


@pytest.mark.parametrize("authority", [made_here, of_the_hospital])
def test_sites_added_before_the_server_starts(processes: Carried, authority: Callable[[Carried], None]) -> None:
    authority(processes)
    processes.enrol(*SITES)
    processes.begin()
    processes.end()


def test_certificate_renewed_between_a_server_and_its_resumption(processes: Carried) -> None:
    """Sites keep what they have, and go on by themselves."""
    made_here(processes)
    processes.enrol(*SITES)
    processes.begin()
    processes.until("server", "round 1 of")
    processes.kill("server")
    processes.command("keys", "renew", "--to", str(processes.folder / "keys"), "--days", "30")
    processes.rondo("server", "resume", "run")
    processes.end()


def test_site_added_while_the_server_waits(processes: Carried) -> None:
    made_here(processes)
    processes.enrol("north")
    processes.serve()
    processes.enrol("south")
    for site in SITES:
        processes.site(site)
    processes.until("south", "connected to")
    processes.end()


def test_key_renewed_while_the_server_waits(processes: Carried) -> None:
    """The old key is turned away, and the new one gets in."""
    made_here(processes)
    processes.enrol(*SITES)
    processes.serve()
    processes.site("north")
    processes.until("north", "connected to")
    keys = processes.folder / "keys" / "north"
    processes.command("site", "keys", "north", "--renew", "--to", str(keys))
    processes.carry("keys/north/north.renewal.json", "inbox/north.renewal.json")
    processes.sites("renew", "north.renewal.json")
    assert processes.running.pop("north").wait(timeout=60) == 2
    assert "the server turns it away: this key is not in the server's roster" in processes.log("north")
    (keys / "site.new.key").rename(keys / "site.key")
    processes.site("north")
    processes.until("north", "connected to", 2)
    processes.site("south")
    processes.end()
