"""Rows of pictures from files that hold nothing else: npz archives, IDX files, and folders with one folder per class.

Each row has the columns ``image`` and ``label``. Pictures of npz and IDX files are views of one array of bytes.
Pictures of folders are paths, which the task opens one by one.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rondo.data.files.room import Room
from rondo.data.files.tables import Rows

Splits: TypeAlias = Mapping[str, Callable[[Room], Rows]]
"""Reads the rows of a split, by its name; a source without splits has the name ``""`` only. A reader raises ValueError
with the fault of a file, or :class:`rondo.errors.ConfigError` if the rows take too much room."""

FILE = "file"
"""The column of a picture's place in the folder that it was read from."""
_TEST = ("test", "validation")
_NAMES = {"train": "train", "test": "test", "t10k": "test", "val": "validation", "valid": "validation"}
_NAMES["validation"] = "validation"
"""Words for a split in the names of files, folders and arrays."""
_ROLES = {**dict.fromkeys(("x", "image", "images", "data"), "image")}
_ROLES |= dict.fromkeys(("y", "label", "labels", "target", "targets"), "label")
"""Words for pictures and labels in the names of arrays."""
_IDX = re.compile(r"(?P<set>.*?)(?P<split>train|t10k|test|val|validation)-images[-.]idx3-ubyte(\.gz)?")
_ROW_BYTES = 400
"""Memory of a row's objects, without the pixels."""


def image_splits(path: Path) -> Splits | None:
    """The splits of ``path``; None if it is not made of pictures. Raises ValueError with the fault of a file, and
    OSError."""
    if path.is_dir():
        return _idx_folder(path) or _class_folders(path)
    if not path.is_file():  # reading a pipe might never end
        return None
    if path.suffix.lower() == ".npz":
        return _npz(path)
    return {"": partial(_idx_rows, path)} if _IDX.fullmatch(path.name) else None


def unlabelled(path: Path) -> Callable[[Room], Rows] | None:
    """Reads pictures that need no labels: a folder of files, or of folders, and an archive with one array of pictures.
    None if ``path`` is neither. Raises ValueError with the fault of a file, and OSError."""
    if path.is_dir() and _idx_folder(path) is None:
        return partial(_picture_files, path)
    if path.is_file() and path.suffix.lower() == ".npz":
        sizes = _arrays(path)
        named = [n for n in sizes if "image" in _roles(n)] or list(sizes)
        return partial(_npz_pictures, path, named[0], sizes) if len(named) == 1 else None
    return None


def _picture_files(folder: Path, room: Room) -> Rows:
    inner = _folders(folder)
    files = [p for place in (inner or [folder]) for p in _files(place)]
    room.take(_ROW_BYTES * len(files), str(folder))
    return [{"image": path, FILE: path.relative_to(folder).as_posix()} for path in files]


def _npz_pictures(path: Path, name: str, sizes: Mapping[str, int], room: Room) -> Rows:
    room.take(sizes[name], str(path))
    with np.load(path, allow_pickle=False) as archive:
        pictures = _array(archive, name)
    if pictures.ndim < 3:
        raise ValueError(f"it has no pictures: array {name} is {' x '.join(map(str, pictures.shape))}")
    return [{"image": p} for p in pictures]


def split(splits: Splits, name: str) -> Callable[[Room], Rows] | None:
    """The reader of split ``name``. Of ``test`` and ``validation``, one stands for the other where that is missing."""
    other = next((n for n in _TEST if n != name), "") if name in _TEST else name
    return splits.get(name) or splits.get(other)


def _rows(pictures: NDArray[Any], labels: NDArray[Any], name: str, room: Room) -> Rows:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or pictures.ndim < 3:
        shapes = f"{' x '.join(map(str, pictures.shape))} pictures and {' x '.join(map(str, labels.shape))} labels"
        raise ValueError(f"{shapes}: give one picture per row (rows x height x width) and one label")
    if len(pictures) != len(labels):
        raise ValueError(f"{len(pictures)} pictures and {len(labels)} labels: give one label per picture")
    room.take(_ROW_BYTES * len(labels), name)
    return [{"image": p, "label": label} for p, label in zip(pictures, labels.tolist(), strict=True)]


def _arrays(path: Path) -> dict[str, int]:
    """The names of an archive's arrays, and their bytes as unpacked."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return {i.filename.removesuffix(".npy"): i.file_size for i in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from None


def _words(name: str) -> list[str]:
    return re.split(r"[_\W]+", name.lower())


def _roles(name: str) -> list[str]:
    return [_ROLES[w] for w in _words(name) if w in _ROLES]


def _npz(path: Path) -> Splits:
    sizes = _arrays(path)
    places: dict[str, dict[str, str]] = {}
    for name in sizes:
        words, roles = _words(name), _roles(name)
        named = [_NAMES[w] for w in words if w in _NAMES]
        if len(roles) == 1 and len(roles) + len(named) == len(words):
            places.setdefault("".join(named[:1]), {}).setdefault(roles[0], name)
    pairs = {where: pair for where, pair in places.items() if len(pair) == 2}
    if not pairs:
        if sizes.keys() == {"data"}:
            raise ValueError(_OF_PFLLIB)
        arrays = ", ".join(sizes) or "none"
        raise ValueError(f"it has no pictures with labels, such as x_train and y_train; its arrays are: {arrays}")
    return {where: partial(_npz_rows, path, pair["image"], pair["label"], sizes) for where, pair in pairs.items()}


_OF_PFLLIB = (
    "its one array, data, is a pickle as PFLlib writes it, which could run code and is not loaded: if you trust the "
    "file, write its arrays by numpy.savez(FILE, **numpy.load(FILE, allow_pickle=True)['data'].item())"
)


def _npz_rows(path: Path, image: str, label: str, sizes: Mapping[str, int], room: Room) -> Rows:
    room.take(sizes[image] + sizes[label], str(path))  # as unpacked, before it is
    with np.load(path, allow_pickle=False) as archive:
        return _rows(_array(archive, image), _array(archive, label), str(path), room)


def _array(archive: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        message = f"its array {name} holds Python objects, a pickle, which could run code and is not loaded: "
        raise ValueError(message + "save it as numbers or as text") from None


def _idx_folder(folder: Path) -> Splits | None:
    matches = [(match, path) for path in sorted(folder.iterdir()) if (match := _IDX.fullmatch(path.name))]
    sets = sorted({match["set"] for match, _ in matches})
    if len(sets) > 1:
        names = ", ".join(path.name for _, path in matches)
        raise ValueError(f"it has several sets of pictures: name one of the files {names}")
    return {_NAMES[match["split"]]: partial(_idx_rows, path) for match, path in matches} or None


def _idx_rows(path: Path, room: Room) -> Rows:
    names = {path.name.replace("-images", "-labels").replace("idx3", "idx1").removesuffix(".gz") + end for end in _GZ}
    labels = next((path.with_name(n) for n in sorted(names) if path.with_name(n).is_file()), None)
    if labels is None:
        raise ValueError(f"the labels of {path.name} are missing: put {min(names)} beside it")
    return _rows(_idx(path, 3, room), _idx(labels, 1, room), str(path), room)


_GZ = ("", ".gz")


def _idx(path: Path, axes: int, room: Room) -> NDArray[np.uint8]:
    """The array of bytes in an IDX file with ``axes`` axes."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            header = file.read(4 + 4 * axes)
            if header[:4] != bytes([0, 0, 8, axes]) or len(header) < 4 + 4 * axes:
                raise ValueError(f"{path.name} is no IDX file of bytes with {axes} axes")
            shape = np.frombuffer(header, ">u4", offset=4).astype(np.int64)
            size = int(np.prod(shape, dtype=object))
            room.take(size, str(path))
            content = file.read(size + 1)
        except (EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path.name} is damaged: {error}") from None
    if len(content) != size:
        raise ValueError(f"{path.name} is damaged: it is {'shorter' if len(content) < size else 'longer'} than it says")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _class_folders(folder: Path) -> Splits | None:
    """Folders of classes, or of splits that hold these. Beside other classes a folder of pictures is a class, whatever
    its name."""
    inner = _folders(folder)
    if not inner:
        return None
    splits = {_NAMES[p.name.lower()]: p for p in inner if p.name.lower() in _NAMES}
    if "train" in splits and not _folders(splits["train"]):
        if deep := [p.name for p in splits.values() if _folders(p)]:
            raise ValueError(
                f"folder {splits['train'].name} holds pictures and folder {deep[0]} holds folders, so they are neither "
                f"classes nor splits: give each class a folder in {splits['train'].name} and in {deep[0]}"
            )
        if len(splits) == len(inner):
            names = " and ".join(p.name for p in inner)
            raise ValueError(
                f"folders {names} hold pictures and no folder per class: give each class a folder in each of them, or "
                "rename them if they are classes"
            )
        splits = {}
    if "train" not in splits:
        splits = {"": folder}
    return {name: partial(_class_rows, path) for name, path in splits.items()}


def _class_rows(folder: Path, room: Room) -> Rows:
    rows: Rows = []
    for inner in _folders(folder):
        files = _files(inner)
        room.take(_ROW_BYTES * len(files), str(folder))
        rows += [{"image": path, "label": inner.name} for path in files]
    if not rows and _files(folder):
        raise ValueError(
            f"folder {folder.name} holds pictures and no folder per class: give each class a folder in it, or set "
            "data.test_split = '' to go without"
        )
    return rows


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
