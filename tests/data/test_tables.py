"""Rows from tables in memory: the same as from a file with the same content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow
import pytest

from outcomes import told
from rondo.config import load
from rondo.data import sources
from rondo.data.files.tables import named_classes, rows_of
from small_runs import reviews, write_rows

ROWS = [{"text": "w1", "label": 1}, {"text": "w2", "label": 0}]


@pytest.mark.parametrize(
    "table",
    [ROWS, tuple(ROWS), pandas.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)],
    ids=lambda t: type(t).__name__,
)
def test_rows_of_every_kind_of_table(table: Any) -> None:
    assert rows_of(table, "train") == ROWS


def test_rows_are_copies() -> None:
    own = [dict(row) for row in ROWS]
    rows_of(own, "train")[0]["text"] = "changed"
    assert own == ROWS


def test_missing_cells_are_none_and_lists_stay_lists() -> None:
    chats = [[{"role": "user", "content": "w1"}], None]
    frame = pandas.DataFrame({"chat": chats, "label": [1.0, None], "text": ["w1", None]}, index=[7, 3])
    expected = [{"chat": chats[0], "label": 1.0, "text": "w1"}, {"chat": None, "label": None, "text": None}]
    assert rows_of(frame, "train") == expected


def test_selected_rows_and_class_names_of_a_dataset() -> None:
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"]))
    table = datasets.Dataset.from_list(ROWS, features=features).select([1]).with_format("torch")
    assert rows_of(table, "train") == [{"text": "w2", "label": "no"}]


@pytest.mark.parametrize("number", [-1, 2, True, None])
def test_number_of_no_class_is_a_missing_label(number: int | None) -> None:
    """Hubs hide the labels of a test set behind -1, which is not the last class."""
    schema = pyarrow.schema({"label": pyarrow.int64()})
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    rows: list[dict[str, Any]] = [{"label": 1}, {"label": number}, {"label": 0}]
    named_classes(rows, schema)
    assert rows == [{"label": "yes"}, {"label": "yes" if number is True else None}, {"label": "no"}]
    if number == -1:
        table = datasets.Dataset.from_list([{"label": n} for n in (1, -1, 0)])
        table = table.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
        assert [row["label"] for row in rows_of(table, "train")] == ["yes", None, "no"]


@pytest.mark.parametrize("names", [["no", "yes"], "no", None])
def test_classes_of_a_column_that_is_not_there(names: Any) -> None:
    """As in a file of which columns were left out, and with names that are no list."""
    features = {"gone": {"names": ["a", "b"], "_type": "ClassLabel"}, "label": {"names": names, "_type": "ClassLabel"}}
    schema = pyarrow.schema({"label": pyarrow.int64()})
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    rows: list[dict[str, Any]] = [{"label": 1}]
    named_classes(rows, schema)
    assert rows == [{"label": "yes" if isinstance(names, list) else 1}]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], "it has no rows"),
        (pandas.DataFrame({"text": []}), "it has no rows"),
        ([{"text": "w1"}, "w2"], "train[1] is no dict, but 'w2'"),
        ("rows.csv", "got a str"),
        ({"text": ["w1"]}, "got a dict"),
        (datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)), "got a DatasetDict"),
        (datasets.Dataset.from_list(ROWS).to_iterable_dataset(), "got a IterableDataset"),
        (pandas.DataFrame([["w1", "w2"]], columns=["a", "a"]), "uplicate column names"),
        (pandas.DataFrame({"label": ["no", 1]}), "label"),
    ],
)
def test_other_objects_are_refused(table: Any, words: str) -> None:
    ((path, message),) = told(lambda: rows_of(table, "train"))
    assert (path, words in message) == ("train", True), message


def test_tables_take_the_place_of_files(tmp_path: Path) -> None:
    train, test = write_rows(tmp_path / "train.csv", reviews(6)), write_rows(tmp_path / "test.csv", reviews(4, seed=1))
    task, partition = {"text": "text", "label": "label"}, {"kind": "iid", "clients": 2}
    config = load({"data": {"source": str(train), "test_source": str(test)}, "task": task, "partition": partition})
    of_files = sources.load(config)
    assert sources.load(config, ROWS).train == ROWS
    assert sources.load(config, ROWS).test == of_files.test
    assert sources.load(config, test=ROWS).train == of_files.train
    assert sources.load(config, test=ROWS).test == ROWS
    alone = load({"data": {"source": str(train)}, "task": task, "partition": partition})
    assert sources.load(alone, ROWS).test is None
    folder = load({"data": {"source": str(tmp_path)}, "task": task, "partition": partition})  # without a test split
    assert sources.load(folder, test=ROWS).test == ROWS
