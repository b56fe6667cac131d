"""A trainer of the user's own gets what it is promised, Rondo takes what it trained, and the ready-made one is Rondo's
own trainer to rounding."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import own_trainers
import pytest
from typer.testing import CliRunner

import rondo
from outcomes import weights
from pages import fences
from rondo.cli.app import app
from rondo.config import load
from small_runs import reviews, save_tiny_bert, save_tiny_gpt2, settings, write_rows

ROWS = reviews(24)
DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout, which acts in the base when another trainer trains it."""
    folder = save_tiny_bert(tmp_path_factory.mktemp("model"))
    content = json.loads((folder / "config.json").read_text())
    content |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def config(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One batch has all rows of a client, so no order of rows matters."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    own_trainers.SEEN.clear()
    return settings(
        bert,
        data={"source": str(write_rows(tmp_path / "rows.csv", ROWS))},
        partition={"clients": 2},
        train={"batch_size": 64, "local_epochs": 2, "precision": "exact", "trainer": "own_trainers:looking"},
    )


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """``config`` with ``changes`` by section."""
    return {**config, **{n: {**config.get(n, {}), **c} if isinstance(c, dict) else c for n, c in changes.items()}}


def difference(results: list[rondo.RunResult]) -> float:
    one, other = (weights(result.run_dir) for result in results)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "method",
    [
        "fedit",
        "fedit with magnitudes",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("rolora", "fedex-lora", "fedrep")),
    ],
)
def test_transformers_trainer_is_rondos_own_to_rounding(method: str, config: dict[str, Any], tmp_path: Path) -> None:
    """The oracle of both: steps of AdamW on all rows of a client."""
    config = changed(config, algorithm={"name": method.removesuffix(" with magnitudes")})
    config = changed(config, adapter={"use_dora": method.endswith("magnitudes")})
    results = [
        rondo.run(changed(config, train={"trainer": name}), run_dir=tmp_path / str(name), device="cpu")
        for name in (None, "transformers")
    ]
    assert difference(results) < 2e-5
    ours, theirs = ([(r["bytes_up"], r["bytes_down"], r["loss"]) for r in result.history] for result in results)
    assert [r[:2] for r in ours] == [r[:2] for r in theirs]
    assert [r[2] for r in ours] == pytest.approx([r[2] for r in theirs], abs=0.01)


@pytest.mark.slow
def test_answers_differ_in_a_bias_that_changes_nothing(bert: Path, config: dict[str, Any], tmp_path: Path) -> None:
    """One number is added to the scores of all tokens, so the gradient of the output's bias is zero but for rounding,
    and AdamW divides it by its own size: each trainer takes steps of the whole rate in a direction of its own."""
    rows = [{"context": f"{r['text']} end", "question": "was it", "answers": ""} for r in ROWS]
    place = [
        {**row, "answers": json.dumps({"text": ["end"], "answer_start": [len(row["context"]) - 3]})} for row in rows
    ]
    task = {"kind": "question-answering", "context": "context", "question": "question", "answers": "answers"}
    config = {**config, "task": {**task, "max_length": 32}}
    config = changed(config, data={"source": str(write_rows(tmp_path / "asked.csv", place))}, train={"batch_size": 256})
    one, other = (
        weights(rondo.run(changed(config, train={"trainer": name}), run_dir=tmp_path / str(name), device="cpu").run_dir)
        for name in (None, "transformers")
    )
    differences = {name: float((one[name] - other[name]).abs().max()) for name in one}
    bias = next(name for name in differences if name.endswith("qa_outputs.bias"))
    assert max(value for name, value in differences.items() if name != bias) < 2e-5, differences
    assert differences[bias] < 0.05


@pytest.fixture
def language(config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A language model without dropout, trained on prompts and answers."""
    gpt2 = save_tiny_gpt2(tmp_path / "gpt2")
    content = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({**content, **dict.fromkeys(DROPOUTS, 0.0)}))
    task = {"kind": "causal-lm", "prompt": "first", "response": "second", "max_length": 32}
    config = changed(config, model={"name": str(gpt2)}, adapter={"target_modules": ["c_attn", "c_proj"]})
    return {**config, "task": task}


@pytest.mark.parametrize("name", ["sft", pytest.param("transformers", marks=pytest.mark.slow)])
def test_language_model_is_trained_with_its_output_layer(name: str, language: dict[str, Any], tmp_path: Path) -> None:
    """Rondo's own trainer computes the logits of targets alone, as a part of the loss, and so does TRL's."""
    if name == "sft":
        pytest.importorskip("trl")
    results = [
        rondo.run(changed(language, train={"trainer": trainer}), run_dir=tmp_path / str(trainer), device="cpu")
        for trainer in (None, name)
    ]
    assert difference(results) < 2e-5
    losses = [[record["loss"] for record in result.history] for result in results]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)


def test_pairs_are_trained_by_trls_trainer(language: dict[str, Any], tmp_path: Path) -> None:
    """The loss of the first step is log 2, because nothing is learned yet; the last one is below it."""
    pytest.importorskip("trl")
    rows = [{"prompt": row["text"], "chosen": " good", "rejected": " bad"} for row in ROWS]
    task = {**language["task"], "prompt": "prompt", "response": "chosen"}
    train = {"trainer": "dpo", "local_epochs": 1}
    config = changed(language, task=task, train=train, data={"source": str(write_rows(tmp_path / "pairs.csv", rows))})
    losses = [r["loss"] for r in rondo.run(config, run_dir=tmp_path / "run", device="cpu").history if r.get("loss")]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0]
    with pytest.raises(rondo.ConfigError, match=r"train\.trainer: .*rows lack chosen, prompt, rejected: rename them"):
        rondo.run(changed(language, train=train), run_dir=tmp_path / "without", device="cpu")


def test_trls_trainers_take_language_models_alone(config: dict[str, Any]) -> None:
    pytest.importorskip("trl")
    with pytest.raises(rondo.ConfigError, match=r"train\.trainer: 'sft' trains causal-lm alone"):
        load(changed(config, train={"trainer": "sft"}))


@pytest.mark.slow
def test_ratio_of_rates_is_that_of_pefts_optimizer(language: dict[str, Any], tmp_path: Path) -> None:
    """LoRA+ of Rondo's own trainer and of the ready-made one, beside PEFT's; A moves in the second round."""
    own = {"optimizer": "sgd", "local_epochs": 1, "max_grad_norm": 0.0, "lr": 0.05, "lr_ratio": 16.0}
    theirs, *ours = (
        rondo.run(changed(language, train={**own, "trainer": name}), run_dir=tmp_path / str(number), device="cpu")
        for number, name in enumerate(("own_trainers:loraplus", None, "transformers"))
    )
    assert max(difference([theirs, one]) for one in ours) < 1e-6
    equal = changed(language, train={**own, "trainer": None, "lr_ratio": 1.0})
    assert difference([theirs, rondo.run(equal, run_dir=tmp_path / "equal", device="cpu")]) > 1e-3


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("clients of florg train another matrix", {"algorithm": {"name": "florg"}}),
        ("a ratio of its own, algorithm.lr_ratio", {"algorithm": {"name": "lora-a2"}}),
        ("no factors are trained", {"train": {"what": "head"}, "adapter": None, "algorithm": {"name": "fedavg"}}),
    ],
)
def test_ratio_without_both_factors_is_refused(reason: str, change: dict[str, Any], config: dict[str, Any]) -> None:
    config = changed(changed(config, train={"trainer": None, "lr_ratio": 4.0}), **change)
    with pytest.raises(rondo.ConfigError, match=rf"train\.lr_ratio: .*{reason}.*: remove it"):
        load({name: section for name, section in config.items() if section is not None})


def test_ratio_is_refused_where_a_movement_is_read_as_a_gradient(config: dict[str, Any], tmp_path: Path) -> None:
    train = {"trainer": None, "lr_ratio": 4.0, "optimizer": "sgd", "max_grad_norm": 0}
    config = changed(config, algorithm={"name": "scaffold", "option": "II"}, train=train)
    with pytest.raises(rondo.ConfigError, match=r"train\.lr_ratio: .*sum of its gradients only at one learning rate"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")


def test_own_steps_are_rondos_own_steps(config: dict[str, Any], tmp_path: Path) -> None:
    """A plain loop over the file's rows, with the model's own loss."""
    own = {"optimizer": "sgd", "local_epochs": 1, "max_grad_norm": 0.0, "lr": 0.5}
    runs = {"own": own, "rondo": {**own, "trainer": None}}
    results = [rondo.run(changed(config, train=t), run_dir=tmp_path / n, device="cpu") for n, t in runs.items()]
    assert difference(results) < 1e-6


def test_trainer_gets_rows_and_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    rondo.run(changed(config, algorithm={"name": "rolora"}), run_dir=tmp_path / "run", device="cpu")
    assert [call["client"] for call in own_trainers.SEEN] == ["client-0", "client-1"] * 2
    given = [row for call in own_trainers.SEEN[:2] for row in call["rows"]]
    assert [row for row in given if row not in ROWS] == []
    assert sum(len(c["rows"]) for c in own_trainers.SEEN[:2]) == 18  # a quarter is held back
    epochs, steps, lr, seed, torchs = own_trainers.SEEN[0]["numbers"]
    assert (epochs, steps, lr, torchs) == (2, None, 0.02, seed)
    assert len({call["numbers"][3] for call in own_trainers.SEEN}) == 4
    factors = [{n.split(".")[-3] for n in call["trained"] if "lora_" in n} for call in own_trainers.SEEN]
    assert factors == [{"lora_B"}, {"lora_B"}, {"lora_A"}, {"lora_A"}]


def test_resumed_run_is_the_run(config: dict[str, Any], tmp_path: Path) -> None:
    """The seeds are those of its rounds. The code that a directory names is not run unasked."""
    config = changed(config, train={"trainer": "own_trainers:drawing"})
    whole = rondo.run(config, run_dir=tmp_path / "whole", device="cpu")
    rondo.run({**config, "rounds": 1}, run_dir=tmp_path / "part", device="cpu")
    sets = ["rounds=2"]
    with pytest.raises(rondo.ConfigError, match=r"train\.trainer.*is no part of Rondo") as error:
        rondo.resume(tmp_path / "part", sets=sets, device="cpu")
    assert "--allow-code" in str(error.value)
    resumed = rondo.resume(tmp_path / "part", sets=sets, device="cpu", allow_code=True)
    assert difference([whole, resumed]) == 0.0
    assert whole.history[0]["loss"] == 0.5
    assert "own_trainers" in json.loads((whole.run_dir / "manifest.json").read_text())["code_sha256"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failing", r"'own_trainers:failing' at client client-0 failed: KeyError: 'score' \(.*own_trainers\.py, line"),
        ("wordy", "returned a str: return nothing, or the mean loss as a number"),
        ("moving", "changed the frozen tensor .*, which all clients share: train what has requires_grad"),
        ("casting", "changed the frozen tensor .*, which all clients share: train what has requires_grad"),
        ("absent", "cannot load 'own_trainers:absent': AttributeError"),
        ("SEEN", "is not a function"),
    ],
)
def test_faults_of_a_trainer_have_a_reason(name: str, message: str, config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(rondo.ConfigError, match=rf"train\.trainer: .*{message}"):
        rondo.run(changed(config, train={"trainer": f"own_trainers:{name}"}), run_dir=tmp_path / "run", device="cpu")


def test_client_with_numbers_that_are_not_finite_fails(config: dict[str, Any], tmp_path: Path) -> None:
    config = changed(config, train={"trainer": "own_trainers:diverging"})
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    failed = [(r["clients"], [(f["client"], f["reason"]) for f in r["failed"]]) for r in result.history]
    assert failed == [(1, [("client-0", "nonfinite_parameters")])] * 2


@pytest.mark.slow
def test_page_of_ten_lines_runs(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of docs/how-to/your-trainer.md, with a small model in place of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_trainer", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(bert, "model")
    blocks = fences("docs/how-to/your-trainer.md")
    for block in blocks:
        if block.title:
            Path(block.title).write_text(block.text.replace("builtin:minilm", "model"), encoding="utf-8")
    assert len(Path("my_trainer.py").read_text(encoding="utf-8").split("def train")[1].strip().splitlines()) <= 10
    for line in (line for block in blocks if not block.language for line in block.text.splitlines()):
        program, *arguments = shlex.split(line)
        done = CliRunner().invoke(app, arguments)
        assert (program, done.exit_code) == ("rondo", 0), done.output
    history = [json.loads(line) for line in Path("runs/own/metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in history if record.get("loss") is not None] == [0, 1, 2]


REFUSED: dict[str, dict[str, Any]] = {
    "algorithm.name": {"algorithm": {"name": "fedprox"}},
    "train.trainer": {"train": {"trainer": "transfomers"}},
    "train.what": {"train": {"what": "all"}},
    "train.micro_batch": {"train": {"micro_batch": 2}},
    "train.checkpointing": {"train": {"checkpointing": True}},
    "model.quantization": {"model": {"quantization": "int8"}},
    "privacy.unit": {
        "privacy": {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-3},
        "clients": {"weighting": "uniform"},
    },
    "clients.ranks": {"clients": {"ranks": [1, 2]}},
    "simulation.engine": {"simulation": {"engine": "ray"}},
    "faults.nonfinite_loss": {"faults": {"nonfinite_loss": 0.5}},
    "evaluation.local_only": {"evaluation": {"local_only": True}},
    "evaluation.fine_tune_epochs": {"evaluation": {"fine_tune_epochs": 1}},
}


@pytest.mark.parametrize("key", REFUSED)
def test_options_that_do_not_go_with_it_are_refused(key: str, config: dict[str, Any]) -> None:
    with pytest.raises(rondo.ConfigError) as error:
        load(changed(config, **REFUSED[key]))
    assert [problem.path for problem in error.value.problems] == [key]
    assert "train.trainer" in str(error.value)


def test_own_method_with_another_objective_is_refused_in_its_first_round(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config = changed(config, algorithm={"name": "rondo.algorithms.whole.fedprox:FedProx"})
    with pytest.raises(rondo.ConfigError, match="asks for more than training on the plain loss"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")


def test_batch_is_dealt_whole_to_processes(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    config = changed(config, train={"trainer": "transformers", "batch_size": 64})
    with pytest.raises(rondo.ConfigError, match=r"train\.batch_size: 64 rows cannot be dealt to 3 processes"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")
