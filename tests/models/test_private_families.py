"""Private steps in every family of models: the gradient of each row equals that of the row by itself, and one row more
moves no other, with dropout too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, Kind, save
from family_runs import configured, drawn, opened
from torch import Tensor

from rondo.algorithm import Client, Round
from rondo.config.schema import ClientsConfig, TrainConfig
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.forms.transformer import AdaptedTransformer
from rondo.params import Params, add_client_axis
from rondo.privacy.guarantee import Guarantee
from rondo.tasks.task import Task

FAST = ("Llama", "DeBERTa v2", "Funnel", "BART")


def cases() -> list[Any]:
    """Each family with its first kind of task that is trained, all linear layers adapted where that is allowed."""
    found = []
    for name, family in FAMILIES.items():
        kinds: dict[Kind, Any] = {
            "sequence-classification": family.classifies,
            "causal-lm": family.speaks,
            "seq2seq-lm": family.writes,
        }
        trained: list[tuple[Kind, Any]] = [
            (kind, layers)
            for kind, outcomes in kinds.items()
            for layers, outcome in zip(("all-linear", list(family.attention)), outcomes, strict=True)
            if outcome in ("together", "one at a time")
        ]
        for kind, layers in trained[:1]:
            marks = () if name in FAST else pytest.mark.slow
            found.append(pytest.param(family, kind, layers, id=f"{name}-{kind}", marks=marks))
    return found


def step(
    model: AdaptedTransformer, task: Task, rows: list[Any], start: Params, clip: float | None, **train: Any
) -> dict[str, Tensor]:
    """The gradient of one step on ``rows``: that of private steps without noise where there is a ``clip``."""
    config = TrainConfig(
        optimizer="sgd", lr=1.0, max_grad_norm=0.0, batch_size=len(rows), packing=False, length_grouping=False, **train
    )
    privacy = None if clip is None else Guarantee(unit="example", clip=clip, noise=0.0, delta=1e-5, debug_seed=0)
    client = Client("ann", len(rows))
    trainer = CohortTrainer(
        model.network, task, (client,), (rows,), Round(0, 1, 0, 1), config, ClientsConfig(), {}, promise=privacy
    )
    fitted = trainer.fit(start, steps=1).params
    return {n: t - fitted[n] for n, t in start.items()}


def assert_rows_are_clipped_alone(model: AdaptedTransformer, task: Task, rows: list[Any], **train: Any) -> None:
    """In float32, with a clip that some rows exceed."""
    start = add_client_axis(drawn(model, 1))
    alone = [step(model, task, [row], start, None, **train) for row in rows]
    norms = torch.stack([torch.cat([t.flatten() for t in g.values()]).norm() for g in alone])
    clip = float(norms.median())
    assert clip < float(norms.max())
    scale = (clip / norms).clamp(max=1.0)
    found = step(model, task, rows, start, clip, **train)
    for name in start:
        expected = sum(s * g[name] for s, g in zip(scale, alone, strict=True)) / len(rows)
        assert float((found[name] - expected).abs().max()) <= 1e-6 * max(1.0, clip), name
    assert sum(bool(t.any()) for t in found.values()) > len(found) / 2  # a pooler may be out of use


@pytest.mark.parametrize(("family", "kind", "layers"), cases())
def test_rows_of_a_family_are_clipped_alone(tmp_path: Path, family: Family, kind: Kind, layers: Any) -> None:
    model, task, examples = opened(configured(save(family, kind, tmp_path), kind, layers))
    assert_rows_are_clipped_alone(model, task, [*examples[0], *examples[2]])


@pytest.mark.parametrize(("family", "kind", "layers"), cases())
def test_one_row_more_moves_the_sum_by_the_clip_at_most(
    tmp_path: Path, private_sums: list[Tensor], family: Family, kind: Kind, layers: Any
) -> None:
    """Wherever it stands, and though the others are padded to it or to less."""
    config = configured(save(family, kind, tmp_path), kind, layers, lora_dropout=0.3)
    model, task, examples = opened(config)
    start, clip = add_client_axis(drawn(model, 1)), 1e-3
    rows = sorted((e for client in examples for e in client), key=lambda e: e.cost)
    for more in (rows[-1], rows[0]):
        others = [row for row in rows if row is not more]
        for placed in (others, [more, *others], [*others, more]):
            step(model, task, placed, start, clip)
        without, *with_it = private_sums
        moved = [float((total - without).norm()) / clip for total in with_it]
        assert max(moved) <= 1 + 1e-4
        private_sums.clear()


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_parts_of_a_step_with_checkpointing(tmp_path: Path, micro_batch: int) -> None:
    family = FAMILIES["Llama"]
    model, task, examples = opened(configured(save(family, "causal-lm", tmp_path), "causal-lm", "all-linear"))
    model.network.recompute_layers()
    rows = [*examples[0], *examples[2]]
    assert_rows_are_clipped_alone(model, task, rows, micro_batch=micro_batch)
