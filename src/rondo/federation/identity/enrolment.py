"""Sites in the roster: added and renewed by their requests, extended and revoked by their names.

Every change is one step under a lock, so commands may run at once, and a running server reads the roster before or
after it. Every function raises :class:`~rondo.errors.ConfigError` and has then changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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

    def added(old: Roster) -> Roster:
        known = [site.name for site in old.sites if alike(site.name) == alike(new.name)]
        if known == [new.name]:
            message = f"the site {new.name!r} is there already; for a new key of it: rondo federate sites renew REQUEST"
            raise ConfigError.at(f"{path}.name", message)
        return _with(old, new, path)

    _change(folder, added)
    return new


def renew(folder: Path, path: Path, *, days: int) -> tuple[Enrolled, Enrolled]:
    """Replace the key and the clients of a site that is in the roster by those of the request in ``path``, and return
    the site before and after. Its key is valid for ``days``, also if the one before was revoked."""
    new = replace(roster.read_request(path), expires=certificates.last_day(days))
    before: list[Enrolled] = []

    def renewed(old: Roster) -> Roster:
        site = _named(old, new.name, folder, f"{path}.name")
        if site.public_key == new.public_key:
            remedy = f"for a longer validity: rondo federate sites extend {site.name}"
            if site.revoked:
                remedy = "it is revoked, so the site makes another (rondo federate site keys --renew)"
            raise ConfigError.at(f"{path}.public_key", f"the key that {site.name!r} has already; {remedy}")
        before.append(site)
        return _with(Roster(tuple(s for s in old.sites if s is not site)), new, path, old.sites.index(site))

    _change(folder, renewed)
    return before[0], new


def extend(folder: Path, name: str, *, days: int) -> tuple[Enrolled, Enrolled]:
    """Let the key of a site count for ``days`` from today, and return the site before and after."""
    end = certificates.last_day(days)
    both: list[Enrolled] = []

    def extended(old: Roster) -> Roster:
        site = _named(old, name, folder, "SITE")
        if site.revoked:
            message = f"the key of {name!r} is revoked: it needs a new one (rondo federate sites renew REQUEST)"
            raise ConfigError.at("SITE", message)
        if site.expires is None or site.expires >= end:
            until = "without end" if site.expires is None else f"until {site.expires}"
            raise ConfigError.at("--days", f"the key of {name!r} is valid {until} already; name more days")
        both.extend((site, replace(site, expires=end)))
        return Roster(tuple(both[1] if s is site else s for s in old.sites))

    _change(folder, extended)
    return both[0], both[1]


def revoke(folder: Path, name: str) -> None:
    """Mark the key of a site as revoked."""

    def revoked(old: Roster) -> Roster:
        site = _named(old, name, folder, "SITE")
        return Roster(tuple(replace(s, revoked=True) if s is site else s for s in old.sites))

    _change(folder, revoked)


def _change(folder: Path, change: Callable[[Roster], Roster]) -> None:
    """Replace the roster in ``folder`` by what ``change`` makes of it."""
    path = check_folder(folder) / roster.FILE
    with files.alone(folder):
        # A server with a certificate of somebody else's authority has its first site added to no roster.
        is_first = (folder / "server.crt").is_file() and not os.path.lexists(path)
        change(Roster(()) if is_first else Roster.read(path)).write(path)


def _named(old: Roster, name: str, folder: Path, place: str) -> Enrolled:
    """The site of this name in the roster in ``folder``. Raises :class:`ConfigError` at ``place``."""
    for site in old.sites:
        if site.name == name:
            return site
    names = [site.name for site in old.sites]
    near = get_close_matches(name, names, n=1)
    there = ", ".join(names) or "none; rondo federate sites add REQUEST adds one"
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {there}"
    raise ConfigError.at(place, f"no site {files.quoted(name)} in {folder / roster.FILE}; {hint}")


def _with(old: Roster, new: Enrolled, path: Path, index: int | None = None) -> Roster:
    """The roster with ``new``, from the request in ``path``, as its site number ``index``, or its last."""
    if (fault := roster.shared((*old.sites, new))) is not None:
        raise ConfigError.at(f"{path}.{fault[1]}", f"{fault[2]}; have the site choose another")
    sites = list(old.sites)
    sites.insert(len(sites) if index is None else index, new)
    return Roster(tuple(sites))
