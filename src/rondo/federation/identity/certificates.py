"""The certificate authority of a federation and its server's certificate (X.509, EC P-384).

The authority signs one thing: certificates of the federation's server. Sites have keys without certificates; the roster
says which key is whose.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rondo.errors import ConfigError
from rondo.federation.identity import files

_LONGEST = 36500
"""Days of the longest validity."""

_AUTHORITY_DAYS = 3650
"""The least that an authority is valid: it outlives several certificates of its server."""

_SKEW = timedelta(hours=1)
"""A certificate is valid from so long before it is made, since clocks of hosts differ."""


def now() -> datetime:
    """The time in UTC, in whole seconds, as certificates have it."""
    return datetime.now(UTC).replace(microsecond=0)


def last_day(days: int) -> date:
    """The day (UTC) until which something is valid for ``days``. Raises :class:`ConfigError`."""
    if not 1 <= days <= _LONGEST:
        raise ConfigError.at("--days", f"should be between 1 and {_LONGEST}, got {days}")
    return (now() + timedelta(days=days)).date()


def host(text: str, place: str) -> str:
    """``text`` if it is a host name or an IP address that a certificate can have. Raises :class:`ConfigError` at
    ``place``."""
    with suppress(ValueError):
        if "%" not in text:  # an address with the name of a network card
            return str(ipaddress.ip_address(text))
    labels = text.split(".")
    fits = len(text) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
    if not fits or labels[-1].isdigit():
        hint = "write it without scheme and port, as in fed.example.org"
        raise ConfigError.at(place, f"{text!r} is neither a host name nor an IP address; {hint}")
    return text.lower()


_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def site_key() -> ec.EllipticCurvePrivateKey:
    """A new private key of a site. It is on P-256, of which the server checks a signature seven times as fast as on
    P-384: a letter takes fourteen."""
    return ec.generate_private_key(ec.SECP256R1())


def authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new authority: its private key and its certificate, valid for ``days`` and at least ten years."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("Rondo federation, authority")
    builder = _builder(
        name, name, key.public_key(), key.public_key(), now() + timedelta(days=max(days, _AUTHORITY_DAYS))
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return key, builder.sign(key, hashes.SHA384())


def of_server(
    hosts: Sequence[str],
    days: int,
    key: CertificatePublicKeyTypes,
    issuer_key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate,
) -> x509.Certificate:
    """The certificate of a server with ``key`` for ``hosts``, valid for ``days`` or until its issuer ends."""
    end = min(now() + timedelta(days=days), issuer.not_valid_after_utc)
    builder = _builder(issuer.subject, _name("Rondo federation, server"), issuer_key.public_key(), key, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(h) for h in hosts]), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate's DER, in hexadecimal: ``openssl x509 -in ca.crt -noout -fingerprint -sha256``."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def grouped(digits: str) -> list[str]:
    """A fingerprint as four lines of four groups of four digits each, to be read aloud."""
    lines = (digits[i : i + 16] for i in range(0, len(digits), 16))
    return [" ".join(line[i : i + 4] for i in range(0, len(line), 4)) for line in lines]


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The host names and IP addresses that a certificate is for, in its order."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as PEM (PKCS8), not encrypted."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_pem(key: PublicKeyTypes) -> bytes:
    """The public key as PEM (SubjectPublicKeyInfo)."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def read(path: Path) -> x509.Certificate:
    """The first certificate in a PEM file. Raises :class:`ConfigError`."""
    return read_chain(path)[0]


def read_chain(path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file: the server's, then those of authorities between it and the one that sites know.
    Raises :class:`ConfigError`."""
    content = files.content(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        message = "not a certificate in PEM (-----BEGIN CERTIFICATE-----); put the file of this name in its place"
        raise ConfigError.at(str(path), message) from None


def read_private(path: Path) -> PrivateKeyTypes:
    """The private key in a PEM file that its owner alone can read. Raises :class:`ConfigError`."""
    content = files.private(path)
    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError:
        message = "has a password, and nobody is there to type it; store it without (openssl pkey -in FILE -out NEW)"
        raise ConfigError.at(str(path), message) from None
    except (ValueError, UnsupportedAlgorithm):
        message = "not a private key in PEM (-----BEGIN PRIVATE KEY-----); put the file of this name in its place"
        raise ConfigError.at(str(path), message) from None


def read_curve(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key on an elliptic curve in a file, as :func:`read_private` reads it. Raises :class:`ConfigError`."""
    key = read_private(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError.at(str(path), "not a key on an elliptic curve; put the file of this name in its place")
    return key


def read_authority(path: Path) -> x509.Certificate:
    """The authority's certificate in a PEM file, alone in it, a root, and valid today. Raises :class:`ConfigError`."""
    certificate = read(path)
    if not _is_authority(certificate):
        message = "the certificate of a server, not of an authority; put the ca.crt that was handed out in its place"
        raise ConfigError.at(str(path), message)
    # TLS would trust any other in the file as well, and nobody would have compared its fingerprint.
    if files.content(path).count(b"-----BEGIN ") > 1:
        raise ConfigError.at(str(path), "holds more than one certificate; leave the authority's alone in it")
    if not _signed(certificate, certificate):
        message = "the certificate of an authority that another one signed; put the root's in its place"
        raise ConfigError.at(str(path), message)
    check_time(path, certificate, "make new keys in another folder and hand each site its own")
    return certificate


def check_time(path: Path, certificate: x509.Certificate, remedy: str) -> None:
    """Raise :class:`ConfigError` if the certificate has expired or is not valid yet."""
    moment, start, end = now(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if moment > end:
        raise ConfigError.at(str(path), f"expired on {end:%Y-%m-%d %H:%M} UTC: {remedy}")
    if moment < start:
        message = f"valid from {start:%Y-%m-%d %H:%M} UTC on, and it is {moment:%Y-%m-%d %H:%M} here: set the clock"
        raise ConfigError.at(str(path), message)


def check_issuer(path: Path, chain: Sequence[x509.Certificate], root: x509.Certificate, root_path: Path) -> None:
    """Raise :class:`ConfigError` unless each certificate of a chain was signed by the next, the last by ``root``."""
    links = [*chain, root] if chain[-1] != root else chain
    if not all(_signed(certificate, issuer) for certificate, issuer in pairwise(links)):
        message = f"not signed by the authority of {root_path}: take both from one folder of keys"
        hint = "; certificates of authorities between them follow the server's in its file, in order"
        raise ConfigError.at(str(path), message + hint)


def check_accepted(path: Path, key: Path, root: Path, name: str) -> None:
    """Raise :class:`ConfigError` if a site that trusts ``root`` would not accept the certificate in ``path`` for the
    host ``name``: by a handshake of TLS in memory."""
    to_server, to_site = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server, site = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(path, key)
        site.load_verify_locations(root)
        ends = (
            site.wrap_bio(to_site, to_server, server_hostname=name),
            server.wrap_bio(to_server, to_site, server_side=True),
        )
        for end in ends * 3:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason
        raise ConfigError.at(str(path), f"no site would accept it: {reason}; make another certificate") from None


def check_pair(path: Path, key: PrivateKeyTypes, certificate: x509.Certificate, certificate_path: Path) -> None:
    """Raise :class:`ConfigError` if ``key`` is not the private key of the certificate."""
    if public_pem(key.public_key()) != public_pem(certificate.public_key()):
        message = f"not the private key of {certificate_path}: take both from one folder of keys"
        raise ConfigError.at(str(path), message)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except (x509.ExtensionNotFound, ValueError):
        return False


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether ``issuer`` signed the certificate."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    issuer_key: ec.EllipticCurvePublicKey,
    key: CertificatePublicKeyTypes,
    end: datetime,
) -> x509.CertificateBuilder:
    """The parts that both certificates have."""
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now() - _SKEW).not_valid_after(end)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return builder.add_extension(identifier, critical=False)


def _usage(*allowed: str) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    kinds = ("digital_signature", "key_cert_sign", "crl_sign", *others, "encipher_only", "decipher_only")
    return x509.KeyUsage(**{kind: kind in allowed for kind in kinds})
