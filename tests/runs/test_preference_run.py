"""Runs of preference and of reward models: learned, scored, predicted, exported; the same whatever shares the work."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import rondo
from choice_rows import TEMPLATE, save_tiny_llama
from outcomes import adapter, problems, verified, weights
from pair_rows import requests, save_tiny
from preferred_rows import FORMS, REWARD, TASK, preferred
from rondo.config import load
from rondo.tasks.language.preferring.pairs import PairColumns
from rondo.tasks.language.preferring.preference import Preference
from rondo.tasks.task import Batch
from small_runs import settings


def config(model: Path, task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    train = {"local_epochs": 1, "precision": "exact", **changes.pop("train", {})}
    adapter = {"r": 4, "target_modules": ["q_proj", "v_proj"], **changes.pop("adapter", {})}
    return settings(model, **{"task": task, "train": train, "adapter": adapter, "rounds": 1, **changes})


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama") / "llama", TEMPLATE)


def test_a_model_learns_to_prefer_and_is_handed_over(llama: Path, tmp_path: Path) -> None:
    rows, test = preferred(24, form="conversations", system=True), preferred(9, seed=1, form="conversations")
    made = config(llama, TASK, evaluation={"generate": 1, "max_new_tokens": 8}, train={"local_epochs": 5})
    result = rondo.run(made, train=rows, test=test, run_dir=tmp_path / "run", device="cpu")
    before, after = (result.summary[when]["global"] for when in ("before", "after"))
    assert result.summary["primary"] == "accuracy"
    assert list(after) == ["accuracy", "margin", "loss", "examples"]
    assert before["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert before["margin"] == pytest.approx(0, abs=1e-5)
    assert after["accuracy"] > 0.6
    assert after["loss"] < before["loss"]
    assert rondo.evaluate(result.run_dir, device="cpu", data=test)["test"] == pytest.approx(after, rel=1e-4)
    alone = rondo.evaluate(result.run_dir / "adapter", device="cpu", data=test)["test"]
    assert alone == pytest.approx(after, rel=1e-4)
    partition = json.loads((result.run_dir / "partition.json").read_text())
    assert (partition["rows_used"], partition["text"]["rows"]) == (24, 24)
    (sample,) = result.summary["samples"]
    assert (sample["prompt"], sample["expected"]) == (test[0]["prompt"][0]["content"], test[0]["chosen"][0]["content"])
    (answer,) = rondo.predict(result.run_dir, [{"prompt": test[0]["prompt"]}], device="cpu", max_new_tokens=3)
    assert list(answer) == ["response"]
    verified(result.run_dir, tmp_path / "merged", merged=True)
    with pytest.raises(rondo.ConfigError, match="pairs are compared with the model without its adapter"):
        rondo.evaluate(tmp_path / "merged", device="cpu", data=test)


def test_a_reward_model_is_the_pipelines(llama: Path, tmp_path: Path) -> None:
    rows = preferred(24, form="UltraFeedback")
    result = rondo.run(
        config(llama, REWARD, train={"local_epochs": 4}), train=rows, test=rows[:9], run_dir=tmp_path / "run"
    )
    assert result.summary["after"]["global"]["accuracy"] > 0.8
    made = rondo.predict(result.run_dir, [{"chosen": row["chosen"]} for row in rows[:3]], device="cpu")
    with pytest.raises(rondo.ConfigError, match="column 'chosen': no turn"):
        rondo.predict(result.run_dir, [{"chosen": []}], device="cpu")
    verified(result.run_dir, tmp_path / "merged", merged=True)
    pipe = transformers.pipeline("text-classification", str(tmp_path / "merged"), function_to_apply="none")
    texts = [pipe.tokenizer.apply_chat_template(row["chosen"], tokenize=False) for row in rows[:3]]
    assert [p["score"] for p in pipe(texts)] == pytest.approx([row["reward"] for row in made], rel=1e-4)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["T5", "BART"])
def test_a_cut_answer_ends_as_whole_ones_do(name: str, tmp_path: Path) -> None:
    """These models read the state of the end token, and refuse rows without it."""
    rows = [{"prompt": r["request"], "chosen": r["answer"], "rejected": f"{r['answer']} now"} for r in requests(12)]
    made = config(save_tiny(name, tmp_path / "model"), REWARD, adapter={"target_modules": "all-linear"})
    made["task"] = {**made["task"], "max_length": 40}
    result = rondo.run(made, train=rows, test=rows, run_dir=tmp_path / "run", device="cpu")
    short, long, longer = ({"prompt": "red and", "chosen": " green" * count} for count in (1, 90, 95))
    found = rondo.predict(result.run_dir, [short, long, longer], device="cpu")
    assert found[1]["reward"] == pytest.approx(found[2]["reward"], rel=1e-4) != found[0]["reward"]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("task", [TASK, REWARD], ids=["preference", "reward"])
def test_resumed_run_has_the_same_bits(task: dict[str, Any], llama: Path, tmp_path: Path) -> None:
    rows, adapters = preferred(15), []
    for rounds in (2, 1):
        made = config(llama, task, rounds=rounds, adapter={"lora_dropout": 0.2})
        result = rondo.run(made, train=rows, run_dir=tmp_path / str(rounds), device="cpu")
        result = rondo.resume(result.run_dir, rounds=2, train=rows, device="cpu") if rounds < 2 else result
        adapters.append(adapter(result.run_dir))
    assert adapters[0] == adapters[1]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("change", [{"simulation": {"cohort": 3}}, {"train": {"packing": False, "micro_batch": 2}}])
@pytest.mark.parametrize("task", [TASK, REWARD], ids=["preference", "reward"])
def test_clients_in_one_call_and_rows_in_parts_change_nothing(
    task: dict[str, Any], change: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    """With dropout, and without padding where rows are laid end to end."""
    found = []
    for name, own in (("alone", {"simulation": {"cohort": 1}}), ("changed", change)):
        train = {"optimizer": "sgd", "lr": 0.5, **own.get("train", {})}
        dropped = {**own, "train": train, "adapter": {"lora_dropout": 0.2 if "simulation" in own else 0.0}}
        if "train" in change:
            dropped["adapter"] = {}
        made = config(llama, task, **dropped)
        found.append(weights(rondo.run(made, train=preferred(15), run_dir=tmp_path / name, device="cpu").run_dir))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_have_their_prompt_once(form: str, llama: Path) -> None:
    coder = transformers.AutoTokenizer.from_pretrained(llama)
    row = preferred(1, form=form)[0]
    (pair,) = Preference(coder, PairColumns(None, "chosen", "rejected"), 100).encode([row])
    learned = [coder.decode([t for t in side.target if t >= 0]) for side in pair.sides]  # type: ignore[union-attr]
    asked = "Which colour is it?"
    assert [asked in text for text in learned] == [False, False]
    assert [coder.decode(side.ids).count(asked) for side in pair.sides] == [1, 1]


def test_reference_is_computed_once_per_row(llama: Path) -> None:
    coder, calls = transformers.AutoTokenizer.from_pretrained(llama), []

    def output(inputs: Batch) -> torch.Tensor:
        calls.append(len(inputs["input_ids"]))
        return torch.zeros(*inputs["input_ids"].shape, len(coder))

    task = Preference(coder, PairColumns(None, "chosen", "rejected"), 100).compared_with(output).compared_with(output)
    pairs = task.encode(preferred(5))
    known = [task.collate(batch)[1]["reference"] for batch in (pairs, pairs[::-1], pairs[:2])]
    assert calls == [2] * 5
    assert known[0].reshape(5, 2).flip(0).equal(known[1].reshape(5, 2))
    tokens = [sum(t >= 0 for t in side.target) for side in pairs[0].sides]  # type: ignore[union-attr]
    assert known[0][:2].tolist() == pytest.approx([-n * math.log(len(coder)) for n in tokens])


TURN = {"role": "assistant", "content": "no"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": ""}, r"column 'chosen': the text is empty"),
        ({"rejected": None}, r"column 'rejected': expected text, got None"),
        ({"chosen": " It", "rejected": " It"}, r"column 'rejected': the same as in column 'chosen', so neither"),
        ({"prompt": None}, r"column 'chosen': it and column 'rejected' begin differently, so no prompt is in them"),
        ({"rejected": [TURN]}, r"column 'rejected': turn 0 is by assistant and should be by user: a"),
        ({"prompt": [{"role": "user", "content": "so"}]}, r"column 'chosen': a text, and the prompt is turns of a"),
        ({"prompt": [{"role": "user", "content": "so"}], "chosen": []}, r"column 'chosen': no turn"),
    ],
)
def test_bad_row_names_its_place_and_reason(llama: Path, tmp_path: Path, change: Any, message: str) -> None:
    rows = preferred(6)
    rows[4] |= {"chosen": "yes", "rejected": "no", **change}
    with pytest.raises(rondo.ConfigError, match=message) as error:
        rondo.run(config(llama, TASK), train=rows, run_dir=tmp_path / "run", device="cpu")
    assert "train[4], column" in str(error.value)


@pytest.mark.parametrize(
    ("task", "key", "message"),
    [
        ({"label_smoothing": 0.1}, "task.label_smoothing", "only loss_type = 'robust' uses it"),
        ({"kind": "reward", "beta": 0.1}, "task.beta", "only kind = 'preference' uses it"),
        (
            {"kind": "causal-lm", "text": "prompt", "chosen": "a"},
            "task.chosen",
            "only kind = 'preference' and 'reward'",
        ),
        ({"prompt": ["a", "b"]}, "task.prompt", "preference takes one prompt column: name one"),
        ({"loss_type": "dpo"}, "task.loss_type", "'sigmoid', 'hinge', 'ipo', 'robust' or 'sigmoid_norm'"),
    ],
)
def test_keys_are_checked(llama: Path, task: dict[str, Any], key: str, message: str) -> None:
    assert message in problems(lambda: load(config(llama, {**TASK, **task})))[key]


def test_whole_models_have_no_reference(llama: Path) -> None:
    made = config(llama, TASK, algorithm={"name": "fedavg"}, train={"what": "all"})
    with pytest.raises(rondo.ConfigError, match=r"train\.what: a pair is compared with the model without its adapter"):
        load({key: section for key, section in made.items() if key != "adapter"})


@pytest.mark.slow
def test_conversations_need_a_template(tmp_path: Path) -> None:
    """Texts do not; nor does a tokenizer need a padding token."""
    bare = save_tiny_llama(tmp_path / "llama")
    settings_file = bare / "tokenizer_config.json"
    known = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps({key: value for key, value in known.items() if key != "pad_token"}))
    for name, task in (("preference", TASK), ("reward", REWARD)):
        rondo.run(config(bare, task), train=preferred(9), run_dir=tmp_path / name, device="cpu")
    with pytest.raises(rondo.ConfigError, match=r"task\.chat_template: the tokenizer has no chat template, which conv"):
        rondo.run(config(bare, TASK), train=preferred(9, form="conversations"), run_dir=tmp_path / "run", device="cpu")
