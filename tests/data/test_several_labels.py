"""Rows with several labels: the forms that are read, bad rows, the classes, remarks, and how they are dealt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from outcomes import told
from rondo.config import ConfigError, load
from rondo.config.inputs import TaskConfig
from rondo.data.client_rows import deal_rows, resolved
from rondo.data.files.formats import read_file
from rondo.data.files.room import Room
from rondo.data.files.tables import rows_of
from rondo.data.labels import find_labels, joined
from rondo.data.remarks import remarks
from rondo.data.sources import Source
from rondo.tasks.row_checks import RowLabels, row_check

LISTS = TaskConfig(text="t", label="l", multi_label=True)
JOINED = TaskConfig(text="t", label="l", label_separator=";")
COLUMNS = TaskConfig(text="t", label=["flu", "cold"])


@pytest.mark.parametrize(
    ("task", "row", "names"),
    [
        (LISTS, {"l": ["flu", " cold ", "flu"]}, ("flu", "cold")),
        (LISTS, {"l": ("flu", 3)}, ("flu", "3")),
        (LISTS, {"l": np.array(["flu", "cold"])}, ("flu", "cold")),
        (LISTS, {"l": []}, ()),
        (LISTS, {"l": "['flu', 'cold']"}, ("flu", "cold")),
        (LISTS, {"l": '["flu", "cold"]'}, ("flu", "cold")),
        (JOINED, {"l": "flu;cold"}, ("flu", "cold")),
        (JOINED, {"l": " flu ; ; flu;"}, ("flu",)),
        (JOINED, {"l": 7.0}, ("7",)),
        (JOINED, {"l": ""}, ()),
        (JOINED, {"l": None}, ()),
        (JOINED, {"l": float("nan")}, ()),
        (JOINED, {"l": ["flu"]}, ("flu",)),
        (COLUMNS, {"flu": 1, "cold": "0"}, ("flu",)),
        (COLUMNS, {"flu": True, "cold": 1.0}, ("flu", "cold")),
        (COLUMNS, {"flu": "false", "cold": "TRUE"}, ("cold",)),
    ],
    ids=repr,
)
def test_labels_of_a_row(task: TaskConfig, row: dict[str, Any], names: tuple[str, ...]) -> None:
    assert RowLabels.of(task).problem(row, 0) is None
    assert RowLabels.of(task).names(row) == names


@pytest.mark.parametrize(
    ("task", "row", "column", "reason"),
    [
        (LISTS, {"l": "flu;cold"}, "l", "expected a list of labels, got 'flu;cold': set task.label_separator"),
        (LISTS, {"l": None}, "l", "expected a list of labels, got None"),
        (LISTS, {"l": ["flu", None]}, "l", "the value is missing"),
        (LISTS, {"l": [["flu"]]}, "l", "expected text or a number, got ['flu']"),
        (LISTS, {"l": ["flue"]}, "l", "unknown label 'flue'; known: cold, flu"),
        (JOINED, {"l": "flu;colt"}, "l", "unknown label 'colt'; known: cold, flu"),
        (JOINED, {"m": "flu"}, "l", "no such column; there are: t, m"),
        (COLUMNS, {"flu": 1, "cold": "maybe"}, "cold", "expected 0 or 1, got 'maybe'"),
        (COLUMNS, {"flu": 1, "cold": None}, "cold", "the value is missing"),
        (COLUMNS, {"flu": 1}, "cold", "no such column; there are: t, flu"),
    ],
    ids=repr,
)
def test_unusable_labels_give_column_and_reason(task: TaskConfig, row: Any, column: str, reason: str) -> None:
    problem = row_check(task, ("cold", "flu"))({"t": "w", **row}, 3)
    assert problem is not None
    assert (problem.row, problem.column) == (3, column)
    assert problem.reason.startswith(reason)


@pytest.mark.parametrize(
    ("keys", "path", "message"),
    [
        (
            {"label": ["a", "b"], "labels": ["a", "b"]},
            "task.labels",
            "the columns that task.label names are the labels",
        ),
        ({"label": ["a", "b"], "label_separator": ";"}, "task.label_separator", "the columns that task.label names"),
        ({"label": ["a", "a"]}, "task.label", "'a' is named twice"),
        ({"label": "l", "label_separator": ";", "multi_label": False}, "task.multi_label", "false, and task.label or"),
        (
            {"kind": "regression", "features": ["x"], "target": "y", "multi_label": True},
            "task.multi_label",
            "only kind =",
        ),
    ],
)
def test_keys_that_do_not_go_together(keys: Any, path: str, message: str) -> None:
    text = {} if "kind" in keys else {"text": "t"}
    raw = {"task": {**text, **keys}, "data": {"source": "r.csv"}, "partition": {"clients": 2}}
    ((key, said),) = told(lambda: load(raw, check_paths=False))
    assert (key, message in said) == (path, True), said


# --- classes --------------------------------------------------------------------------------------------------------


def settled(rows: Sequence[dict[str, Any]], **task: Any) -> Any:
    keys = {"task": {"text": "t", "label": "l", **task}, "partition": {"kind": "iid", "clients": 2}}
    return resolved(load({**keys, "data": {"validation_fraction": 0.0}}), Source("", list(rows), None, None))


def rows(*cells: Any) -> list[dict[str, Any]]:
    return [{"t": f"w{i}", "l": cell} for i, cell in enumerate(cells)]


def test_lists_say_by_themselves_that_a_row_may_have_several() -> None:
    assert settled(rows(["a"], ["b", "a"])).task.multi_label is True
    assert settled(rows("a", "b")).task.multi_label is None
    assert settled(rows(["a"], ["b"]), multi_label=False).task.multi_label is False


@pytest.mark.parametrize(
    ("cells", "task"), [((["b"], ["a", "10"], ["2"], []), {}), (("b", "a;10", "2", ""), {"label_separator": ";"})]
)
def test_classes_are_the_single_labels(cells: Any, task: Any) -> None:
    given = rows(*cells)
    assert find_labels(settled(given, **task), Source("", given, None, None)) == ("2", "10", "a", "b")


def test_columns_are_the_classes_in_their_order() -> None:
    given = [{"t": "w", "flu": 1, "cold": 0}]
    assert find_labels(settled(given, label=["flu", "cold"]), Source("", given, None, None)) == ("flu", "cold")


def test_data_set_that_numbers_its_classes_names_lists_of_them(tmp_path: Path) -> None:
    """GoEmotions' form: in memory, and in a Parquet file of a hub."""
    names = datasets.List(datasets.ClassLabel(names=["joy", "anger", "fear"]))
    features = datasets.Features({"t": datasets.Value("string"), "l": names})
    table = datasets.Dataset.from_dict({"t": ["w", "v"], "l": [[2, 0], [1]]}, features=features)
    table.to_parquet(tmp_path / "rows.parquet")
    for given in (rows_of(table, "train"), list(read_file(tmp_path / "rows.parquet", Room(64, "data.max_read_mb")))):
        assert [row["l"] for row in given] == [["fear", "joy"], ["anger"]]
        assert find_labels(settled(given), Source("", given, None, None)) == ("joy", "anger", "fear")


# --- remarks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "setting"),
    [
        (["flu", "cold", "flu;cold"], "task.label_separator = ';'"),
        (["flu | cold", "cold | rash", "flu | rash | cold"], ""),
        (["flu | cold", "cold | rash", "flu | rash | cold", "rash"], "task.label_separator = '|'"),
        (["2", "27", "2,27", "3,27", "3"], "task.label_separator = ','"),
        (["['flu', 'cold']", "['cold']", "[]"], "task.multi_label = true"),
        (["yes", "no"], ""),
        (["yes, very", "yes, a bit", "no"], ""),
        (["sport/football", "sport/tennis", "sport/golf", "politics/home"], ""),
        (["us/politics", "uk/politics", "us/sport", "uk/sport"], ""),
        (["1/2", "1/3", "2/3"], ""),
        (["r&b", "rock", "r", "pop"], ""),
        ([], ""),
    ],
)
def test_joined_labels_are_known_by_parts_that_recur(names: list[str], setting: str) -> None:
    assert joined(names) == setting


def said(given: list[dict[str, Any]], **task: Any) -> list[str]:
    config, source = settled(given, **task), Source("", given, None, None)
    return list(remarks(config, deal_rows(config, source, find_labels(config, source)), {"": 0}))


def test_joined_labels_are_told_with_the_key_that_splits_them() -> None:
    given = rows(*["flu", "cold", "flu;cold"] * 3)
    message = "labels look like several in one, and each combination is a class: to split them, set "
    assert said(given) == [f"{message}task.label_separator = ';'"]
    assert said(given, label_separator=";") == []


def test_cells_without_a_label_beside_joined_ones_are_told_with_the_key() -> None:
    """Split, they are rows without a label."""
    given = rows(*["flu", "cold", "flu;cold", None] * 3)
    with pytest.raises(ConfigError) as error:
        said(given)
    assert "the value is missing" in str(error.value)
    message = "labels look like several in one: to split them, set task.label_separator = ';'"
    assert str(error.value.problems[-1]) == f"task.label: {message}"
    (none,) = said(given, label_separator=";")
    assert none.startswith("3 of 12 training rows have no label")


def test_combinations_that_are_too_many_for_classes_are_told_too() -> None:
    names = [f"s{i}" for i in range(6)]
    given = rows(*(";".join(n for i, n in enumerate(names) if 2**i & code) for code in range(1, 40)))
    with pytest.raises(ConfigError, match=r"39 distinct labels in 39 rows.*set task\.label_separator = ';'"):
        find_labels(settled(given), Source("", given, None, None))


def test_remarks_on_rows_with_several_labels() -> None:
    always = "labels of all training rows, which cannot be learned: a"
    assert said(rows(["a"], ["a", "b"], ["a"])) == [always]
    none = "1 of 3 training rows have no label: they are learned as having none"
    assert said(rows(["a"], ["b"], [])) == [none]
    given = [{"t": f"w{i}", "flu": i % 2, "cold": 0} for i in range(4)]
    never = "labels of no training row, which cannot be learned: cold"
    assert said(given, label=["flu", "cold"]) == [none.replace("1 of 3", "2 of 4"), never]
    (alike,) = said(rows(["a"], ["A", "b"], ["b"]))
    assert alike == "labels that differ by case only are 2 labels: 'A', 'a'"


# --- dealing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{"kind": "dirichlet", "alpha": 1.0}, {"kind": "shards", "shards_per_client": 1}])
def test_partitions_by_label_are_refused(kind: dict[str, Any]) -> None:
    given = rows(*[["a"], ["b", "a"]] * 10)
    config = settled(given).model_copy(update={"partition": load({"partition": {"clients": 2, **kind}}).partition})
    with pytest.raises(ConfigError, match=r"partition\.kind: .* deals by label, and this task has none, or several"):
        deal_rows(config, Source("", given, None, None), ("a", "b"))


def test_samples_keep_the_shares_of_combinations() -> None:
    given = rows(*[["a", "b"], ["b", "a"], ["a"], []] * 10)
    config = settled(given)
    config = config.model_copy(update={"data": config.data.model_copy(update={"max_train_rows": 8})})
    dealt = deal_rows(config, Source("", given, None, None), ("a", "b"))
    drawn = [tuple(sorted(row["l"])) for of_client in dealt.rows.values() for row in of_client]
    assert {combination: drawn.count(combination) for combination in drawn} == {("a", "b"): 4, ("a",): 2, (): 2}


def test_test_rows_are_dealt_in_proportion_to_the_clients() -> None:
    """A row of several labels is of no class whose rows could follow the clients' own."""
    given, tests = rows(*[["a"], ["b", "a"]] * 10), rows(*[["b"], []] * 5)
    config = settled(given)
    config = config.model_copy(update={"partition": config.partition.model_copy(update={"deal_tests": True})})
    owners = deal_rows(config, Source("", given, None, tests), ("a", "b")).test.owners
    assert owners is not None
    assert sorted(owners.count(owner) for owner in set(owners)) == [5, 5]
