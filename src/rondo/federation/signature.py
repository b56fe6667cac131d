"""The signature of a request: a site's key over everything that the server acts on.

Flower's own covers the time alone, so a copied signature would fit any request. This one covers method,
path, time, the body's SHA-256 and the program (:mod:`rondo.federation.program`). The server checks it by the headers,
before it reads the body.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from urllib.parse import quote, unquote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from rondo.federation.identity.certificates import public_pem
from rondo.federation.program import Program

KEY, TIME, DIGEST, PROGRAM = "rondo-key", "rondo-time", "rondo-digest", "rondo-program"
SIGNATURE = "rondo-signature"
"""Headers of a request: public key (PEM in base64), time (ISO 8601), SHA-256 of the body, the program's ids, and the
signature over all of it but the key."""
NOTICE = "rondo-notice"
"""Header of an answer: a line for the site's owner, percent-encoded."""
SKEW = 300.0
"""Seconds by which the clocks of site and server may differ."""
_LONGEST_NOTICE = 500
_SHA256 = re.compile("[0-9a-f]{64}")


def sign(
    key: ec.EllipticCurvePrivateKey, method: str, path: str, body: bytes, program: Program, moment: datetime
) -> dict[str, str]:
    """The headers that vouch for a request."""
    digest = hashlib.sha256(body).hexdigest()
    text = _text(method, path, moment.isoformat(), digest, str(program))
    return {
        KEY: b64encode(public_pem(key.public_key())).decode(),
        TIME: moment.isoformat(),
        DIGEST: digest,
        PROGRAM: str(program),
        SIGNATURE: b64encode(key.sign(text, ec.ECDSA(hashes.SHA256()))).decode(),
    }


def notice_header(text: str) -> dict[str, str]:
    """The header that tells a site's owner ``text``."""
    return {NOTICE: quote(text[:_LONGEST_NOTICE])}


@dataclass(frozen=True)
class SignedClaim:
    """The headers of a request that say who asks. Nothing of them is known to be true before :meth:`signed_by`."""

    public_key: bytes
    """In PEM."""
    moment: str
    digest: str
    program: Program
    _signature: bytes

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Raises ValueError for a header that is missing or has another form."""
        try:
            public_key = b64decode(headers[KEY], validate=True)
            signature = b64decode(headers[SIGNATURE], validate=True)
            claim = cls(public_key, headers[TIME], headers[DIGEST], Program.parse(headers[PROGRAM]), signature)
            if _SHA256.fullmatch(claim.digest) is None:
                raise ValueError("no SHA-256")
            claim.age()
            return claim
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(str(error)) from None

    def age(self) -> float:
        """Seconds since the request was signed, by the clocks of both."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.moment)).total_seconds()

    def signed_by(self, key: ec.EllipticCurvePublicKey, method: str, path: str) -> bool:
        """Whether the owner of ``key`` has signed this request."""
        text = _text(method, path, self.moment, self.digest, str(self.program))
        try:
            key.verify(self._signature, text, ec.ECDSA(hashes.SHA256()))
            return True
        except InvalidSignature:
            return False


def notice_in(header: str) -> str | None:
    """The line for the site's owner in the header of an answer; None if there is none."""
    text = unquote(header[: 3 * _LONGEST_NOTICE], errors="replace")
    return "".join(c for c in text if c.isprintable())[:_LONGEST_NOTICE] or None


def _text(*parts: str) -> bytes:
    return "\n".join(("rondo request 1", *parts)).encode()
