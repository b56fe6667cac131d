"""Preference and reward models against TRL: the same tokens, and the same loss at each of five steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from datasets import Dataset

from choice_rows import TEMPLATE, save_tiny_llama
from preferred_rows import FORMS, REWARD, TASK, preferred
from rondo.config import load
from rondo.engine.client.trainer import CohortTrainer
from rondo.params import HEAD_PREFIX
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.given import Given
from rondo.tasks.language.language_model import IGNORED
from rondo.tasks.language.preferring.pairs import PairColumns
from rondo.tasks.language.preferring.preference import Preference
from small_runs import settings

trl = pytest.importorskip("trl")
ROWS, STEPS, LR = 6, 5, 0.5
LORA: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sigmoid": ("texts", {"beta": 0.3}),
    "hinge": ("conversations", {}),
    "ipo": ("implicit conversations", {"beta": 0.5}),
    "robust": ("UltraFeedback", {"label_smoothing": 0.2}),
    "sigmoid_norm": ("implicit texts", {"beta": 2.0}),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama") / "llama", TEMPLATE)


def opened(llama: Path, task: dict[str, Any], rows: list[dict[str, Any]]) -> Assembly:
    train = {"batch_size": ROWS, "local_epochs": None, "local_steps": STEPS, "optimizer": "sgd", "lr": LR}
    config = settings(
        llama,
        task=task,
        adapter=LORA,
        train={**train, "max_grad_norm": 1.0, "precision": "exact"},
        partition={"kind": None, "clients": None},
        data={"validation_fraction": 0.0, "clients_from": "given in Python", "test_split": ""},
    )
    return assemble(load(config), "cpu", given=Given(clients={"ann": rows}))


def trained(run: Assembly) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The loss of every step, and the tensors after the last."""
    made: list[CohortTrainer] = []

    def make(*facts: Any) -> CohortTrainer:
        made.append(CohortTrainer(*facts))
        return made[-1]

    (member,) = run.population.members.values()
    shared = run.algorithm.broadcast(run.first_state(), member.client, run.round(0))
    local = replace(run.local_round({}), make=make)
    (answer,) = local.train((member.client,), (member.trained(),), (shared,), run.round(0))
    assert answer.upload is not None
    return made[0].losses[0][:, 0].tolist(), dict(answer.upload.params)


def arguments(made: Any, folder: Path, **options: Any) -> Any:
    return made(
        output_dir=str(folder), per_device_train_batch_size=ROWS, max_steps=STEPS, learning_rate=LR, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=1.0, bf16=False, gradient_checkpointing=False, use_cpu=True,
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, max_length=100, **options,
    )  # fmt: skip


def in_peft(name: str, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of PEFT's model that is the run's ``name``."""
    path, _, part = name.removeprefix(HEAD_PREFIX).rpartition(".")
    wanted = (
        f".{path}.modules_to_save.default.{part}" if name.startswith(HEAD_PREFIX) else f".{path}.lora_{part}.default."
    )
    (found,) = (tensor for key, tensor in state.items() if wanted in key)
    return found


def with_start(model: Any, run: Assembly) -> Any:
    """A PEFT model with the factors, and the head, of the run's start."""
    for name, tensor in run.initial.items():
        in_peft(name, model.state_dict()).copy_(tensor)
    return model


def watched(trainer: type) -> Any:
    class Watched(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            vars(self).setdefault("seen", []).append(float(loss.detach()))
            return loss

    return Watched


def assert_same(run: Assembly, trainer: Any) -> None:
    trainer.train()
    losses, params = trained(run)
    assert losses == pytest.approx(trainer.seen, rel=2e-6, abs=1e-7)
    assert len(set(losses)) == STEPS
    for name, tensor in params.items():
        torch.testing.assert_close(tensor, in_peft(name, trainer.model.state_dict()), rtol=1e-4, atol=2e-6)


def told(rows: list[dict[str, Any]]) -> Dataset:
    return Dataset.from_list([{key: cell for key, cell in row.items() if key != "who"} for row in rows])


@pytest.mark.parametrize("loss", LOSSES)
def test_five_steps_are_those_of_trl(loss: str, llama: Path, tmp_path: Path) -> None:
    form, keys = LOSSES[loss]
    rows = preferred(ROWS, form=form, system=form == "conversations")
    if form == "UltraFeedback":  # whose prompt is there twice: TRL's trainer wants it once
        rows = [trl.extract_prompt({k: row[k] for k in ("chosen", "rejected")}) for row in rows]
    run = opened(
        llama,
        {**TASK, "max_length": 100, "loss_type": loss, **keys},
        preferred(ROWS, form=form, system=form == "conversations"),
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(llama)
    model = with_start(peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **LORA)), run)
    trainer = watched(trl.DPOTrainer)(
        model=model,
        args=arguments(trl.DPOConfig, tmp_path, loss_type=[loss], **{"beta": 0.1, **keys}),
        train_dataset=told(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(llama),
    )
    pairs = [(row["prompt_ids"] + row["chosen_ids"], row["prompt_ids"] + row["rejected_ids"]) for row in
             trainer.train_dataset]  # fmt: skip
    (member,) = run.population.members.values()
    assert sorted(pairs) == sorted(([*p.chosen.ids], [*p.rejected.ids]) for p in member.train)  # type: ignore[attr-defined]
    assert_same(run, trainer)


def test_reward_model_is_that_of_trl(llama: Path, tmp_path: Path) -> None:
    rows = preferred(ROWS, form="conversations")
    run = opened(llama, {**REWARD, "max_length": 100}, rows)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(llama, num_labels=1)
    lora = peft.LoraConfig(task_type="SEQ_CLS", modules_to_save=["score"], **LORA)
    model = with_start(peft.get_peft_model(base, lora), run)
    trainer = watched(trl.RewardTrainer)(
        model=model,
        args=arguments(trl.RewardConfig, tmp_path, center_rewards_coefficient=None),
        train_dataset=told(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(llama),
    )
    assert_same(run, trainer)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_too_long_are_those_of_trl(form: str, llama: Path, tmp_path: Path) -> None:
    """Answers are cut at their end; a row whose prompt leaves no room is left out."""
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    rows = preferred(12, form="texts" if form == "UltraFeedback" else form)
    coder = transformers.AutoTokenizer.from_pretrained(llama)
    whole = Preference(coder, PairColumns(None, "chosen", "rejected"), 150).encode(rows)
    prompts = sorted(sum(token == IGNORED for token in pair.chosen.target) for pair in whole)  # type: ignore[union-attr]
    run = opened(llama, {**TASK, "max_length": prompts[3] + 1}, rows)
    base = transformers.AutoModelForCausalLM.from_pretrained(llama)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", **LORA)
    options = arguments(trl.DPOConfig, tmp_path)
    options.max_length = run.config.task.max_length
    trainer = trl.DPOTrainer(base, args=options, train_dataset=told(rows), processing_class=coder, peft_config=lora)
    (member,) = run.population.members.values()
    assert 0 < len(member.train) == len(trainer.train_dataset) < len(rows)
    batch = DataCollatorForPreference(0, options.max_length)(list(trainer.train_dataset))
    ids = [tuple(r[m.bool()].tolist()) for r, m in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    assert sorted(ids) == sorted(side.ids for pair in member.train for side in pair.sides)  # type: ignore[attr-defined]
