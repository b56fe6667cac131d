"""Keys of a federation: made once, handed out, read by server and sites, and accepted by TLS."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from outcomes import tree
from rondo.errors import ConfigError
from rondo.federation.identity import certificates, keys
from rondo.federation.identity.enrolment import revoke
from rondo.federation.identity.keys import ServerKeys, SiteKeys, make
from rondo.federation.identity.roster import Roster, name_fault

HOSTS = ["fed.example.org", "127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "keys"
    make(HOSTS, ["st-anna", "north"], folder, days=825, clients={"north": ["a", "b"]})
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy, to spoil."""
    return Path(shutil.copytree(made, tmp_path / "keys"))


# --- what is made --------------------------------------------------------------------------------------------------


def test_layout_and_content(made: Path) -> None:
    assert list(tree(made)) == [
        "ca/ca.crt",
        "ca/ca.key",
        "north/ca.crt",
        "north/peers.accepted",
        "north/peers.json",
        "north/site.json",
        "north/site.key",
        "server/ca.crt",
        "server/roster.json",
        "server/server.crt",
        "server/server.key",
        "st-anna/ca.crt",
        "st-anna/peers.accepted",
        "st-anna/peers.json",
        "st-anna/site.json",
        "st-anna/site.key",
    ]
    about = {"site": "north", "server": "fed.example.org", "clients": ["a", "b"]}
    assert json.loads((made / "north/site.json").read_text()) == about
    server = ServerKeys.read(made / "server")
    assert [c for s in server.roster.sites for c in s.clients] == ["st-anna", "a", "b"]
    for name, clients in (("st-anna", ("st-anna",)), ("north", ("a", "b"))):
        site = SiteKeys.read(made / name)
        assert (site.site, site.clients, site.server, site.ca) == (name, clients, HOSTS[0], made / name / "ca.crt")
        public = site.private_key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        found = server.roster.site_of(public)
        assert found is not None
        assert (found.name, found.clients) == (name, clients)
        assert site.private_key.curve.name == "secp256r1"


def test_private_keys_are_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[str, int] = {}
    real_open = os.open

    def recorded(path: os.PathLike[str], flags: int, mode: int = 0o777, **rest: int) -> int:
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
            opened[Path(path).name] = mode
        return real_open(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", recorded)
    old = os.umask(0)
    try:
        make(HOSTS, ["x"], tmp_path / "keys", days=1, clients={})
        make(HOSTS, ["y"], tmp_path / "keys", days=1, clients={})
    finally:
        os.umask(old)
    assert {opened[name] for name in ("ca.key", "server.key", "site.key")} == {0o600}
    for path in (tmp_path / "keys").rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600 if path.suffix == ".key" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_certificates_say_what_they_may_do(made: Path) -> None:
    authority = x509.load_pem_x509_certificate((made / "ca/ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((made / "server/server.crt").read_bytes())
    for certificate, is_authority in ((authority, True), (server, False)):
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert basic.critical
        assert basic.value.ca is is_authority
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert usage.critical
        assert (usage.value.key_cert_sign, usage.value.digital_signature) == (is_authority, not is_authority)
    assert certificates.hosts_of(server) == tuple(HOSTS)
    assert 824 <= (server.not_valid_after_utc - datetime.now(UTC)).days <= 825
    assert authority.not_valid_after_utc > server.not_valid_after_utc


# --- added later ---------------------------------------------------------------------------------------------------


def test_second_run_adds_sites_and_changes_only_the_roster(folder: Path) -> None:
    shutil.rmtree(folder / "ca")  # offline, where it belongs
    before, old = tree(folder), Roster.read(folder / "server/roster.json")
    made = make([], ["st-mary"], folder, days=10, clients={})
    after = tree(folder)
    assert (made.authority, made.certificate, made.hosts) == (False, False, tuple(HOSTS))
    new = {f"st-mary/{file}" for file in ("ca.crt", "site.key", "site.json", "peers.json", "peers.accepted")}
    assert after.keys() - before.keys() == new
    assert {name for name in before if after[name] != before[name]} == {"server/roster.json"}
    assert after["st-mary/ca.crt"] == before["server/ca.crt"]
    roster = Roster.read(folder / "server/roster.json")
    assert roster.sites[:2] == old.sites
    assert roster.sites[2].expires == (datetime.now(UTC) + timedelta(days=10)).date()
    assert SiteKeys.read(folder / "st-mary").server == HOSTS[0]


def test_new_certificate_after_the_old_was_moved_away(folder: Path) -> None:
    for name in ("server.crt", "server.key"):
        (folder / "server" / name).unlink()
    before = tree(folder)
    made = make(["new.example.org"], [], folder, days=30, clients={})
    assert (made.authority, made.certificate, made.sites) == (False, True, ())
    assert {name: content for name, content in tree(folder).items() if name in before} == before
    ServerKeys.read(folder / "server")


def test_certificate_ends_with_its_authority(folder: Path, clock: Callable[[int], None]) -> None:
    for name in ("server.crt", "server.key"):
        (folder / "server" / name).unlink()
    clock(3600)
    make(HOSTS, [], folder, days=825, clients={})
    ends = [certificates.read(folder / "server" / name).not_valid_after_utc for name in ("ca.crt", "server.crt")]
    assert ends[0] == ends[1]


def test_revoked_site_stays_in_the_roster(folder: Path) -> None:
    for _ in range(2):
        revoke(folder / "server", "north")
        roster = Roster.read(folder / "server/roster.json")
        assert [site.revoked for site in roster.sites] == [False, True]
        assert [site.name for site in roster.valid(datetime.now(UTC).date())] == ["st-anna"]


@pytest.mark.parametrize("is_new", [True, False])
def test_failed_write_leaves_everything_as_it_was(folder: Path, fails_at: Any, is_new: bool) -> None:
    """A disk that is full at the n-th file, at the n-th rename."""
    target = folder.parent / "other" if is_new else folder
    before = tree(folder.parent)
    calls = {"fsync": 9 if is_new else 4, "replace": 0 if is_new else 3, "rename": 1 if is_new else 0}
    for name, count in calls.items():
        for n in range(count):
            with fails_at(name, n), pytest.raises(ConfigError, match="cannot be written: No space left on device"):
                make(HOSTS, ["x", "y"], target, days=1, clients={})
            assert tree(folder.parent) == before
            assert [p.name for p in folder.parent.iterdir()] == ["keys"]
            assert sorted(p.name for p in folder.iterdir()) == ["ca", "north", "server", "st-anna"]
    make(HOSTS, ["x", "y"], target, days=1, clients={})
    assert SiteKeys.read(target / "y").site == "y"


# --- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[Callable[[Path], int]]:
    """Serves TLS on the loopback address with the keys of a folder; gives the port."""
    threads: list[threading.Thread] = []

    def serve(folder: Path) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        listener = socket.create_server(("127.0.0.1", 0))

        def answer() -> None:
            with listener:
                connection, _ = listener.accept()
                connection.settimeout(30)
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        secured.sendall(b"hello")
                except OSError:
                    connection.close()

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield serve
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def greeted(port: int, authority: Path, host: str) -> bytes:
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert context.check_hostname
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.recv(16)


@pytest.mark.parametrize("host", HOSTS)
def test_tls_accepts_the_server_under_each_of_its_hosts(serve: Callable[[Path], int], made: Path, host: str) -> None:
    assert greeted(serve(made / "server"), SiteKeys.read(made / "st-anna").ca, host) == b"hello"


def test_tls_refuses_another_host(serve: Callable[[Path], int], made: Path) -> None:
    for host in ("example.org", "x.fed.example.org", "127.0.0.2"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            greeted(serve(made / "server"), made / "north/ca.crt", host)


def test_tls_refuses_another_authority(serve: Callable[[Path], int], made: Path, tmp_path: Path) -> None:
    make(HOSTS, ["x"], tmp_path / "other", days=1, clients={})
    with pytest.raises(ssl.SSLCertVerificationError, match=r"certificate signature failure|unable to get local issuer"):
        greeted(serve(made / "server"), tmp_path / "other/x/ca.crt", HOSTS[0])


@pytest.mark.parametrize(("days", "reason"), [(-10, "certificate has expired"), (10, "not yet valid")])
def test_tls_refuses_a_certificate_out_of_its_time(
    serve: Callable[[Path], int], tmp_path: Path, clock: Callable[[int], None], days: int, reason: str
) -> None:
    clock(days)
    make(HOSTS, ["x"], tmp_path / "old", days=3, clients={})
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        greeted(serve(tmp_path / "old/server"), tmp_path / "old/x/ca.crt", HOSTS[0])


# --- keys that are not as they should be ---------------------------------------------------------------------------


def fault(folder: Path) -> str:
    """The one line about a folder of keys."""
    with pytest.raises(ConfigError) as error:
        (ServerKeys if folder.name == "server" else SiteKeys).read(folder)
    (problem,) = error.value.problems
    assert "\n" not in str(problem)
    return str(problem)


@pytest.mark.parametrize("part", ["server", "north"])
def test_each_missing_file_is_named(folder: Path, part: str) -> None:
    for path in sorted((folder / part).iterdir()):
        if path.name in ("peers.json", "peers.accepted"):  # for secure aggregation alone
            continue
        content = path.read_bytes()
        path.unlink()
        assert fault(folder / part).startswith(f"{path}: no such file; ")
        path.mkdir()
        assert fault(folder / part).startswith(f"{path}: this is a folder; ")
        path.rmdir()
        path.touch(0o600)
        assert fault(folder / part).startswith((f"{path}: not ", f"{path}: the file is not JSON: "))
        path.write_bytes(content)
    (ServerKeys if part == "server" else SiteKeys).read(folder / part)
    assert "is not a folder; name one that rondo federate keys make wrote" in fault(folder / "none" / part)


def test_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for part, first in (("server", "roster.json"), ("north", "site.json")):
        message = f"{folder / part / first}: cannot be read: Permission denied; mend its owner or mode"
        assert fault(folder / part) == message


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
@pytest.mark.parametrize("name", ["server/server.key", "north/site.key"])
def test_key_that_others_can_read_is_refused(folder: Path, name: str, mode: int) -> None:
    path = folder / name
    path.chmod(mode)
    assert fault(path.parent).endswith(f": chmod 600 {path}")
    path.chmod(0o400)
    (ServerKeys if path.parent.name == "server" else SiteKeys).read(path.parent)


def test_key_of_another_certificate_is_refused(folder: Path) -> None:
    shutil.copy(folder / "north/site.key", folder / "server/server.key")
    key, certificate = folder / "server/server.key", folder / "server/server.crt"
    assert fault(folder / "server").startswith(f"{key}: not the private key of {certificate}: take both")


def test_certificate_of_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    make(HOSTS, ["x"], tmp_path / "other", days=1, clients={})
    shutil.copy(tmp_path / "other/ca/ca.crt", folder / "server/ca.crt")
    crt, ca = folder / "server/server.crt", folder / "server/ca.crt"
    assert fault(folder / "server").startswith(f"{crt}: not signed by the authority of {ca}: ")


@pytest.mark.parametrize("part", ["server", "north"])
def test_certificate_of_the_server_is_no_authority(folder: Path, part: str) -> None:
    shutil.copy(folder / "server/server.crt", folder / part / "ca.crt")
    assert "the certificate of a server, not of an authority; put the ca.crt" in fault(folder / part)


def test_certificates_out_of_their_time_are_refused(folder: Path, clock: Callable[[int], None]) -> None:
    clock(-1)
    for part in ("server", "north"):
        assert fault(folder / part).startswith(f"{folder / part / 'ca.crt'}: valid from ")
        assert fault(folder / part).endswith(": set the clock")
    clock(826)
    assert fault(folder / "server").startswith(f"{folder / 'server/server.crt'}: expired on ")
    assert fault(folder / "server").endswith("make another by rondo federate keys renew")
    SiteKeys.read(folder / "north")
    clock(3651)
    for part in ("server", "north"):
        assert fault(folder / part).startswith(f"{folder / part / 'ca.crt'}: expired on ")


def test_keys_of_another_kind_are_refused(folder: Path) -> None:
    path = folder / "north/site.key"
    secret = ec.generate_private_key(ec.SECP384R1())
    formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked = secret.private_bytes(*formats, serialization.BestAvailableEncryption(b"word"))
    other = rsa.generate_private_key(65537, 2048).private_bytes(*formats, serialization.NoEncryption())
    for content, message in (
        (locked, "has a password, and nobody is there to type it"),
        (other, "not a key on an elliptic curve"),
        (path.read_bytes()[:-60], "not a private key in PEM"),
        ((folder / "north/ca.crt").read_bytes(), "not a private key in PEM"),
    ):
        path.write_bytes(content)
        assert fault(folder / "north").startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("about", "place"),
    [
        ({"site": "../x"}, ".site: '../x' is used as a folder's name"),
        ({"server": "https://fed.example.org"}, ".server: 'https://fed.example.org' is neither a host name nor"),
        ({"server": 3}, ".server: should be a text in quotes, got 3"),
        ({"clients": []}, ".clients: is empty"),
        ({"clients": [["a"]]}, ".clients.0: should be a text in quotes without control characters, got ['a']"),
        ({"key": "x"}, ": unknown key 'key'; known: site, clients, server"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_site_file_names_the_place(folder: Path, about: dict[str, object], place: str) -> None:
    path = folder / "north/site.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **about}))
    assert fault(folder / "north").startswith(f"{path}{place}")


# --- names and hosts -----------------------------------------------------------------------------------------------


@given(st.text(max_size=8))
def test_accepted_names_are_folders_of_their_own(name: str) -> None:
    if name_fault(name) is None:
        assert Path("keys", name).parent == Path("keys")
        assert name not in ("", ".", "..", "ca", "server")
        assert name.isprintable()


@given(st.text("ab-._:/1%", max_size=8))
def test_accepted_hosts_are_accepted_by_certificates(text: str) -> None:
    try:
        host = certificates.host(text, "--server")
    except ValueError:
        return
    names = x509.SubjectAlternativeName([certificates._general_name(host)])
    builder = x509.CertificateSigningRequestBuilder(x509.Name([])).add_extension(names, critical=False)
    builder.sign(_KEY, hashes.SHA256())


_KEY = ec.generate_private_key(ec.SECP256R1())


def test_clients_of_no_site_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'y' has clients and is not among the sites"):
        keys.make(HOSTS, ["x"], tmp_path / "keys", days=1, clients={"y": ["a"]})
