"""Tensors on the disk: as they were put there, and gone with the process."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rondo.models.shortcuts.prefix import Spill
from watched import failing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype, folder: Path) -> None:
    spill = Spill(10_000)
    tensors = [torch.randn(n, 3).to(dtype) for n in (7, 1, 50)]
    stored = [spill.put(t) for t in tensors]
    torch.testing.assert_close(list(stored), list(tensors), rtol=0, atol=0)
    assert {s.data_ptr() % 64 for s in stored} == {0}
    assert spill.put(torch.randn(3, 5).T).shape == (5, 3)


def test_file_has_no_name(folder: Path) -> None:
    """So nothing is left when the process is killed."""
    spill = Spill(10_000)
    stored = spill.put(torch.ones(100))
    assert list(folder.iterdir()) == []
    del spill
    assert stored.sum() == 100  # the file lives as long as a tensor in it


def test_tensors_beyond_the_limit_are_refused(folder: Path) -> None:
    spill = Spill(256)
    assert spill.put(torch.ones(33)) is not None  # 132 bytes, and 64 bytes at a time
    assert spill.put(torch.ones(17)) is None
    assert spill.put(torch.ones(16)) is not None
    assert spill.put(torch.ones(1)) is None
    assert Spill(0).put(torch.ones(1)) is None


def test_partial_writes_are_continued(folder: Path) -> None:
    spill = Spill(10_000)
    spill.put(torch.zeros(1))

    class Slow:
        seek = spill._file.seek

        def write(self, content: memoryview, write: Callable[[memoryview], int] = spill._file.write) -> int:
            return write(content[:7])

    spill._file = Slow()  # type: ignore[assignment]
    tensor = torch.randn(100)
    assert spill.put(tensor).equal(tensor)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["_open", "_write"])
def test_full_disk_is_told_once_and_no_error(name: str, folder: Path) -> None:
    spill = Spill(10_000)
    kept = spill.put(torch.ones(3)) if name == "_write" else None
    full = failing(Spill, name, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with full, pytest.warns(RuntimeWarning, match=f"{folder} cannot be written: No space left on device") as told:
        assert [spill.put(torch.ones(3)) for _ in range(3)] == [None] * 3
    assert len(told) == 1
    assert kept is None or kept.sum() == 3
