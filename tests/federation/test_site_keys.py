"""A site's own keys: made at the site, never replaced, never readable by others, and of one federation alone."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rondo.errors import ConfigError
from rondo.federation.identity import certificates, enrolment, files, keys, roster, site_keys
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.roster import Enrolled, Roster
from rondo.records import durable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server") / "keys"
    keys.make(["fed.example.org"], [], folder, days=825, clients={})
    return folder / "server"


@pytest.fixture
def ca(server: Path, tmp_path: Path) -> Path:
    """The authority's certificate, as it came to the site."""
    return Path(shutil.copy(server / "ca.crt", tmp_path / "ca.crt"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def fault(folder: Path, call: Callable[[], object]) -> str:
    """The one line about a call, which changed nothing."""
    before = tree(folder)
    with pytest.raises(ConfigError) as error:
        call()
    (problem,) = error.value.problems
    assert "\n" not in str(problem)
    assert tree(folder) == before
    return str(problem)


# --- what is made --------------------------------------------------------------------------------------------------


def test_private_key_stays_and_public_half_is_requested(folder: Path, ca: Path, server: Path) -> None:
    made = site_keys.make("st-anna", folder, ca=ca, clients=["a", "b"], server="Fed.Example.org")
    assert sorted(tree(folder)) == ["ca.crt", "site.json", "site.key", "st-anna.request.json"]
    read = SiteKeys.read(folder)
    assert (read.site, read.clients, read.server) == ("st-anna", ("a", "b"), "fed.example.org")
    public = certificates.public_pem(read.private_key.public_key()).decode()
    assert made.site == Enrolled("st-anna", public, ("a", "b"))
    assert (made.is_new, made.request) == (True, folder / "st-anna.request.json")
    assert roster.read_request(made.request) == made.site
    assert json.loads(made.request.read_text()).keys() == {"name", "public_key", "clients"}
    assert made.authority == certificates.fingerprint(certificates.read(server / "ca.crt"))
    assert b"PRIVATE" not in made.request.read_bytes()
    assert (folder / "ca.crt").read_bytes() == ca.read_bytes()


def test_site_without_clients_or_server_named(folder: Path, ca: Path) -> None:
    site_keys.make("Zürich", folder, ca=ca)
    read = SiteKeys.read(folder)
    assert (read.site, read.clients, read.server) == ("Zürich", ("Zürich",), None)
    assert roster.read_request(folder / "Zürich.request.json").name == "Zürich"


@pytest.mark.parametrize("is_there", [False, True])
def test_key_is_never_readable_by_others(
    folder: Path, ca: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    opened: dict[str, int] = {}
    real_open = os.open

    def recorded(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        if flags & os.O_CREAT and "key" in Path(path).name:
            assert flags & os.O_EXCL
            opened[Path(path).name] = mode
        return real_open(path, flags, mode, **rest)

    if is_there:
        folder.mkdir(mode=0o755)
    monkeypatch.setattr(os, "open", recorded)
    old = os.umask(0)
    try:
        site_keys.make("x", folder, ca=ca)
        site_keys.renew("x", folder)
    finally:
        os.umask(old)
    assert opened == {"site.key.tmp": 0o600, "site.new.key.tmp": 0o600}
    for name in ("site.key", "site.new.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == (0o755 if is_there else 0o700)


# --- again ---------------------------------------------------------------------------------------------------------


def test_second_call_changes_no_key_and_writes_a_lost_request(folder: Path, ca: Path) -> None:
    first = site_keys.make("st-anna", folder, ca=ca)
    before = tree(folder)
    first.request.unlink()
    again = site_keys.make("st-anna", folder, ca=ca)
    assert tree(folder) == before
    assert (again.is_new, again.site) == (False, first.site)


def test_keys_of_something_else_are_not_overwritten(folder: Path, ca: Path, tmp_path: Path) -> None:
    site_keys.make("st-anna", folder, ca=ca, server="fed.example.org")
    keys.make(["localhost"], [], tmp_path / "other", days=1, clients={})
    other = tmp_path / "other/server/ca.crt"
    for call, message in (
        (lambda: site_keys.make("st-mary", folder, ca=ca), "has the keys of 'st-anna' with the clients st-anna"),
        (lambda: site_keys.make("st-anna", folder, ca=ca, clients=["a"]), "has the keys of 'st-anna' with the clients"),
        (lambda: site_keys.make("st-anna", folder, ca=other), f"has keys for another authority than that of {other}"),
        (lambda: site_keys.make("st-anna", folder, ca=ca, server="b.org"), "has keys for the server fed.example.org"),
    ):
        told = fault(folder, call)
        assert told.startswith(f"--to: {str(folder)!r} {message}")
        assert told.endswith("nothing is overwritten; name another folder, or make a new key by --renew")


def test_other_files_of_the_owner_are_not_overwritten(folder: Path, ca: Path) -> None:
    folder.mkdir()
    (folder / "ca.crt").write_text("another federation's")
    assert fault(folder, lambda: site_keys.make("st-anna", folder, ca=ca)).startswith(
        f"{folder / 'ca.crt'}: is there already and is not overwritten; name another folder by --to"
    )
    (folder / "ca.crt").unlink()
    (folder / "rows.csv").write_text("mine")
    site_keys.make("st-anna", folder, ca=ca)
    assert (folder / "rows.csv").read_text() == "mine"


def test_folder_that_has_the_authority_already(ca: Path) -> None:
    site_keys.make("st-anna", ca.parent, ca=ca)
    assert SiteKeys.read(ca.parent).site == "st-anna"


def test_calls_at_once_make_one_key(folder: Path, ca: Path) -> None:
    made: list[site_keys.NewSiteKeys] = []
    threads = [threading.Thread(target=lambda: made.append(site_keys.make("st-anna", folder, ca=ca))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(m.is_new for m in made) == [False] * 5 + [True]
    assert {m.site for m in made} == {roster.read_request(folder / "st-anna.request.json")}


def test_private_key_is_in_its_folder_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of which a request has left must be there after the machine stops."""
    flushed: list[tuple[Path, bool]] = []
    monkeypatch.setattr(durable, "sync", lambda path: flushed.append((path, (tmp_path / "site.key").exists())))
    files.write_private(tmp_path / "site.key", b"a key")
    assert flushed[-1] == (tmp_path, True)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "killed"])
def test_call_that_ends_anywhere_is_done_again(folder: Path, ca: Path, fails_at: Any, error: BaseException) -> None:
    """At each flush and each rename: no half a key, none without its other files, and the same call goes on."""
    finished, messages = 0, set()
    for name, most in (("fsync", 20), ("replace", 5)):
        for n in range(most):
            with fails_at(name, n, error):
                try:
                    site_keys.make("st-anna", folder, ca=ca)
                    finished += 1
                except ConfigError as told:
                    messages.add(str(told).split(": ", 2)[2])
                except KeyboardInterrupt:
                    pass
            if (folder / "site.key").exists():
                key = SiteKeys.read(folder).private_key
                made = site_keys.make("st-anna", folder, ca=ca)
                assert made.site.public_key == certificates.public_pem(key.public_key()).decode()
            else:
                assert site_keys.make("st-anna", folder, ca=ca).is_new
            assert sorted(tree(folder)) == ["ca.crt", "site.json", "site.key", "st-anna.request.json"]
            shutil.rmtree(folder)
    assert 0 < finished < 20
    assert messages <= {"cannot be written: No space left on device; mend its folder"}


# --- a new key -----------------------------------------------------------------------------------------------------


def test_new_key_lies_beside_the_old_one_until_it_is_moved(
    folder: Path, ca: Path, server: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(server, tmp_path / "server"))
    first = site_keys.make("st-anna", folder, ca=ca, clients=["a"])
    enrolment.add(own, first.request, days=10)
    before = tree(folder)
    second = site_keys.renew("st-anna", folder)
    assert {name: content for name, content in tree(folder).items() if name in before} == before
    assert sorted(tree(folder).keys() - before.keys()) == ["site.new.key", "st-anna.renewal.json"]
    assert (second.is_new, second.site.clients) == (True, ("a",))
    assert second.site.public_key != first.site.public_key

    again = site_keys.renew("st-anna", folder)
    assert (again.is_new, again.site) == (False, second.site)
    assert site_keys.make("st-anna", folder, ca=ca, clients=["a"]).site == first.site
    assert roster.read_request(second.request) == second.site

    enrolment.renew(own, second.request, days=10)
    (folder / "site.new.key").rename(folder / "site.key")
    key = certificates.public_pem(SiteKeys.read(folder).private_key.public_key())
    site = Roster.read(own / "roster.json").site_of(key)
    assert site is not None
    assert site.name == "st-anna"
    assert site_keys.renew("st-anna", folder).site.public_key != second.site.public_key


def test_new_key_of_another_site_or_of_none(folder: Path, ca: Path) -> None:
    assert fault(folder, lambda: site_keys.renew("x", folder)).startswith(f"--keys: {str(folder)!r} is not a folder")
    site_keys.make("st-anna", folder, ca=ca)
    told = fault(folder, lambda: site_keys.renew("st-mary", folder))
    assert told == f"NAME: {str(folder)!r} has the keys of 'st-anna', not of 'st-mary'"
    (folder / "site.new.key").write_bytes((folder / "site.key").read_bytes())
    (folder / "site.new.key").chmod(0o644)
    assert "a private key that others than its owner can read" in fault(
        folder, lambda: site_keys.renew("st-anna", folder)
    )


# --- what a site is given ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "NAME: '' should be a name"),
        ({"name": "../x"}, "NAME: '../x' is used as a folder's name"),
        ({"name": "\udcff"}, "NAME: '\\udcff' should be a name without control characters"),
        ({"name": "x" * 129}, "NAME: 'xxxx"),
        ({"name": "CA"}, "NAME: 'CA' is the name of a folder of the server's owner"),
        ({"clients": ["a", "b\n"]}, "--client.1: should be a text in quotes without control characters"),
        ({"clients": ["a", "a"]}, "--client: 'a' is there already, at the site 'x'; name each client once"),
        ({"clients": ["a", "A"]}, "--client: 'A' is there already except for case or Unicode form ('a')"),
        ({"server": "a:9092"}, "--server: 'a:9092' is neither a host name nor an IP address"),
        ({"ca": Path("none")}, "--ca: no such file: 'none'; mend the path"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_bad_options(folder: Path, ca: Path, options: dict[str, Any], message: str) -> None:
    given = {"name": "x", "ca": ca, **options}
    assert fault(folder, lambda: site_keys.make(given.pop("name"), folder, **given)).startswith(message)


def test_authority_that_is_none(folder: Path, ca: Path, server: Path) -> None:
    root, leaf = ca.read_bytes(), (server / "server.crt").read_bytes()
    for content, message in (
        (b"", "not a certificate in PEM"),
        (root[:300], "not a certificate in PEM"),
        ((server / "server.key").read_bytes(), "not a certificate in PEM"),
        (leaf, "the certificate of a server, not of an authority"),
        (root + root, "holds more than one certificate; leave the authority's alone in it"),
        (root + root.replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"), "holds more than one certificate"),
        (leaf + root, "the certificate of a server, not of an authority"),
    ):
        ca.write_bytes(content)
        assert fault(folder, lambda: site_keys.make("x", folder, ca=ca)).startswith(f"{ca}: {message}")


def test_folder_that_is_a_file(folder: Path, ca: Path) -> None:
    folder.write_text("mine")
    for path in (folder, folder / "below"):
        with pytest.raises(ConfigError, match="cannot be written: File exists"):
            site_keys.make("x", path, ca=ca)
    assert folder.read_text() == "mine"
