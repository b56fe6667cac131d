"""Tensors on the disk, in a temporary file without a name. It vanishes with the process, however that ends."""

from __future__ import annotations

import mmap
import tempfile
import warnings

import torch
from torch import Tensor

_ALIGNED = 64
"""Alignment of torch's tensors in bytes."""


class Spill:
    """Up to ``limit`` bytes of tensors on the disk, read when they are used. Not for several threads at once."""

    def __init__(self, limit: int) -> None:
        self._left = limit // _ALIGNED * _ALIGNED
        self._end = 0
        self._mapped: mmap.mmap | None = None

    def put(self, tensor: Tensor) -> Tensor | None:
        """``tensor`` on the disk, or None where it does not fit. A full or broken disk is told in a warning, and takes
        nothing from then on."""
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        size = -(-len(content) // _ALIGNED) * _ALIGNED
        if size > self._left:
            return None
        try:
            if self._mapped is None:
                self._open()
            self._write(content)
        except OSError as error:
            self._left = 0
            warnings.warn(
                f"{tempfile.gettempdir()} cannot be written: {error.strerror or error}. Layers whose output has no "
                "room in memory are computed anew in every round; set TMPDIR to a folder with room to save the time",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        assert self._mapped is not None
        start = self._end
        self._end, self._left = start + size, self._left - size
        stored = torch.frombuffer(self._mapped, dtype=tensor.dtype, count=tensor.numel(), offset=start)
        return stored.view(tensor.shape)

    def _open(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="rondo-", buffering=0)  # noqa: SIM115 - lives as long as its tensors
        self._file.truncate(self._left)
        self._mapped = mmap.mmap(self._file.fileno(), self._left)

    def _write(self, content: memoryview) -> None:
        """Write to the file and not through the mapping, where a full disk would end the process."""
        self._file.seek(self._end)
        while content:
            content = content[self._file.write(content) :]
