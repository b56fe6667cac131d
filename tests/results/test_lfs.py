"""Files of models and adapters that a clone without Git LFS has as pointers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rondo
from small_runs import reviews, save_tiny_bert, settings, write_rows

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 438011953\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A configuration and the adapter that it makes."""
    folder = tmp_path_factory.mktemp("made")
    data = {"source": str(write_rows(folder / "rows.csv", reviews(12)))}
    config = settings(save_tiny_bert(folder / "bert"), data=data, rounds=1)
    return config, rondo.run(config, run_dir=folder / "run", device="cpu").run_dir / "adapter"


def broken(folder: str | Path, to: Path, name: str) -> Path:
    shutil.copytree(folder, to)
    (to / name).write_text(POINTER)
    return to


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_model_with_a_pointer_is_named(made: tuple[dict[str, Any], Path], name: str, tmp_path: Path) -> None:
    folder = broken(made[0]["model"]["name"], tmp_path / "bert", name)
    with pytest.raises(rondo.ConfigError, match=rf"model\.name: '.*{name}' is a pointer of Git LFS"):
        rondo.run({**made[0], "model": {"name": str(folder)}}, run_dir=tmp_path / "run", device="cpu")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_adapter_with_a_pointer_is_named(made: tuple[dict[str, Any], Path], name: str, tmp_path: Path) -> None:
    config, adapter = made
    folder = broken(adapter, tmp_path / "adapter", name)
    with pytest.raises(rondo.ConfigError, match=rf"adapter\.start_from: '.*{name}' is a pointer of Git LFS"):
        rondo.run({**config, "adapter": {"start_from": str(folder)}}, run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(rondo.ConfigError, match=rf"ADAPTER_DIR: '.*{name}' is a pointer of Git LFS"):
        rondo.predict(folder, [{"text": "a"}])
