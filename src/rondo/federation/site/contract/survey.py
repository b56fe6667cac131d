"""A look at a site's rows, and the contract that its owner starts from."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import BaseModel

from rondo.config.reference import keys
from rondo.data.files.room import TextForm
from rondo.data.files.tables import Rows
from rondo.data.labels import separator_in
from rondo.errors import ConfigError, Problem
from rondo.federation.site.contract.document import Contract
from rondo.tasks.row_checks import RowLabels, as_list, is_missing

_FEW = 20
"""Most distinct values that are listed: the contract's own default for class names."""
_WIDTH = 100


@dataclass(frozen=True)
class Column:
    """A column of a site's rows."""

    name: str
    words: str
    """Its content, in words, without values, which may name persons."""
    values: tuple[str, ...] | None
    """Its distinct values where they are few, and so may be classes."""


def columns(clients: Mapping[str, Rows]) -> list[Column]:
    """The columns of the rows of all clients."""
    rows = [row for of_client in clients.values() for row in of_client]
    names = dict.fromkeys(name for row in rows for name in row)
    return [_column(name, [row.get(name) for row in rows]) for name in names]


def _column(name: str, cells: Sequence[object]) -> Column:
    filled = [cell for cell in cells if not is_missing(cell) and cell != ""]
    empty = f", {len(cells) - len(filled)} empty" if len(filled) < len(cells) else ""
    lists = bool(filled) and all(as_list(cell) is not None for cell in filled)
    reads = RowLabels((name,), several=lists)
    plain = all(isinstance(cell, str | int | float) for cell in filled)
    if not plain and (not lists or any(reads.problem({name: cell}, 0) for cell in filled)):
        return Column(name, f"{len(filled)} lists or pictures{empty}", None)
    counts = Counter(label for cell in filled for label in reads.names({name: cell}))
    if not lists and (separator := separator_in(counts)) is not None:
        reads = RowLabels((name,), several=True, separator=separator)
        counts = Counter(label for cell in filled for label in reads.names({name: cell}))
        empty = f", joined by {separator!r}{empty}"
    kind = "lists" if lists else "texts" if any(isinstance(cell, str) for cell in filled) else "numbers"
    if 0 < len(counts) <= _FEW and 2 * len(counts) <= len(filled):
        return Column(name, f"{len(filled)} {kind}, {len(counts)} distinct{empty}", tuple(sorted(counts)))
    nearly = " (nearly one per row: may name a person)" if 2 * len(counts) > len(filled) > 0 else ""
    return Column(name, f"{len(filled)} {kind}, {len(counts)} distinct{nearly}{empty}", None)


def contract(columns: Sequence[Column], inputs: Sequence[str], labels: Sequence[str], form: TextForm) -> str:
    """The text of ``site.toml``: every key with its meaning, those that are set and those that have their default.

    ``inputs``, ``labels``: columns that the owner names; without them the lists are left to be filled in. ``form``:
    that of the text files. Raises :class:`ConfigError` for a column that is not there.
    """
    known = [column.name for column in columns]
    problems = []
    for option, names in (("--inputs", inputs), ("--labels", labels)):
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                problems.append(Problem(option, f"no column {name!r}; {hint}"))
    if problems:
        raise ConfigError(problems)
    values = [column.values for column in columns if column.name in labels]
    classes = sorted({v for of_column in values for v in of_column or ()}) if values and None not in values else None
    if len(values) > 1 and classes in (["0"], ["0", "1"], ["1"]):  # a label each
        classes = list(labels)
    chosen: dict[str, list[str] | str | None] = {
        "rows.inputs": list(inputs),
        "rows.labels": list(labels),
        "rows.label_names": classes,
        "rows.separator": form.separator,
        "rows.encoding": form.encoding if form.encoding != TextForm.encoding else None,
    }
    head = "The contract of this site: what may be read, trained and sent. Rondo refuses everything beyond it. Lines "
    head += "that begin with # key = value show the default."
    lines = [*_comment(head), "#", "# The columns of the rows:"]
    for column in columns:
        lines += _comment(f"{json.dumps(column.name, ensure_ascii=False)}: {column.words}", "#   ")
    for section, field in Contract.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        lines += ["", *_comment(" ".join((model.__doc__ or "").split())), f"[{section}]"]
        lines += _keys(model, section, chosen)
    return "\n".join(lines) + "\n"


def _keys(model: type[BaseModel], section: str, chosen: Mapping[str, list[str] | str | None]) -> Iterator[str]:
    for key in keys(model, f"{section}."):
        yield from _comment(key.meaning.replace("`", ""))
        value = chosen.get(key.path)
        if value is not None:
            yield f"{key.name} = {json.dumps(value, ensure_ascii=False)}"
        else:
            yield f"# {key.name} = {key.default or '...'}"


def _comment(text: str, indent: str = "# ") -> Iterable[str]:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.wrap(shown, _WIDTH, initial_indent=indent, subsequent_indent="# " + " " * (len(indent) - 2))
