"""Runs whose layers have magnitudes (DoRA): resumed, in cohorts, exported, started from, and refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import rondo
from rondo.errors import ConfigError
from small_runs import reviews, save_tiny_bert, settings, stopped, write_rows

KEYS: dict[str, Any] = {"r": 2, "lora_alpha": 4, "target_modules": ["query", "value"], "use_dora": True}
ENDING = ".lora_magnitude_vector"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sources")
    return settings(
        save_tiny_bert(folder / "bert"),
        data={"source": str(write_rows(folder / "rows.csv", reviews(40)))},
        train={"batch_size": 4, "lr": 0.05, "precision": "exact"},
        adapter=KEYS,
    )


@pytest.fixture(scope="module")
def finished(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    return rondo.run(config, run_dir=tmp_path_factory.mktemp("run") / "run", device="cpu")


def adapter(result: rondo.RunResult) -> dict[str, Tensor]:
    return load_file(result.run_dir / "adapter" / "adapter_model.safetensors")


def test_magnitudes_are_trained_and_sent(config: dict[str, Any], finished: rondo.RunResult, tmp_path: Path) -> None:
    """Each of the four layers sends its 32 rows' norms in float32, beside what FedIT sends."""
    plain = rondo.run({**config, "adapter": {**KEYS, "use_dora": False}}, run_dir=tmp_path / "plain", device="cpu")
    base = load_file(Path(config["model"]["name"]) / "model.safetensors")
    found = {n: t for n, t in adapter(finished).items() if n.endswith(ENDING)}
    assert len(found) == 4
    for name, norms in found.items():
        start = base[name.removeprefix("base_model.model.").removesuffix(ENDING) + ".weight"].norm(dim=1)
        assert 1e-3 < float((norms - start).abs().max()) < 1
    sent = [one["bytes_up"] - other["bytes_up"] for one, other in zip(finished.history, plain.history, strict=True)]
    assert sent == [3 * 4 * 32 * 4] * 2
    reason = "with magnitudes (adapter.use_dora) B A is not a layer's change"
    assert finished.history[-1]["diagnostics"]["reason"] == reason


def test_stopped_run_goes_on_bit_for_bit(config: dict[str, Any], finished: rondo.RunResult, tmp_path: Path) -> None:
    again = rondo.resume(stopped(config, tmp_path / "run"), device="cpu")
    torch.testing.assert_close(adapter(again), adapter(finished), rtol=0, atol=0)


def test_cohort_trains_as_its_clients_alone(config: dict[str, Any], finished: rondo.RunResult, tmp_path: Path) -> None:
    alone = rondo.run({**config, "simulation": {"cohort": 1}}, run_dir=tmp_path / "run", device="cpu")
    torch.testing.assert_close(adapter(alone), adapter(finished), rtol=0, atol=1e-4)


@pytest.mark.parametrize("merged", [False, True])
def test_export_is_what_stock_peft_reads(finished: rondo.RunResult, merged: bool, tmp_path: Path) -> None:
    made = rondo.export(finished.run_dir, tmp_path / "out", merged=merged, verify=True)
    assert made.verification is not None
    assert made.verification.passed
    assert made.verification.max_difference < 1e-5
    with pytest.raises(ConfigError, match="the nearest product is not the nearest model"):
        rondo.export(finished.run_dir, tmp_path / "cut", merged=merged, rank=1)


def test_run_goes_on_from_its_adapter(config: dict[str, Any], finished: rondo.RunResult, tmp_path: Path) -> None:
    start = {"start_from": str(finished.run_dir / "adapter")}
    still = {**config, "rounds": 1, "adapter": start, "train": {**config["train"], "lr": 1e-12}}
    torch.testing.assert_close(
        adapter(rondo.run(still, run_dir=tmp_path / "run", device="cpu")), adapter(finished), rtol=0, atol=1e-6
    )
    with pytest.raises(ConfigError, match=r"adapter\.start_from: its layers have magnitudes \(use_dora\)\. flora: "):
        rondo.run({**still, "algorithm": {"name": "flora"}}, run_dir=tmp_path / "other", device="cpu")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["fed-sb", "federa", "fedsa-lora", "pfedlora"])
def test_methods_keep_the_model_at_the_start(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Whatever A and B are, V starts at W0 and its rows at their norms."""
    still = {**config, "rounds": 1, "algorithm": {"name": name}, "train": {**config["train"], "lr": 1e-12}}
    made = rondo.run(still, run_dir=tmp_path / name, device="cpu")
    plain = {**still, "adapter": {**KEYS, "use_dora": False}}
    expected = rondo.run(plain, run_dir=tmp_path / "plain", device="cpu")
    assert made.history[0]["loss"] == pytest.approx(expected.history[0]["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({"lora_dropout": 0.1}, "adapter.lora_dropout: with use_dora PEFT drops the frozen weight's inputs too"),
        ({"from_scratch": True}, "adapter.use_dora: the norms are those of weights that from_scratch sets to zero"),
    ],
)
def test_keys_that_do_not_go_with_it(adapter: Any, message: str, config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        rondo.run({**config, "adapter": {**KEYS, **adapter}}, run_dir=tmp_path / "run", device="cpu")
    assert message in str(caught.value)


def test_adapter_without_magnitudes_is_not_given_them(
    config: dict[str, Any], finished: rondo.RunResult, tmp_path: Path
) -> None:
    plain = rondo.run(
        {**config, "rounds": 1, "adapter": {**KEYS, "use_dora": False}}, run_dir=tmp_path / "plain", device="cpu"
    )
    both = {"start_from": str(plain.run_dir / "adapter"), "use_dora": True}
    with pytest.raises(ConfigError, match=r"adapter\.use_dora: .* has no magnitudes"):
        rondo.run({**config, "adapter": both}, run_dir=tmp_path / "run", device="cpu")


@pytest.mark.slow
def test_network_without_a_hub_has_them_in_its_weights(tmp_path: Path) -> None:
    """Whole tensors are trained beside, and the result is plain weights."""
    config = {
        "rounds": 1,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "builtin:mlp"},
        "task": {"kind": "image-classification"},
        "adapter": {"r": 2, "use_dora": True},
        "data": {"source": "builtin:digits", "max_train_rows": 120},
        "partition": {"kind": "iid", "clients": 2},
    }
    for what in ([], ["*.bias"]):
        run = {**config, "train": {"lr": 0.01, **({"what": what} if what else {})}}
        result = rondo.run(run, run_dir=tmp_path / str(len(what)), device="cpu")
        made = rondo.export(result.run_dir, tmp_path / f"out{len(what)}", verify=True)
        assert made.verification is not None
        assert made.verification.max_difference < 1e-4
        places = (result.run_dir, tmp_path / f"out{len(what)}")
        ours, written = (rondo.evaluate(place, device="cpu")["test"]["loss"] for place in places)
        assert written == pytest.approx(ours, abs=1e-5)


def test_convolution_and_rows_of_zeros_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    conv = {"model": {"name": "builtin:cnn"}, "task": {"kind": "image-classification", "image_size": 16}}
    conv |= {"partition": {"clients": 2}}
    source = {"data": {"source": "builtin:digits"}, "adapter": {"target_modules": ["conv2"], "use_dora": True}}
    with pytest.raises(ConfigError, match=r"a convolution cannot have magnitudes \(use_dora\) here"):
        rondo.run({"rounds": 1, **conv, **source}, run_dir=tmp_path / "run", device="cpu")
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification.from_pretrained(config["model"]["name"])
    model.bert.encoder.layer[1].attention.self.value.weight.data[3] = 0
    model.save_pretrained(tmp_path / "bert")
    save = Path(config["model"]["name"])
    for file in save.glob("token*"):
        (tmp_path / "bert" / file.name).write_bytes(file.read_bytes())
    zeros = {**config, "model": {"name": str(tmp_path / "bert")}}
    with pytest.raises(ConfigError, match=r"layer\.1\.attention\.self\.value has rows of zeros"):
        rondo.run(zeros, run_dir=tmp_path / "zeros", device="cpu")
