"""Test rows of each client: from folders, a column or a program, and scores on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rondo
from outcomes import told
from rondo.config.inputs import AT_SITES
from rondo.config.load import load
from rondo.errors import ConfigError
from rondo.federation.server.remote_run import check
from small_runs import dying, write_rows

TRAINED, TESTED = {"a": 24, "b": 40, "c": 16}, {"a": 6, "b": 4, "c": 10}


def numbers(client: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Two numbers, and a class that each client draws a line of its own for."""
    g, turn = np.random.default_rng([ord(client), seed]), ord(client) % 3
    made = []
    for place in range(count):
        x = g.normal(size=2).round(3)
        label = "same" if place < 2 and seed else ("right" if x[turn % 2] * (1, -1)[turn == 2] > 0 else "left")
        made.append({"x": float(x[0]), "y": float(x[1]), "side": "left" if label == "same" else label, "who": client})
    return made


def of_each(counts: dict[str, int], seed: int) -> dict[str, list[dict[str, Any]]]:
    return {client: numbers(client, count, seed) for client, count in counts.items()}


TRAIN, TEST = of_each(TRAINED, 0), of_each(TESTED, 1)


def config(name: str = "fedavg", **sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "rounds": 2,
        "algorithm": {"name": name},
        "task": {"kind": "image-classification", "image": "picture", "label": "side"},
        "model": {"name": "builtin:mlp"},
        "train": {"optimizer": "sgd", "lr": 0.2, "batch_size": 8},
        "evaluation": {"clients_every": 1},
    }
    return {**base, **sections}


def drawn(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their numbers as a picture of floats."""
    return [{"picture": np.array([[r["x"], r["y"]]], np.float32), "side": r["side"], "who": r["who"]} for r in rows]


def archives(folder: Path, counts: dict[str, list[dict[str, Any]]]) -> Path:
    """A file per client as PFLlib lays them out, converted."""
    folder.mkdir(parents=True)
    for client, rows in counts.items():
        pictures = np.stack([row["picture"] for row in drawn(rows)])
        np.savez(folder / f"{client}.npz", x=pictures, y=np.array([int(row["side"] == "right") for row in rows]))
    return folder


def partition(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "partition.json").read_text())
    return content


NPZ = {"kind": "image-classification", "image": "image", "label": "label"}


def given(tmp_path: Path, **options: Any) -> rondo.RunResult:
    rows = {"clients": {c: drawn(r) for c, r in TRAIN.items()}, "test": {c: drawn(r) for c, r in TEST.items()}}
    return rondo.run(config(), **{**rows, **options}, run_dir=tmp_path / "run", device="cpu")


def checked(result: rondo.RunResult) -> dict[str, Any]:
    """The scores at clients of a run whose rows are TRAIN and TEST."""
    scores: dict[str, Any] = result.metrics["clients"]
    assert {c: s["examples"] for c, s in scores["per_client"].items()} == TESTED
    accuracy, of_client = scores["accuracy"], {c: s["accuracy"] for c, s in scores["per_client"].items()}
    assert accuracy["mean"] == pytest.approx(np.mean(list(of_client.values())))
    assert accuracy["deviation"] == pytest.approx(np.std(list(of_client.values())))
    weighted = sum(of_client[c] * TESTED[c] for c in TESTED) / sum(TESTED.values())
    assert accuracy["weighted_mean"] == pytest.approx(weighted)
    assert weighted == pytest.approx(result.metrics["global"]["accuracy"]), "the rows of all clients together"
    assert {c: (e["train"], e["validation"], e["test"]) for c, e in partition(result.run_dir)["clients"].items()} == {
        c: (TRAINED[c], 0, TESTED[c]) for c in TRAINED
    }
    return scores


# Where they come from


@pytest.mark.parametrize("form", ["test_source", "pattern", "whole"])
def test_folders_with_a_file_per_client(form: str, tmp_path: Path) -> None:
    archives(tmp_path / "data" / "train", TRAIN)
    archives(tmp_path / "data" / "test", TEST)
    (tmp_path / "data" / "config.json").write_text('{"num_clients": 3}')  # PFLlib has one
    data = {
        "test_source": {"clients_from": str(tmp_path / "data/train"), "test_source": str(tmp_path / "data/test")},
        "pattern": {"clients_from": f"{tmp_path}/data/train/*.npz", "test_source": f"{tmp_path}/data/test/*.npz"},
        "whole": {"clients_from": str(tmp_path / "data")},
    }[form]
    result = rondo.run(config(data=data, task=NPZ), run_dir=tmp_path / "run", device="cpu")
    checked(result)


def test_column_that_names_the_client(tmp_path: Path) -> None:
    train, test = ([row for rows in part.values() for row in drawn(rows)] for part in (TRAIN, TEST))
    settings = config(partition={"kind": "natural", "column": "who"})
    result = rondo.run(settings, train=train, test=test[::-1], run_dir=tmp_path / "run", device="cpu")
    checked(result)
    without = [{k: v for k, v in row.items() if k != "who"} for row in test]
    common = rondo.run(settings, train=train, test=without, run_dir=tmp_path / "common", device="cpu")
    assert {c: e["validation"] for c, e in partition(common.run_dir)["clients"].items()} == {"a": 2, "b": 4, "c": 2}
    assert common.metrics["clients"]["per_client"]["b"]["examples"] == 4


def test_rows_that_a_program_gives(tmp_path: Path) -> None:
    checked(given(tmp_path))


def test_tables_of_a_file_that_names_clients(tmp_path: Path) -> None:
    for name, part in (("train", TRAIN), ("test", TEST)):
        write_rows(tmp_path / f"{name}.csv", [row for rows in part.values() for row in rows])
    settings = config(
        task={"kind": "regression", "features": ["x"], "target": "y"},
        data={"source": str(tmp_path / "train.csv"), "test_source": str(tmp_path / "test.csv")},
        partition={"kind": "natural", "column": "who"},
    )
    result = rondo.run(settings, run_dir=tmp_path / "run", device="cpu")
    assert {c: s["examples"] for c, s in result.metrics["clients"]["per_client"].items()} == TESTED
    assert result.metrics["clients"]["r2"]["weighted_mean"] is not None


@pytest.mark.slow
def test_common_test_set_is_dealt_by_the_classes_that_clients_train_on(tmp_path: Path) -> None:
    """FedRep's Table 1: a client trains on all of its rows, and is scored on test rows of its own classes."""
    g = np.random.default_rng(0)

    def rows(count: int) -> list[dict[str, Any]]:
        pictures = g.normal(size=(count, 1, 2)).astype(np.float32)
        return [{"picture": picture, "side": f"class {i % 5}"} for i, picture in enumerate(pictures)]

    dealt_by_class = {"kind": "classes", "classes_per_client": 2, "clients": 10, "equal_sizes": True}
    settings = config("fedrep", partition={**dealt_by_class, "deal_tests": True})
    given = {"train": rows(200), "test": rows(60)}
    result = rondo.run(settings, **given, run_dir=tmp_path / "run", device="cpu")
    account = partition(result.run_dir)
    assert {(c["train"], c["validation"], c["test"]) for c in account["clients"].values()} == {(20, 0, 6)}
    scores = result.metrics["personal"]["per_client"]
    assert [scores[c]["examples"] for c in account["clients"]] == [6] * 10
    assert result.metrics["cold_start"]["examples"] == 60
    common = rondo.run({**settings, "partition": dealt_by_class}, **given, run_dir=tmp_path / "common", device="cpu")
    assert "test" not in partition(common.run_dir)["clients"]["client-0"]


def test_rows_of_classes_that_nobody_trains_on_are_in_the_common_set_alone(tmp_path: Path) -> None:
    """Whatever a client is called. Their sample keeps the shares of classes, and not of clients, who have none yet."""
    g = np.random.default_rng(0)

    def rows(count: int, *sides: str) -> list[dict[str, Any]]:
        pictures = g.normal(size=(count, 1, 2)).astype(np.float32)
        return [{"picture": picture, "side": sides[i % len(sides)]} for i, picture in enumerate(pictures)]

    settings = config(
        task={"kind": "image-classification", "image": "picture", "label": "side", "labels": ["left", "right", "up"]},
        partition={"deal_tests": True},
        data={"max_test_rows": 24},
    )
    clients = {"": rows(20, "left", "right"), "b": rows(40, "left", "right")}
    test = rows(30, "left", "right", "up")
    with pytest.warns(UserWarning, match="8 test rows are of classes that no client trains on"):
        result = rondo.run(settings, clients=clients, test=test, run_dir=tmp_path / "run", device="cpu")
    scores = result.metrics["clients"]["per_client"]
    assert sum(s["examples"] for s in scores.values()) == 16
    assert abs(scores[""]["examples"] - 16 / 3) < 2
    assert result.metrics["global"]["examples"] == 24
    assert partition(result.run_dir)["test_sampled_by"] == ["side"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"test": {c: drawn(r) for c, r in TEST.items()}}, "clients have test rows of their own: remove it"),
        ({"test": None}, "there is no test set to deal: remove it"),
    ],
)
def test_nothing_to_deal(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    rows = {"clients": {c: drawn(r) for c, r in TRAIN.items()}, **options}
    dealt, place = config(partition={"deal_tests": True}), tmp_path / "run"
    assert told(lambda: rondo.run(dealt, **rows, run_dir=place, device="cpu")) == [("partition.deal_tests", why)]


def test_a_server_has_no_test_rows_to_deal() -> None:
    sections = {"data": {"clients_from": AT_SITES, "test_source": "t.csv"}, "partition": {"deal_tests": True}}
    with pytest.raises(ConfigError, match=r"partition\.deal_tests: the server's test rows stay with it: remove it"):
        check(load(config(**sections), check_paths=False))


# Scores on them


@pytest.mark.slow
def test_personal_models_are_scored_at_their_clients(tmp_path: Path) -> None:
    """Each client's own head follows its own line, which no common model can."""
    rows = {"clients": {c: drawn(r) for c, r in TRAIN.items()}, "test": {c: drawn(r) for c, r in TEST.items()}}
    settings = config("fedrep", rounds=8, evaluation={"clients_every": 1, "fine_tune_epochs": 1})
    result = rondo.run(settings, **rows, run_dir=tmp_path / "run", device="cpu")
    assert result.metrics["personal"]["accuracy"]["mean"] > result.metrics["cold_start"]["accuracy"]
    assert result.metrics["fine_tuned"]["per_client"]["c"]["examples"] == TESTED["c"]
    scores = [r["scores"]["personal"]["accuracy"]["mean"] for r in result.history]
    assert result.summary["best"] == {"rounds": scores.index(max(scores)) + 1, "accuracy": max(scores)}


def test_validation_rows_beside_them_choose_the_round(tmp_path: Path) -> None:
    rows = {"clients": {c: drawn(r) for c, r in TRAIN.items()}, "test": {c: drawn(r) for c, r in TEST.items()}}
    settings = config("fedper", rounds=4, data={"validation_fraction": 0.25})
    result = rondo.run(settings, **rows, run_dir=tmp_path / "run", device="cpu")
    assert {c: s["examples"] for c, s in result.metrics["personal"]["per_client"].items()} == TESTED
    held_back = result.metrics["validation"]["per_client"]
    assert {c: s["examples"] for c, s in held_back.items()} == {"a": 6, "b": 10, "c": 4}
    scores = [r["scores"]["validation"]["accuracy"]["mean"] for r in result.history]
    assert result.summary["best"] == {"rounds": scores.index(max(scores)) + 1, "accuracy": max(scores)}


@pytest.mark.slow
def test_resumed_and_evaluated_run_has_the_same_test_rows(tmp_path: Path) -> None:
    archives(tmp_path / "data" / "train", TRAIN)
    archives(tmp_path / "data" / "test", TEST)
    settings = config("fedper", data={"clients_from": str(tmp_path / "data")}, task=NPZ)
    with pytest.raises(KeyboardInterrupt):
        rondo.run(settings, run_dir=tmp_path / "run", device="cpu", observer=dying(1))
    result = rondo.resume(tmp_path / "run")
    whole = rondo.run(settings, run_dir=tmp_path / "whole", device="cpu")
    assert result.metrics == whole.metrics
    scores = rondo.evaluate(tmp_path / "run", client="b")
    assert scores["own_test"] == pytest.approx(result.metrics["personal"]["per_client"]["b"])
    (tmp_path / "data" / "test" / "b.npz").rename(tmp_path / "data" / "test" / "a.npz")
    with pytest.raises(ConfigError, match="partition"):
        rondo.evaluate(tmp_path / "run", client="b")


def test_sampled_test_rows_stay_with_their_clients(tmp_path: Path) -> None:
    result = rondo.run(
        config(data={"max_test_rows": 10}),
        clients={c: drawn(r) for c, r in TRAIN.items()},
        test={c: drawn(r) for c, r in TEST.items()},
        run_dir=tmp_path / "run",
        device="cpu",
    )
    sizes = {c: s["examples"] for c, s in result.metrics["clients"]["per_client"].items()}
    assert sum(sizes.values()) == 10
    assert [c for c in TESTED if abs(sizes[c] - TESTED[c] / 2) > 1] == []
    assert partition(result.run_dir)["test_sampled_by"] == ["side", "client"]


# Faults, and what is said


def test_test_file_of_no_client_is_refused_by_name(tmp_path: Path) -> None:
    archives(tmp_path / "train", TRAIN)
    archives(tmp_path / "test", {**TEST, "d": TEST["a"]})
    data = {"clients_from": str(tmp_path / "train"), "test_source": str(tmp_path / "test")}
    with pytest.raises(ConfigError, match=r"data\.test_source: test rows of 'd', which is no client; clients: a, b, c"):
        rondo.run(config(data=data, task=NPZ), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"test: test rows of 'd'"):
        given(tmp_path, test={"d": drawn(TEST["a"])})
    dealt = config(partition={"kind": "iid", "clients": 2})
    with pytest.raises(ConfigError, match="test rows of 'a', which is no client: training rows name no clients"):
        rondo.run(dealt, train=drawn(TRAIN["a"]), test={"a": drawn(TEST["a"])}, run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="test: it has no clients"):
        given(tmp_path, test={})


@pytest.mark.slow
def test_rows_of_clients_that_do_not_train_are_told_of(tmp_path: Path) -> None:
    """One is left out for its size, one has test rows alone, and one has none."""
    train = [row for client in "abc" for row in drawn(TRAIN[client])]
    test = [row for rows in (TEST["a"], TEST["b"], numbers("d", 3, 1)) for row in drawn(rows)]
    settings = config(partition={"kind": "natural", "column": "who"}, data={"min_examples": 20})
    with pytest.warns(UserWarning, match="3 test rows are of clients that do not train, so they are in the common"):
        result = rondo.run(settings, train=train, test=test, run_dir=tmp_path / "run", device="cpu")
    assert set(result.metrics["clients"]["per_client"]) == {"a", "b"}
    assert result.metrics["global"]["examples"] == 13
    with pytest.warns(UserWarning, match="clients without test rows, which are not scored: c"):
        given(tmp_path / "given", test={c: drawn(TEST[c]) for c in "ab"})


def test_a_file_that_is_trained_on_is_no_test_file(tmp_path: Path) -> None:
    folder = str(archives(tmp_path / "train", TRAIN))
    with pytest.raises(ConfigError, match="would be trained on and tested on"):
        rondo.run(config(data={"clients_from": folder, "test_source": folder}, task=NPZ), run_dir=tmp_path / "run")


def test_rows_of_a_single_class_have_no_area_and_that_is_said(tmp_path: Path) -> None:
    alike = [row for row in drawn(TEST["a"]) if row["side"] == "left"]
    test = {"a": alike, "b": drawn(TEST["b"]), "c": drawn(TEST["c"])}
    with pytest.warns(UserWarning, match="test rows of a single class, where f1, matthews and auc are undefined: a"):
        result = given(tmp_path, test=test)
    assert result.metrics["clients"]["per_client"]["a"]["auc"] is None
    assert (result.metrics["clients"]["auc"]["clients"], result.metrics["clients"]["auc"]["undefined"]) == (2, 1)


def test_bad_test_row_is_named_with_its_client(tmp_path: Path) -> None:
    rows = drawn(TEST["b"])
    rows[1]["side"] = "up"
    with pytest.raises(ConfigError, match=r"test\['b'\]\[1\], column 'side'"):
        given(tmp_path, test={"b": rows})
