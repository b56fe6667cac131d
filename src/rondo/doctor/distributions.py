"""The installed packages, from the heads of their metadata: the library's own reader parses every README with them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Package:
    """An installed package."""

    version: str
    requires: tuple[str, ...]
    """Its requirements, as written."""


def installed() -> dict[str, Package]:
    """The installed packages by their canonical name: the first on the path, which is the one that is imported."""
    found: dict[str, Package] = {}
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        lines = [line.partition(": ")[::2] for line in text.partition("\n\n")[0].splitlines()]
        (name, version), requires = (
            (dict(lines).get(key) for key in ("Name", "Version")),
            [value for key, value in lines if key == "Requires-Dist"],
        )
        if name and version:
            found.setdefault(canonicalize_name(name), Package(version, tuple(requires)))
    return found


def unmet(packages: Mapping[str, Package], names: list[str]) -> Iterator[str]:
    """The requirements that ``names`` and what they need have, and that installed versions do not meet."""
    left, seen = [name for name in map(canonicalize_name, names) if name in packages], set[str]()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        for requirement in _asked(packages[name].requires):
            other = canonicalize_name(requirement.name)
            if other not in packages:
                yield f"{name} needs {requirement.name}, which is not installed"
            elif not requirement.specifier.contains(version := packages[other].version, prereleases=True):
                yield f"{name} needs {requirement.name}{requirement.specifier}, and {version} is installed"
            else:
                left.append(other)


def _asked(requires: tuple[str, ...]) -> Iterator[Requirement]:
    """Requirements that count on this machine, without those of extras."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement
