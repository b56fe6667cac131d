"""Pointers of Git LFS: small texts that a clone without LFS has in place of large files."""

from __future__ import annotations

from pathlib import Path

_BEGIN = b"version https://git-lfs.github.com/spec/"
REMEDY = "is a pointer of Git LFS and not the file itself: run git lfs pull in its repository"
_READ = ("*.json", "*.model", "*.txt", "model.safetensors", "model-*-of-*.safetensors", "adapter_model.safetensors")
"""Files of a model or an adapter that are read."""


def is_pointer(path: Path) -> bool:
    """Whether the file at ``path`` is a pointer. False for what cannot be read, which its reader reports."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGIN)) == _BEGIN
    except OSError:
        return False


def pointer_in(folder: Path) -> Path | None:
    """The first file of a model or an adapter in ``folder`` that is a pointer."""
    files = sorted(file for pattern in _READ for file in folder.glob(pattern) if file.is_file())
    return next(filter(is_pointer, files), None)
