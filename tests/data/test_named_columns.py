"""All mistakes of columns are named at once."""

from collections.abc import Mapping
from typing import Any

from outcomes import problems
from rondo.config.load import load
from rondo.data.client_rows import resolved
from rondo.data.named_columns import check_columns
from rondo.data.sources import Source

RAW = {
    "task": {"text": "text", "label": "labl"},
    "partition": {"kind": "natural", "column": "woh", "clients": None},
    "data": {"source": "given in Python"},
}
GOOD, OTHER = [{"text": "w", "labl": "a", "woh": "n"}], [{"text": "w", "label": "a", "who": "n"}]


def faults(raw: Mapping[str, Any], source: Source) -> dict[str, str]:
    return problems(lambda: check_columns(resolved(load(raw), source), source))


def test_wrong_label_hides_no_wrong_owner() -> None:
    assert faults(RAW, Source("", OTHER, None, OTHER)) == {
        "task.label": "no column 'labl'; there are: text, label, who",
        "partition.column": "no column 'woh'; there are: text, label, who",
    }


def test_columns_of_test_rows_and_training_rows_are_told_together() -> None:
    train, test = [{"text": "w", "labl": "a"}], [{"words": "w", "labl": "a"}]
    assert faults(RAW, Source("", train, None, GOOD, more_tests={"more": test})) == {
        "partition.column": "no column 'woh'; there are: text, labl",
        "task.text": "no column 'text' in data.more_tests.more; there are: words, labl",
    }
    assert faults(RAW, Source("", GOOD, None, OTHER)) == {
        "task.label": "no column 'labl' in the test rows; there are: text, label, who"
    }


def test_client_whose_rows_lack_a_column_is_named() -> None:
    raw = {**RAW, "partition": {}, "data": {"clients_from": "sites"}}
    message = "no column 'labl' of 'south'; there are: text, label, who"
    assert faults(raw, Source("", None, {"north": GOOD, "south": OTHER}, None)) == {"task.label": message}
    message = "no column 'labl'; there are: text, label, who"
    assert faults(raw, Source("", None, {"north": OTHER, "south": OTHER}, None)) == {"task.label": message}
