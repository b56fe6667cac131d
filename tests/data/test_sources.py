"""Rows from files: read as written, and a file that cannot be read is named."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outcomes import problems, told
from rondo.config import ConfigError, load
from rondo.data import sources
from rondo.data.sources import Room, read_rows
from small_runs import write_rows

ROWS = [{"t": "x", "l": "1"}, {"t": "y", "l": "2"}]
Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


def fault(path: Path) -> str:
    ((key, message),) = told(lambda: read_rows(path, "data.source"))
    assert (key, path.name in message) == ("data.source", True), message
    return message


# --- readable files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", "t,l\nx,1\ny,2\n", [{"t": "x", "l": "1"}, {"t": "y", "l": "2"}]),
        ("a.csv", "t,l\nx,1", [{"t": "x", "l": "1"}]),
        ("a.csv", "\ufefft,l\r\nx,1\r\n", [{"t": "x", "l": "1"}]),
        ("a.csv", 't,l\r\n"x\r\ny, ""z""",1\r\n', [{"t": 'x\r\ny, "z"', "l": "1"}]),
        ("a.csv", "t,l\n\nx,1\n\n", [{"t": "x", "l": "1"}]),
        ("a.csv", "t,l\n,1\n", [{"t": "", "l": "1"}]),
        ("a.csv", "t,l\né😀 \u202eשלום,1\n", [{"t": "é😀 \u202eשלום", "l": "1"}]),
        ("a.csv", "t,l\na\0b,1\n", [{"t": "a\0b", "l": "1"}]),
        ("a.tsv", "t\tl\nx, y\t1\n", [{"t": "x, y", "l": "1"}]),
        ("a.jsonl", '{"t": "x", "l": 1}\n\n{"t": null}\n', [{"t": "x", "l": 1}, {"t": None}]),
        ("a.jsonl", '\ufeff{"t": "x"}\r\n{"t": "y"}\r\n', [{"t": "x"}, {"t": "y"}]),
        ("a.jsonl", '{"t": "a\u2028b\u0085c"}\n', [{"t": "a\u2028b\u0085c"}]),
        ("a.json", '[{"t": "x\\u0000"},\n {"t": "y"}]', [{"t": "x\0"}, {"t": "y"}]),
        ("a.json", ' \n[{"t": "x"}]', [{"t": "x"}]),
        ("a.json", '{"t": "x"}\n{"t": "y"}\n', [{"t": "x"}, {"t": "y"}]),
    ],
)
def test_rows_are_read_as_written(write: Write, name: str, content: str, rows: list[dict[str, Any]]) -> None:
    assert read_rows(write(name, content), "data.source") == rows


def test_parquet_is_read_with_its_types(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"t": "é\n", "l": 1, "x": None}, {"t": "y", "l": 2, "x": 0.5}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet", "data.source") == rows


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_text_of_a_megabyte_is_read(write: Write, name: str) -> None:
    text = "x" * 1_000_000
    content = f"t,l\n{text},1\n" if name == "a.csv" else json.dumps({"t": text})
    assert read_rows(write(name, content), "data.source")[0]["t"] == text


# --- unreadable files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("a.csv", "t,l\nx,1\ny\n", "line 3 has not 2 columns"),
        ("a.csv", "t,l\nx,1\n\n\ny,2\nz,3,4\n", "line 6 has not 2 columns"),
        ("a.csv", 't,l\nx,1\n"y,2\n', "unexpected end of data"),
        ("a.csv", 't,l\n"x"y,1\n', "expected"),
        ("a.csv", b"t,l\n\xff,1\n", 'is not UTF-8 text; set data.encoding, such as "cp1252"'),
        ("a.csv", "", "has no rows"),
        ("a.csv", "t,l\n", "has no rows"),
        ("a.jsonl", '{"t": 1}\n{"t": \n', "line 2: "),
        ("a.jsonl", '\n\n{"t": 1}\n{t: 1}\n', "line 4: "),
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", '{"t": 1}\n[1]\n', "line 2 is not an object"),
        ("a.jsonl", "null\n", "line 1 is not an object"),
        ("a.json", "[]", "has no rows"),
        ("a.json", '[{"t": 1}, "x"]', "row 2 is not an object with columns, but 'x'"),
        ("a.json", '[{"t": 1}', "line 1 column"),
        ("a.json", "[" * 100_000, "recursion"),
        ("a.parquet", b"PAR1", "is not a valid parquet file"),
        ("a.txt", "x", "has lines without tags such as O and B-PER at their ends: call it a.conll if it is one of"),
        ("a", "x", "unknown ending; known: .csv, .tsv, .json, .jsonl, .parquet"),
    ],
)
def test_unreadable_file_is_named_with_row_or_line(
    write: Write, name: str, content: str | bytes, fragment: str
) -> None:
    assert fragment in fault(write(name, content))


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in fault(tmp_path / "no.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "cannot be read: Is a directory" in fault(tmp_path / "folder.csv")


def test_ending_in_capitals_is_known(write: Write) -> None:
    assert read_rows(write("A.CSV", "t,l\nx,1\n"), "data.source") == [{"t": "x", "l": "1"}]


def test_two_columns_of_one_name_are_an_error(write: Write) -> None:
    """The last of them does not win silently."""
    assert "'t'" in fault(write("a.csv", "t,t\nx,y\n"))


def test_csv_that_ends_within_quotes_names_the_place(write: Write) -> None:
    message = fault(write("a.csv", 't,l\nx,1\ny,2\n"z,3\n'))
    assert "row" in message or "line" in message


# --- sources of rows ----------------------------------------------------------------------------------------------


def source(data: dict[str, Any]) -> sources.Source:
    return sources.load(
        load({"task": {"text": "t", "label": "l"}, "data": data, "partition": {"clients": 2}, "rounds": 1})
    )


def source_fault(data: dict[str, Any]) -> dict[str, str]:
    return problems(lambda: source(data))


def test_single_file_has_no_test_set_unless_one_is_named(write: Write) -> None:
    train, test = write("a.csv", "t,l\nx,1\ny,2\n"), write("b.jsonl", '{"t": "z", "l": 1}\n{"t": "w", "l": 2}')
    loaded = source({"source": str(train)})
    assert (len(loaded.train or []), loaded.clients, loaded.test) == (2, None, None)
    loaded = source({"source": str(train), "test_source": str(test)})
    assert loaded.train == [{"t": "x", "l": "1"}, {"t": "y", "l": "2"}]
    assert loaded.test == [{"t": "z", "l": 1}, {"t": "w", "l": 2}]


def test_folder_holds_one_file_per_split(write: Write, tmp_path: Path) -> None:
    write("train.csv", "t,l\nx,1\n")
    write("validation.jsonl", '{"t": "v", "l": 1}\n')
    write("dev.tsv", "t\tl\nd\t1\n")
    loaded = source({"source": str(tmp_path)})
    assert (loaded.train, loaded.test) == ([{"t": "x", "l": "1"}], [{"t": "v", "l": 1}])
    assert source({"source": str(tmp_path), "test_split": "dev"}).test == [{"t": "d", "l": "1"}]
    assert source({"source": str(tmp_path), "train_split": "dev"}).train == [{"t": "d", "l": "1"}]
    assert source({"source": str(tmp_path), "test_split": None}).test is None
    missing = source_fault({"source": str(tmp_path), "test_split": "test"})["data.test_split"]
    assert "no 'test' file" in missing
    assert "dev.tsv, train.csv, validation.jsonl" in missing
    assert "data.train_split" in source_fault({"source": str(tmp_path), "train_split": "tran"})


def test_empty_folder_is_named(tmp_path: Path) -> None:
    assert "there are: none" in source_fault({"source": str(tmp_path)})["data.train_split"]


def test_folder_with_one_file_per_client(write: Write, tmp_path: Path) -> None:
    write("sites/b.csv", "t,l\nx,1\n")
    write("sites/a.jsonl", '{"t": "y", "l": 2}')
    write("sites/readme.md", "not data")
    loaded = source({"clients_from": str(tmp_path / "sites")})
    assert loaded.train is None
    assert loaded.clients == {"a": [{"t": "y", "l": 2}], "b": [{"t": "x", "l": "1"}]}
    assert list(source({"clients_from": str(tmp_path / "sites" / "*.csv")}).clients or {}) == ["b"]


# --- forms in which others leave rows -----------------------------------------------------------------------------


def both_splits(folder: Path, **data: Any) -> tuple[Any, Any]:
    loaded = source({"source": str(folder), "test_split": "test", **data})
    return loaded.train, loaded.test


def test_folder_that_datasets_saved(tmp_path: Path) -> None:
    import datasets

    train, test = (datasets.Dataset.from_list(rows) for rows in (ROWS, ROWS[:1]))
    datasets.DatasetDict(train=train, test=test).save_to_disk(tmp_path / "both")
    train.save_to_disk(tmp_path / "one")
    assert both_splits(tmp_path / "both") == (ROWS, ROWS[:1])
    assert source({"source": str(tmp_path / "one")}).train == ROWS
    assert read_rows(tmp_path / "one", "data.test_source") == ROWS
    with pytest.raises(ConfigError, match=r"no 'dev' file in .*; there are: test, train"):
        both_splits(tmp_path / "both", train_split="dev")


def test_clone_of_a_hubs_data_set(tmp_path: Path) -> None:
    import datasets

    (tmp_path / "data").mkdir()
    for name, rows in (("train-00000-of-00002", ROWS[:1]), ("train-00001-of-00002", ROWS[1:]), ("test-0-of-1", ROWS)):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "data" / f"{name}.parquet")
    (tmp_path / "README.md").write_text("a card")
    assert both_splits(tmp_path) == (ROWS, ROWS)
    with pytest.raises(ConfigError, match=r"there are: data/test-0-of-1\.parquet, data/train-00000"):
        both_splits(tmp_path, train_split="dev")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".json", ".jsonl"])
def test_packed_files(ending: str, tmp_path: Path) -> None:
    plain = write_rows(tmp_path / f"train{ending}", ROWS) if ending != ".tsv" else tmp_path / "train.tsv"
    if ending == ".tsv":
        plain.write_text("\n".join("\t".join(map(str, line)) for line in (list(ROWS[0]), *(r.values() for r in ROWS))))
    packed = tmp_path / "packed" / f"train{ending}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_rows(packed, "data.source") == read_rows(plain, "data.source")
    assert source({"source": str(packed.parent), "test_split": ""}).train == read_rows(plain, "data.source")
    assert list(source({"clients_from": f"{packed.parent}/*"}).clients or ()) == ["train"]


def test_packed_file_is_unpacked_within_its_room(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 3_000_000))
    with pytest.raises(ConfigError, match="take more memory than the 2 MiB"):
        read_rows(path, "data.source", Room(2))


@pytest.mark.parametrize("field", ["data", "rows", "train"])
def test_rows_in_the_field_of_an_object(field: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"version": "1", field: ROWS}, indent=1))
    assert read_rows(tmp_path / "rows.json", "data.source") == ROWS


def test_one_row_of_a_conversation_is_a_row(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}]}
    (tmp_path / "rows.json").write_text(json.dumps(row) + "\n")
    assert read_rows(tmp_path / "rows.json", "data.source") == [row]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}, "has its rows by column"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, "has its rows by column"),
        ({"name": "set", "content": [{"text": "a"}]}, "rows seem to be in its field 'content': save that list"),
        (7, "is neither a list of rows nor a row a line"),
    ],
)
def test_other_forms_of_json_are_refused_by_their_names(tree: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(tree, indent=1))
    with pytest.raises(ConfigError) as caught:
        read_rows(tmp_path / "rows.json", "data.source")
    assert words in str(caught.value)
    assert "not a valid" not in str(caught.value)


def test_folder_per_client(tmp_path: Path) -> None:
    for client in ("north", "south"):
        write_rows(tmp_path / client / "train.jsonl", ROWS)
    assert list(source({"clients_from": f"{tmp_path}/*/train.jsonl"}).clients or ()) == ["north", "south"]


def test_ambiguous_or_unreadable_clients_are_named(write: Write, tmp_path: Path) -> None:
    write("sites/readme.md", "not data")
    assert "no data files (.csv" in source_fault({"clients_from": str(tmp_path / "sites")})["data.clients_from"]
    write("sites/a.csv", "t,l\nx,1\n")
    write("sites/a.jsonl", '{"t": "y", "l": 2}')
    message = source_fault({"clients_from": str(tmp_path / "sites")})["data.clients_from"]
    assert "two files would be client 'a'" in message
    write("more/b.csv", "t,l\nx\n")
    assert "b.csv" in source_fault({"clients_from": str(tmp_path / "more")})["data.clients_from"]


def test_pattern_as_source_is_refused(write: Write, tmp_path: Path) -> None:
    """The message names the key that takes a pattern."""
    write("a.csv", "t,l\nx,1\n")
    assert "clients_from" in source_fault({"source": str(tmp_path / "*.csv")})["data.source"]


# --- files that are larger than they look -----------------------------------------------------------------------


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd", store_schema=False)
    return path


def same(value: str, count: int) -> Any:
    """A column of ``count`` equal texts, which a Parquet file stores once."""
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array([value]))


def room_fault(path: Path, megabytes: int) -> str:
    ((key, message),) = told(lambda: read_rows(path, "data.source", Room(megabytes)))
    assert key == "data.max_read_mb"
    return message


def test_small_file_of_many_rows_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    path = parquet(tmp_path / "a.parquet", {"t": same("x", 100_000), "l": same("1", 100_000)})
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("rows were read"))
    assert "more memory than the 8 MiB of this key: raise it" in room_fault(path, 8)


@pytest.mark.parametrize("categories", [False, True], ids=["texts", "categories"])
def test_small_file_of_long_texts_is_read_no_further(tmp_path: Path, categories: bool) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"t": same("x" * 500_000, 200)}), path, compression="zstd", store_schema=categories
    )
    assert path.stat().st_size < 2_000
    default = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(default)
    pyarrow.set_memory_pool(pool)
    try:
        assert str(path) in room_fault(path, 8)
        assert pool.max_memory() < 24 << 20  # of 100 MB
    finally:
        pyarrow.set_memory_pool(default)
    assert len(read_rows(path, "data.source", Room(128))) == 200


def test_batches_of_a_file_are_in_order(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"t": [str(i) for i in range(10_000)]})
    assert [row["t"] for row in read_rows(path, "data.source")] == [str(i) for i in range(10_000)]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_text_file_above_the_room_is_not_read(write: Write, name: str) -> None:
    path = write(name, "")
    os.truncate(path, 3 << 20)
    assert "take more memory than the 2 MiB" in room_fault(path, 2)


def test_all_files_share_one_room(write: Write, tmp_path: Path) -> None:
    for client in ("a", "b", "c"):
        write(f"sites/{client}.csv", "t,l\n" + "x,1\n" * 150_000)
    assert (
        "sites/b.csv" in source_fault({"clients_from": str(tmp_path / "sites"), "max_read_mb": 1})["data.max_read_mb"]
    )
    assert len(source({"clients_from": str(tmp_path / "sites"), "max_read_mb": 2}).clients or {}) == 3


def test_unknown_data_set_is_named() -> None:
    assert "'no-such-data-set' is no file or folder here" in source_fault({"source": "no-such-data-set"})["data.source"]


# --- tab-separated files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # GLUE's: quotes are signs of the texts, also over several lines, and one may be alone.
        ('1\t"Open here\n0\tA good row .\n1\tand closing" it\n', ['"Open here', "A good row .", 'and closing" it']),
        ('1\t"Open here\n0\tA good row .\n1\tand closing"\n', ['"Open here', "A good row .", 'and closing"']),
        ('1\t"So" he said\n0\tno\n', ['"So" he said', "no"]),
        ('1\tone " sign\n', ['one " sign']),
        # Written as a CSV file is: with line breaks, tabs and quotes inside of quotes.
        ('1\t"two\nlines"\n0\tno\n', ["two\nlines", "no"]),
        ('1\t"a\tb"\n', ["a\tb"]),
        ('1\t"he said ""hi"""\n', ['he said "hi"']),
    ],
)
def test_quotes_in_a_tab_separated_file(write: Write, content: str, expected: list[str]) -> None:
    rows = read_rows(write("a.tsv", "label\tsentence\n" + content), "data.source")
    assert [row["sentence"] for row in rows] == expected


def test_rows_of_other_lengths_in_a_tab_separated_file_are_named(write: Write) -> None:
    assert "line 3 has not 2 columns" in fault(write("a.tsv", "label\tsentence\n1\ta\n0\n"))


def test_further_test_sets_take_of_the_same_room(write: Write) -> None:
    """The rows of all files together have ``data.max_read_mb`` MiB."""
    rows = "t,l\n" + "x" * 400_000 + ",1\n"
    data = {"source": str(write("train.csv", rows)), "max_read_mb": 1}
    more = {name: str(write(f"{name}.csv", rows)) for name in ("a", "b")}
    for names, fits in ((["a"], True), (["a", "b"], False)):
        sections = {"task": {"text": "t", "label": "l"}, "partition": {"kind": "iid", "clients": 1}}
        config = load({"data": {**data, "more_tests": {name: more[name] for name in names}}, **sections})
        if fits:
            assert set(sources.load(config).more_tests) == {"a"}
        else:
            with pytest.raises(ConfigError, match=r"data\.max_read_mb"):
                sources.load(config)
