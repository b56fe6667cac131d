"""An image model of transformers with adapters: a run, its export, predictions, and models that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import rondo
from outcomes import verified
from rondo.data.demo.digits import digits
from rondo.errors import ConfigError


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision transformer for digits with random weights."""
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def config(vit: Path, **task: Any) -> dict[str, Any]:
    return {
        "rounds": 1,
        "algorithm": {"name": "fedit"},
        "adapter": {"r": 2},
        "model": {"name": str(vit)},
        "task": {"kind": "image-classification", **task},
        "data": {"max_train_rows": 160, "max_test_rows": 20},
        "partition": {"kind": "iid", "clients": 4},
        "train": {"lr": 0.01, "batch_size": 32, "precision": "exact"},
        "evaluation": {"diagnostics_every": 0},
    }


@pytest.fixture(scope="module")
def finished(vit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run") / "run"
    rondo.run(config(vit, augment="crop-flip"), run_dir=run_dir)
    return run_dir


@pytest.mark.slow
def test_run_writes_pictures_of_its_clients(finished: Path) -> None:
    assert (finished / "partition-samples.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("merged", [False, True], ids=["adapter", "merged"])
def test_export_has_the_runs_logits(
    merged: bool, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    verified(finished, tmp_path / "out", merged=merged)
    assert not [w for w in recwarn if issubclass(w.category, FutureWarning)]
    assert "100%" not in capfd.readouterr().err  # a progress bar of transformers
    assert "image-classification" in (tmp_path / "out" / "README.md").read_text()


def test_predictions_are_those_of_the_evaluation(finished: Path) -> None:
    rows = digits()[1]
    predictions = rondo.predict(finished, [{"image": row["image"]} for row in rows])
    right = sum(p["label"] == str(row["label"]) for p, row in zip(predictions, rows, strict=True))
    scores = rondo.evaluate(finished / "adapter", data=rows)
    assert right / len(rows) == pytest.approx(scores["test"]["accuracy"])


def test_bad_picture_to_predict_is_named(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\[1\], column 'image': the picture is 4 x 4 with"):
        rondo.predict(finished, [{"image": np.zeros((n, n), np.uint8)} for n in (8, 4)])


def test_model_of_another_size_is_refused(vit: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        rondo.run(config(vit, image_size=16, image_shape=[16, 16, 3]), run_dir=tmp_path / "run")
    assert [str(p) for p in caught.value.problems] == [
        "task.image_size: this model takes pictures of 8 x 8 pixels, and these are 16 x 16: set it to 8",
        "task.image_shape: this model takes 1 channels, and the pictures have 3: set it to [8, 8, 1]",
    ]


def test_regression_has_no_model_of_transformers(vit: Path, tmp_path: Path) -> None:
    settings = config(vit) | {"task": {"kind": "regression", "features": ["a"], "target": "b"}}
    rows = [{"a": i, "b": 2 * i} for i in range(40)]
    with pytest.raises(ConfigError, match="transformers has no models for regression: name a network"):
        rondo.run(settings, train=rows, run_dir=tmp_path / "run")


MODELS = {
    # Its first convolution does not cast the pixels.
    "Swin": {"image_size": 8, "patch_size": 2, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 2},
    # It says nothing of the pictures' size.
    "ResNet": {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [("Swin", ["q_proj", "v_proj"]), ("ResNet", ["convolution"])])
def test_model_of_another_family_runs_in_fast(name: str, layers: list[str], tmp_path: Path) -> None:
    options = {"num_channels": 1, **MODELS[name]}
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))
    model.save_pretrained(tmp_path / "model")
    settings = config(tmp_path / "model", image_shape=[8, 8, 1])
    settings |= {"adapter": {"r": 2, "target_modules": layers}, "train": {"lr": 0.01, "precision": "fast"}}
    rondo.run(settings, run_dir=tmp_path / "run")
    verified(tmp_path / "run", tmp_path / "out")
    with pytest.raises(ConfigError, match="this model takes 1 channels"):
        rondo.run(settings | {"task": {**settings["task"], "image_shape": [8, 8, 3]}}, run_dir=tmp_path / "other")
