"""Networks that are trained whole, end to end: runs, resumes, exports, new clients."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import rondo
from rondo.errors import ConfigError
from small_runs import Watch, dying


class Small(nn.Module):
    """A convolution with batch normalisation and dropout, and two dense layers."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Linear(4 * 9, 8)
        self.out = nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.out(torch.relu(self.hidden(self.drop(x).flatten(1))))  # type: ignore[no-any-return]


def small(config: Any, task: Any) -> nn.Module:
    return Small(len(task.labels))


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pictures of 5 x 5 pixels, brighter in the row of their label."""
    g = np.random.default_rng(seed)
    made = []
    for i in range(count):
        pixels = g.integers(0, 120, (5, 5, 1), dtype=np.uint8)
        pixels[1 + i % 3] += 120
        made.append({"image": pixels, "label": str(i % 3)})
    return made


def config(name: str = "fedavg", **sections: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "rounds": 3,
        "algorithm": {"name": name},
        "task": {"kind": "image-classification", "image": "image", "label": "label"},
        "model": {"name": "test_whole_training:small"},
        "partition": {"kind": "iid", "clients": 4},
        "clients": {"per_round": 3},
        "train": {"what": "all", "optimizer": "sgd", "lr": 0.2, "batch_size": 8, "max_grad_norm": 0.0},
        "evaluation": {"clients_every": 1},
    }
    for section, keys in sections.items():
        base[section] = {**base.get(section, {}), **keys}
    return base


def run(folder: Path, name: str = "fedavg", **sections: dict[str, Any]) -> rondo.RunResult:
    return rondo.run(config(name, **sections), train=rows(96), test=rows(30, 1), run_dir=folder, device="cpu")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "scaffold", "apfl", "per-fedavg"])
def test_module_of_ones_own_learns(name: str, tmp_path: Path) -> None:
    result = run(tmp_path / "run", name, train={"local_epochs": 3})
    kind = "personal" if "personal" in result.metrics else "clients"
    assert result.metrics[kind]["accuracy"]["mean"] > 0.5


def test_result_is_the_modules_state(tmp_path: Path) -> None:
    run(tmp_path / "run")
    module = Small(3)
    module.load_state_dict({**tensors(tmp_path / "run" / "adapter")}, strict=True)
    assert not module.norm.running_mean.equal(torch.zeros(4))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedit", "trains low-rank factors, and this network has no adapted layer: add a section"),
        ("rondo.algorithms.factors.fedit:FedIT", "a method of your own that trains whole tensors sets needs_factors"),
    ],
)
def test_method_for_factors_needs_an_adapted_layer(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


class Odd(nn.Module):
    """A parameter without axes, a frozen one, and one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.first, self.second = nn.Linear(25, 3, bias=False), nn.Linear(25, 3)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        rows = pixel_values.flatten(1)
        return self.scale * (self.first(rows) + self.second(rows))


def odd(config: Any, task: Any) -> nn.Module:
    return Odd()


def test_odd_parameters_train_and_frozen_ones_stay(tmp_path: Path) -> None:
    result = run(tmp_path / "run", model={"name": "test_whole_training:odd"})
    state, stock = tensors(result.run_dir / "adapter"), Odd()
    assert state["second.weight"].equal(state["first.weight"])
    assert float(state["scale"]) != 1.0
    stock.load_state_dict(state)
    accuracy = result.metrics["global"]["accuracy"]
    test = rows(30, 1)
    pictures = torch.stack([torch.from_numpy(row["image"]) for row in test]).permute(0, 3, 1, 2).float() / 255
    right = stock(pictures).argmax(1) == torch.tensor([int(row["label"]) for row in test])
    assert accuracy == pytest.approx(float(right.float().mean()), abs=1e-6)


class Viewed(nn.Module):
    """Takes a view of a convolution's output, as PFLlib's CifarNet does."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(channels, 4, 3), nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x)).view(-1, 36))  # type: ignore[no-any-return]


def viewed(config: Any, task: Any) -> nn.Module:
    return Viewed(task.shape[2])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("factors", [False, True])
def test_network_with_a_view_runs_and_says_so(channels: int, factors: bool, tmp_path: Path) -> None:
    def coloured(count: int, seed: int) -> list[dict[str, Any]]:
        return [{**row, "image": row["image"].repeat(channels, 2)} for row in rows(count, seed)]

    settings, test = config(model={"name": "test_whole_training:viewed"}), coloured(30, 1)
    if factors:
        adapter = {"r": 2, "target_modules": ["conv", "out"]}
        settings = {**settings, "algorithm": {"name": "fedit"}, "adapter": adapter, "train": {"lr": 0.05}}
    with pytest.warns(UserWarning, match="laid out channel by channel"):
        result = rondo.run(settings, train=coloured(96, 0), test=test, run_dir=tmp_path / "run", device="cpu")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["layout"] == "contiguous"
    scored = rondo.evaluate(tmp_path / "run" / "adapter", data=test, allow_code=True)["test"]["accuracy"]
    assert scored == pytest.approx(result.metrics["global"]["accuracy"])


class Silent(Small):
    """A module whose setters return nothing, as ``train`` of FedLoRU's official ResNet does."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)

    def eval(self) -> None:  # type: ignore[override]
        super().eval()

    def to(self, *args: Any, **options: Any) -> None:  # type: ignore[override]
        super().to(*args, **options)

    def requires_grad_(self, requires_grad: bool = True) -> None:  # type: ignore[override]
        super().requires_grad_(requires_grad)


def silent(config: Any, task: Any) -> nn.Module:
    return Silent(len(task.labels))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("what", [["conv.*"], "head"], ids=["whole", "adapted"])
def test_module_whose_setters_return_nothing_runs(what: Any, tmp_path: Path) -> None:
    """Whole, and with factors alone beside a trained head."""
    model, train = {"name": "test_whole_training:silent"}, {"what": what}
    adapter = {"adapter": {"r": 2, "target_modules": ["hidden"]}} if what == "head" else {}
    result = run(tmp_path / "run", "fedit" if adapter else "fedavg", model=model, train=train, **adapter)
    assert result.history[-1]["scores"]["global"]["accuracy"] is not None
    module = Silent(3)
    module.load_state_dict(tensors(result.run_dir / "adapter"))


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 0])
def test_best_round_of_a_personal_method(every: int, tmp_path: Path) -> None:
    """By the clients' mean where clients are scored, else by the cold-start model."""
    sections = {"evaluation": {"clients_every": every}, "train": {"local_epochs": 2}}
    result = run(tmp_path / "run", "fedrep", **sections)
    if every:
        scores = [r["scores"]["personal"]["accuracy"]["mean"] for r in result.history]
    else:
        scores = [r["scores"]["cold_start"]["accuracy"] for r in result.history]
    assert result.summary["best"] == {"rounds": scores.index(max(scores)) + 1, "accuracy": max(scores)}
    others = [r["scores"]["cold_start"]["accuracy"] for r in result.history]
    assert not every or max(others) != max(scores)


def test_patience_of_a_personal_method_counts_the_scores_at_clients(tmp_path: Path) -> None:
    """The test set is scored never, and the learning rate sinks to nothing."""
    evaluation = {"every": 0, "clients_every": 1, "patience": 2}
    settings = config("fedper", evaluation=evaluation, train={"lr": 1e-12}) | {"rounds": 9}
    result = rondo.run(settings, train=rows(96), test=rows(30, 1), run_dir=tmp_path / "run", device="cpu")
    assert len(result.history) == result.summary["best"]["rounds"] + 2 < 9
    assert result.summary["after"]["cold_start"].keys() == result.summary["before"]["cold_start"].keys()
    settings["algorithm"] = {"name": "fedavg"}
    with pytest.raises(ConfigError, match=r"evaluation\.patience: no round but the last is scored.*every"):
        rondo.run(settings, train=rows(96), test=rows(30, 1), run_dir=tmp_path / "global", device="cpu")


@pytest.mark.slow
def test_seconds_of_a_resumed_run_are_those_of_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part has one round of a thousand seconds by the clock."""
    clock, stop, ahead = time.perf_counter, threading.Event(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + ahead[0])

    def slow(index: int) -> None:
        ahead[0] += 1000.0

    watch = Watch(slow, lambda done: stop.set())
    given: dict[str, Any] = {"train": rows(96), "test": rows(30, 1)}
    with pytest.raises(rondo.RunInterrupted):
        rondo.run(config(), **given, run_dir=tmp_path / "run", device="cpu", observer=watch, stop=stop)
    ahead[0] = 0.0
    result = rondo.resume(tmp_path / "run", **given, allow_code=True)
    seconds = [r["seconds"] for r in result.history]
    assert seconds[0] > 1000 > sum(seconds[1:])
    assert sum(seconds) <= result.summary["seconds"]["all"] < 2000


@pytest.mark.slow
@pytest.mark.parametrize("norm", [pytest.param("batch", marks=pytest.mark.slow), "batch-no-statistics"])
def test_residual_network_without_statistics_trains(norm: str, tmp_path: Path) -> None:
    """One thing less to send, and nothing of a head's input can be kept."""
    model, pictures = {"name": "builtin:resnet10", "norm": norm}, {"image_size": 16}
    settings = config("fedrep", model=model, task=pictures, algorithm={"head_epochs": 1})
    result = rondo.run(
        settings | {"rounds": 1}, train=rows(48), test=rows(12, 1), run_dir=tmp_path / "run", device="cpu"
    )
    names = tensors(tmp_path / "run" / "adapter").keys()
    assert ("running_mean" in " ".join(names)) == (norm == "batch")
    assert result.metrics["cold_start"]["loss"] is not None
    reason = json.loads((tmp_path / "run" / "manifest.json").read_text())["head_inputs"]["reason"]
    other = "a layer of the network normalises by the batch in training"
    assert reason == (other if norm == "batch" else "the head's input of a row depends on the other rows of its batch")


@pytest.mark.slow
def test_head_inputs_are_kept_over_the_head_epochs(tmp_path: Path) -> None:
    results = {}
    for reuse in (True, False):
        sections = {"model": {"name": "builtin:mlp"}, "simulation": {"reuse_prefix": reuse}}
        results[reuse] = run(tmp_path / str(reuse), "fedrep", **sections)
        manifest = json.loads((tmp_path / str(reuse) / "manifest.json").read_text())
        reason = None if reuse else "simulation.reuse_prefix is off"
        assert manifest["head_inputs"] == {"on": reuse, "reason": reason}
    kept, computed = (tensors(results[reuse].run_dir / "adapter") for reuse in (True, False))
    for name, tensor in computed.items():
        torch.testing.assert_close(kept[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("buffers", "sent"), [("average", True), ("local", False), ("frozen", False)])
def test_statistics_are_averaged_local_or_frozen(buffers: str, sent: bool, tmp_path: Path) -> None:
    result = run(tmp_path / "run", model={"buffers": buffers})
    parameters = sum(p.numel() for p in Small(3).parameters())
    assert result.history[0]["bytes_up"] == 3 * 4 * (parameters + (8 if sent else 0))
    start = tensors(tmp_path / "run" / "adapter")["norm.running_var"].equal(torch.ones(4))
    assert start == (not sent)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"train": rows(96), "test": rows(30, 1)}
    with pytest.raises(KeyboardInterrupt):
        rondo.run(config(name), **given, run_dir=tmp_path / "cut", device="cpu", observer=dying(2))
    rondo.resume(tmp_path / "cut", **given, allow_code=True)
    run(tmp_path / "whole", name)
    paths = [tmp_path / n / "adapter" for n in ("cut", "whole")]
    torch.testing.assert_close(tensors(paths[0]), tensors(paths[1]), rtol=0, atol=0)


def test_factors_and_whole_tensors_train_together(tmp_path: Path) -> None:
    adapter = {"r": 2, "target_modules": ["hidden"], "from_scratch": True}
    result = run(tmp_path / "run", "fedit", adapter=adapter, train={"what": "all"})
    trained = json.loads((tmp_path / "run" / "manifest.json").read_text())["model_config"]["trained"]
    assert {"hidden.A", "hidden.B", "hidden.bias", "conv.weight", "head:out.weight"} <= set(trained)
    assert "hidden.weight" not in trained
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert torch.linalg.matrix_rank(tensors(tmp_path / "run" / "adapter")["hidden.weight"]) == 2


@pytest.mark.sweep(2)
@pytest.mark.parametrize("what", ["head", ["conv.*", "norm.bias"]])
def test_only_the_named_tensors_are_trained(what: Any, tmp_path: Path) -> None:
    run(tmp_path / "run", train={"what": what})
    start = small_start()
    after = tensors(tmp_path / "run" / "adapter")
    moved = {n for n, t in after.items() if not t.equal(start[n]) and "running" not in n}
    assert moved == ({"out.weight", "out.bias"} if what == "head" else {"conv.weight", "norm.bias"})


def small_start() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Small(3).state_dict()


@pytest.mark.slow
def test_fine_tuned_models_are_scored_beside(tmp_path: Path) -> None:
    evaluation = {"fine_tune_epochs": 5, "fine_tune": "head"}
    result = run(tmp_path / "run", evaluation=evaluation)
    assert result.metrics["fine_tuned"]["accuracy"]["mean"] is not None
    assert "fine_tuned" in result.metrics
    assert set(result.metrics["fine_tuned"]["per_client"]) == set(result.metrics["clients"]["per_client"])


# New clients


@pytest.fixture(scope="module")
def fedrep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt") / "run"
    run(folder, "fedrep", train={"local_epochs": 2})
    return folder


def adapted(run_dir: Path, **options: Any) -> rondo.Adapted:
    return rondo.adapt(run_dir, rows(40, 2), allow_code=True, device="cpu", **options)


@pytest.mark.slow
def test_newcomers_head_is_fitted_and_the_body_stays(fedrep: Path, tmp_path: Path) -> None:
    result = adapted(fedrep, shots=[4, 30], to=tmp_path / "new")
    assert result.scored_rows == 8
    assert [shot.rows for shot in result.shots] == [4, 30]
    scores = [s["accuracy"] for s in (result.cold_start, result.shots[-1].adapted)]
    assert scores[1] > scores[0]
    before, after = tensors(fedrep / "adapter"), tensors(tmp_path / "new")
    assert {n for n, t in after.items() if not t.equal(before[n])} == {"out.weight", "out.bias"}
    assert "took no part in the run" in (tmp_path / "new" / "README.md").read_text()


@pytest.mark.slow
def test_adapting_again_gives_the_same_scores(fedrep: Path) -> None:
    assert adapted(fedrep, shots=[10]) == adapted(fedrep, shots=[10])


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"shots": [33]}, "--shots", "33 of 32 rows"),
        ({"shots": [0]}, "--shots", "at least 1"),
        ({"epochs": 0}, "--epochs", "at least 1"),
        ({"to": "."}, "--to", "is not empty"),
    ],
)
def test_impossible_shots_are_refused(options: dict[str, Any], key: str, message: str, fedrep: Path) -> None:
    with pytest.raises(ConfigError) as error:
        adapted(fedrep, **options)
    assert error.value.problems[0].path == key
    assert message in str(error.value)


def test_method_without_personal_tensors_has_nothing_to_fit(tmp_path: Path) -> None:
    run(tmp_path / "run")
    with pytest.raises(ConfigError, match="fedavg keeps nothing at its clients"):
        adapted(tmp_path / "run")


def test_exported_model_is_verified(fedrep: Path, tmp_path: Path) -> None:
    # Rows were given in Python, so there are none to compare on.
    result = rondo.export(fedrep, tmp_path / "out", allow_code=True)
    assert result.rank == 0
    assert tensors(tmp_path / "out").keys() == Small(3).state_dict().keys()
    with pytest.raises(ConfigError, match="no adapter to truncate"):
        rondo.export(fedrep, tmp_path / "other", rank=2, allow_code=True)


def test_bad_rows_to_score_an_adapted_model_are_told_by_their_option(fedrep: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        adapted(fedrep, test=[{"image": np.zeros((5, 5, 1), np.uint8), "label": "unheard of"}])
    assert {p.path for p in caught.value.problems} == {"--test"}
