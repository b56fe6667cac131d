"""The commands of the server's owner on keys: make and renew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outcomes import tree

pytest.importorskip("cryptography")

from rondo.federation.identity import certificates
from rondo.federation.identity.keys import ServerKeys, make

Invoke = Callable[..., tuple[int, str]]
HOSTS = ["fed.example.org", "127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "keys"
    make(HOSTS, ["st-anna", "north"], folder, days=825, clients={"north": ["a", "b"]})
    return folder


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
        ((*MAKE, "--clients", "x" * 300), "is longer than 128 bytes; choose a shorter one"),
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
        (("renew", "--to", "old", "--server", "a:1"), "--server: 'a:1' is neither a host name nor an IP address"),
        (("renew", "--to", "old", "--days", "0"), "--days: should be between 1 and 36500, got 0"),
        (
            ("renew", "--to", "offline"),
            "offline/ca/ca.key: no such file: bring the authority's key there for this command",
        ),
        (("renew", "--to", "half"), "half/server/server.crt: no such file"),
        (("renew",), "--to: 'keys/server' is not a folder; name one that rondo federate keys make wrote"),
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
    shutil.copytree(made, "offline")
    Path("offline/ca/ca.key").unlink()
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
    assert [c for s in ServerKeys.read(Path("k/server")).roster.sites for c in s.clients] == [
        "st-anna",
        "st-mary",
        "a",
        "b",
    ]

    code, output = invoke("federate", "keys", "make", "--clients", "late", "--to", "k")
    assert code == 0
    assert output.startswith("k/server/roster.json: for the server's host, in place of the one there\nk/late: ")
    assert "ca.key" not in output


def test_make_and_renew_tell_what_to_send_and_to_compare(invoke: Invoke) -> None:
    code, output = invoke("federate", "keys", *MAKE, "--to", "my keys")
    assert code == 0
    authority = certificates.fingerprint(certificates.read(Path("my keys/server/ca.crt")))
    assert "send my keys/server/ca.crt to every site, by any channel, and compare by telephone:" in output
    assert "".join(line.replace(" ", "") for line in output.splitlines()[5:9]) == authority
    assert "rondo federate site keys NAME --ca ca.crt --server fed.example.org\n" in output
    assert "rondo federate sites add NAME.request.json --keys 'my keys/server'\n" in output
    assert "private channel" not in output
    code, output = invoke("federate", "keys", "renew", "--to", "my keys", "--days", "9")
    assert code == 0
    end = certificates.read(Path("my keys/server/server.crt")).not_valid_after_utc.date()
    assert output.startswith(f"my keys/server/server.crt: for fed.example.org, until {end}\n")
    assert "takes it at its next start" in output


def test_help_says_that_keys_of_a_rehearsal_travel(invoke: Invoke) -> None:
    code, output = invoke("federate", "keys", "make", "--help")
    assert code == 0
    words = " ".join(output.replace("│", " ").split())
    assert "for a rehearsal: new sites of one client each, NAME[,NAME...]. Their private keys are made here" in words
