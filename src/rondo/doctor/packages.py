"""Python and packages: their versions against those that they ask for of one another."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rondo.doctor.finding import Finding

RONDO = "rondo-fl"
_DEVELOPERS = ("dev", "docs")
_NAMED = ("huggingface-hub", "numpy")
"""Packages of packages whose versions a bug report needs."""


def python(version: Sequence[int | str] = sys.version_info, system: str = sys.platform) -> Iterator[Finding]:
    """The interpreter and the system."""
    text = f"{platform.python_version()} ({platform.python_implementation()}), {platform.system()} {platform.machine()}"
    tested = importlib.metadata.metadata(RONDO).get_all("Classifier") or []
    if f"Programming Language :: Python :: {version[0]}.{version[1]}" not in tested:
        yield Finding("python", "note", f"{text}; Rondo is not tested with this version")
    else:
        yield Finding("python", "ok", text)
    if system != "linux":
        yield Finding("system", "note", "Rondo is tested on Linux alone")


def required() -> Iterator[Finding]:
    """The packages of every run, and the requirements of these packages and of the installed extras."""
    core = [*asked(RONDO), *map(Requirement, _NAMED)]
    for requirement in core:
        yield _compared(requirement.name, requirement)
    optional = [r for extra in _extras() for r in asked(RONDO, extra) if _version(r.name) is not None]
    unmet = sorted(set(_unmet([r.name for r in (*core, *optional) if _version(r.name) is not None])))
    text = "; ".join(unmet) or "all packages in use have the versions that they ask for"
    yield Finding("requirements", "fault" if unmet else "ok", text)


def extras() -> Iterator[Finding]:
    """The packages of some runs."""
    for extra in _extras():
        requirements = asked(RONDO, extra)
        if missing := [f"'{_plain(r)}'" for r in requirements if _version(r.name) is None]:
            yield Finding(f"extra {extra}", "ok", "not installed", f"if wanted, pip install {' '.join(missing)}")
        else:
            yield from (_compared(f"extra {extra}", r) for r in requirements)


def asked(name: str, extra: str = "") -> list[Requirement]:
    """The requirements of an installed package that count on this machine: its own, or those of an extra alone."""
    found = map(Requirement, importlib.metadata.requires(name) or [])
    return [r for r in found if _counts(r, extra) and not (extra and _counts(r, ""))]


def _counts(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _extras() -> list[str]:
    named = importlib.metadata.metadata(RONDO).get_all("Provides-Extra") or []
    return [extra for extra in named if extra not in _DEVELOPERS]


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compared(thing: str, requirement: Requirement) -> Finding:
    version = _version(requirement.name)
    text = version if thing == requirement.name else f"{requirement.name} {version}"
    if version is None:
        return Finding(thing, "fault", "not installed", f"pip install '{_plain(requirement)}'")
    if not requirement.specifier.contains(version, prereleases=True):
        allowed = f"{text}; allowed: {requirement.specifier}"
        return Finding(thing, "fault", allowed, f"pip install '{_plain(requirement)}'")
    return Finding(thing, "ok", str(text))


def _unmet(names: list[str]) -> Iterator[str]:
    """The requirements that ``names`` and what they need have, and that installed versions do not meet."""
    left, seen = [*names], set[str]()
    while left:
        name = canonicalize_name(left.pop())
        if name in seen:
            continue
        seen.add(name)
        for requirement in asked(name):
            version = _version(requirement.name)
            if version is None:
                yield f"{name} needs {requirement.name}, which is not installed"
            elif not requirement.specifier.contains(version, prereleases=True):
                yield f"{name} needs {_plain(requirement)}, and {version} is installed"
            else:
                left.append(requirement.name)
