"""Training of every family equals a plain loop over stock PEFT; the shortcuts that it allows change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import peft as stock
import pytest
import torch
import transformers
from families import AUTO, FAMILIES, SHORTCUTS, Family, Kind, save, tokenizer
from family_runs import LABELS, assert_close, configured, drawn, opened, pictures, sentences, trained

from rondo.config import RunConfig
from rondo.models.forms.transformer import load_base
from rondo.models.loading.lent import merge_adapter
from rondo.models.shortcuts.prefix import States
from rondo.params import HEAD_PREFIX, Params, add_client_axis, client_row, stack_clients

CASES: list[tuple[str, Kind]] = [(name, kind) for name, family in FAMILIES.items() for kind in family.shortcuts]
QUICK = {name: kind for name, kind in reversed(CASES) if (name, kind) != ("T5", "sequence-classification")}
"""One case of each family."""
HEADS = {
    "DeBERTa v3": ["pooler", "classifier"],
    "ModernBERT": ["head", "classifier"],
    "T5": ["classification_head"],
    "ViT": ["classifier"],
}
"""Modules of the task head where PEFT does not know them."""
STEPS = 3


def marked(quick: Sequence[tuple[str, Kind]]) -> list[Any]:
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow, id="-".join(case)) for case in CASES]


def run_of(folder: Path, family: Family, kind: Kind, layers: Any, **adapter: Any) -> RunConfig:
    """The configuration of a random model, trained for some steps on all rows of a client at once."""
    config = configured(save(family, kind, folder), kind, layers, **adapter)
    train = config.train.model_copy(update={"local_epochs": STEPS, "batch_size": 8})
    return config.model_copy(update={"train": train})


def by_hand(folder: Path, config: RunConfig, heads: Sequence[str] | None, seen: Params, words: Any) -> Params:
    """The tensors of client 2 after the steps, by stock transformers and PEFT alone, from ``seen``."""
    rows: Sequence[dict[str, Any]] = sentences()[2]
    batch = dict(words([row["text"] for row in rows], padding=True, return_tensors="pt"))
    auto: Any = transformers.AutoModelForSequenceClassification
    task, labels = "SEQ_CLS", torch.tensor([LABELS.index(row["label"]) for row in rows])
    if config.task.kind == "seq2seq-lm":
        auto, task = transformers.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM"
        answers = words(text_target=[row["answer"] for row in rows], padding=True, return_tensors="pt")
        labels = answers["input_ids"].masked_fill(answers["attention_mask"] == 0, -100)
    elif config.task.kind == "causal-lm":
        auto, task = transformers.AutoModelForCausalLM, "CAUSAL_LM"
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    elif config.task.kind == "image-classification":
        auto, task, rows = transformers.AutoModelForImageClassification, None, pictures()[2]
        labels = torch.tensor([LABELS.index(row["label"]) for row in rows])
        batch = {"pixel_values": torch.tensor(np.stack([row["image"] for row in rows])).permute(0, 3, 1, 2) / 255}
    base = auto.from_pretrained(folder, num_labels=2)
    base.config.pad_token_id = words.pad_token_id
    keys = {k: getattr(config.adapter, k) for k in ("r", "lora_alpha", "target_modules", "use_rslora")}
    model = stock.get_peft_model(base, stock.LoraConfig(task_type=task, modules_to_save=heads, **keys)).eval()
    named = {_own_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    assert named.keys() == seen.keys()
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(seen[name])
    optimizer = torch.optim.SGD(list(named.values()), lr=config.train.lr)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(list(named.values()), config.train.max_grad_norm)
        optimizer.step()
    return {name: p.detach() for name, p in named.items()}


def _own_name(name: str) -> str:
    name = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
    for factor in "AB":
        if name.endswith(f".lora_{factor}.default.weight"):
            return name.replace(f".lora_{factor}.default.weight", f".{factor}")
    return HEAD_PREFIX + name


def assert_equal_steps(found: Params, expected: Params, start: Params, allowed: float = 1e-4) -> None:
    """``found`` and ``expected`` differ by little of what the steps changed."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(found[name], tensor, allowed * max(float((tensor - start[name]).abs().max()), 1e-3))


@pytest.mark.parametrize(("name", "kind"), marked(list(QUICK.items())))
@pytest.mark.sweep(6)
def test_training_equals_a_plain_loop_over_stock_peft(tmp_path: Path, name: str, kind: Kind) -> None:
    config = run_of(tmp_path, FAMILIES[name], kind, list(FAMILIES[name].attention))
    model, task, examples = opened(config)
    seen = drawn(model, 0)
    ours = client_row(trained(model, task, config, examples, add_client_axis(seen), [2]), 0)
    assert_equal_steps(ours, by_hand(tmp_path, config, HEADS.get(name), seen, tokenizer()), seen)


@pytest.mark.parametrize(
    ("name", "kind"), marked([("BERT", "sequence-classification"), ("Llama", "causal-lm"), ("T5", "seq2seq-lm")])
)
def test_shortcuts_change_nothing(tmp_path: Path, name: str, kind: Kind) -> None:
    """Three clients, each alone in the whole model, and all with every shortcut that the model allows."""
    family = FAMILIES[name]
    config = run_of(tmp_path, family, kind, rf".*\.1\..*\.({'|'.join(family.attention)})")  # the upper layer
    whole, task, examples = opened(config)
    starts = [drawn(whole, k) for k in range(3)]
    alone = [
        client_row(trained(whole, task, config, examples, add_client_axis(p), [k]), 0) for k, p in enumerate(starts)
    ]
    whole.network.recompute_layers()
    again = trained(whole, task, config, examples, add_client_axis(starts[2]), [2])
    assert {n: t for n, t in again.items() if not torch.equal(t[0], alone[2][n])} == {}
    model, task, examples = opened(config)
    task, prefix = model.shorten(task, [e for client in examples for e in client])
    record = model.shortened.record()
    together = model.network.one_at_a_time
    keys = ("prefix", "first_token_only", "targets_only", "packing")
    found = (together, *(record[key]["reason"] for key in keys), None)
    refused = {s: reason for s, reason in zip(SHORTCUTS, found, strict=True) if reason is not None}
    assert refused == family.shortcuts[kind]
    states = None
    if prefix is not None:
        states = reduce(States.__or__, (prefix.states(f"c{k}", rows) for k, rows in enumerate(examples)))
    groups = [[0, 1, 2]] if together is None else [[0], [1], [2]]
    for group in groups:
        shared = stack_clients([starts[k] for k in group])
        found = trained(model, task, config, examples, shared, group, prefix, states)
        for place, k in enumerate(group):
            assert_equal_steps(client_row(found, place), alone[k], starts[k], 1e-3)


TIES = [
    pytest.param(name, kind, tied, marks=() if tied and name in ("Llama", "T5") else pytest.mark.slow)
    for name, kind in (
        *((name, "causal-lm") for name in ("Llama", "Gemma 3", "GPT-2", "OPT", "GPT-NeoX")),
        *((name, "seq2seq-lm") for name in ("T5", "BART", "Marian")),
    )
    for tied in (True, False)
]


@pytest.mark.parametrize(("name", "kind", "tied"), TIES)
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings")
def test_output_layer_can_be_adapted(tmp_path: Path, name: str, kind: Kind, tied: bool) -> None:
    """Also where its weight is the embeddings', which have no adapter: in training, and merged and loaded again."""
    family = FAMILIES[name]
    family = dataclasses.replace(family, options={**family.options, "tie_word_embeddings": tied})
    config = run_of(tmp_path, family, kind, [*family.attention, "lm_head"], use_rslora=True)
    model, task, examples = opened(config)
    task, _ = model.shorten(task, examples[2])
    seen = drawn(model, 0)
    ours = client_row(trained(model, task, config, examples, add_client_axis(seen), [2]), 0)
    assert_equal_steps(ours, by_hand(tmp_path, config, None, seen, tokenizer()), seen)

    inputs, targets = task.collate(examples[2])
    real = targets["labels"] >= 0
    with torch.no_grad():
        expected = model.network(add_client_axis(ours), {}, inputs)[real]
        model.save(tmp_path / "adapter", ours, {}, ())
        base = load_base(config, model.name, model.known, model.tokenizer, config.seed).module
        merged: Any = merge_adapter(base, tmp_path / "adapter")
        merged.save_pretrained(tmp_path / "merged")
        loaded: Any = getattr(transformers, AUTO[kind]).from_pretrained(tmp_path / "merged")
        assert_close(loaded(**inputs).logits[real], expected, 1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["causal-lm", "sequence-classification"])
def test_end_token_pads_where_there_is_no_padding_token(tmp_path: Path, kind: Kind) -> None:
    """The mask says what is padding, not the id: an end token within a row is read, and has a loss."""
    family = FAMILIES["Llama"]
    family = dataclasses.replace(family, options={**family.options, "pad_token_id": None})
    config = run_of(tmp_path, family, kind, list(family.attention))
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    words.pad_token = None
    words.save_pretrained(tmp_path)
    model, task, examples = opened(config)
    assert task.tokenizer.pad_token_id == words.eos_token_id  # type: ignore[attr-defined]
    words.pad_token = words.eos_token
    seen = drawn(model, 0)
    ours = client_row(trained(model, task, config, examples, add_client_axis(seen), [2]), 0)
    assert_equal_steps(ours, by_hand(tmp_path, config, None, seen, words), seen)
