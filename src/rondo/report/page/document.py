"""One self-contained page: it loads nothing, and forbids itself to.

A policy in its head allows its own script and style by their SHA-256 and nothing else: no picture, font, frame, form or
request. Data stand in a script element of JSON, which no browser runs. The same runs give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import jinja2

from rondo.errors import ConfigError
from rondo.records.recorded import Claim, Recorded
from rondo.report.page import lead as heads
from rondo.report.page.groups import Group, grouped
from rondo.report.page.markup import script_json
from rondo.report.page.sections import build

UPLOT = {
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""The files of uPlot 1.6.32, with the SHA-256 of each."""


MARK = '<meta name="generator" content="Rondo">'
"""The line by which a file is known as such a page."""


def page(
    runs: Sequence[Recorded],
    claims: Sequence[Claim] = (),
    stopped: Sequence[tuple[str, str]] = (),
    *,
    title: str | None = None,
    against: str | None = None,
) -> str:
    """The page of ``runs``, as HTML.

    ``claims``: what papers claim of these runs.
    ``stopped``: runs of a comparison that could not be finished, and the reason of each.
    ``title``: the page's; by default the task and the data.
    ``against``: the name on the page of the runs that the differences of the others are to; by default the first.

    Raises :class:`ConfigError` if there are no such runs.
    """
    groups = grouped(runs)
    built = build(groups, claims, stopped, _reference(groups, against))
    text = _template().render(
        heading=heads.title(groups) if title is None else title,
        lead=heads.lead(groups),
        groups=groups,
        sections=built.sections,
        data=script_json(built.data),
        script=_script(),
        style=_style(),
        mark=MARK,
    )
    return text.translate(_NONE).encode("utf-8", "replace").decode("utf-8") + "\n"


def _reference(groups: Sequence[Group], against: str | None) -> Group:
    found = next((group for group in groups if against in (None, group.label)), None)
    if found is None:
        names = ", ".join(group.label for group in groups)
        raise ConfigError.at("--against", f"{against!r} is not on the page; name one of: {names}")
    return found


_NONE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "\N{REPLACEMENT CHARACTER}")
"""Characters that no HTML text may have."""


@cache
def _template() -> jinja2.Template:
    """The page's template, in which every text is escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["sha256"] = _hash
    return environment.from_string(_asset("page.html"))


@cache
def _script() -> str:
    """The page's script with uPlot before it, under its licence."""
    licence = _asset("uplot/LICENSE").replace("*/", "* /")
    return f"/*! uPlot 1.6.32\n{licence}*/\n{_uplot('uplot/uPlot.iife.min.js')}\n{_asset('page.js')}"


@cache
def _style() -> str:
    return f"{_uplot('uplot/uPlot.min.css')}\n{_asset('page.css')}"


def _asset(name: str) -> str:
    return files("rondo.report.page").joinpath(name).read_text(encoding="utf-8")


def _uplot(name: str) -> str:
    """A file of uPlot as it was published. Raises :class:`ValueError` for another."""
    text = _asset(name)
    if hashlib.sha256(text.encode()).hexdigest() != UPLOT[name]:
        raise ValueError(f"{name} is not the file of uPlot 1.6.32 that this page was made for: install Rondo again")
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
