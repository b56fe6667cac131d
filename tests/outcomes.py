"""What a run has left behind, or why it was refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

import rondo


def weights(run_dir: Path) -> dict[str, Tensor]:
    """The tensors of the adapter of a run, by PEFT's names."""
    return safetensors.torch.load_file(run_dir / "adapter" / "adapter_model.safetensors")


def adapter(run_dir: Path) -> dict[str, bytes]:
    """The files of tensors in the adapter of a run, by name."""
    files = {file.name: file.read_bytes() for file in (run_dir / "adapter").glob("*.safetensors")}
    assert files
    return files


def tree(folder: Path) -> dict[str, bytes]:
    """The files below ``folder`` by their paths in it, which are sorted."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def verified(run_dir: str | Path, to: str | Path, **options: Any) -> rondo.Exported:
    """An export that stock libraries load, with the logits of the run."""
    exported = rondo.export(run_dir, to, verify=True, **options)
    assert exported.verification is not None
    assert exported.verification.passed
    return exported


def told(start: Callable[[], object]) -> list[tuple[str, str]]:
    """The paths and messages with which ``start`` is refused, in their order."""
    with pytest.raises(rondo.ConfigError) as caught:
        start()
    return [(problem.path, problem.message) for problem in caught.value.problems]


def problems(start: Callable[[], object]) -> dict[str, str]:
    """The messages with which ``start`` is refused, by path; of several of one path, the first."""
    return dict(reversed(told(start)))
