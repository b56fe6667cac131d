"""The entries of a folder: files with rows, and every other one with the reason why it is not read."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rondo.data.files import excel
from rondo.data.files.columns import has_columns
from rondo.errors import ConfigError, first_of, visible

OF_COLUMNS = (".conll", ".bio", ".iob", ".iob2", ".bioes")
"""Endings of CoNLL's files."""
PLAIN = ".txt"
"""Ending of a plain text, which may be one of CoNLL's files too."""
SUFFIXES = {
    ".csv": ",",
    ".tsv": "	",
    **dict.fromkeys((".json", ".jsonl", ".parquet", excel.SUFFIX, *OF_COLUMNS), ""),
}
"""Endings of files with rows, and the separators of their columns."""
_OF_DATASETS = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files that ``save_to_disk`` writes beside the rows."""
_OF_SYSTEMS = ("thumbs.db", "desktop.ini")
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".npy")
_SHARD = re.compile(r"(.+)-([0-9]+)-of-([0-9]+)")
"""``train-00000-of-00002``."""
TAGS = "tags such as O and B-PER at their ends"
"""Most lines of a CoNLL file end so, in words."""
_SHOWN = 5
"""Most entries of a sentence."""


def suffix_of(path: Path) -> str:
    """The ending that says what is in a file: ``.csv`` for ``north.csv.gz`` too, and ``.conll`` for a ``.txt`` of
    columns."""
    ending = Path(path.stem if path.suffix.lower() == ".gz" else path).suffix.lower()
    return OF_COLUMNS[0] if ending == PLAIN and has_columns(path) else ending


def stem_of(path: Path) -> str:
    """The name of a file without its ending: ``north`` for ``north.csv.gz`` too."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


@dataclass(frozen=True)
class Listing:
    """Some entries of folders.

    ``rows``: files with rows.
    ``others``: other entries, each with the reason why it is not read.
    """

    rows: list[Path]
    others: Sequence[tuple[Path, str]]

    @classmethod
    def of(cls, places: Iterable[Path], *more: str, hidden: bool = False) -> Listing:
        """``places`` sorted out. Marks of systems and programs (``.DS_Store``, ``_SUCCESS``) are in neither part.

        ``more``: more endings of files that are read.
        ``hidden``: whether hidden files are read too.
        """
        rows, others = list[Path](), list[tuple[Path, str]]()
        for place in sorted(places):
            reason = _unread(place, (*SUFFIXES, *more), hidden=hidden)
            if reason is None:
                rows.append(place)
            elif reason:
                others.append((place, reason))
        return cls(rows, others)

    def unread(self) -> str:
        """A sentence about the other entries; empty if there are none."""
        named = [f"{visible(place.name)!r} ({reason})" for place, reason in self.others]
        return f"not read: {first_of(named, _SHOWN)}" if named else ""


def _unread(place: Path, endings: Sequence[str], *, hidden: bool) -> str | None:
    """The reason why an entry is not read; empty for a mark of a system or a program, and None if it is read."""
    known = suffix_of(place) in endings and place.name not in _OF_DATASETS
    if place.name.startswith("~$"):
        return "an Office program has it open"
    if place.name.startswith(".") and not hidden:
        return "it is hidden" if known and not place.is_dir() else ""
    if not known:
        mark = place.name.startswith("_") or place.name in _OF_DATASETS or place.name.lower() in _OF_SYSTEMS
        if mark or place.is_dir():
            return "" if mark else "it is a folder"
        return f"lines without {TAGS}" if suffix_of(place) == PLAIN else "unknown ending"
    if not place.exists():
        return "it is a link to nothing"
    return None if place.is_file() else "it is not a file"


def has_rows(folder: Path) -> bool:
    """Whether a folder has files with rows, or folders of nothing else, or is one that ``datasets`` has written."""
    inner = [place for place in folder.iterdir() if place.is_dir() and not place.name.startswith(".")]
    return is_saved(folder) or bool(_beside(folder)) or (bool(inner) and all(map(_only_rows, inner)))


def row_files(folder: Path) -> list[Path]:
    """The files with rows in a folder, in its ``data``, where a clone of a hub's data set has them, and in inner
    folders of nothing else, which are splits."""
    inner = [place for place in sorted(folder.iterdir()) if place.is_dir() and place.name != "data"]
    return _beside(folder) + [file for place in inner for file in _only_rows(place)]


def split_files(folder: Path, split: str) -> list[Path]:
    """The file of a split in a folder (``train.parquet``, ``train.csv.gz``), all its shards
    (``data/train-00000-of-00002.parquet``), or all files in a folder of its name, as LEAF has them. Raises
    :class:`ConfigError` if several of these are there, or a shard is missing."""
    files = _beside(folder)
    whole = [file for file in files if stem_of(file) == split]
    shards = [file for file in files if (match := _SHARD.fullmatch(stem_of(file))) and match[1] == split]
    inner = _only_rows(folder / split)
    kinds = [*whole, *shards[:1], *inner[:1]]
    if len(kinds) > 1:
        first, second = (file.relative_to(folder).as_posix() for file in kinds[:2])
        message = f"{first!r} and {second!r} in {str(folder)!r} both are the split {split!r}: name a file, or move one"
        raise ConfigError.at("data.source", message)
    if missing := list(_missing(shards)):
        message = f"{str(folder)!r} lacks the shard {missing[0]!r} of the split {split!r}: copy it there too"
        raise ConfigError.at("data.source", message)
    return whole or shards or inner


def _missing(shards: Sequence[Path]) -> Iterator[str]:
    """The names of the shards that are not beside ``shards``."""
    parts = [match for file in shards if (match := _SHARD.fullmatch(stem_of(file))) is not None]
    there = {int(match[2]) for match in parts}
    for match in parts[:1]:
        for number in range(int(match[3])):
            if number not in there:
                yield f"{match[1]}-{number:0{len(match[2])}}-of-{match[3]}"


def unread(folder: Path) -> str:
    """A sentence about the entries of a folder of rows that are not read; empty if there are none."""
    return Listing.of(folder.iterdir()).unread() if folder.is_dir() else ""


def _beside(folder: Path) -> list[Path]:
    """The files with rows in a folder and its ``data``."""
    return [f for place in (folder, folder / "data") if place.is_dir() for f in Listing.of(place.iterdir()).rows]


def _only_rows(folder: Path) -> list[Path]:
    """The files with rows in a folder, if there are no folders and no pictures beside them and it is not one that
    ``datasets`` has written."""
    if not folder.is_dir() or is_saved(folder):
        return []
    found = Listing.of(folder.iterdir())
    pictures = any(place.is_dir() or suffix_of(place) in _PICTURES for place, _ in found.others)
    return [] if pictures else found.rows


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` of ``datasets`` has written the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def copies(files: Sequence[Path]) -> str:
    """A sentence about files with the same content, such as ``north (1).csv``; empty if there are none."""
    by_size: dict[int, list[Path]] = {}
    for file in files:
        by_size.setdefault(file.stat().st_size, []).append(file)
    for alike in by_size.values():
        seen: dict[bytes, Path] = {}
        for file in alike if len(alike) > 1 else ():
            with file.open("rb") as opened:
                other = seen.setdefault(hashlib.file_digest(opened, "blake2b").digest(), file)
            if other != file:
                return f"{str(other)!r} and {str(file)!r} have the same content, and are two clients: move a copy away"
    return ""


def client_listing(pattern: str) -> Listing:
    """The entries of a folder, or those that match a pattern."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        return Listing.of(path.iterdir(), ".npz")
    return Listing.of(map(Path, glob.glob(str(path))), ".npz", hidden=path.name.startswith("."))
