"""A private file is whole or damaged, and nobody but its owner can read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rondo.records import private_file
from rondo.records.durable import Damaged


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    assert private_file.read(path) is None
    for header, body in (({"a": [1, "ä"]}, b"\0\1"), ({}, b"")):
        private_file.write(path, header, body)
        assert private_file.read(path) == (header, body)
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_nobody_else_can_read_it_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in ("file", "file.tmp"):
        (tmp_path / name).write_bytes(b"left by somebody")
        (tmp_path / name).chmod(0o666)
    mask = os.umask(0)
    try:
        private_file.write(path, {}, b"secret")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("place", [0, 31, 32, 40, -1])
def test_damage_shows(tmp_path: Path, place: int) -> None:
    path = tmp_path / "file"
    private_file.write(path, {"a": 1}, b"body")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match="file is not as it was written"):
        private_file.read(path)
    path.write_bytes(content[:20])
    with pytest.raises(Damaged):
        private_file.read(path)
