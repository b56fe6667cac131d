"""Models that no task of Rondo's has, federated: speech and pictures with texts, from files, by any trainer."""

from __future__ import annotations

import json
import math
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import rondo

TEXTS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def sounds(folder: Path) -> list[dict[str, str]]:
    """A tone of half a second for each text."""
    rows = []
    for number, text in enumerate(TEXTS):
        tone = np.sin(np.arange(8000) * (0.05 + 0.04 * number)) * 2**14
        with wave.open(str(folder / f"{number}.wav"), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(16000)
            sound.writeframes(tone.astype(np.int16).tobytes())
        rows.append({"file": str(folder / f"{number}.wav"), "text": text})
    return rows


def pictures(folder: Path) -> list[dict[str, str]]:
    """A picture of noise for each text."""
    image, draw, rows = pytest.importorskip("PIL.Image"), np.random.default_rng(0), []
    for number, text in enumerate(TEXTS):
        image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        rows.append({"file": str(folder / f"{number}.png"), "text": text})
    return rows


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("task", "model", "files", "trainers"),
    [
        ("Speech", "whisper", sounds, ("transformers", "own_models:heard")),
        ("Captions", "llava", pictures, ("transformers",)),
    ],
)
def test_model_of_no_task_is_trained_by_any_trainer(
    task: str, model: str, files: Any, trainers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to Rondo's own trainer to rounding: a batch has all rows of a client."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    (tmp_path / "rows.json").write_text(json.dumps(files(tmp_path)))
    config: dict[str, Any] = {
        "rounds": 2,
        "adapter": {"r": 2, "target_modules": ["q_proj", "v_proj"]},
        "model": {"name": f"own_models:{model}", "head": "frozen"},
        "task": {"kind": f"own_models:{task}"},
        "data": {"source": str(tmp_path / "rows.json"), "validation_fraction": 0.0},
        "partition": {"kind": "iid", "clients": 2},
    }
    states = []
    for trainer in (None, *trainers):
        train = {"optimizer": "sgd", "lr": 0.5, "batch_size": 8, "local_epochs": 2, "precision": "exact"}
        train |= {} if trainer is None else {"trainer": trainer}
        result = rondo.run({**config, "train": train}, run_dir=tmp_path / f"run{len(states)}", device="cpu")
        states.append(load_file(result.run_dir / "adapter" / "model.safetensors"))
        losses = [record["loss"] for record in result.history if record.get("loss")]
        assert math.isfinite(losses[0])
        assert losses[-1] < losses[0]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert max(float((state[name] - states[0][name]).abs().max()) for name in state) < 1e-5
