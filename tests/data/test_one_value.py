"""One value is one class, one client, one person and one column, whatever program or library wrote it."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from rondo.config.inputs import GIVEN, TaskConfig, plain_name
from rondo.config.load import load
from rondo.data.client_rows import deal_rows, resolved
from rondo.data.files.tables import rows_of
from rondo.data.labels import find_labels
from rondo.data.remarks import remarks
from rondo.data.sources import load as load_rows
from rondo.errors import ConfigError
from rondo.tasks.row_checks import is_missing, row_check


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("2", [2, 2.0, "2", "2.0", "2.", "+2", " 2.00 ", np.int8(2), np.float16(2), np.float32(2), Decimal("2.0")]),
        ("-1", [-1, -1.0, "-1", "-1.0", np.float32(-1), Decimal(-1)]),
        ("0", [0, -0.0, "-0", "0.0", "-0.000", np.uint8(0)]),
        ("123456789012345678", [123456789012345678, "123456789012345678", "123456789012345678.0"]),
        ("2.5", [2.5, "2.5", np.float32(2.5), Decimal("2.5")]),
        ("True", [True, np.True_, "True"]),
        ("Zo\u00eb", ["Zo\u00eb", "Zoe\u0308", " Zoe\u0308 "]),
        ("2026-03-01", [date(2026, 3, 1), datetime(2026, 3, 1), pandas.Timestamp("2026-03-01"), "2026-03-01"]),
        # Zeros before a number, and at a fraction's end, belong to names: of a patient, a version, a diagnosis.
        ("007", ["007"]),
        ("3.10", ["3.10"]),
        ("1e5", ["1e5"]),
        ("2026-03-01 08:00:00", [datetime(2026, 3, 1, 8)]),
    ],
)
def test_cells_of_one_value_have_one_name(name: str, cells: list[Any]) -> None:
    assert [plain_name(cell) for cell in cells] == [name] * len(cells)


MISSING = [None, float("nan"), np.float32("nan"), np.float64("nan"), Decimal("nan"), pandas.NA, pandas.NaT]


@pytest.mark.parametrize("cell", [*MISSING, np.datetime64("NaT")])
def test_missing_cell_of_any_library(cell: Any) -> None:
    assert is_missing(cell)
    for column in ("label", "who"):
        problem = row_check(TaskConfig(text="text", label="label"), (), "who")(
            {"text": "a", "label": "x", "who": "n", column: cell}, 3
        )
        assert problem is not None
        assert (problem.column, problem.reason) == (column, "the value is missing")


@pytest.mark.parametrize("cell", [0, 0.0, "", "nan", False, [float("nan")], np.array([np.nan, 1]), np.str_("x")])
def test_cell_with_a_value(cell: Any) -> None:
    assert not is_missing(cell)


@pytest.mark.parametrize("cell", [np.array([1, 2]), np.array(1), (1,), b"1", {1}])
def test_several_values_are_not_a_label(cell: Any) -> None:
    problem = row_check(TaskConfig(text="text", label="label"), ())({"text": "a", "label": cell}, 0)
    assert problem is not None
    assert problem.reason.startswith(("expected text or a number", "expected one label"))


def sites(folder: Path, **settings: Any) -> Any:
    """A client whose file pandas wrote of a column with gaps, and one whose file has integers."""
    (folder / "sites").mkdir()
    frame = pandas.DataFrame({"text": list("abcd"), "label": [3.0, 4.0, 3.0, 4.0], "who": [1.0, 1.0, 2.0, None]})
    frame[:3].to_csv(folder / "sites" / "a.csv", index=False)
    rows = [{"text": text, "label": label, "who": "1"} for text, label in zip("efgh", (3, 4, 3, 4), strict=True)]
    (folder / "sites" / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"clients_from": str(folder / "sites"), "validation_fraction": 0.0}
    return load({"task": {"text": "text", "label": "label"}, "data": data, **settings})


def test_numbers_with_a_point_are_the_same_classes_and_persons(tmp_path: Path) -> None:
    privacy = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-2, "group": "who"}
    settings = sites(tmp_path, privacy=privacy, clients={"weighting": "uniform"})
    source = load_rows(settings)
    settings = resolved(settings, source)
    labels = find_labels(settings, source)
    assert labels == ("3", "4")
    said = list(remarks(settings, deal_rows(settings, source, labels), {}))
    kinds = "are read without blanks at their ends and in one form of Unicode and numbers"
    assert f"labels {kinds}: '3.0' as '3', '4.0' as '4'" in said
    assert f"persons {kinds}: '1.0' as '1', '2.0' as '2'" in said


def test_named_classes_are_read_as_cells_are(tmp_path: Path) -> None:
    settings = sites(tmp_path, task={"text": "text", "label": "label", "labels": ["4.0", "3.0"]})
    source = load_rows(settings)
    assert find_labels(settings, source) == ("4", "3")
    assert sum(map(len, deal_rows(resolved(settings, source), source, ("4", "3")).rows.values())) == 7


def test_numbers_of_columns_are_their_names() -> None:
    assert list(rows_of([{0: "a", 1.0: "x"}], "train")) == [{"0": "a", "1": "x"}]
    with pytest.raises(ConfigError, match="spelling of numbers only: rename one"):
        rows_of([{"1": "a", 1.0: "x"}], "train")


def test_names_of_clients_are_read_as_cells_are() -> None:
    settings = load({"task": {"text": "text", "label": "label"}, "data": {"clients_from": GIVEN}})
    rows = [{"text": "a", "label": "x"}]
    assert list(load_rows(settings, clients={np.int64(3): rows, " 4.0": rows}).clients or {}) == ["3", "4"]
    with pytest.raises(ConfigError, match="are one client, '3': rename one"):
        load_rows(settings, clients={"3": rows, 3.0: rows})
