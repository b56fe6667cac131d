"""What is trained is in the task's precision, whatever the file or the module it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import rondo
from rondo.config.schema import RunConfig
from rondo.tasks.task import Task


class Stack(nn.Module):
    """A module in torch's default type, float32; the task of ``own_task`` is in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x).relu()).squeeze(-1)  # type: ignore[no-any-return]


def stack(config: RunConfig, task: Task) -> nn.Module:
    return Stack()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    rows = torch.randn(24, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lines = ["a,b,c,y", *(",".join(f"{v:.6f}" for v in row.tolist()) for row in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    return {
        "rounds": 3,
        "task": {"kind": "own_task:LeastSquares"},
        "model": {"name": "test_precision_of_runs:stack"},
        "adapter": {"r": 2, "target_modules": ["hidden"]},
        "data": {"source": str(tmp_path / "rows.csv")},
        "partition": {"kind": "iid", "clients": 3},
        "train": {"optimizer": "sgd", "lr": 0.01, "local_epochs": 1, "batch_size": 4, "precision": "exact"},
    }


@pytest.mark.parametrize("method", ["fedit", "flora", "fedex-lora", "florg", "fedloru"])
def test_factors_and_base_of_a_module_of_ones_own_are_in_the_tasks_precision(
    method: str, config: dict[str, Any], tmp_path: Path
) -> None:
    seen: set[torch.dtype] = set()

    result = rondo.run({**config, "algorithm": {"name": method}}, run_dir=tmp_path / "run", device="cpu")
    files = [
        *(result.run_dir / "adapter").glob("*.safetensors"),
        *(result.run_dir / "checkpoint").rglob("*.safetensors"),
    ]
    for file in files:
        seen |= {t.dtype for t in load_file(file).values() if t.is_floating_point()}
    assert files
    assert seen == {torch.float64}
