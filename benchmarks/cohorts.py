"""How far training in cohorts changes an adapter, beside one client at a time.

    python benchmarks/cohorts.py --data FOLDER                  # SST-2: a folder of splits with sentence and label

Two runs per precision differ in ``simulation.cohort`` only. The difference is that of their adapters' numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import rondo


def trained(data: str, precision: str, cohort: str | int) -> tuple[Tensor, dict[str, Any]]:
    """All numbers of a run's adapter, and its scores on the test set."""
    config = {
        "seed": 0,
        "rounds": 2,
        "algorithm": {"name": "fedit"},
        "adapter": {"r": 4, "lora_alpha": 16, "target_modules": ["query", "value"]},
        "task": {"text": "sentence", "label": "label", "max_length": 32},
        "data": {"source": data, "max_train_rows": 640},
        "model": {"name": "builtin:minilm"},
        "partition": {"kind": "iid", "clients": 10},
        "train": {"precision": precision, "lr": 5e-3, "batch_size": 16, "local_epochs": 1},
        "evaluation": {"every": 0},
        "simulation": {"cohort": cohort},
    }
    with tempfile.TemporaryDirectory() as folder:
        result = rondo.run(config, run_dir=Path(folder, "run"), device="cpu")
        tensors = safetensors.torch.load_file(result.run_dir / "adapter" / "adapter_model.safetensors")
    return torch.cat([tensors[n].flatten() for n in sorted(tensors)]), result.metrics["global"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for precision in ("exact", "fast"):
        (together, score), (alone, score_alone) = (trained(options.data, precision, c) for c in ("auto", 1))
        difference, largest = float((together - alone).abs().max()), float(alone.abs().max())
        scores = ", ".join(f"{m} {score[m]:.6f} and {score_alone[m]:.6f}" for m in ("accuracy", "loss"))
        print(f"{precision}: {difference:.1e} of {largest:.2f}, {difference / largest:.1e}; {scores}", flush=True)


if __name__ == "__main__":
    main()
