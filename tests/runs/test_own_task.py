"""A custom task runs through the whole engine: least squares in float64 on a plain module, without tokens, logits or
adapters."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import own_task
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import rondo
from outcomes import adapter, told
from rondo.cli.app import app
from rondo.config import load
from rondo.lowrank import GrowingSum, LowRank
from rondo.models.forms.own_network import OwnModel
from rondo.records.directory import RunDirectory
from small_runs import Watch

METHOD = "own_task:FedAvg"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Forty points near a plane, dealt to four clients."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    g = torch.Generator().manual_seed(0)
    for name, count in (("rows", 40), ("test", 12)):
        x = torch.randn(count, 3, generator=g, dtype=torch.float64)
        y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.01 * torch.randn(count, generator=g).double()
        rows = [",".join(f"{float(v):.6f}" for v in (*a, b)) for a, b in zip(x, y, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,y", *rows]) + "\n")
    return {
        "rounds": 4,
        "algorithm": {"name": METHOD},
        "task": {"kind": "own_task:LeastSquares"},
        "model": {"name": "own_task:Line"},
        "data": {
            "source": str(tmp_path / "rows.csv"),
            "test_source": str(tmp_path / "test.csv"),
            "validation_fraction": 0.2,
        },
        "partition": {"kind": "iid", "clients": 4},
        "train": {"optimizer": "sgd", "lr": 0.2, "local_epochs": 5, "batch_size": 4, "precision": "exact"},
        "evaluation": {"clients_every": 1},
    }


def test_custom_task_learns_in_double_precision(config: dict[str, Any], tmp_path: Path) -> None:
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    before, after = (result.summary[key]["global"]["loss"] for key in ("before", "after"))
    assert after < 0.01 * before
    (weight,) = load_file(result.run_dir / "adapter" / "tensors.safetensors").values()
    assert weight.dtype is torch.float64
    assert result.history[0]["bytes_up"] == 4 * 3 * 8  # four clients, three numbers of eight bytes
    partition = json.loads((result.run_dir / "partition.json").read_text())
    assert {c["train"] + c["validation"] for c in partition["clients"].values()} == {10}
    assert (result.run_dir / "curve.png").is_file()
    assert rondo.evaluate(result.run_dir, device="cpu", allow_code=True)["test"]["loss"] == after
    manifest = RunDirectory(result.run_dir).read("manifest.json")
    assert (manifest["kernels"]["dtype"], manifest["adapted_modules"]) == ("float64", {})
    diagnostics = result.history[-1]["diagnostics"]
    assert diagnostics["reason"] is None
    assert diagnostics["drift_whole"] > 0


def test_cohort_sizes_agree(config: dict[str, Any], tmp_path: Path) -> None:
    slopes = []
    for cohort in (1, 3, "auto"):
        sets = [f"simulation.cohort={json.dumps(cohort)}"]
        result = rondo.run(config, sets=sets, run_dir=tmp_path / str(cohort), device="cpu")
        slopes.append(load_file(result.run_dir / "adapter" / "tensors.safetensors")["slope"])
    torch.testing.assert_close(slopes[1], slopes[0], rtol=0, atol=1e-14)
    torch.testing.assert_close(slopes[2], slopes[0], rtol=0, atol=1e-14)


def test_killed_run_resumes_to_the_same_bits(config: dict[str, Any], tmp_path: Path) -> None:
    whole = rondo.run(config, run_dir=tmp_path / "whole", device="cpu")

    killer = Watch(lambda index: index == 2 and os._exit(137))
    child = os.fork()
    if child == 0:
        rondo.run(config, run_dir=tmp_path / "cut", device="cpu", observer=killer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137
    cut = rondo.resume(tmp_path / "cut", allow_code=True)
    assert adapter(cut.run_dir) == adapter(whole.run_dir)
    assert [r["loss"] for r in whole.history] == [r["loss"] for r in cut.history]


@pytest.mark.slow
def test_comparison_over_seeds(config: dict[str, Any], tmp_path: Path) -> None:
    comparison = rondo.compare([METHOD], config, seeds=[0, 1], out=tmp_path / "out", device="cpu")
    assert comparison.primary == "loss"
    assert comparison.algorithms[METHOD]["test"]["count"] == 2
    assert (tmp_path / "out" / "comparison.png").is_file()


def test_custom_network_that_mixes_clients_trains_them_alone(config: dict[str, Any], tmp_path: Path) -> None:
    expected = rondo.run(config, run_dir=tmp_path / "right", device="cpu")
    found = rondo.run({**config, "model": {"name": "own_variants:Shared"}}, run_dir=tmp_path / "mixed", device="cpu")
    reasons = [json.loads((r.run_dir / "manifest.json").read_text())["one_at_a_time"] for r in (expected, found)]
    assert reasons == [None, "the gradient of slope is not what it is when its client is alone in a call"]
    assert found.metrics["global"]["loss"] == pytest.approx(expected.metrics["global"]["loss"], rel=1e-9)


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"data": {"bad": True}}, "data", "rows.csv, line 5, column 'y': not a number: 'far'"),
        ({"task": {"kind": "own_task:Nothing"}}, "task.kind", "cannot load 'own_task:Nothing'"),
        ({"task": {"kind": "own_task:FedAvg"}}, "task.kind", "not a class derived from rondo.tasks.task.Task"),
        ({"model": {"name": "own_task:nothing"}}, "model.name", "makes no network"),
        ({"model": {"name": "own_task:FedAvg"}}, "model.name", "makes no network"),
        ({"model": {"name": "builtin:minilm"}}, "model.name", "needs a network of its own"),
        ({"model": {"name": "own_variants:Reserved"}}, "model.name", "gave a tensor named 'base:slope'"),
        ({"model": {"name": "own_variants:Single"}}, "model.name", "and the task computes in torch.float64"),
        (
            {"model": {"name": "own_variants:Failing"}},
            "model.name",
            "does not train on rows of the data: RuntimeError: shapes differ",
        ),
        ({"task": {"kind": "causal-lm", "text": "a"}}, "task.kind", "has no tokenizer, which causal-lm needs"),
        ({"task": {"kind": "own_task:Task"}}, "task.kind", "makes no task: TypeError"),
        ({"model": {"name": "own_variants:Headed", "head": "frozen"}}, "model.head", "trains its head"),
        ({"model": {"gguf_file": "x.gguf"}}, "model.gguf_file", "only a checkpoint has it"),
        ({"adapter": {"r": 4}}, "adapter", "does not use this section"),
        ({"model": {"head": "shared"}}, "model.head", "this network has no task head"),
        ({"algorithm": {"name": "rolora"}}, "algorithm.name", "this network has no adapted layer"),
        ({"algorithm": {"name": "fedit"}, "clients": {"ranks": [1, 1, 1, 1]}}, "clients.ranks", "no layer is adapted"),
        (
            {"algorithm": {"name": "hetlora"}, "clients": {"bytes_budget": 100}},
            "clients.bytes_budget",
            "no layer is adapted",
        ),
    ],
)
def test_custom_part_fault_is_reported(
    config: dict[str, Any], tmp_path: Path, change: dict[str, dict[str, Any]], path: str, words: str
) -> None:
    if "data" in change:
        rows = (tmp_path / "rows.csv").read_text().splitlines()
        rows[4] = "1,2,3,far"
        (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
        change = {}
    raw = {**config, **{k: {**config.get(k, {}), **v} for k, v in change.items()}}
    first, *_ = told(lambda: rondo.run(raw, run_dir=tmp_path / "run", device="cpu"))
    assert (first[0], words in first[1]) == (path, True), first
    assert not (tmp_path / "run").exists()


def test_export_without_adapter_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    result = rondo.run(config, sets=["rounds=1"], run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(rondo.ConfigError, match="no PEFT adapter"):
        rondo.export(result.run_dir, tmp_path / "out", allow_code=True)


def test_card_tells_of_the_tensors(config: dict[str, Any], tmp_path: Path) -> None:
    result = rondo.run(config, sets=["rounds=1"], run_dir=tmp_path / "run", device="cpu")
    text = (result.run_dir / "adapter" / "README.md").read_text()
    assert "tensors that the network `own_task:Line` takes" in text
    assert "library_name" not in text


def test_evaluation_on_other_rows_checks_them(config: dict[str, Any], tmp_path: Path) -> None:
    result = rondo.run(config, sets=["rounds=1"], run_dir=tmp_path / "run", device="cpu")
    test, bad = tmp_path / "test.csv", tmp_path / "bad.csv"
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    test.write_text("\n".join(rows[:4]) + "\n")
    bad.write_text("\n".join([*rows[:2], "1,2,3,far"]) + "\n")
    assert rondo.evaluate(result.run_dir, data=test, device="cpu", allow_code=True)["test"]["loss"] is not None
    with pytest.raises(rondo.ConfigError, match=r"--data: .*bad.csv, line 3, column 'y': not a number: 'far'"):
        rondo.evaluate(result.run_dir, data=bad, device="cpu", allow_code=True)


def test_predictions_of_own_task(config: dict[str, Any], tmp_path: Path) -> None:
    """From the run and from the folder that it hands over, of rows without the number to predict."""
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    lines = [line.split(",") for line in (tmp_path / "test.csv").read_text().splitlines()[1:]]
    rows = [dict(zip("abc", map(float, line), strict=False)) for line in lines]
    adapter, loss = result.run_dir / "adapter", result.metrics["global"]["loss"]
    made = [rondo.predict(folder, rows, device="cpu", allow_code=True) for folder in (result.run_dir, adapter)]
    assert made[0] == made[1]
    errors = [row["y"] - float(line[3]) for row, line in zip(made[0], lines, strict=True)]
    assert sum(e**2 for e in errors) / len(errors) == pytest.approx(loss, rel=1e-12)
    assert rondo.evaluate(adapter, device="cpu", allow_code=True)["test"]["loss"] == loss
    words = ["predict", str(adapter), "--data", str(tmp_path / "test.csv"), "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--allow-code"])
    assert [json.loads(row) for row in done.stdout.splitlines()] == made[0]
    assert "--allow-code" in CliRunner().invoke(app, words).output


def test_samples_of_own_task(config: dict[str, Any], tmp_path: Path) -> None:
    result = rondo.run(config, sets=["evaluation.generate=2"], run_dir=tmp_path / "run", device="cpu")
    samples = result.summary["samples"]
    rows = (tmp_path / "test.csv").read_text().splitlines()
    for sample, row in zip(samples, (rows[1], rows[7]), strict=True):
        *x, y = map(float, row.split(","))
        assert (sample["prompt"], sample["expected"]) == (str(tuple(x)), str(y))
        assert abs(float(sample["after"]) - y) < abs(float(sample["before"]) - y)


def test_own_task_without_answers_is_refused(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(own_task.LeastSquares, "shown")
    with pytest.raises(rondo.ConfigError, match=r"evaluation\.generate: LeastSquares shows no examples"):
        rondo.run(config, sets=["evaluation.generate=2"], run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    result = rondo.run(config, sets=["rounds=1"], run_dir=tmp_path / "run", device="cpu")
    monkeypatch.delattr(own_task.LeastSquares, "predicted")
    with pytest.raises(rondo.ConfigError, match=r"task\.kind: LeastSquares predicts nothing"):
        rondo.predict(result.run_dir, tmp_path / "rows.csv", device="cpu", allow_code=True)


def test_own_task_is_short() -> None:
    assert len((Path(__file__).parent / "own_task.py").read_text().splitlines()) < 86
    assert load({"task": {"kind": "own_task:LeastSquares"}, "model": {"name": "own_task:Line"}}).rounds > 0


def test_network_without_parameters_runs(config: dict[str, Any], tmp_path: Path) -> None:
    config["model"] = {"name": "own_variants:Bare"}
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert result.summary["after"]["global"]["loss"] < 0.01


def test_task_that_leaves_out_all_rows_is_told(config: dict[str, Any], tmp_path: Path) -> None:
    config["task"] = {"kind": "own_variants:Empty"}
    with pytest.raises(rondo.ConfigError, match="data: the task leaves 40 rows out"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")


def test_examples_without_cost_run(config: dict[str, Any], tmp_path: Path) -> None:
    config["task"] = {"kind": "own_variants:Free"}
    torch.set_num_threads(2)
    try:
        result = rondo.run(config, sets=["rounds=1"], run_dir=tmp_path / "run", device="cpu")
    finally:
        torch.set_num_threads(1)  # as all tests have it
    assert result.history[0]["clients"] == 4


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Also a change of the base: as factors, and as a matrix once there are more of them than it has numbers."""
    model = OwnModel("a line", {}, own_task.Line(None, own_task.LeastSquares()), torch.float64)
    chunk = LowRank(torch.arange(4.0)[:, None], torch.arange(3.0)[None])
    few = GrowingSum.of(chunk)
    base, seen = {"a.b": few, "c": few + chunk + chunk + chunk}, {"slope": torch.arange(3.0, dtype=torch.float64)}
    model.save(tmp_path, seen, base, ("no", "yes"))
    tensors, changes = model.read(tmp_path)
    assert tensors["slope"].tolist() == [0, 1, 2]
    assert json.loads((tmp_path / "labels.json").read_text()) == ["no", "yes"]
    assert [changes["a.b"].dense is None, changes["c"].dense is None] == [True, False]
    for path, change in base.items():
        assert changes[path].factors().dense().equal(change.factors().dense())
    model.save(tmp_path, {"slope": torch.zeros(4)}, {}, ())
    with pytest.raises(rondo.ConfigError, match="are not those that 'a line' takes"):
        model.read(tmp_path)
    (tmp_path / "tensors.safetensors").write_bytes(b"no tensors")
    with pytest.raises(rondo.ConfigError, match="cannot be read"):
        model.read(tmp_path)
