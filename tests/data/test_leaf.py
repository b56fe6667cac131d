"""Files of LEAF: rows of many users in one file, folders with several, and test rows of each user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rondo
from leaf_files import femnist, sent140, write_leaf, write_vectors
from rondo.config import ConfigError, load
from rondo.data import sources
from rondo.data.sources import read_rows


def test_rows_have_their_user(tmp_path: Path) -> None:
    rows = read_rows(write_leaf(tmp_path / "a.json", {"b": (["x", "y"], ["n", "m"]), "a": (["z"], ["n"])}), "key")
    assert rows == [{"user": u, "x": x, "y": y} for u, x, y in (("b", "x", "n"), ("b", "y", "m"), ("a", "z", "n"))]


def test_texts_have_a_column_each_and_pixels_are_an_array(tmp_path: Path) -> None:
    tweet = read_rows(write_leaf(tmp_path / "s.json", sent140(1, 2)), "key")[1]
    assert {**tweet, "x4": tweet["x4"][-8:]} == {
        "user": "user0", "x0": "1", "x1": "Mon Apr 06", "x2": "NO_QUERY", "x3": "user0", "x4": "good day", "y": 1,
    }  # fmt: skip
    users = femnist(1, 2)
    letter = read_rows(write_leaf(tmp_path / "f.json", users), "key")[1]
    np.testing.assert_array_equal(letter["x"], np.float32(users["f_00000"][0][1]))


def test_split_is_all_files_of_a_folder(tmp_path: Path) -> None:
    for number in range(2):
        write_leaf(
            tmp_path / "train" / f"all_data_{number}_niid_0_keep_50_train_9.json", sent140(2, 3, first=2 * number)
        )
    write_leaf(tmp_path / "test" / "all_data_0_niid_0_keep_50_test_9.json", sent140(4, 2))
    keys = {"task": {"text": "x4", "label": "y"}, "partition": {"kind": "natural", "column": "user"}}
    source = sources.load(load({**keys, "data": {"source": str(tmp_path), "test_split": "test"}}))
    assert [row["user"] for row in source.train or ()] == [f"user{n}" for n in range(4) for _ in range(3)]
    assert len(source.test or ()) == 8
    with pytest.raises(ConfigError, match=r"no 'validation' file in .*; there are: test/all_data_0_niid_0"):
        sources.load(load({**keys, "data": {"source": str(tmp_path), "test_split": "validation"}}))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "user_data has no lists x and y of user 'a'"),
        ({"a": {"x": [1, 2], "y": [1]}}, "user 'a' has 2 values in x and 1 in y"),
        ({"a": {"x": "text", "y": [1]}}, "user_data has no lists x and y of user 'a'"),
        ({"a": None}, "user_data has no lists x and y of user 'a'"),
    ],
)
def test_faulty_user_is_named(data: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"users": ["a"], "num_samples": [1], "user_data": data}))
    with pytest.raises(ConfigError, match=words):
        read_rows(tmp_path / "a.json", "data.source")


def test_file_of_many_users_is_no_clients_own(tmp_path: Path) -> None:
    """Its users would be one client."""
    write_leaf(tmp_path / "sites" / "a.json", sent140(3, 2))
    data = {"clients_from": str(tmp_path / "sites")}
    with pytest.raises(
        ConfigError, match=r"has the rows of 3 clients, as LEAF writes them: .*partition.column = 'user'"
    ):
        sources.load(load({"task": {"text": "x4", "label": "y"}, "data": data}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["femnist", "sent140"])
def test_run_scores_each_user_on_its_own_test_rows(kind: str, tmp_path: Path) -> None:
    users = {"femnist": femnist, "sent140": sent140}[kind]
    write_leaf(tmp_path / "data" / "train" / "a.json", users(4, 12))
    write_leaf(tmp_path / "data" / "train" / "b.json", users(4, 12, 4))
    write_leaf(tmp_path / "data" / "test" / "a.json", users(8, 3, seed=1))
    task: dict[str, Any] = {"text": "x4", "label": "y", "max_length": 8}
    model: dict[str, Any] = {"name": "builtin:lstm", "vectors": str(write_vectors(tmp_path / "v.txt"))}
    if kind == "femnist":
        task = {"kind": "image-classification", "image": "x", "label": "y", "image_shape": [28, 28, 1]}
        model = {"name": "builtin:2nn"}
    config = {
        "rounds": 2,
        "algorithm": {"name": "fedrep"},
        "task": task,
        "model": model,
        "data": {"source": str(tmp_path / "data"), "test_split": "test"},
        "partition": {"kind": "natural", "column": "user", "clients": 6},
        "train": {"optimizer": "sgd", "lr": 0.1},
        "evaluation": {"clients_every": 1},
    }
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert result.history[-1]["scores"]["personal"]["accuracy"]["clients"] == 6
    again = rondo.evaluate(result.run_dir, device="cpu")
    assert again["test"]["accuracy"] == result.metrics["cold_start"]["accuracy"]
