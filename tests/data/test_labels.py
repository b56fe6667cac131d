"""Classes of a run: their order, and columns that hold something else."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import pytest

from rondo.config import ConfigError, load
from rondo.data.files.tables import rows_of
from rondo.data.labels import disagreement, find_labels, merged
from rondo.data.sources import Source

CONFIG = load({"task": {"text": "t", "label": "l"}})


def found(labels: Sequence[Any]) -> tuple[str, ...]:
    return find_labels(CONFIG, Source("", [{"t": "x", "l": label} for label in labels], None, None))


def names(*labels: Any) -> tuple[str, ...]:
    """The labels found in two rows of each."""
    return found(labels * 2)


def fault(labels: Sequence[Any] | None, clients: Mapping[str, list[dict[str, Any]]] | None = None) -> str:
    rows = [{"t": "x", "l": label} for label in labels] if labels is not None else None
    with pytest.raises(ConfigError) as caught:
        find_labels(CONFIG, Source("", rows, dict(clients) if clients is not None else None, None))
    (problem,) = caught.value.problems
    assert problem.path == "task.label"
    return problem.message


def test_labels_sort_as_numbers_then_as_letters() -> None:
    assert names("2", "10", "1", 3) == ("1", "2", "3", "10")
    assert names("b", "a", "B") == ("B", "a", "b")
    assert names("b", 2, "a", -1, 0.5) == ("-1", "0.5", "2", "a", "b")
    assert names(True, False) == ("False", "True")


def test_whole_floats_are_the_integers() -> None:
    """pandas makes floats of integers in a column with gaps."""
    assert names(1.0, 0.0, None, float("nan")) == ("0", "1")
    assert names(1.0, 1, "1", 0) == ("0", "1")


@pytest.mark.parametrize("unusable", [None, " ", float("nan"), ["a"], {"a": 1}, b"a"], ids=repr)
def test_rows_without_a_class_are_skipped(unusable: Any) -> None:
    assert names(unusable, "a", "b") == ("a", "b")


def test_labels_do_not_depend_on_the_order_of_rows() -> None:
    for order in itertools.permutations(["2", "10", "a", "b", "nan"]):
        assert names(*order) == ("2", "10", "a", "b", "nan")


def test_labels_of_all_clients_are_found() -> None:
    clients = {"north": [{"l": "b"}], "south": [{"l": "a"}, {"l": "c"}]}
    assert find_labels(CONFIG, Source("", None, clients, None)) == ("a", "b", "c")


# --- columns without classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, str], ids=["floats", "text"])
def test_numbers_with_fractions_are_regression(kind: Any) -> None:
    message = fault([kind(i / 200) for i in range(1, 200)] * 10)
    assert (
        "has 199 numbers with fractions as labels, such as '0.005' in row 0 (counted from 0): to predict numbers is "
        "regression" in message
    )
    assert "name a column of classes" in message


def test_half_points_are_classes() -> None:
    assert names(*(i / 2 for i in range(11))) == ("0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5")


def test_many_integers_are_classes() -> None:
    assert len(names(*range(200))) == 200
    assert len(names(*map(float, range(200)))) == 200


@pytest.mark.parametrize("first", [0, "id-0"])
def test_label_of_its_own_for_each_row_is_refused(first: Any) -> None:
    labels = [first, *(f"id-{i}" for i in range(1, 200))]
    assert f"200 distinct labels in 200 rows, such as '{first}' in row 0 (counted from 0)" in fault(labels)
    assert "101 distinct labels in 200 rows" in fault([*labels[:100], *["other"] * 100])
    assert len(found([*labels[:99], *["other"] * 101])) == 100


def test_few_rows_may_have_a_label_each() -> None:
    assert len(found(range(12))) == 12
    assert "13 distinct labels in 13 rows" in fault(list(range(13)))


def test_class_that_is_no_number_among_numbers_is_refused() -> None:
    assert "'nan' in row 2 (counted from 0) among numbers; leave such cells empty" in fault(["0", "1", "nan"] * 5)


def test_more_classes_than_thousand_are_refused() -> None:
    assert "1001 distinct labels, such as '0' in row 0 (counted from 0); is it the label?" in fault([*range(1001)] * 2)


def test_column_of_lists_is_refused_with_a_row() -> None:
    message = fault([["a"], ["b"]] * 5)
    assert "0 distinct labels" in message
    assert "row 0 (counted from 0): expected one label, got ['a']: set task.multi_label = true" in message


def test_example_in_a_client_file_names_the_client() -> None:
    clients = {"north": [{"l": None}, {"l": 0.5}], "south": [{"l": i + 0.25} for i in range(20)]}
    assert "'0.5' in north, row 1 (counted from 0)" in fault(None, clients)


def test_data_set_that_numbers_its_classes_gives_their_order() -> None:
    """By GLUE's order of MRPC's classes F1 is that of "equivalent"; the alphabet has it the other way round."""
    features = datasets.Features(
        t=datasets.Value("string"), l=datasets.ClassLabel(names=["not_equivalent", "unused", "equivalent"])
    )
    rows = [{"t": "w", "l": i % 2 * 2} for i in range(6)]
    table = rows_of(datasets.Dataset.from_list(rows, features=features), "train")
    again = pickle.loads(pickle.dumps(table))
    for copied in (table, again):
        assert find_labels(CONFIG, Source("", copied, None, None)) == ("not_equivalent", "equivalent")
    mixed = [*table, {"t": "w", "l": "another"}]
    assert find_labels(CONFIG, Source("", mixed, None, None)) == ("another", "equivalent", "not_equivalent")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([("1", "10"), ("2", "10", "a")], ("1", "2", "10", "a")),
        ([("no", "yes"), ("maybe", "no")], ("maybe", "no", "yes")),
        ([("b", "a"), ("a", "c")], ("b", "a", "c")),
        ([("b", "a"), ("a", "b")], ("a", "b")),
        ([("b",), ("a",)], ("a", "b")),
        ([], ()),
    ],
)
def test_labels_of_several_sites_have_one_order(parts: list[tuple[str, ...]], expected: tuple[str, ...]) -> None:
    assert merged(parts) == expected


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"a": ("0", "1"), "b": ("1", "0")}, []),
        ({"a": ("no", "yes"), "b": ("no",)}, ["at a only: 'yes'"]),
        ({"a": ("no", "yes"), "b": ("no", "Yes")}, [
            "at b only: 'Yes'", "at a only: 'yes'", "'Yes' and 'yes' differ only by case"
        ]),
        ({"a": ("x", "y "), "b": ("x", "y")}, [
            "at b only: 'y'", "at a only: 'y '", "'y' and 'y ' differ only by blanks"
        ]),
        ({"a": ("x", "caf\u00e9"), "b": ("x", "cafe\u0301")}, [
            "at b only: 'cafe\u0301'",
            "at a only: 'caf\u00e9'",
            "'cafe\u0301' and 'caf\u00e9' differ only by their Unicode form",
        ]),
        ({"a": ("x", "A b"), "b": ("x", "ab"), "c": ("x",)}, [
            "at a only: 'A b'", "at b only: 'ab'", "'A b' and 'ab' differ only by case, blanks or Unicode form"
        ]),
        ({"a": ("no", "yes", "Yes"), "b": ("no", "yes", "Yes")}, []),
    ],
)  # fmt: skip
def test_labels_that_only_some_parts_have(parts: dict[str, tuple[str, ...]], expected: list[str]) -> None:
    assert list(disagreement(parts)) == expected


def test_many_labels_are_told_in_few_words() -> None:
    parts = {f"site {i}": (f"label {i}", "x") for i in range(25)}
    parts["many"] = tuple(f"own {i:03}" for i in range(100))
    (line,) = [line for line in disagreement(parts) if line.startswith("at many only")]
    assert line.endswith("'own 019' and 80 more")
    (line,) = [line for line in disagreement(parts) if line.endswith("'x'")]
    assert "and 5 more only: 'x'" in line
