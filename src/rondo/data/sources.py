"""Rows from a file, a folder, a Hugging Face data set or the embedded default."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from rondo.config.checks import data_source, is_path, missing_files
from rondo.config.inputs import AT_SITES, BUILTIN_DATA, BUILTIN_IMAGES, GIVEN, LINEAR, DataConfig
from rondo.config.schema import RunConfig
from rondo.data.image_files import Splits, image_splits, split, unlabelled
from rondo.data.room import Room
from rondo.data.tables import Rows, Table, dataset_rows, named_classes, rows_of
from rondo.errors import ConfigError

_SUFFIXES = {".csv": ",", ".tsv": "\t", ".json": "", ".jsonl": "", ".parquet": ""}


@dataclass(frozen=True)
class Source:
    """Loaded rows, and the columns that the data suggest."""

    name: str
    train: Rows | None
    """All training rows, or None if each client has its own in ``clients``."""
    clients: dict[str, Rows] | None
    test: Rows | None
    text: str | None = None
    """The text column if the user names none; only the built-in sentences know their own."""
    label: str | None = None
    """The label column, likewise."""
    natural: str | None = None
    """The column that names each row's client, if the data have one."""
    more_tests: Mapping[str, Rows] = field(default_factory=dict)
    """Rows of ``data.more_tests``."""


def load(
    config: RunConfig,
    train: Table | None = None,
    test: Table | None = None,
    clients: Mapping[str, Table] | None = None,
) -> Source:
    """Load the rows that ``[data]`` names. Raises :class:`ConfigError` with key path, row and reason.

    ``train``, ``test``, ``clients``: rows in place of ``data.source``, ``data.test_source`` and ``data.clients_from``.
    """
    data = config.data
    if test is not None:
        data = data.model_copy(update={"test_source": None, "test_split": ""})
        source = load(config.model_copy(update={"data": data}), train, None, clients)
        return replace(source, test=rows_of(test, "test"))
    if problems := list(missing_files(config)):
        raise ConfigError(problems)
    if data.clients_from == AT_SITES and clients is None:
        message = "the rows of a federation are at its sites: name a file of your own by --data"
        raise ConfigError.at("data.clients_from", message)
    room = Room(data.max_read_mb)
    source = _first(config, train, clients, room)
    more = {name: _more_rows(data, name, room) for name in data.more_tests}
    return replace(source, more_tests=more)


def _more_rows(data: DataConfig, name: str, room: Room) -> Rows:
    """The rows of a test set of ``data.more_tests``."""
    value, key = data.more_tests[name], f"data.more_tests.{name}"
    if is_path(value):
        return read_rows(value, key, room)
    folder = Path(str(data.source)).expanduser()
    if data.source in (None, GIVEN) or data.clients_from is not None or folder.is_file():
        raise ConfigError.at(key, f"{value!r}: the rows have no splits, so name a file ({', '.join(_SUFFIXES)})")
    if not folder.is_dir():
        return _hub_split(data, value, key, room)
    return read_rows(_split_file(folder, value, key), key, room)


def _first(config: RunConfig, train: Table | None, clients: Mapping[str, Table] | None, room: Room) -> Source:
    """The training rows and the first test set."""
    data = config.data
    if data.clients_from is not None or train is not None:
        by_client = None
        if clients is not None:
            by_client = {name: rows_of(table, f"clients[{name!r}]") for name, table in clients.items()}
        elif data.clients_from is not None:
            by_client = client_rows(data.clients_from, "data.clients_from", room)
        rows = rows_of(train, "train") if train is not None else None
        test_rows = read_rows(data.test_source, "data.test_source", room) if data.test_source else None
        return Source(data.clients_from or GIVEN, rows, by_client, test_rows)
    if data_source(config) == BUILTIN_IMAGES:
        return _digits()
    if data_source(config) == BUILTIN_DATA:
        return _homes(config)
    if data_source(config) == LINEAR:
        return _linear(config)
    return _local(data, room) if Path(str(data.source)).expanduser().exists() else _hub(data, room)


def _digits() -> Source:
    from rondo.data.demo.digits import digits

    try:
        train, test = digits()
    except ImportError as error:
        raise ConfigError.at("data.source", f"{error}: pip install scikit-learn") from None
    return Source(BUILTIN_IMAGES, train, None, test)


def _homes(config: RunConfig) -> Source:
    from rondo.data.demo.homes import homes

    try:
        demo = homes(config.seed, clients=config.partition.clients or 12)
    except ImportError as error:
        raise ConfigError.at("data.source", str(error)) from None
    return Source(BUILTIN_DATA, demo.train, None, demo.test, text="text", label="intent", natural="home")


def _linear(config: RunConfig) -> Source:
    from rondo.tasks.numbers.linear_problem import LinearProblem

    return Source(LINEAR, LinearProblem.draw(config.problem, config.seed).rows(), None, None, natural="client")


def _local(data: DataConfig, room: Room) -> Source:
    path = Path(str(data.source)).expanduser()
    with _reading(path, "data.source"):
        pictures = None if path.is_dir() and _data_files(path) else image_splits(path)
    if pictures is not None:
        return _of_pictures(path, pictures, data, room)
    if not path.is_dir():
        train = read_rows(path, "data.source", room)
        test = read_rows(data.test_source, "data.test_source", room) if data.test_source else None
    else:
        train = read_rows(_split_file(path, data.train_split, "data.train_split"), "data.source", room)
        if data.test_source:
            test = read_rows(data.test_source, "data.test_source", room)
        else:
            chosen = data.test_split
            test = read_rows(_split_file(path, chosen, "data.test_split"), "data.source", room) if chosen else None
    return Source(str(path), train, None, test)


def _of_pictures(path: Path, splits: Splits, data: DataConfig, room: Room) -> Source:
    """The training rows and, where there are several splits, the test rows of a source that is made of pictures."""

    def rows(name: str, key: str) -> Rows:
        read = splits.get("") if splits.keys() == {""} else split(splits, name)
        if read is None:
            there = ", ".join(n or "one without a name" for n in splits)
            raise ConfigError.at(key, f"no {name!r} pictures in {str(path)!r}; there are: {there}")
        with _reading(path, "data.source"):
            return _some(read(room), path, "data.source")

    test = None
    if data.test_source:
        test = read_rows(data.test_source, "data.test_source", room)
    elif data.test_split and len(splits) > 1:
        test = rows(data.test_split, "data.test_split")
    return Source(str(path), rows(data.train_split, "data.train_split"), None, test)


def _data_files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix in _SUFFIXES)


def _split_file(folder: Path, split: str, key: str) -> Path:
    """The file of a split in a folder: ``train.parquet``, ``train.csv``, ..."""
    files = [folder / (split + suffix) for suffix in _SUFFIXES if (folder / (split + suffix)).is_file()]
    if not files:
        names = ", ".join(_data_files(folder)) or "none"
        raise ConfigError.at(key, f"no {split!r} file in {str(folder)!r}; there are: {names}")
    return files[0]


def client_rows(pattern: str, key: str, room: Room) -> dict[str, Rows]:
    """The rows of each client, from one file per client. The client's id is the file's name without its ending. Raises
    :class:`ConfigError` under ``key``."""
    path = Path(pattern).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else sorted(path.parent.glob(path.name))
    files = [f for f in files if f.suffix.lower() in (*_SUFFIXES, ".npz")]
    if not files:
        endings = ", ".join([*_SUFFIXES, ".npz"])
        raise ConfigError.at(key, f"no data files ({endings}) match {pattern!r}; name others")
    ids = [f.stem for f in files]
    if duplicates := sorted({i for i in ids if ids.count(i) > 1}):
        raise ConfigError.at(key, f"two files would be client {duplicates[0]!r}; rename one")
    return {f.stem: read_rows(f, key, room) for f in files}


def read_rows(path: str | os.PathLike[str], key: str, room: Room | None = None) -> Rows:
    """All rows of a CSV, TSV, JSON, JSON lines or Parquet file. Raises :class:`ConfigError` under ``key``.

    ``room``: the memory for rows; left out, a room of its own.
    """
    path, room = Path(path).expanduser(), room if room is not None else Room()
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading it might never end
        raise ConfigError.at(key, f"{str(path)!r} is a pipe or a device, not a file; name a file with rows")
    if path.suffix.lower() not in _SUFFIXES:
        return _picture_rows(path, key, room)
    with _reading(path, key):
        rows = _read(path, room)
    return _some(rows, path, key)


def read_pictures(path: str | os.PathLike[str], key: str, room: Room) -> Rows:
    """All rows of a file or a folder with pictures, whose labels are not needed. Raises :class:`ConfigError` under
    ``key``."""
    path = Path(path).expanduser()
    with _reading(path, key):
        reader = unlabelled(path)
        if reader is not None:
            return _some(reader(room), path, key)
    return read_rows(path, key, room)


def _picture_rows(path: Path, key: str, room: Room) -> Rows:
    """All rows of a file or folder that is made of pictures and has no splits."""
    with _reading(path, key):
        splits = image_splits(path) if path.exists() else None
        if splits is None:
            known = ", ".join([*_SUFFIXES, ".npz"])
            raise ConfigError.at(key, f"{str(path)!r}: unknown ending; known: {known}, and IDX files")
        if len(splits) > 1:
            raise ConfigError.at(key, f"{str(path)!r} has the splits {', '.join(splits)}: name a file with one")
        return _some(next(iter(splits.values()))(room), path, key)


def _some(rows: Rows, path: Path, key: str) -> Rows:
    if not rows:
        raise ConfigError.at(key, f"{str(path)!r} has no rows; name a file that has some")
    return rows


@contextmanager
def _reading(path: Path, key: str) -> Iterator[None]:
    """Turn the errors of reading ``path`` into :class:`ConfigError` under ``key``."""
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError.at(key, f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError.at(key, f"{str(path)!r} is not UTF-8 text; save it as UTF-8") from None
    except Exception as error:  # report a parser's complaint in its own words
        what = "folder of pictures" if path.is_dir() else f"{path.suffix[1:]} file"
        raise ConfigError.at(key, f"{str(path)!r} is not a valid {what}: {error}; mend it") from None


def _read(path: Path, room: Room) -> Rows:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path, room)
    room.take(path.stat().st_size, str(path))
    rows: Rows
    if suffix in (".csv", ".tsv"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _separated(file, suffix)
    text = path.read_text(encoding="utf-8-sig")
    if suffix == ".json" and text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = []
        for number, line in enumerate(text.split("\n")):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise ValueError(f"line {number + 1}: {error}") from None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is not an object with columns, but {row!r:.60}")
    return rows


def _separated(file: TextIO, suffix: str) -> Rows:
    """The rows of a CSV or TSV file. In a TSV file quotes are either all signs of its texts, as in GLUE's files, or
    stand around texts as in a CSV file: it is read in the way in which every row has the header's columns, and if that
    is so in both, without more rows, in the second."""
    if suffix == ".csv":
        return _quoted(file, suffix)
    lines = [line.rstrip("\r\n").split("\t") for line in file]
    lines = [line for line in lines if line != [""]]
    plain = len({len(line) for line in lines}) == 1
    file.seek(0)
    try:
        rows = _quoted(file, suffix)
    except ValueError:
        if not plain:
            raise
        rows = []
    if plain and len(rows) != len(lines) - 1:
        names = _header(lines[0], suffix)
        return [dict(zip(names, line, strict=True)) for line in lines[1:]]
    return rows


def _quoted(file: TextIO, suffix: str) -> Rows:
    """The rows of a file whose texts may have quotes around them. Raises ValueError for any that is not one."""
    import csv

    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(file, delimiter=_SUFFIXES[suffix], strict=True)
    rows: Rows = []
    names: list[str] = []
    line = 1
    try:
        for values in reader:
            if not names:
                names = _header(values, suffix)
            elif values and len(values) != len(names):
                own = "commas" if suffix == ".csv" else "tabs"
                message = f"has not {len(names)} columns like the header (quote a text with {own})"
                raise ValueError(f"row {len(rows)} (line {line}) {message}")
            elif values:
                rows.append(dict(zip(names, values, strict=True)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from None
    return rows


def _header(names: list[str], suffix: str) -> list[str]:
    """The names of the columns. Raises ValueError for names that repeat, and for a separator of another kind."""
    if duplicates := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"two columns are called {duplicates[0]!r}")
    if len(names) == 1:
        _refuse_separator(names[0], suffix)
    return names


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def _refuse_separator(header: str, suffix: str) -> None:
    """Raise ValueError if the name of the only column has a separator in it that is not that of the file's kind."""
    own = _SUFFIXES[suffix]
    found = next((name for sign, name in _SEPARATORS.items() if sign in header and sign != own), None)
    if found is not None:
        wanted = _SEPARATORS[own]
        raise ValueError(
            f"its columns are separated by {found}, and a {suffix} file has {wanted} (save it with {wanted})"
        )


_VALUE_BYTES = 128
"""Memory of a value as a Python object, with its share of the row; the length of a text comes on top."""
_BATCH = 4096
"""Rows of Parquet that are read at a time."""


def _parquet(path: Path, room: Room) -> Rows:
    import pyarrow
    import pyarrow.parquet

    rows: Rows = []
    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        room.take(_VALUE_BYTES * sum(chunk.num_values for chunk in chunks), str(path))
        # A text is stored once for all rows that have it, so a row may take as much as a whole chunk of texts.
        largest = max((c.total_uncompressed_size for c in chunks if c.physical_type == "BYTE_ARRAY"), default=1)
        for batch in file.iter_batches(batch_size=max(1, min(_BATCH, room.left // (4 * max(1, largest))))):
            columns = [c.dictionary_decode() if isinstance(c, pyarrow.DictionaryArray) else c for c in batch.columns]
            room.take(sum(column.nbytes for column in columns), str(path))
            rows += pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
            del batch, columns  # before the next ones are read
        named_classes(rows, file.schema_arrow)
    pyarrow.default_memory_pool().release_unused()  # of 18 MB of pictures it kept 50 MB
    return rows


def _hub(data: DataConfig, room: Room) -> Source:
    """A data set by its Hugging Face name (from the hub, or the local cache when offline)."""
    train = _hub_split(data, data.train_split, "data.source", room)
    if data.test_source:
        test: Rows | None = read_rows(data.test_source, "data.test_source", room)
    else:
        test = _hub_split(data, data.test_split, "data.test_split", room) if data.test_split else None
    return Source(str(data.source), train, None, test)


def _hub_split(data: DataConfig, name: str, key: str, room: Room) -> Rows:
    """All rows of one split of a data set by its Hugging Face name."""
    import datasets

    try:
        table = datasets.load_dataset(data.source, data.subset, split=name)
    except Exception as error:  # the library raises many kinds; all mean that loading failed
        reason = str(error).split("\n")[0]
        raise ConfigError.at(key, f"{data.source!r} cannot be loaded: {reason}") from None
    room.take(_VALUE_BYTES * table.num_rows * table.num_columns + table.data.nbytes, str(data.source))
    return dataset_rows(table)
