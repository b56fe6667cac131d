"""The server's certificate: renewed for its key, or from an authority that is there already, with what sites accept."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outcomes import tree
from rondo.errors import ConfigError
from rondo.federation.identity import certificates, enrolment, keys, site_keys
from rondo.federation.identity.keys import ServerKeys, SiteKeys
from rondo.federation.identity.roster import Roster

HOST = "fed.hospital.example"


# --- an authority that is there already ----------------------------------------------------------------------------


@dataclass
class Issuer:
    """An authority, or the server: its key and its certificate."""

    key: Any
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def issued(
    name: str, by: Issuer | None, *, key: Any = None, ca: bool = True, days: tuple[int, int] = (-1, 100), **extra: Any
) -> Issuer:
    """A certificate for ``name``, by itself if by nobody; a server's is for :data:`HOST`."""
    key = key or rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = by.key if by is not None else key
    builder = x509.CertificateBuilder(
        issuer_name=subject if by is None else by.certificate.subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime.now(UTC) + timedelta(days=days[0]),
        not_valid_after=datetime.now(UTC) + timedelta(days=days[1]),
    )
    if extra.get("constrained", True):
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False)
    if not ca and (hosts := extra.get("hosts", [HOST])):
        names = [x509.DNSName(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if not ca:
        usage = extra.get("usage", ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return Issuer(key, builder.sign(signer, hashes.SHA256()))


@pytest.fixture(scope="module")
def root() -> Issuer:
    return issued("Hospital root", None)


@pytest.fixture(scope="module")
def middle(root: Issuer) -> Issuer:
    return issued("Hospital intermediate", root)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "server"
    path.mkdir()
    return path


def write(folder: Path, server: Issuer, chain: bytes, root: bytes) -> None:
    """The server's folder of keys as the owner of the server puts it together."""
    (folder / "server.crt").write_bytes(chain)
    (folder / "server.key").touch(0o600)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(server.key.private_bytes(*form))
    (folder / "ca.crt").write_bytes(root)
    Roster(()).write(folder / "roster.json")


def fault(folder: Path) -> str:
    with pytest.raises(ConfigError) as error:
        ServerKeys.read(folder)
    (problem,) = error.value.problems
    assert "\n" not in str(problem)
    return str(problem)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("with_root", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("kind", ["RSA", "P-256", "P-384"])
def test_certificate_of_another_authority(
    folder: Path, root: Issuer, middle: Issuer, kind: str, length: int, with_root: bool
) -> None:
    """Signed by the root, by an intermediate, or by one below that."""
    made: dict[str, Callable[[], Any]] = {
        "RSA": lambda: rsa.generate_private_key(65537, 2048),
        "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    }
    above = [root, middle, issued("Hospital, department", middle)][: length + 1]
    server = issued("server", above[-1], ca=False, key=made[kind]())
    chain = [server, *reversed(above)][: None if with_root else -1]
    write(folder, server, b"".join(link.pem for link in chain), root.pem)
    assert ServerKeys.read(folder).certificate == folder / "server.crt"


def test_site_of_another_authority_and_its_first_roster(
    folder: Path, root: Issuer, middle: Issuer, tmp_path: Path
) -> None:
    """Without rondo federate keys make, and without a roster."""
    server = issued("server", middle, ca=False)
    write(folder, server, server.pem + middle.pem, root.pem)
    (folder / "roster.json").unlink()
    made = site_keys.make("st-anna", tmp_path / "site", ca=folder / "ca.crt")
    assert made.authority == root.certificate.fingerprint(hashes.SHA256()).hex()
    enrolment.add(folder, made.request, days=10)
    assert [site.clients for site in ServerKeys.read(folder).roster.sites] == [("st-anna",)]


def test_name_with_a_wildcard_is_accepted(folder: Path, root: Issuer) -> None:
    server = issued("server", root, ca=False, hosts=["*.hospital.example"])
    write(folder, server, server.pem, root.pem)
    ServerKeys.read(folder)


def test_certificate_that_sites_would_not_accept(folder: Path, root: Issuer, middle: Issuer) -> None:
    server = issued("server", middle, ca=False)
    below_end = issued("server", issued("no authority", root, ca=False), ca=False)
    end = issued("no authority", root, ca=False)
    below = issued("server", end, ca=False)
    old = issued("old intermediate", root, days=(-10, -1))
    below_old = issued("server", old, ca=False)
    other_use = issued("server", root, ca=False, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    weak = issued("server", root, ca=False, key=rsa.generate_private_key(65537, 1024))
    no_host = issued("server", root, ca=False, hosts=[])
    ended = issued("server", root, ca=False, days=(-10, -1))
    path, ca = folder / "server.crt", folder / "ca.crt"
    cases = [
        (server, server.pem, root, f"{path}: not signed by the authority of {ca}: take both from one folder of keys; "),
        (server, middle.pem + server.pem, root, f"{path}: not signed by the authority of {ca}"),
        (below_end, below_end.pem + end.pem, root, f"{path}: not signed by the authority of {ca}"),
        (below, below.pem + end.pem, root, f"{path}: no site would accept it: "),
        (below_old, below_old.pem + old.pem, root, f"{path}: no site would accept it: certificate has expired"),
        (other_use, other_use.pem, root, f"{path}: no site would accept it: unsuitable certificate purpose"),
        (weak, weak.pem, root, f"{path}: no site would accept it: EE_KEY_TOO_SMALL"),
        (no_host, no_host.pem, root, f"{path}: is for no host: it needs the server's as subjectAltName"),
        (ended, ended.pem, root, f"{path}: expired on "),
        (middle, server.pem + middle.pem, root, f"{folder / 'server.key'}: not the private key of {path}"),
        (server, server.pem, middle, f"{ca}: the certificate of an authority that another one signed; put the root's"),
    ]
    for key, chain, authority, message in cases:
        (folder / "server.key").unlink(missing_ok=True)
        write(folder, key, chain, authority.pem)
        assert fault(folder).startswith(message)


def test_certificate_that_does_not_say_what_it_is_for(folder: Path) -> None:
    """As programs of long ago made them: no authority, and for no host."""
    bare = issued("old root", None, constrained=False)
    assert certificates.hosts_of(bare.certificate) == ()
    server = issued(HOST, bare, ca=False)
    write(folder, server, server.pem, bare.pem)
    assert "ca.crt: the certificate of a server, not of an authority" in fault(folder)


def test_second_authority_in_the_file_would_be_trusted_by_tls(folder: Path, root: Issuer, tmp_path: Path) -> None:
    """A file that was changed on its way has the fingerprint of its first certificate, and TLS trusts the second."""
    other = issued("Intruder's root", None)
    server = issued("server", other, ca=False)
    both = root.pem + other.pem
    write(folder, server, server.pem, both)
    certificates.check_accepted(folder / "server.crt", folder / "server.key", folder / "ca.crt", HOST)
    assert fault(folder) == f"{folder / 'ca.crt'}: holds more than one certificate; leave the authority's alone in it"
    site_keys.make("x", tmp_path / "site", ca=_file(tmp_path / "ca.crt", root.pem))
    (tmp_path / "site/ca.crt").write_bytes(both)
    with pytest.raises(ConfigError, match="holds more than one certificate"):
        SiteKeys.read(tmp_path / "site")


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_fingerprint_of_an_authority_is_that_of_openssl(root: Issuer, tmp_path: Path) -> None:
    path = _file(tmp_path / "ca.crt", root.pem)
    command = ["openssl", "x509", "-in", str(path), "-noout", "-fingerprint", "-sha256"]
    try:
        printed = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        pytest.skip("no openssl here")
    digits = certificates.fingerprint(root.certificate)
    assert printed.partition("=")[2].strip().replace(":", "").lower() == digits
    lines = certificates.grouped(digits)
    assert "".join(lines).replace(" ", "") == digits
    assert [[len(group) for group in line.split(" ")] for line in lines] == [[4] * 4] * 4


# --- renewed -------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys.make([HOST, "127.0.0.1"], ["st-anna"], tmp_path / "keys", days=10, clients={})
    return tmp_path / "keys"


def test_certificate_is_renewed_for_its_key_and_hosts(made: Path) -> None:
    before, old = tree(made), certificates.read(made / "server/server.crt")
    hosts, end = keys.renew([], made, days=500)
    after, new = tree(made), certificates.read(made / "server/server.crt")
    assert {name for name in after if after[name] != before.get(name)} == {"server/server.crt"}
    assert after.keys() == before.keys()
    assert hosts == certificates.hosts_of(new) == (HOST, "127.0.0.1")
    assert end == new.not_valid_after_utc.date() == (datetime.now(UTC) + timedelta(days=500)).date()
    assert new.public_key() == old.public_key()
    assert new.serial_number != old.serial_number
    ServerKeys.read(made / "server")


def test_certificate_is_renewed_for_other_hosts_and_after_its_end(made: Path, clock: Callable[[int], None]) -> None:
    clock(20)
    assert "expired on" in fault(made / "server")
    clock(0)
    hosts, _ = keys.renew(["new.example.org"], made, days=10)
    assert hosts == certificates.hosts_of(certificates.read(made / "server/server.crt")) == ("new.example.org",)


def test_renewal_without_its_authority(made: Path, root: Issuer, tmp_path: Path) -> None:
    def told() -> str:
        before = tree(made)
        with pytest.raises(ConfigError) as error:
            keys.renew([], made, days=10)
        assert tree(made) == before
        return str(error.value.problems[0])

    key, crt, ca = made / "ca/ca.key", made / "server/server.crt", made / "server/ca.crt"
    other = keys.make([HOST], [], tmp_path / "other", days=10, clients={}).folder
    kept = key.read_bytes()
    key.write_bytes((other / "ca/ca.key").read_bytes())
    assert told().startswith(f"{key}: not the private key of {ca}")
    key.unlink()
    assert (
        told() == f"{key}: no such file: bring the authority's key there for this command, then take it offline again"
    )
    key.touch(0o600)
    key.write_bytes(kept)
    shutil.copy(other / "server/server.crt", crt)
    assert told().startswith(f"{crt}: not signed by the authority of {ca}")
