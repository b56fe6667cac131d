"""The comparison of an export with stock libraries: where it passes, and that it sees another result."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch

import rondo
from rondo.models.forms import transformer
from rondo.results import export
from rondo.results.export import Verification, check_target
from small_runs import reviews, save_tiny_bert, settings, write_rows

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.mark.parametrize(
    ("difference", "largest", "passed"),
    [
        (1e-4, 0.5, True),  # below 1 the tolerance is absolute
        (1.1e-4, 0.5, False),
        (2.9e-4, 3.0, True),
        (3.1e-4, 3.0, False),
        (3.0, 5.0, False),
        (float("nan"), 5.0, False),
    ],
)
def test_difference_is_held_against_the_largest_output(difference: float, largest: float, passed: bool) -> None:
    assert Verification(difference, largest).passed == passed


def test_other_files_than_the_result_do_not_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = str(write_rows(tmp_path / "rows.csv", reviews(12)))
    config = settings(save_tiny_bert(tmp_path / "bert"), data={"source": rows}, rounds=1, train={"lr": 0.05})
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    honest = rondo.export(result.run_dir, tmp_path / "honest", verify=True).verification
    assert honest is not None
    assert honest.passed
    assert honest.max_difference < 1e-4 < honest.largest
    stock = transformer.AdaptedTransformer._stock

    def changed(model: transformer.AdaptedTransformer, folder: Path) -> object:
        """What stock libraries would load from a file with a larger B."""
        file = folder / "adapter_model.safetensors"
        tensors = safetensors.torch.load_file(file)
        safetensors.torch.save_file({n: 3 * t if "lora_B" in n else t for n, t in tensors.items()}, file)
        return stock(model, folder)

    monkeypatch.setattr(transformer.AdaptedTransformer, "_stock", changed)
    other = rondo.export(result.run_dir, tmp_path / "other", verify=True).verification
    assert other is not None
    assert not other.passed
    assert export.Exported(1, 0.0, other).verification is other


def test_folder_that_an_export_can_take_the_place_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is new or empty, and no mount and not the working folder, which cannot be renamed."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path / "empty")
    assert check_target(tmp_path / "new") == tmp_path / "new"
    for place, reason in ((".", "cannot be replaced"), ("../file", "is not a folder"), ("..", "is not empty")):
        with pytest.raises(rondo.ConfigError, match=reason):
            check_target(place)
    monkeypatch.chdir(tmp_path)
    assert check_target(tmp_path / "empty") == tmp_path / "empty"
    monkeypatch.setattr(Path, "is_mount", lambda path: True)
    with pytest.raises(rondo.ConfigError, match="cannot be replaced"):
        check_target(tmp_path / "empty")
