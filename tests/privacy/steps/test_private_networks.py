"""Private steps in networks of one's own: convolutions, frozen and trained, factors, dropout and a base in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinds_of_runs import pictures
from rondo.algorithm import Client, Round
from rondo.config import ConfigError, load
from rondo.config.inputs import GIVEN
from rondo.engine.client.trainer import CohortTrainer
from rondo.params import Params, add_client_axis
from rondo.privacy import steps as private_step
from rondo.privacy.guarantee import Guarantee
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.given import Given
from small_runs import settings
from watched import noted

PRIVACY = {"adversary": "server", "unit": "example", "clip": 0.5, "noise": 0.0, "delta": 1e-5, "debug_seed": 0}


def convolutions(config: Any, task: Any) -> nn.Module:
    """Group normalisation between two convolutions, and two dense layers."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(),
        nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, len(task.labels)),
    )  # fmt: skip


def by_batch(config: Any, task: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, len(task.labels)))


def of_pictures(name: str = "convolutions", **sections: Any) -> Assembly:
    config = {
        "model": {"name": f"test_private_networks:{name}"},
        "task": {
            "kind": "image-classification",
            "image": "image",
            "label": "label",
            "labels": ["0", "1", "2"],
            "image_shape": [5, 5, 1],
        },
        "data": {"source": GIVEN, "validation_fraction": 0.0},
        "partition": {"kind": "iid", "clients": 1},
        "clients": {"weighting": "uniform"},
        "privacy": PRIVACY,
        "algorithm": {"name": "fedavg"},
        **sections,
    }
    return assemble(load(config), "cpu", given=Given(train=pictures(7)))


def trainer_of(
    assembly: Assembly, rows: Sequence[Any], clip: float | None, debug_seed: int | None = 0, **train: Any
) -> CohortTrainer:
    options = {"optimizer": "sgd", "lr": 1.0, "max_grad_norm": 0.0, "batch_size": len(rows), **train}
    config = assembly.config.train.model_copy(update=options)
    privacy = (
        None if clip is None else Guarantee(unit="example", clip=clip, noise=0.0, delta=1e-5, debug_seed=debug_seed)
    )
    return CohortTrainer(
        assembly.model.network, assembly.task, (Client("ann", len(rows)),), (rows,), Round(0, 1, 0, 1), config,
        assembly.config.clients, {}, promise=privacy,
    )  # fmt: skip


def started(assembly: Assembly) -> Params:
    """The run's start, with no factor at zero."""
    draw = torch.Generator().manual_seed(1)
    return add_client_axis({n: t + 0.1 * torch.randn(t.shape, generator=draw) for n, t in assembly.initial.items()})


def step(assembly: Assembly, rows: Sequence[Any], clip: float | None, start: Params, **train: Any) -> Params:
    fitted = trainer_of(assembly, rows, clip, **train).fit(start, steps=1).params
    return {n: t - fitted[n] for n, t in start.items()}


def largest_difference(assembly: Assembly, **train: Any) -> float:
    """Of a step's gradient from the mean of the clipped gradients of rows alone, in units of the clip."""
    (member,) = assembly.population.members.values()
    rows, start = tuple(member.train), started(assembly)
    alone = [step(assembly, [row], None, start, **train) for row in rows]
    norms = torch.stack([torch.cat([t.flatten() for t in g.values()]).norm() for g in alone])
    clip = float(norms.median())
    scale = (clip / norms).clamp(max=1.0)
    found = step(assembly, rows, clip, start, **train)
    expected = {n: sum(s * g[n] for s, g in zip(scale, alone, strict=True)) / len(rows) for n in start}
    assert [n for n, t in expected.items() if not t.any()] == []
    return max(float((found[n] - t).abs().max()) for n, t in expected.items()) / clip


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"what": ["5.*", "7.*"]}},
        {"train": {"what": "all"}},
        {"adapter": {"r": 2, "lora_alpha": 4, "target_modules": ["5", "7"]}, "algorithm": {"name": "fedit"}},
        {"adapter": {"r": 2, "lora_alpha": 4, "target_modules": ["0", "3", "5"]}, "algorithm": {"name": "fedit"}},
    ],
    ids=["dense layers", "convolutions too", "factors", "factors of convolutions"],
)
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_rows_of_convolutions_are_clipped_alone(sections: dict[str, Any], micro_batch: int | None) -> None:
    train = {"precision": "exact", **sections.get("train", {})}
    assembly = of_pictures(**{**sections, "train": train})
    assert largest_difference(assembly, micro_batch=micro_batch) < 1e-6


def test_normalisation_by_the_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.name: the network normalises by the batch"):
        of_pictures("by_batch", train={"what": "all"})


# --- transformers -------------------------------------------------------------------------------------------------


def of_text(sources: Path, **changes: Any) -> Assembly:
    sections: dict[str, Any] = {
        "data": {"source": str(sources / "rows.csv"), "test_split": "", "validation_fraction": 0.9},
        "task": {"labels": ["neg", "pos"]},
        "partition": {"clients": 1},
        "clients": {"weighting": "uniform"},
        "privacy": PRIVACY,
    }
    return assemble(load(settings(sources / "bert", **{**sections, **changes})), "cpu")


def test_base_in_bfloat16(sources: Path, bf16: Callable[[bool], None]) -> None:
    """A row's products are rounded as in a batch of others, to the 8 bits of bfloat16."""
    bf16(True)
    assembly = of_text(sources, train={"precision": "fast"})
    assert torch.bfloat16 in {p.dtype for p in assembly.model.network.module.parameters()}
    assert largest_difference(assembly) < 1e-2


def test_each_row_has_its_own_dropout(sources: Path) -> None:
    """Its masks depend on no other row. A debug seed draws them by the row, secret bits for each row by itself."""
    assembly = of_text(sources, adapter={"lora_dropout": 0.5}, train={"precision": "exact"})
    (member,) = assembly.population.members.values()
    by_length: dict[int, list[Any]] = {}
    for row in member.train:
        by_length.setdefault(row.cost, []).append(row)
    first, second, third = next(rows for rows in by_length.values() if len(rows) > 2)[:3]
    start = started(assembly)

    def gradients(rows: tuple[Any, ...], debug_seed: int | None = 0) -> dict[str, Tensor]:
        with noted(private_step, "row_gradients") as calls:
            step(assembly, rows, 1.0, start, debug_seed=debug_seed)
        return {n: torch.cat([call.answer[n] for call in calls]) for n in start}

    one, other = gradients((first, second)), gradients((third, first))
    same, again = (gradients((first, first), debug_seed=None) for _ in range(2))
    for name in start:
        torch.testing.assert_close(one[name][0], other[name][1], rtol=1e-4, atol=1e-7)
    for name in (n for n in start if n.endswith(".B")):
        apart = torch.stack([one[name][0], *same[name], *again[name]]).flatten(1)
        assert float(torch.pdist(apart).min()) > 1e-2 * float(apart[0].norm()), name
