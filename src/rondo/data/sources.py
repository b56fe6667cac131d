"""Rows from a file, a folder, a Hugging Face data set or the embedded default."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rondo.config import packages
from rondo.config.checks import data_source, is_path, missing_files
from rondo.config.hub import asked
from rondo.config.inputs import AT_SITES, BUILTIN_DATA, BUILTIN_IMAGES, GIVEN, LINEAR, DataConfig, plain_name
from rondo.config.schema import RunConfig
from rondo.data.files.formats import VALUE_BYTES, read_file, saved_rows
from rondo.data.files.image_files import Splits, image_splits, split, unlabelled
from rondo.data.files.listing import (
    PLAIN,
    SUFFIXES,
    TAGS,
    client_listing,
    copies,
    has_rows,
    is_saved,
    row_files,
    split_files,
    stem_of,
    suffix_of,
    unread,
)
from rondo.data.files.placed import Counted, Indexed, PlacedRows, joined
from rondo.data.files.room import OtherForm, Room, TextForm
from rondo.data.files.tables import Rows, Table, dataset_rows, plain_columns, rows_of
from rondo.errors import ConfigError, Problem


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
    test_clients: Mapping[str, Rows] | None = None
    """Test rows of each client, in place of ``test``."""
    test_key: str = "data.test_source"
    """The key, or the argument, that names ``test_clients``."""


def load(
    config: RunConfig,
    train: Table | None = None,
    test: Table | Mapping[str, Table] | None = None,
    clients: Mapping[str, Table] | None = None,
) -> Source:
    """Load the rows that ``[data]`` names. Raises :class:`ConfigError` with key path, row and reason.

    ``train``, ``test``, ``clients``: rows in place of ``data.source``, ``data.test_source`` and ``data.clients_from``.
    Test rows may be by client.
    """
    data = config.data
    if test is not None:
        data = data.model_copy(update={"test_source": None, "test_split": ""})
        source = load(config.model_copy(update={"data": data}), train, None, clients)
        if isinstance(test, Mapping):
            return replace(source, test_clients=_by_client(test, "test"), test_key="test")
        return replace(source, test=rows_of(test, "test"))
    if problems := list(missing_files(config)):
        raise ConfigError(problems)
    if data.clients_from == AT_SITES and clients is None:
        message = "the rows of a federation are at its sites: name a file of your own by --data"
        raise ConfigError.at("data.clients_from", message)
    if problems := list(_twice(config, train is None and clients is None)):
        raise ConfigError(problems)
    room = Room.of(data)
    source = _first(config, train, clients, room)
    more = {name: _more_rows(data, name, room) for name in data.more_tests}
    return replace(source, more_tests=more)


def _twice(config: RunConfig, from_files: bool) -> Iterator[Problem]:
    """Files of tests whose rows are trained on, or are another test's. ``from_files``: whether training rows are."""
    data, uses = config.data, dict[Path, str]()
    if from_files and data.clients_from is not None:
        uses = {file.resolve(): "data.clients_from" for file in client_listing(_clients_and_tests(data)[0]).rows}
    elif from_files and data.source is not None:
        source = Path(data.source).expanduser()
        files = split_files(source, data.train_split) if source.is_dir() else [source]
        uses = {file.resolve(): "data.source" for file in files if suffix_of(file) in SUFFIXES}
    tests = [("data.test_source", file) for file in _test_files(data)]
    tests += [(f"data.more_tests.{name}", Path(file)) for name, file in data.more_tests.items() if is_path(file)]
    for key, file in tests:
        other = uses.setdefault(file.expanduser().resolve(), key)
        if other != key:
            tested = other in ("data.test_source", *(f"data.more_tests.{name}" for name in data.more_tests))
            fate = "is a test set already, as" if tested else "would be trained on and tested on: it is in"
            yield Problem(key, f"{str(file)!r} {fate} {other}; name another file, or move it")


def _test_files(data: DataConfig) -> list[Path]:
    """The file or the files of ``data.test_source``."""
    if data.test_source is None:
        return []
    by_client = _clients_and_tests(data)[1] if data.clients_from is not None else None
    return client_listing(by_client).rows if by_client is not None else [Path(data.test_source)]


def _clients_and_tests(data: DataConfig) -> tuple[str, str | None]:
    """The folders or patterns of the files with each client's training rows, and with each client's test rows; None for
    those where the test set is in common, or none.

    ``data.clients_from`` may name a folder that has both, as PFLlib lays them out. Files beside them are not read then.
    """
    clients, tests = str(data.clients_from), data.test_source
    names = [data.test_split, "test", "validation"] if data.test_split else []
    inner = [Path(clients).expanduser() / name for name in (data.train_split, *names)]
    train, *others = [str(folder) if folder.is_dir() and client_listing(str(folder)).rows else "" for folder in inner]
    if train and any(others):
        clients, tests = train, tests or next(filter(None, others))
    if tests is None:
        return clients, None
    place = Path(tests).expanduser()
    by_client = "*" in tests or (place.is_dir() and not is_saved(place) and bool(client_listing(tests).rows))
    return clients, tests if by_client else None


def _by_client(tables: Mapping[str, Table], argument: str) -> dict[str, Rows]:
    if not tables:
        raise ConfigError.at(argument, "it has no clients: give rows by client id")
    names = {name: plain_name(name) for name in tables}
    if same := [name for name, plain in names.items() if list(names.values()).count(plain) > 1]:
        raise ConfigError.at(argument, f"{same[0]!r} and {same[1]!r} are one client, {names[same[0]]!r}: rename one")
    return {names[name]: rows_of(table, f"{argument}[{name!r}]") for name, table in tables.items()}


def _more_rows(data: DataConfig, name: str, room: Room) -> Rows:
    """The rows of a test set of ``data.more_tests``."""
    value, key = data.more_tests[name], f"data.more_tests.{name}"
    if is_path(value):
        return read_rows(value, key, room)
    folder = Path(str(data.source)).expanduser()
    if data.source in (None, GIVEN) or data.clients_from is not None or folder.is_file():
        raise ConfigError.at(key, f"{value!r}: the rows have no splits, so name a file ({', '.join(SUFFIXES)})")
    if not folder.is_dir():
        return _hub_split(data, value, key, room)
    return _split_rows(folder, value, key, room)


def _first(config: RunConfig, train: Table | None, clients: Mapping[str, Table] | None, room: Room) -> Source:
    """The training rows and the first test set."""
    data = config.data
    if data.clients_from is not None or train is not None:
        by_client, tests = None, None
        if data.clients_from is not None:
            files, tests = _clients_and_tests(data)
            by_client = client_rows(files, "data.clients_from", room) if clients is None else None
        if clients is not None:
            by_client = _by_client(clients, "clients")
        rows = rows_of(train, "train") if train is not None else None
        name = data.clients_from or GIVEN
        if tests is not None:
            test_clients = client_rows(tests, "data.test_source", room)
            return Source(name, rows, by_client, None, test_clients=test_clients)
        test_rows = read_rows(data.test_source, "data.test_source", room) if data.test_source else None
        return Source(name, rows, by_client, test_rows)
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
        raise ConfigError.at("data.source", f"{error}: {packages.command('sklearn')}") from None
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
        pictures = None if path.is_dir() and has_rows(path) else image_splits(path)
    if pictures is not None:
        return _of_pictures(path, pictures, data, room)
    test = read_rows(data.test_source, "data.test_source", room) if data.test_source else None
    if not path.is_dir() or (path / "state.json").is_file():
        return Source(str(path), read_rows(path, "data.source", room), None, test)
    train = _split_rows(path, data.train_split, "data.train_split", room)
    if test is None and data.test_split:
        test = _split_rows(path, data.test_split, "data.test_split", room)
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


def _split_rows(folder: Path, split: str, key: str, room: Room) -> Rows:
    """The rows of a split in a folder. ``key``: the key that names the split."""
    if is_saved(folder / split):
        return read_rows(folder / split, "data.source", room)
    files = split_files(folder, split)
    _tell("data.source", unread(folder / split))
    if not files:
        saved = [place.name for place in sorted(folder.iterdir()) if is_saved(place)]
        names = ", ".join([file.relative_to(folder).as_posix() for file in row_files(folder)] + saved) or "none"
        raise ConfigError.at(key, f"no {split!r} file in {str(folder)!r}; there are: {names}")
    return joined([read_rows(file, "data.source", room) for file in files])


def client_rows(pattern: str, key: str, room: Room) -> dict[str, Rows]:
    """The rows of each client, from one file per client. The client's id is the file's name without its ending. Raises
    :class:`ConfigError` under ``key``."""
    found = client_listing(pattern)
    files = found.rows
    if not files:
        endings, others = ", ".join([*SUFFIXES, ".npz"]), found.unread()
        reason = f"{pattern!r} ({others})" if others else repr(pattern)
        raise ConfigError.at(key, f"no data files ({endings}, also .gz) match {reason}; name others")
    _tell(key, found.unread())
    ids = [plain_name(stem_of(file)) for file in files]
    if len(set(ids)) == 1 and len({file.parent for file in files}) == len(files) > 1:  # a folder per client
        ids = [plain_name(file.parent.name) for file in files]
    if duplicates := sorted({i for i in ids if ids.count(i) > 1}):
        raise ConfigError.at(key, f"two files would be client {duplicates[0]!r}; rename one")
    _tell(key, copies(files))
    return {client: read_rows(file, key, room, one_client=True) for client, file in zip(ids, files, strict=True)}


def _tell(key: str, sentence: str) -> None:
    if sentence:
        warnings.warn(f"{key}: {sentence}", stacklevel=2)


def read_rows(path: str | os.PathLike[str], key: str, room: Room | None = None, *, one_client: bool = False) -> Rows:
    """All rows of a CSV, TSV, JSON, JSON lines or Parquet file. Raises :class:`ConfigError` under ``key``.

    ``room``: the memory for rows; left out, a room of its own.
    ``one_client``: whether the rows should be those of a single client.
    """
    path, room = Path(path).expanduser(), room if room is not None else Room()
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading it might never end
        raise ConfigError.at(key, f"{str(path)!r} is a pipe or a device, not a file; name a file with rows")
    if path.is_dir() and is_saved(path):
        with _reading(path, key):
            return _some(saved_rows(path, room), path, key)
    if suffix_of(path) not in SUFFIXES:
        return _picture_rows(path, key, room)
    with _reading(path, key, room):
        rows = read_file(path, room, one_client=one_client)
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
            known = ", ".join([*SUFFIXES, ".npz"])
            if suffix_of(path) == PLAIN and path.is_file():
                message = f"{str(path)!r} has lines without {TAGS}: call it {path.stem}.conll if it is one of CoNLL's "
                raise ConfigError.at(key, f"{message}all the same, or save its rows as .csv or .jsonl")
            raise ConfigError.at(key, f"{str(path)!r}: unknown ending; known: {known}, and IDX files")
        if len(splits) > 1:
            raise ConfigError.at(key, f"{str(path)!r} has the splits {', '.join(splits)}: name a file with one")
        return _some(next(iter(splits.values()))(room), path, key)


def _some(rows: Rows, path: Path, key: str) -> Rows:
    if not rows:
        raise ConfigError.at(key, f"{str(path)!r} has no rows; name a file that has some")
    return plain_columns(rows if isinstance(rows, PlacedRows) else PlacedRows(rows, Counted(str(path))), key)


@contextmanager
def _reading(path: Path, key: str, room: Room | None = None) -> Iterator[None]:
    """Turn the errors of reading ``path`` into :class:`ConfigError` under ``key``. ``room``: where it may be a text."""
    try:
        yield
    except ConfigError:
        raise
    except OtherForm as form:
        raise ConfigError.at(key, f"{str(path)!r} {form}") from None
    except OSError as error:
        raise ConfigError.at(key, f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeError:
        encoding = "UTF-8" if room is None or room.form.codec == "utf-8-sig" else room.form.encoding
        keys = TextForm.keys if room is None else room.form.keys
        remedy = f'set {keys}encoding, such as "cp1252", which Excel writes in Western Europe, or save it as UTF-8'
        raise ConfigError.at(key, f"{str(path)!r} is not {encoding} text; {remedy}") from None
    except Exception as error:  # report a parser's complaint in its own words
        what = "folder of pictures" if path.is_dir() else f"{path.suffix[1:]} file"
        raise ConfigError.at(key, f"{str(path)!r} is not a valid {what}: {error}; mend it") from None


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

    with asked(key, str(data.source), "datasets"):
        try:
            table = datasets.load_dataset(data.source, data.subset, split=name)
        except Exception as error:  # the library raises many kinds; all mean that loading failed
            reason = str(error).split("\n")[0]
            raise ConfigError.at(key, f"{data.source!r} cannot be loaded: {reason}") from None
    room.take(VALUE_BYTES * table.num_rows * table.num_columns + table.data.nbytes, str(data.source))
    return plain_columns(PlacedRows(dataset_rows(table), Indexed(name)), key)
