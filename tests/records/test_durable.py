"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.records import durable
from rondo.records.durable import Damaged, Journal, Position
from watched import noted


def test_file_is_written_and_replaced(tmp_path: Path) -> None:
    for content in (b"first", b"", b"x" * 100_000):
        durable.write(tmp_path / "a", content)
        assert (tmp_path / "a").read_bytes() == content
    assert os.listdir(tmp_path) == ["a"]


def test_new_names_are_flushed_once_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure could otherwise lose a file, a folder or a journal whose content is on the disk."""
    names: list[list[str]] = []
    monkeypatch.setattr(durable, "sync", lambda folder: names.append(sorted(os.listdir(folder))))
    durable.write(tmp_path / "file", b"")
    durable.make_folder(tmp_path / "folder")
    journal = Journal(tmp_path / "journal")
    for line in (b"one", b"two"):  # the second brings no new name
        journal.append(line)
    assert names == [["file"], ["file", "folder"], ["file", "folder", "journal"]]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot open folders")
def test_files_and_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's own call, on the file or folder itself; on Windows by none."""
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    (tmp_path / "file").touch()
    paths = (tmp_path, tmp_path / "file")
    for path in paths:
        durable.sync(path)
    assert flushed == [path.stat().st_ino for path in paths]
    monkeypatch.setattr(sys, "platform", "win32")
    durable.sync(tmp_path)
    assert len(flushed) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o000, 0o666)], ids=oct)
def test_file_has_the_mode_of_new_files(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        durable.write(tmp_path / "a", b"text")
        Journal(tmp_path / "b").append(b"line")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [mode, mode]


def test_several_files_are_flushed_once(tmp_path: Path) -> None:
    with noted(durable, "sync") as calls:
        durable.write_all(tmp_path, {"a": b"1", "b": b"2"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}
    assert [call.arguments for call in calls] == [(tmp_path,)]


def test_cause_is_told_where_cleaning_fails_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: Any) -> None:
    """A disk that breaks lets neither the file be written nor its beginning be removed."""

    def broken(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "cleaning")

    def fills(folder: Path) -> None:
        folder.mkdir()
        monkeypatch.setattr(durable, "remove", broken)
        raise OSError(errno.EIO, "filling")

    with pytest.raises(OSError, match="filling"):
        durable.write_folder(tmp_path / "folder", fills)
    monkeypatch.setattr(Path, "unlink", broken)
    with fails_at("replace", error=OSError(errno.EIO, "replacing")), pytest.raises(OSError, match="replacing"):
        durable.write(tmp_path / "a", b"new")


def test_folder_made_by_another_process_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the making."""
    (tmp_path / "folder").mkdir()
    looks = iter([False])
    monkeypatch.setattr(Path, "is_dir", lambda path: next(looks, True))
    durable.make_folder(tmp_path / "folder")
    assert next(looks, None) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ["open", "write", "fsync", "replace"])
def test_failed_write_leaves_the_old_file(name: str, code: int, tmp_path: Path, fails_at: Any) -> None:
    durable.write(tmp_path / "a", b"old")
    with fails_at(name, error=OSError(code, os.strerror(code))), pytest.raises(OSError) as error:
        durable.write(tmp_path / "a", b"new")
    assert error.value.errno == code
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, bytes(data[:3])))
    durable.write(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the file size stands in for the disk's, so the write fails in the system and not in a stub."""
    script = """
import resource, signal, sys
from pathlib import Path
from rondo.records import durable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
durable.write(Path(sys.argv[1]), b"x" * 999)
try:
    durable.write(Path(sys.argv[1]), b"y" * 5000)
except OSError as error:
    print(error.errno)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(errno.EFBIG), "")
    assert (tmp_path / "a").read_bytes() == b"x" * 999
    assert os.listdir(tmp_path) == ["a"]


def test_failed_append_leaves_the_file_as_it_was(tmp_path: Path, fails_at: Any) -> None:
    durable.append(tmp_path / "a", b"one\n")
    for call in ("write", "fsync"):
        with fails_at(call), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            durable.append(tmp_path / "a", b"half")
        assert (tmp_path / "a").read_bytes() == b"one\n"
    durable.append(tmp_path / "a", b"two\n")
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\n"


# Journals

lines = st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=6)


@given(before=lines, after=lines)
def test_journal_is_cut_at_its_position_and_continued(
    tmp_path_factory: pytest.TempPathFactory, before: list[bytes], after: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "lines"
    journal = Journal(path)
    for line in before:
        journal.append(line)
    position = journal.position
    for line in after:
        journal.append(line)
    again = Journal(path)
    assert again.lines(position) == before
    again.go_on(position)
    assert again.position == position
    again.append(b"next")
    assert path.read_bytes() == b"".join(line + b"\n" for line in [*before, b"next"])
    assert Journal(path).lines(again.position) == [*before, b"next"]


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_failed_line_is_overwritten(name: str, tmp_path: Path, fails_at: Any) -> None:
    journal = Journal(tmp_path / "lines")
    journal.append(b"one")
    before = journal.position
    with fails_at(name), pytest.raises(OSError):
        journal.append(b"a longer line")
    assert journal.position == before
    journal.append(b"two")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("content", [b"on", b"onf\n", b""])
def test_changed_journal_is_noticed(content: bytes, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "lines")
    journal.append(b"one")
    (tmp_path / "lines").write_bytes(content)
    with pytest.raises(Damaged, match=r"^lines (has . bytes, 4 were written|is not as it was written \(SHA-256\))$"):
        Journal(tmp_path / "lines").lines(journal.position)
    (tmp_path / "lines").unlink()
    with pytest.raises(Damaged, match="has 0 bytes, 4 were written"):
        Journal(tmp_path / "lines").go_on(journal.position)


def test_absent_journal_has_the_starting_position(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "lines")
    assert journal.position == Position(0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    assert journal.lines(journal.position) == []


# Locks


def test_folder_is_locked_by_one_process(tmp_path: Path) -> None:
    script = (
        "import sys, json; from pathlib import Path; from rondo.records import durable\n"
        "with durable.locked(Path(sys.argv[1])) as alone: print(json.dumps(alone))"
    )

    def other() -> bool:
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
        alone: bool = json.loads(done.stdout)
        return alone

    with durable.locked(tmp_path) as alone:
        assert alone
        assert not other()
    assert other()


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    """The leftover of a failed write is removed."""
    target = tmp_path / "result"

    def fill(text: str) -> Callable[[Path], None]:
        def work(folder: Path) -> None:
            folder.mkdir()
            (folder / text).write_text(text)

        return work

    def fails(folder: Path) -> None:
        fill("half")(folder)
        raise OSError(errno.ENOSPC, "full")

    durable.write_folder(target, fill("one"))
    with pytest.raises(OSError, match="full") as error:
        durable.write_folder(target, fails)
    assert error.value.filename == str(target)  # not the temporary one, which is gone
    assert [p.name for p in target.iterdir()] == ["one"]
    durable.write_folder(target, fill("two"))
    assert [p.name for p in target.iterdir()] == ["two"]
    assert [p.name for p in tmp_path.iterdir()] == ["result"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)], ids=oct)
def test_files_of_a_folder_have_the_mode_of_new_files(tmp_path: Path, mask: int, mode: int) -> None:
    """Some libraries write files that only their owner can read."""

    def fill(folder: Path) -> None:
        (folder / "inner").mkdir(parents=True)
        for file in (folder / "a", folder / "inner" / "b"):
            file.write_text("text")
            file.chmod(0o600)

    before = os.umask(mask)
    try:
        durable.write_folder(tmp_path / "result", fill)
    finally:
        os.umask(before)
    files = [p for p in (tmp_path / "result").rglob("*") if p.is_file()]
    assert [p.stat().st_mode & 0o777 for p in files] == [mode, mode]


def test_folder_is_flushed_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder in it, and afterwards its new name."""
    done: list[str] = []
    sync, replace = durable.sync, os.replace
    monkeypatch.setattr(durable, "sync", lambda path: (done.append(f"flush {path.name}"), sync(path)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))

    def fill(folder: Path) -> None:
        (folder / "inner").mkdir(parents=True)
        (folder / "a").write_text("a")
        (folder / "inner" / "b").write_text("b")

    durable.write_folder(tmp_path / "result", fill)
    assert sorted(done[:4]) == ["flush a", "flush b", "flush inner", "flush result.rondo.tmp"]
    assert done[4:] == ["replace", f"flush {tmp_path.name}"]


def test_users_folder_of_a_like_name_stays(tmp_path: Path) -> None:
    (tmp_path / "result.tmp").mkdir()
    durable.write_folder(tmp_path / "result", Path.mkdir)
    assert {p.name for p in tmp_path.iterdir()} == {"result", "result.tmp"}


def test_leftover_file_in_the_way_of_a_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "result.rondo.tmp").write_text("left")
    durable.write_folder(tmp_path / "result", Path.mkdir)
    assert [p.name for p in tmp_path.iterdir()] == ["result"]
