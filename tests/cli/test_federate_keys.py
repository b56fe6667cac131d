"""The commands on a federation's keys: make, revoke and show."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from rondo.federation import certificates
from rondo.federation.keys import ServerKeys, make
from rondo.federation.roster import Roster

Invoke = Callable[..., tuple[int, str]]
HOSTS = ["fed.example.org", "127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "keys"
    make(HOSTS, ["st-anna", "north"], folder, days=825, clients={"north": ["a", "b"]})
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


MAKE = ("make", "--server", "fed.example.org")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("make", "--clients", "x"), "--server: name the host at which clients reach the server"),
        (("make", "--server", "", "--clients", "x"), "--server: '' is neither a host name nor an IP address"),
        (("make", "--server", "a:8000", "--clients", "x"), "--server: 'a:8000' is neither a host name nor"),
        (("make", "--server", "10.0.0.256", "--clients", "x"), "--server: '10.0.0.256' is neither"),
        (("make", "--server", "münchen.de", "--clients", "x"), "--server: 'münchen.de' is neither"),
        (("make", "--server", "fe80::1%eth0", "--clients", "x"), "--server: 'fe80::1%eth0' is neither"),
        ((*MAKE, "--clients", ""), "--clients: '' should be a name"),
        ((*MAKE, "--clients", "x,,y"), "--clients: '' should be a name"),
        ((*MAKE, "--clients", "a/b"), "--clients: 'a/b' is used as a folder's name"),
        ((*MAKE, "--clients", "a\\b"), "--clients: 'a\\\\b' is used as a folder's name"),
        ((*MAKE, "--clients", ".."), "--clients: '..' is used as a folder's name"),
        ((*MAKE, "--clients", "a\x1b[2J"), "--clients: 'a\\x1b[2J' should be a name without control characters"),
        ((*MAKE, "--clients", "CA"), "--clients: 'CA' is the name of a folder of the server's owner; choose another"),
        ((*MAKE, "--clients", "server"), "--clients: 'server' is the name of a folder of the server's owner"),
        ((*MAKE, "--clients", "x,x"), "--clients: 'x' is there already, at the site 'x'"),
        ((*MAKE, "--clients", "x" * 300), "cannot be written: File name too long"),
        ((*MAKE, "--clients", "x", "--site", "y=x"), "--clients: 'x' is there already, at the site 'x'"),
        ((*MAKE, "--site", "y"), "--site y: expected NAME=CLIENT[,CLIENT...], for instance north=st-anna,st-mary"),
        ((*MAKE, "--site", "y="), "--site y.0: should be a text"),
        ((*MAKE, "--site", "y=a", "--site", "y=b"), "--site: names a site twice; give all of its clients in one"),
        ((*MAKE, "--clients", "x", "--days", "0"), "--days: should be between 1 and 36500, got 0"),
        ((*MAKE, "--clients", "x", "--days", "99999999999"), "--days: should be between 1 and 36500"),
        ((*MAKE, "--clients", "x", "--days", "soon"), "Invalid value for '--days'"),
        ((*MAKE, "--clients", "x", "--to", "file"), "cannot be written"),
        ((*MAKE, "--clients", "x", "--to", "file/keys"), "cannot be written"),
        (
            ("make", "--server", "b.org", "--clients", "x", "--to", "old"),
            "--server: 'b.org' is not in old/server/server.crt",
        ),
        (("make", "--to", "old"), "--clients: nothing to make: 'old' has its server's keys; name new sites"),
        (("make", "--to", "old", "--clients", "north"), "--clients: 'north' is there already, at the site 'north'"),
        (("make", "--to", "old", "--clients", "b"), "--clients: 'b' is there already, at the site 'north'"),
        (("make", "--to", "old", "--clients", "mine"), "--clients: 'old/mine' is there already and is not overwritten"),
        (("make", "--to", "half", "--clients", "x"), "half/server/server.crt: no such file"),
        (("revoke", "nobody", "--keys", "old/server"), "SITE: no site 'nobody' in old/server/roster.json; there are: "),
        (("revoke", "nort", "--keys", "old/server"), "SITE: no site 'nort' in old/server/roster.json; did you mean"),
        (("revoke", "north"), "--keys: 'keys/server' is no folder; name one that rondo federate keys make wrote"),
        (("revoke",), "Missing argument 'SITE'"),
        (("show",), "keys/server/roster.json: no such file"),
        (("show", "--keys", "file"), "cannot be read: Not a directory"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(
    invoke: Invoke, made: Path, arguments: tuple[str, ...], message: str
) -> None:
    shutil.copytree(made, "old")
    make(HOSTS, ["z"], Path("old"), days=1, clients={"z": ["mine too"]})
    Path("old/mine").mkdir()
    shutil.copytree(made, "half")
    Path("half/server/server.crt").unlink()
    Path("file").touch()
    before = tree(Path())
    code, output = invoke("federate", "keys", *arguments)
    assert code == 2
    assert message in output
    if "Usage:" not in output:
        assert output.startswith(f"rondo federate keys {arguments[0]}: 1 problem\n")
        assert len(output.splitlines()) == 2
    assert tree(Path()) == before


def test_make_says_what_to_hand_to_whom(invoke: Invoke) -> None:
    code, output = invoke(
        "federate", "keys", *MAKE, "--clients", "st-anna, st-mary", "--site", "north=a,b", "--to", "k"
    )
    assert code == 0
    assert "k/ca: the authority; keep ca.key offline" in output
    assert "k/server: for the server's host (fed.example.org)\n" in output
    for site in ("st-anna", "st-mary", "north"):
        assert f"k/{site}: for the owner of {site}, over a private channel" in output
    assert "rondo federate client --server fed.example.org --keys st-anna --data" in output
    assert ServerKeys.read(Path("k/server")).roster.client_ids == ("st-anna", "st-mary", "a", "b")

    code, output = invoke("federate", "keys", "make", "--clients", "late", "--to", "k")
    assert code == 0
    assert output.startswith("k/server/roster.json: for the server's host, in place of the one there\nk/late: ")
    assert "ca.key" not in output


def test_show_lists_sites_and_the_certificate(invoke: Invoke, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(made, "keys"))
    assert invoke("federate", "keys", "revoke", "north", "--keys", folder / "server") == (
        0,
        f"revoked the key of north in {folder / 'server/roster.json'}\n",
    )
    code, output = invoke("federate", "keys", "show", "--keys", folder / "server")
    assert code == 0
    header, anna, north, _, certificate = (line.split() for line in output.splitlines())
    assert header == ["site", "clients", "fingerprint", "(SHA-256)", "expires", "revoked"]
    sites = Roster.read(folder / "server/roster.json").sites
    assert anna == ["st-anna", "st-anna", sites[0].fingerprint, str(sites[0].expires), "no"]
    assert north == ["north", "a,", "b", sites[1].fingerprint, str(sites[1].expires), "revoked"]
    assert certificate[:6] == ["certificate", "of", "fed.example.org,", "127.0.0.1,", "::1:", "valid,"]
    later = certificates.now() + timedelta(days=1000)
    monkeypatch.setattr(certificates, "now", lambda: later)
    code, output = invoke("federate", "keys", "show", "--keys", folder / "server")
    assert code == 0
    assert "::1: expired, " in output
