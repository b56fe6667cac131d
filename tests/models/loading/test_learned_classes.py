"""A head that has learned classes goes on for the classes of these names, or not at all."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers

import rondo
from rondo.models.loading.learned_classes import misplaced, named, of_adapter
from small_runs import reviews, save_tiny_bert, settings, write_rows


@pytest.mark.parametrize(
    ("labels", "learned", "chosen", "words"),
    [
        (["neg", "pos"], ["neg", "pos"], False, ""),
        (["neg", "pos"], ["NEG", "Pos"], False, ""),
        (["neg", "pos"], [], False, ""),
        (["neg", "pos"], ["a", "b", "c"], False, ""),
        # The numbers of rows are those of outputs, except if the head has learned the same numbers otherwise.
        (["0", "1"], ["neg", "pos"], False, ""),
        (["0", "1"], ["1", "0"], False, 'set it to ["0", "1"]'.replace('"0", "1"', '"1", "0"')),
        (["neg", "pos"], ["POS", "neg"], False, 'set it to ["pos", "neg"]'),
        (["neg", "pos"], ["pos", "neg"], True, 'set it to ["pos", "neg"]'),
        (["cold", "warm"], ["neg", "pos"], False, "'neg', 'pos', and 'cold' is not among them"),
        (["cold", "warm"], ["neg", "pos"], True, ""),
        (["a", "b", "d"], ["a", "b", "c"], False, "'d' is not among them"),
        (["a", "b", "d"], ["a", "b", "c"], True, ""),
        (["b", "a", "d"], ["a", "b", "c"], True, "'d' is not among them"),
    ],
)
def test_heads_are_taken_by_name_or_refused(
    labels: Sequence[str], learned: Sequence[str], chosen: bool, words: str
) -> None:
    found = list(misplaced(labels, learned, "the model", chosen=chosen))
    assert [problem.path for problem in found] == ["task.labels"] * bool(words)
    assert [problem.message for problem in found if words not in problem.message] == []


def test_names_of_classes_without_one_are_none() -> None:
    assert named({"1": "LABEL_1", "0": "LABEL_0"}) == ()
    assert named({10: "k", 9: "j", 0: " a "}) == ("a", "j", "k")


@pytest.mark.parametrize("content", [None, "{", '{"a": 1}'])
def test_adapter_that_names_no_classes(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "labels.json").write_text(content)
    assert of_adapter(tmp_path) == ()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("base") / "bert")


def config(model: Path, folder: Path, names: dict[str, str] | None = None, **sections: Any) -> dict[str, Any]:
    rows = [{**row, "label": (names or {}).get(row["label"], row["label"])} for row in reviews(12)]
    return settings(model, data={"source": str(write_rows(folder / "rows.csv", rows))}, rounds=1, **sections)


def refused(tree: dict[str, Any], folder: Path) -> str:
    with pytest.raises(rondo.ConfigError) as caught:
        rondo.run(tree, run_dir=folder / "refused", device="cpu")
    return str(caught.value)


def test_adapter_goes_on_for_the_classes_of_its_own(base: Path, tmp_path: Path) -> None:
    adapter = rondo.run(config(base, tmp_path), run_dir=tmp_path / "run", device="cpu").run_dir / "adapter"
    assert json.loads((adapter / "labels.json").read_text()) == ["neg", "pos"]
    go_on = {"adapter": {"start_from": str(adapter)}}
    for key in ("r", "lora_alpha", "target_modules"):
        go_on["adapter"][key] = None  # type: ignore[assignment]
    rondo.run(config(base, tmp_path, **go_on), run_dir=tmp_path / "same", device="cpu")
    swapped = config(base, tmp_path, task={"labels": ["pos", "neg"]}, **go_on)
    assert f"the adapter {str(adapter)!r} has learned these classes in another order" in refused(swapped, tmp_path)
    others = config(base, tmp_path, {"neg": "cold", "pos": "warm"}, **go_on)
    assert "'neg', 'pos', and 'cold' is not among them" in refused(others, tmp_path)


def test_adapters_head_counts_and_not_the_models(base: Path, tmp_path: Path) -> None:
    """The head of the base model is put away."""
    adapter = rondo.run(config(base, tmp_path), run_dir=tmp_path / "run", device="cpu").run_dir / "adapter"
    other = Path(shutil.copytree(base, tmp_path / "other"))
    known = transformers.BertConfig.from_pretrained(other, id2label={0: "cold", 1: "warm"})
    known.save_pretrained(other)
    go_on = {"adapter": {"start_from": str(adapter), "r": None, "lora_alpha": None, "target_modules": None}}
    rondo.run(config(other, tmp_path, **go_on), run_dir=tmp_path / "on", device="cpu")
    assert "the model has learned the classes 'cold', 'warm'" in refused(config(other, tmp_path), tmp_path)


def test_head_of_another_size_is_told(base: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    known = transformers.BertConfig.from_pretrained(other, id2label=dict(enumerate("abcd")))
    known.save_pretrained(other)
    with pytest.warns(UserWarning, match="the head of its 4 classes is not used, as the rows have 2: a new one"):
        rondo.run(config(other, tmp_path), run_dir=tmp_path / "run", device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*head of its.*")
        rondo.run(config(base, tmp_path), run_dir=tmp_path / "plain", device="cpu")
