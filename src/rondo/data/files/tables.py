"""Rows of tables in memory. Libraries are imported only where a table may be theirs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rondo.config.inputs import plain_name
from rondo.data.files.placed import Indexed, PlacedRows, Places, places_of
from rondo.errors import ConfigError

if TYPE_CHECKING:
    import datasets
    import pandas
    import pyarrow

Rows: TypeAlias = list[dict[str, Any]]
Table: TypeAlias = "datasets.Dataset | pandas.DataFrame | Sequence[Mapping[str, Any]]"
"""A split of a Hugging Face data set, a data frame, or a list with one dict per row."""


class ClassName(str):
    """The name of a class in a data set that numbers its classes. ``place``: its number there."""

    place: int

    def __new__(cls, name: str, place: int) -> ClassName:
        made = super().__new__(cls, name)
        made.place = place
        return made

    def __reduce__(self) -> tuple[type[ClassName], tuple[str, int]]:
        return ClassName, (str(self), self.place)


def rows_of(table: Table, argument: str) -> Rows:
    """All rows of ``table``, copied. Missing cells of a data frame are None. ``argument``: the name of the table, by
    which a program finds a row again, or an option, which begins with hyphens.

    Raises :class:`ConfigError` under ``argument`` if ``table`` is something else or has no rows.
    """
    rows: Rows
    if isinstance(table, Sequence) and not isinstance(table, str | bytes):
        stranger = next((place for place, row in enumerate(table) if not isinstance(row, Mapping)), None)
        if stranger is not None:
            place = _places(argument, table)(stranger)
            message = f"{place} is no dict, but {table[stranger]!r:.60}: give every row as a dict by column"
            raise ConfigError.at(argument, message)
        rows = [dict(row) for row in table]
    else:
        rows = _converted(table, argument)
    if not rows:
        raise ConfigError.at(argument, "it has no rows: give some")
    return plain_columns(PlacedRows(rows, _places(argument, table)), argument)


def _places(argument: str, table: object) -> Places:
    name = argument.lstrip("-")  # of an option, the argument in Python
    return Indexed(f"{name}.iloc" if hasattr(table, "iloc") else name)


def plain_columns(rows: Rows, key: str) -> Rows:
    """``rows`` under the plain names of their columns (:func:`rondo.config.inputs.plain_name`), with a warning for
    other ones. Raises :class:`ConfigError` under ``key`` for two columns with one plain name."""
    plain = {name: plain_name(name) for name in {name: None for row in rows for name in row} if name is not None}
    changed = {name: new for name, new in plain.items() if new != name}
    if not changed:
        return rows
    for name, new in changed.items():
        if same := [other for other in plain if other != name and plain[other] == new]:
            message = f"the columns {name!r} and {same[0]!r} differ by blanks, Unicode form or spelling of numbers only"
            raise ConfigError.at(key, f"{message}: rename one")
    # A number, such as a data frame's, cannot be named otherwise.
    if shown := ", ".join(f"{name!r} as {new!r}" for name, new in changed.items() if isinstance(name, str)):
        warnings.warn(f"{key}: names of columns are read without blanks at their ends: {shown}", stacklevel=2)
    return PlacedRows(
        ({changed.get(name, name): value for name, value in row.items()} for row in rows), places_of(rows)
    )


def _converted(table: Any, argument: str) -> Rows:
    import datasets
    import pandas
    import pyarrow

    if isinstance(table, datasets.Dataset):
        return dataset_rows(table)
    if not isinstance(table, pandas.DataFrame):
        message = (
            f"expected one split as a datasets.Dataset, a pandas.DataFrame, or a list of dicts; got a {_kind(table)}"
        )
        raise ConfigError.at(argument, message)
    try:
        rows: Rows = pyarrow.Table.from_pandas(table, preserve_index=False).to_pylist()
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError.at(argument, f"the data frame cannot be read: {reason}; mend or drop the column") from None
    return rows


def _kind(table: object) -> str:
    return type(table).__name__


def dataset_rows(table: datasets.Dataset) -> Rows:
    """All rows of a Hugging Face data set, with the names of classes in place of their numbers."""
    import datasets

    rows: Rows = table.to_list()
    for column, feature in table.features.items():
        feature = getattr(feature, "feature", feature)  # of a list
        if isinstance(feature, datasets.ClassLabel):
            _name_classes(rows, column, feature.names)
    return rows


def named_classes(rows: Rows, schema: pyarrow.Schema) -> None:
    """Put the names of classes in place of their numbers, in rows of a Parquet file that Hugging Face's library wrote.
    Its ``schema`` then says which columns hold classes."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        inner = {c: f["feature"] if isinstance(f.get("feature"), dict) else f for c, f in features.items()}
        classes = {c: f["names"] for c, f in inner.items() if f.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return  # another program wrote the file
    for column, names in classes.items():
        if column in schema.names and isinstance(names, list):
            _name_classes(rows, column, [str(name) for name in names])


def _name_classes(rows: Rows, column: str, names: Sequence[str]) -> None:
    named = [ClassName(name, place) for place, name in enumerate(names)]

    def name(value: Any) -> Any:
        return named[value] if isinstance(value, int) and 0 <= value < len(named) else None

    for row in rows:
        value = row[column]
        row[column] = [name(part) for part in value] if isinstance(value, list) else name(value)
