"""The commands between a site and its server's owner: ``federate site keys`` and ``federate sites``."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outcomes import tree

pytest.importorskip("cryptography")

from rondo.federation.identity import certificates
from rondo.federation.identity.keys import SiteKeys, make
from rondo.federation.identity.roster import Roster

Invoke = Callable[..., tuple[int, str]]


def in_days(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).date().isoformat()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "keys"
    make(["fed.example.org", "127.0.0.1"], [], folder, days=825, clients={})
    return folder


@pytest.fixture
def server(made: Path, tmp_path: Path) -> Path:
    """The folder in which commands run: the server's keys, and at a site ``ca.crt``."""
    shutil.copytree(made, tmp_path / "keys")
    (tmp_path / "site").mkdir()
    shutil.copy(made / "server/ca.crt", tmp_path / "site/ca.crt")
    return tmp_path


AT_SITE = ("--ca", "site/ca.crt", "--to", "site/keys")


def fingerprints(output: str) -> dict[str, str]:
    """What is printed to be compared."""
    lines = [line.strip() for line in output.splitlines()]
    return {
        line.removesuffix(", SHA-256:"): "".join(lines[i + 1 : i + 5]).replace(" ", "")
        for i, line in enumerate(lines)
        if line.endswith(", SHA-256:")
    }


def test_both_ends_see_the_same(invoke: Invoke, server: Path) -> None:
    code, at_site = invoke(
        *("federate", "site", "keys", "st-anna", "--client", "a", "--client", "b b", "--server", "fed.example.org"),
        *AT_SITE,
    )
    assert code == 0
    assert "site/keys/site.key: stays here, nobody else gets it\n" in at_site
    assert "site/keys/st-anna.request.json: send it to the server's owner, by any channel\n" in at_site
    assert "rondo federate client --server fed.example.org --keys site/keys --data FOLDER" in at_site
    code, at_server = invoke("federate", "sites", "add", "site/keys/st-anna.request.json", "--days", "9")
    assert code == 0
    assert at_server.startswith(f"added st-anna to keys/server/roster.json, until {in_days(9)}\n  clients: a, b b\n")
    assert "  rondo federate sites revoke st-anna --keys keys/server\n" in at_server
    shown = fingerprints(at_site)
    assert (
        shown["key"]
        == fingerprints(at_server)["key"]
        == Roster.read(Path("keys/server/roster.json")).sites[0].fingerprint
    )
    assert shown["authority (ca.crt)"] == certificates.fingerprint(certificates.read(Path("keys/server/ca.crt")))
    before = tree(server)
    code, again = invoke("federate", "site", "keys", "st-anna", "--client", "a", "--client", "b b", *AT_SITE)
    assert code == 0
    assert "site/keys/site.key: is there already and stays as it is\n" in again
    assert fingerprints(again) == shown
    assert tree(server) == before


def test_new_key_from_site_to_roster(invoke: Invoke, server: Path) -> None:
    assert invoke("federate", "site", "keys", "x", *AT_SITE)[0] == 0
    code, added = invoke("federate", "sites", "add", "site/keys/x.request.json")
    assert code == 0
    assert f"until {in_days(825)}\n" in added
    old = Roster.read(Path("keys/server/roster.json")).sites[0]
    code, at_site = invoke("federate", "site", "keys", "x", "--renew", "--to", "site/keys")
    assert code == 0
    assert "\n  rondo federate sites renew x.renewal.json\n" in at_site
    assert "\n  mv site/keys/site.new.key site/keys/site.key\n" in at_site
    code, at_server = invoke("federate", "sites", "revoke", "x")
    assert (code, at_server.splitlines()[0]) == (0, "revoked the key of x in keys/server/roster.json")
    assert "rondo federate sites peers writes the file to send" in at_server
    code, at_server = invoke("federate", "sites", "renew", "site/keys/x.renewal.json", "--days", "30")
    assert code == 0
    assert at_server.startswith(f"renewed the key of x in keys/server/roster.json, until {in_days(30)}\n  key, ")
    new = Roster.read(Path("keys/server/roster.json")).sites[0]
    assert fingerprints(at_server) == {"key": new.fingerprint, "key before, which counts no more": old.fingerprint}
    assert fingerprints(at_site)["key"] == new.fingerprint != old.fingerprint
    assert "  rondo federate sites revoke x --keys keys/server\n" in at_server
    assert not new.revoked
    code, output = invoke("federate", "sites", "extend", "x", "--days", "99")
    assert (code, output) == (0, f"the key of x is valid until {in_days(99)} (before: {in_days(30)})\n")
    assert f"until {in_days(825)} " in invoke("federate", "sites", "extend", "x")[1]


def test_renewal_with_other_clients_tells_both(invoke: Invoke, server: Path) -> None:
    assert invoke("federate", "site", "keys", "x", *AT_SITE)[0] == 0
    assert invoke("federate", "sites", "add", "site/keys/x.request.json")[0] == 0
    anew = ("--ca", "site/ca.crt", "--to", "site/anew", "--client", "a", "--client", "b")
    assert invoke("federate", "site", "keys", "x", *anew)[0] == 0
    code, output = invoke("federate", "sites", "renew", "site/anew/x.request.json")
    assert code == 0
    assert "\n  clients: a, b\n  clients before: x\n" in output


def test_show_has_a_line_per_site_and_the_validity(invoke: Invoke, server: Path, clock: Callable[[int], None]) -> None:
    many = [word for i in range(60) for word in ("--client", f"client-{i}")]
    assert invoke("federate", "site", "keys", "Zürich", *many, *AT_SITE)[0] == 0
    assert invoke("federate", "sites", "add", "site/keys/Zürich.request.json")[0] == 0
    assert invoke("federate", "sites", "revoke", "Zürich")[0] == 0
    code, output = invoke("federate", "sites", "show")
    assert code == 0
    header, zürich, _, certificate, authority, *_ = output.splitlines()
    assert header.split() == ["site", "clients", "fingerprint", "(SHA-256)", "expires", "revoked"]
    (site,) = Roster.read(Path("keys/server/roster.json")).sites
    shown = " ".join(certificates.grouped(site.fingerprint))
    clients = ", ".join(site.clients)
    assert zürich.split() == f"Zürich {clients} {shown} {site.expires} revoked".split()
    assert certificate.startswith("certificate of fed.example.org, 127.0.0.1: valid, ")
    assert authority.startswith("authority (ca.crt): valid, ")
    root = certificates.read(Path("keys/server/ca.crt"))
    assert fingerprints(output) == {"authority (ca.crt)": certificates.fingerprint(root)}
    clock(1000)
    code, output = invoke("federate", "sites", "show")
    assert code == 0
    assert "127.0.0.1: expired, " in output


SITE, SITES = ("federate", "site", "keys"), ("federate", "sites")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SITE, "x"), "--ca: name the ca.crt that the server's owner sent"),
        ((*SITE, "x", "--ca", "none.crt"), "--ca: no such file: 'none.crt'; mend the path"),
        ((*SITE, "x", "--ca", "keys/server/server.crt"), "keys/server/server.crt: the certificate of a server, not of"),
        ((*SITE, "a/b", "--ca", "site/ca.crt"), "NAME: 'a/b' is used as a folder's name"),
        ((*SITE, "x", "--ca", "site/ca.crt", "--client", ""), "--client.0: should be a text"),
        ((*SITE, "x", "--ca", "site/ca.crt", "--server", "a:1"), "--server: 'a:1' is neither a host name nor"),
        ((*SITE, "y", "--ca", "site/ca.crt", "--to", "old"), "--to: 'old' has the keys of 'x' with the clients x, and"),
        ((*SITE, "x", "--renew", "--ca", "site/ca.crt"), "--renew: changes the key alone; leave out --client, --ca"),
        ((*SITE, "x", "--renew", "--to", "none"), "--keys: 'none' is not a folder; name one that rondo federate"),
        ((*SITE, "y", "--renew", "--to", "old"), "NAME: 'old' has the keys of 'x', not of 'y'"),
        ((*SITE,), "Missing argument 'NAME'"),
        ((*SITES, "add", "none.json"), "REQUEST: no such file: 'none.json'; mend the path"),
        ((*SITES, "add", "old/site.key"), "old/site.key: holds a private key, which should never leave its site"),
        ((*SITES, "add", "old/site.json"), "old/site.json: a site's site.json, not its request"),
        ((*SITES, "add", "old/ca.crt"), "old/ca.crt: the file is not JSON: "),
        ((*SITES, "add", "old/x.request.json", "--days", "0"), "--days: should be between 1 and 36500, got 0"),
        ((*SITES, "add", "old/x.request.json"), "old/x.request.json.name: the site 'x' is there already; for a"),
        (
            (*SITES, "add", "old/x.request.json", "--keys", "none"),
            "--keys: 'none' is not a folder; name one that rondo",
        ),
        ((*SITES, "add", "old/x.request.json", "--keys", "old"), "old/roster.json: no such file; name the folder of"),
        ((*SITES, "renew", "old/x.request.json"), "old/x.request.json.public_key: the key that 'x' has already; for a"),
        ((*SITES, "renew", "x"), "REQUEST: no such file: 'x'; mend the path"),
        ((*SITES, "extend", "y"), "SITE: no site 'y' in keys/server/roster.json; there are: x"),
        ((*SITES, "extend", "x", "--days", "1"), "--days: the key of 'x' is valid until "),
        ((*SITES, "revoke", "nobody"), "SITE: no site 'nobody' in keys/server/roster.json; there are: x"),
        ((*SITES, "revoke", "xx"), "SITE: no site 'xx' in keys/server/roster.json; did you mean 'x'?"),
        ((*SITES, "revoke", "x", "--keys", "none"), "--keys: 'none' is not a folder; name one that rondo"),
        ((*SITES, "revoke"), "Missing argument 'SITE'"),
        ((*SITES, "show", "--keys", "none"), "none/roster.json: no such file"),
        ((*SITES, "show", "--keys", "old/ca.crt"), "cannot be read: Not a directory"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
@pytest.mark.sweep(3)
def test_bad_input_is_one_line_and_exit_code_2(
    invoke: Invoke, server: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert invoke(*SITE, "x", "--ca", "site/ca.crt", "--to", "old")[0] == 0
    assert invoke(*SITES, "add", "old/x.request.json")[0] == 0
    before = tree(server)
    code, output = invoke(*arguments)
    assert code == 2
    assert message in output
    if "Usage:" not in output:
        assert output.startswith(f"rondo {' '.join(arguments[:3])}: 1 problem\n")
        assert len(output.splitlines()) == 2
    assert tree(server) == before


# --- terminals and locales -----------------------------------------------------------------------------------------

RONDO = [sys.executable, "-c", "from rondo.cli import main; main()"]


def environment(**variables: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    return {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **variables}


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C.UTF-8"}],
    ids=lambda v: "-".join(v.values()),
)
def test_names_in_unicode_under_any_locale(server: Path, variables: dict[str, str]) -> None:
    name = "Zürich-病院"

    def run(*arguments: str) -> str:
        command = [*RONDO, "federate", *arguments]
        done = subprocess.run(command, cwd=server, env=environment(**variables), capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        return done.stdout.decode()

    run("site", "keys", name, *AT_SITE)
    run("sites", "add", f"site/keys/{name}.request.json")
    assert SiteKeys.read(server / "site/keys").site == name
    assert [site.name for site in Roster.read(server / "keys/server/roster.json").sites] == [name]
    shown = run("sites", "show")
    run("sites", "revoke", name)
    assert (name if "PYTHONIOENCODING" not in variables else "Z\\xfcrich-\\u75c5\\u9662") in shown


def test_locale_that_cannot_write_the_name(server: Path) -> None:
    """As under LC_ALL=de_DE, which not every machine has."""
    code = r"import sys; sys.argv.insert(4, 'Z\xfcrich-\u75c5\u9662'); from rondo.cli import main; main()"
    command = [sys.executable, "-X", "utf8=0", "-c", code, *SITE, *AT_SITE]
    variables = environment(LC_ALL="C", PYTHONCOERCECLOCALE="0")
    done = subprocess.run(command, cwd=server, env=variables, capture_output=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"cannot be written: the locale's encoding has no such characters; set LC_ALL=C.UTF-8" in done.stderr


@pytest.mark.parametrize("columns", ["40", "80"])
def test_fingerprints_can_be_read_aloud_from_a_narrow_terminal(invoke: Invoke, server: Path, columns: str) -> None:
    """Lines of groups stay whole, and no line is longer than the terminal is wide."""
    assert invoke(*SITE, "st-anna", *AT_SITE)[0] == 0
    assert invoke(*SITES, "add", "site/keys/st-anna.request.json")[0] == 0
    (site,) = Roster.read(Path("keys/server/roster.json")).sites
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*RONDO, *SITES, "show"], cwd=server, stdout=its, env=environment(COLUMNS=columns, TERM="xterm")
    )
    os.close(its)
    output = b""
    try:
        while part := os.read(ours, 2**16):
            output += part
    except OSError:  # the terminal is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode().replace("\r", ""))
    assert [line for line in text.splitlines() if len(line) > int(columns)] == []
    for line in certificates.grouped(site.fingerprint):
        assert line in text
    assert "st-anna" in text
