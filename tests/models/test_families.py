"""Every family of models is right or refused with a reason: its clients in one call, its export, its longest row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, LONGEST, WORDS, Family, Outcome, save, table
from family_runs import LABELS, Kind, assert_close, classes, configured, drawn, opened, trained

import rondo
from rondo.config import RunConfig
from rondo.errors import ConfigError
from rondo.models.forms.outline import look
from rondo.models.forms.transformer import Transformer, load_base
from rondo.models.loading import peft
from rondo.params import HEAD_PREFIX, Params, add_client_axis, client_row, stack_clients
from rondo.tasks.task import Task
from small_runs import settings, write_rows

ROUNDING = 1e-3
"""Of the largest change in a step. A row dealt to another client changes it as much as it is large."""
FAST = ("BERT", "RoBERTa", "DeBERTa v2", "Funnel", "XLNet", "LED", "Llama", "Qwen3-MoE")
ALONE = ("sequence-classification", "token-classification", "causal-lm", "seq2seq-lm")
"""Kinds in which a model differs most from those of the other kinds."""
QUICK = ("BERT", "T5", "Llama")
"""Families that are tried in all kinds by default."""


def cases() -> list[Any]:
    found = []
    for name, family in FAMILIES.items():
        for kind, outcomes in family.outcomes.items():
            for layers, outcome in zip(("all-linear", list(family.attention)), outcomes, strict=True):
                if outcome != "none":
                    which = "all" if layers == "all-linear" else "attention"
                    marks = () if name in (FAST if kind in ALONE else QUICK) else pytest.mark.slow
                    found.append(pytest.param(family, kind, layers, outcome, id=f"{name}-{kind}-{which}", marks=marks))
    return found


@pytest.mark.parametrize(("family", "kind", "layers", "outcome"), cases())
@pytest.mark.sweep(5)
def test_family_is_right_or_refused(tmp_path: Path, family: Family, kind: Kind, layers: Any, outcome: Outcome) -> None:
    config = configured(save(family, kind, tmp_path), kind, layers)
    if outcome == "refused":
        with pytest.raises(ConfigError) as caught:
            opened(config)
        for problem in caught.value.problems:
            assert problem.path in ("model.name", "adapter.target_modules")
            assert len(problem.message) < 600
        return
    model, task, examples = opened(config)
    assert (model.network.one_at_a_time is None) == (outcome == "together"), model.network.one_at_a_time
    starts = [drawn(model, k) for k in range(len(examples))]
    alone = [trained(model, task, config, examples, add_client_axis(p), [k]) for k, p in enumerate(starts)]
    if outcome == "together":
        together = trained(model, task, config, examples, stack_clients(starts), range(len(examples)))
        for k, start in enumerate(starts):
            largest = max(float((alone[k][n][0] - t).abs().max()) for n, t in start.items())
            for name, tensor in alone[k].items():
                assert_close(together[name][k], tensor[0], ROUNDING * largest)
    seen = client_row(alone[2], 0)
    if kind in ALONE:
        assert_stock_peft_agrees(tmp_path / "adapter", config, model, task, examples[2], seen)
    else:
        model.save(tmp_path / "adapter", seen, {}, classes(config))
        assert model.verified(tmp_path / "adapter", seen, {}, task, list).passed


@torch.no_grad()
def assert_stock_peft_agrees(
    folder: Path, config: RunConfig, model: Transformer, task: Task, examples: Sequence[Any], seen: Params
) -> None:
    """A client's trained tensors, written and loaded by stock PEFT, give its logits."""
    model.save(folder, seen, {}, classes(config))
    base = load_base(config, model.name, model.known, model.tokenizer, config.seed + 1).module
    inputs, targets = task.collate(examples)
    ours, theirs = model.network(add_client_axis(seen), {}, inputs), peft.stock_model(base, folder)(**inputs).logits
    if ours.dim() == 3:  # logits at padding mean nothing
        real = (
            targets["labels"] >= 0
            if "labels" in targets and "decoder_input_ids" in inputs
            else inputs["attention_mask"].bool()
        )
        ours, theirs = ours[real], theirs[real]
    assert_close(ours, theirs, 1e-4 * max(1.0, float(theirs.abs().max())))
    start = {n: t for n, t in model.network.initial.items() if not n.startswith(HEAD_PREFIX)}
    before = model.network(add_client_axis({**seen, **start}), {}, inputs)
    assert before.shape != ours.shape or (before - ours).abs().max() > 1e-4


POSITIONS = [
    n for n, f in FAMILIES.items() if n != "ViT" and {"max_position_embeddings", "n_positions"} & set(f.options)
]


def problems(family: Family, folder: Path, longest: int, answer: int = LONGEST) -> list[str]:
    """The faults of a configuration with rows of ``longest`` tokens, and of ``answer`` tokens that a decoder writes."""
    outcomes: dict[Kind, Outcome] = {
        "sequence-classification": family.classifies[0],
        "causal-lm": family.speaks[0],
        "seq2seq-lm": family.writes[0],
    }
    kind = next(kind for kind, outcome in outcomes.items() if outcome != "none")
    if answer != LONGEST:
        kind = "seq2seq-lm"
    config = configured(save(family, kind, folder), kind, list(family.attention))
    task = config.task.model_copy(update={"max_length": longest, "max_target_length": answer})
    return [p.message for p in look(config.model_copy(update={"task": task}), LABELS).problems]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POSITIONS)
def test_longer_rows_than_positions_are_refused(tmp_path: Path, name: str) -> None:
    assert problems(FAMILIES[name], tmp_path, LONGEST) == []
    assert problems(FAMILIES[name], tmp_path, LONGEST + 1) == ["65, but this model takes 64 tokens: lower it to 64"]


SIDES = {
    "BART": (
        "65, but this model takes 64 tokens: lower it to 64",
        "65, but this model writes 64 tokens: set it to 64 or less",
    ),
    "LED": (
        "65, but this model takes 64 tokens: lower it to 64",
        "65, but this model writes 48 tokens: set it to 48 or less",
    ),
    "T5": (),
}


@pytest.mark.parametrize("name", SIDES)
def test_each_side_of_an_encoder_decoder_has_its_own_limit(tmp_path: Path, name: str) -> None:
    """LED pads to whole windows; T5's positions are relative, whatever its tokenizer says."""
    family = FAMILIES[name]
    if name == "LED":
        limits = {"max_encoder_position_embeddings": LONGEST + 7, "max_decoder_position_embeddings": 48}
        family = Family(family.config, {**family.options, **limits}, family.attention, writes=family.writes)
    assert tuple(problems(family, tmp_path, LONGEST + 1, LONGEST + 1)) == SIDES[name]


def test_rows_that_sparse_attention_would_divide_are_refused(tmp_path: Path) -> None:
    """BigBird's blocks depend on the length of the whole batch; its full attention serves rows of up to 28 tokens."""
    family = FAMILIES["BigBird"]
    small = Family(family.config, {**family.options, "block_size": 4}, family.attention)
    assert problems(small, tmp_path, 28) == []
    assert problems(small, tmp_path, 29) == ["29, but this model takes 28 tokens: lower it to 28"]


def test_adapter_dropout_of_pooled_tokens_trains_one_at_a_time(tmp_path: Path) -> None:
    """Two blocks of Funnel read no padding, but its pooled tokens are not the batch's, so masks are drawn for all."""
    family = FAMILIES["Funnel"]
    two = Family(family.config, {**family.options, "block_sizes": [1, 1]}, family.attention)
    config = configured(save(two, "sequence-classification", tmp_path), "sequence-classification", "all-linear")
    assert opened(config)[0].network.one_at_a_time is None
    dropped = config.model_copy(update={"adapter": config.adapter.model_copy(update={"lora_dropout": 0.3})})
    assert opened(dropped)[0].network.one_at_a_time is not None


def test_adapter_dropout_of_two_sequences_is_the_clients_own(tmp_path: Path) -> None:
    """Prompts and answers are padded to the same length here, and no client's longest have the same."""
    config = configured(save(FAMILIES["T5"], "seq2seq-lm", tmp_path), "seq2seq-lm", "all-linear", lora_dropout=0.3)
    model, task, examples = opened(config)
    assert model.network.one_at_a_time is None
    inputs, _ = task.collate([e for client in examples for e in client])
    assert inputs["input_ids"].shape == inputs["decoder_input_ids"].shape == (6, LONGEST)
    starts = [drawn(model, k) for k in range(len(examples))]
    together = trained(model, task, config, examples, stack_clients(starts), range(len(examples)))
    for k, start in enumerate(starts):
        alone = trained(model, task, config, examples, add_client_axis(start), [k])
        largest = max(float((alone[n][0] - t).abs().max()) for n, t in start.items())
        for name, tensor in alone.items():
            assert_close(together[name][k], tensor[0], ROUNDING * largest)


def test_page_of_models_has_the_tables_rows() -> None:
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    assert "\n".join(table()) in page


REASONS = {
    "DeBERTa v2": "the clients' rows cannot be told apart in deberta.encoder.layer.0.attention.self.pos_key_proj "
    "(its input is not one row per example)",
    "Funnel": "a row's loss is not what it is when its client is alone in a call",
}
"""The manifest's reason why the clients of a family train one at a time."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REASONS)
def test_run_equals_one_client_at_a_time(tmp_path: Path, name: str) -> None:
    """A whole run, with clients of two, three and five rows per batch."""
    folder = save(FAMILIES[name], "sequence-classification", tmp_path / "model")
    texts = [" ".join(WORDS[(7 * i + j) % len(WORDS)] for j in range(3 + i % 8)) for i in range(20)]
    rows = [{"text": t, "label": LABELS[i % 2], "who": "aaaaabbbcccccccccccc"[i]} for i, t in enumerate(texts)]
    source = write_rows(tmp_path / "rows.csv", rows)
    adapters = []
    for cohort in ("auto", 1):
        config = settings(
            folder,
            algorithm={"name": "fedit"},
            adapter={"target_modules": "all-linear"},
            data={"source": str(source), "test_split": "", "validation_fraction": 0.0},
            partition={"kind": "natural", "column": "who", "clients": None},
            train={"optimizer": "sgd", "lr": 0.1, "precision": "exact", "batch_size": 5},
            simulation={"cohort": cohort},
        )
        result = rondo.run(config, run_dir=tmp_path / f"run-{cohort}", device="cpu")
        assert result.summary["rounds"] == 2
        assert json.loads((result.run_dir / "manifest.json").read_text())["one_at_a_time"] == REASONS[name]
        adapters.append(peft.read_tensors(result.run_dir / "adapter"))
    for tensor, expected in zip(*(a.values() for a in adapters), strict=True):
        assert_close(tensor, expected, 1e-6)
