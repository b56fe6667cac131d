"""Sites in the roster: added and renewed by their requests, extended and revoked by their names.

Every change is one step under a lock, so commands may run at once, and a running server reads the roster before or
after it. Every function raises :class:`~rondo.errors.ConfigError` and has then changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from rondo.errors import ConfigError
from rondo.federation.identity import certificates, files, roster
from rondo.federation.identity.keys import check_folder
from rondo.federation.identity.roster import Enrolled, Roster, alike


def add(folder: Path, path: Path, *, days: int) -> Enrolled:
    """Add the site of the request in ``path`` to the roster in the server's ``folder``; its key is valid ``days``."""
    new = replace(roster.read_request(path), expires=certificates.last_day(days))
    with _changing(folder) as sites:
        if [site.name for site in sites if alike(site.name) == alike(new.name)] == [new.name]:
            message = f"the site {new.name!r} is there already; for a new key of it: rondo federate sites renew REQUEST"
            raise ConfigError.at(f"{path}.name", message)
        sites.append(new)
        _must_be_alone(sites, path)
    return new


def renew(folder: Path, path: Path, *, days: int) -> tuple[Enrolled, Enrolled]:
    """Replace the key and the clients of a site that is in the roster by those of the request in ``path``, and return
    the site before and after. Its key is valid for ``days``, also if the one before was revoked."""
    new = replace(roster.read_request(path), expires=certificates.last_day(days))
    with _changing(folder) as sites:
        place = _place(sites, new.name, folder, f"{path}.name")
        old = sites.pop(place)
        if old.public_key == new.public_key:
            remedy = f"for a longer validity: rondo federate sites extend {old.name}"
            if old.revoked:
                remedy = "it is revoked, so the site makes another (rondo federate site keys --renew)"
            raise ConfigError.at(f"{path}.public_key", f"the key that {old.name!r} has already; {remedy}")
        _must_be_alone([*sites, new], path)
        sites.insert(place, new)
    return old, new


def extend(folder: Path, name: str, *, days: int) -> tuple[Enrolled, Enrolled]:
    """Let the key of a site count for ``days`` from today, and return the site before and after."""
    end = certificates.last_day(days)
    with _changing(folder) as sites:
        place = _place(sites, name, folder, "SITE")
        old = sites[place]
        if old.revoked:
            message = f"the key of {name!r} is revoked: it needs a new one (rondo federate sites renew REQUEST)"
            raise ConfigError.at("SITE", message)
        if old.expires is None or old.expires >= end:
            until = "without end" if old.expires is None else f"until {old.expires}"
            raise ConfigError.at("--days", f"the key of {name!r} is valid {until} already; name more days")
        sites[place] = replace(old, expires=end)
        return old, sites[place]


def revoke(folder: Path, name: str) -> None:
    """Mark the key of a site as revoked."""
    with _changing(folder) as sites:
        place = _place(sites, name, folder, "SITE")
        sites[place] = replace(sites[place], revoked=True)


@contextmanager
def _changing(folder: Path) -> Iterator[list[Enrolled]]:
    """Within, the sites of the roster in ``folder``, which is written at the end as they are then."""
    path = check_folder(folder) / roster.FILE
    with files.alone(folder):
        # A server with a certificate of somebody else's authority has its first site added to no roster.
        is_first = (folder / "server.crt").is_file() and not os.path.lexists(path)
        sites = [] if is_first else [*Roster.read(path).sites]
        yield sites
        Roster(tuple(sites)).write(path)


def _place(sites: Sequence[Enrolled], name: str, folder: Path, key: str) -> int:
    """The place of the site of this name in the roster in ``folder``. Raises :class:`ConfigError` at ``key``."""
    names = [site.name for site in sites]
    if name in names:
        return names.index(name)
    near = get_close_matches(name, names, n=1)
    there = ", ".join(names) or "none; rondo federate sites add REQUEST adds one"
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {there}"
    raise ConfigError.at(key, f"no site {files.quoted(name)} in {folder / roster.FILE}; {hint}")


def _must_be_alone(sites: Sequence[Enrolled], path: Path) -> None:
    """Raise :class:`ConfigError` where the last of ``sites``, from the request in ``path``, has what another has."""
    if (fault := roster.shared(sites)) is not None:
        raise ConfigError.at(f"{path}.{fault[1]}", f"{fault[2]}; have the site choose another")
