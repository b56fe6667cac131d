"""A row is named as its file counts it, in every message."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet
import pytest

import rondo
from rondo.config.load import load
from rondo.data.client_rows import deal_rows, other_rows, resolved
from rondo.data.files.placed import PlacedRows, joined, places_of
from rondo.data.files.tables import rows_of
from rondo.data.labels import find_labels
from rondo.data.sources import load as load_rows
from rondo.data.sources import read_rows
from rondo.results.humaneval.score import read_problems

ROWS = [{"text": f"w{i}", "label": "ab"[i % 2]} for i in range(6)]


def places(path: Path) -> list[str]:
    """The place of each row, without the folder."""
    rows = read_rows(path, "data.source")
    place = places_of(rows)
    return [place(number).replace(f"{path.parent}/", "") for number in range(len(rows))]


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.csv", "t,l\nx,1\ny,2\n", [2, 3]),
        ("a.csv", "t,l\r\nx,1\r\n\r\ny,2\r\n", [2, 4]),
        ("a.csv", 't,l\n"x\n\nx",1\ny,2\n"z\r\nz",3\nv,4', [2, 5, 6, 8]),
        ("a.csv", "\ufefft,l\nx,1\n", [2]),
        ("a.csv", " t,l\nx,1\ny,2\n", [2, 3]),
        ("a.tsv", 't\tl\n"x\t1\n\ny\t2\n', [2, 4]),
        ("a.tsv", 't\tl\n"x\nx"\t1\ny\t2\n', [2, 4]),
        ("a.jsonl", '\n{"t": 1}\n\n{"t": 2}\n', [2, 4]),
        ("a.json", '{"t": 1}\n{"t": 2}\n', [1, 2]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*names of columns are read without blanks")
def test_row_is_on_the_line_where_it_begins(tmp_path: Path, name: str, content: str, lines: list[int]) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert places(tmp_path / name) == [f"{name}, line {line}" for line in lines]


def test_rows_of_files_without_lines_are_counted_from_one(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[:2]), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps({"data": ROWS[:2]}, indent=2))
    for name in ("a.parquet", "a.json"):
        assert places(tmp_path / name) == [f"{name}, row 1", f"{name}, row 2"]


def test_rows_of_shards_are_in_their_own_file() -> None:
    def named(name: str, count: int) -> PlacedRows:
        return PlacedRows([{}] * count, lambda number: f"{name}{number}")

    rows = joined([named("a", 2), named("b", 0), named("c", 1), [{}, {}]])
    assert list(map(rows.places, range(5))) == ["a0", "a1", "c0", "row 0 (counted from 0)", "row 1 (counted from 0)"]


def test_rows_of_tables_are_named_as_a_program_indexes_them() -> None:
    assert rows_of(ROWS, "train").places(3) == "train[3]"  # type: ignore[attr-defined]
    assert rows_of(pandas.DataFrame(ROWS), "clients['a']").places(3) == "clients['a'].iloc[3]"  # type: ignore[attr-defined]
    assert rows_of(ROWS, "--data").places(3) == "data[3]"  # type: ignore[attr-defined]


# --- messages ------------------------------------------------------------------------------------------------------


def faults(call: Callable[[], Any]) -> str:
    with pytest.raises(rondo.ConfigError) as caught:
        call()
    return str(caught.value)


def deal(raw: dict[str, Any]) -> Any:
    partition = {"kind": "iid", "clients": 2} if "source" in raw["data"] else {}
    config = load({"task": {"text": "text", "label": "label"}, "partition": partition, **raw})
    source = load_rows(config)
    config = resolved(config, source)
    return deal_rows(config, source, find_labels(config, source))


def written(path: Path, *cells: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("\r\n".join(["text,label", *cells, ""]).encode())
    return str(path)


def test_bad_rows_in_training_test_and_clients_files(tmp_path: Path) -> None:
    good = written(tmp_path / "good.csv", "x,a", "y,b")
    bad = written(tmp_path / "bad.csv", '"x\r\nx",a', ",b", "z,a")
    assert f"data: {bad}, line 4, column 'text': the text is empty" in faults(lambda: deal({"data": {"source": bad}}))
    data = {"source": good, "test_source": bad}
    assert f"data: {bad}, line 4, column 'text'" in faults(lambda: deal({"data": data}))
    data = {"source": good, "more_tests": {"more": bad}, "test_source": written(tmp_path / "test.csv", "x,a")}
    assert f"data: {bad}, line 4, column 'text'" in faults(lambda: deal({"data": data}))
    north = written(tmp_path / "sites" / "north.csv", "x,a", ",b")
    data = {"clients_from": str(tmp_path / "sites")}
    assert f"data: {north}, line 3, column 'text'" in faults(lambda: deal({"data": data}))


def test_labels_name_the_line_of_an_example(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "x,1", "y,2", "z,nan")
    assert f"'nan' in {path}, line 4 among numbers" in faults(lambda: deal({"data": {"source": path}}))


def test_file_to_score_or_predict_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "x,a", ",b")
    config = load({"task": {"text": "text", "label": "label"}})
    message = faults(lambda: other_rows(config, path, ("a", "b"), key="--data"))
    assert f"--data: {path}, line 3, column 'text': the text is empty" in message
    written(tmp_path / "a.csv", "x,a", "y,b")
    rows = other_rows(config, path, ("a", "b"), key="--data")  # which a task may find unusable later
    assert places_of(rows)(1) == f"{path}, line 3"


def test_problems_of_code_name_the_line(tmp_path: Path) -> None:
    row = {"task_id": "a", "prompt": "p", "test": "t", "entry_point": "e"}
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'prompt': ''})}\n")
    assert f"{path}, line 2 has no text in column 'prompt'" in faults(lambda: read_problems(str(path)))
