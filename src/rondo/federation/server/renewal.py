"""Certificates and keys that end: their owner is told of them daily, and renewed ones are taken while a server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

from rondo.errors import ConfigError
from rondo.federation.identity import certificates
from rondo.federation.identity.keys import ServerKeys
from rondo.federation.identity.roster import Roster
from rondo.federation.monitor import ending
from rondo.federation.server.line.superlink import SuperLink

_LOOK = 2.0
"""Seconds between looks for renewed files."""


def ends(folder: Path, roster: Roster) -> dict[str, date]:
    """When each of the server's certificates and of its sites' keys ends."""
    chain = certificates.read_chain(folder / "server.crt")
    dates = {"the server's certificate": min(certificate.not_valid_after_utc for certificate in chain).date()}
    valid = roster.valid(datetime.now(UTC).date())
    return dates | {f"the key of {site.name}": site.expires for site in valid if site.expires is not None}


@contextmanager
def renewed(folder: Path, line: SuperLink, roster: Callable[[], Roster], told: Callable[[str], None]) -> Iterator[None]:
    """Within, renewed files of the server's certificate and key are taken, and what ends soon is told every day."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, line, roster, told, over), name="renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(
    folder: Path, line: SuperLink, roster: Callable[[], Roster], told: Callable[[str], None], over: threading.Event
) -> None:
    said, seen = None, _stamps(folder)
    while True:
        if (today := datetime.now(UTC).date()) != said:
            for text in ending(ends(folder, roster()), today):
                told(text)
            said = today
        if over.wait(_LOOK):
            return
        if (stamps := _stamps(folder)) != seen:
            seen = stamps
            try:
                keys = ServerKeys.read(folder)
                line.renew(keys.certificate, keys.key)
            except ConfigError as error:
                told(f"the certificate from before stays in use: {error.problems[0]}")
            else:
                told("the server's certificate was renewed, and is in use")
                said = None


def _stamps(folder: Path) -> list[int]:
    """The times at which the files of the certificate and the key have changed; none while one is missing."""
    try:
        return [(folder / name).stat().st_mtime_ns for name in ("server.crt", "server.key")]
    except OSError:
        return []
