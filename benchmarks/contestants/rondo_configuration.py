"""The workloads as configurations of Rondo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contests import Work
from image_workloads import HEAD, ImageWorkload
from linear_workload import LinearWorkload, problem_config
from workloads import Workload, model_folder


def configuration(workload: Work, data: Path, rounds: int, precision: str) -> dict[str, Any]:
    """The run as a configuration."""
    if isinstance(workload, LinearWorkload):
        return _linear(workload, rounds)
    if isinstance(workload, ImageWorkload):
        return _images(workload, data, rounds, precision)
    return _adapters(workload, data, rounds, precision)


def trained_numbers(workload: Work, history: Sequence[dict[str, Any]], run_dir: Path) -> int:
    """Number of trained parameters, from the bytes that clients sent."""

    def sent(record: dict[str, Any], bytes_per_number: int = 4) -> int:
        return int(record["bytes_up"]) // int(record["sampled"]) // bytes_per_number

    if isinstance(workload, LinearWorkload):
        return sum(sent(record, 8) for record in history[:2])  # B in one round, A in the next
    if not isinstance(workload, ImageWorkload):
        return sent(history[0])

    from safetensors.torch import load_file

    state = load_file(run_dir / "adapter" / "model.safetensors")
    statistics = sum(t.numel() for n, t in state.items() if n.endswith(("running_mean", "running_var")))
    kept = sum(t.numel() for n, t in state.items() if workload.head_epochs and n.startswith(HEAD))
    return sent(history[0]) - statistics + kept


def _adapters(workload: Workload, data: Path, rounds: int, precision: str) -> dict[str, Any]:
    """FedAvg of both factors and the head."""
    classify = workload.kind == "sequence-classification"
    return {
        "seed": workload.seed,
        "rounds": rounds,
        "algorithm": {"name": "fedit"},
        "adapter": {
            "r": workload.rank,
            "lora_alpha": float(workload.alpha),
            "target_modules": list(workload.targets),
            "layers_to_transform": None if workload.layers is None else list(workload.layers),
        },
        "model": {"name": model_folder(workload), "head": "shared" if classify else None},
        "task": {
            "kind": workload.kind,
            "text": "text",
            "label": "label" if classify else None,
            "max_length": workload.longest,
        },
        "data": {"source": str(data), "test_split": "", "validation_fraction": 0.0},
        "partition": {"kind": "natural", "column": "client"},
        "train": {
            "lr": workload.lr,
            "batch_size": workload.batch,
            "local_epochs": 1 if workload.steps is None else None,
            "local_steps": workload.steps,
            "max_grad_norm": workload.clip,
            "precision": precision,
        },
        "evaluation": {"every": 0},
    }


def _images(workload: ImageWorkload, data: Path, rounds: int, precision: str) -> dict[str, Any]:
    """FedAvg of the whole network, FedIT of its factors and everything else, or FedRep."""
    config: dict[str, Any] = {
        "seed": workload.seed,
        "rounds": rounds,
        "algorithm": {"name": "fedavg"},
        "model": {"name": workload.network},
        "task": {"kind": "image-classification"},
        "data": {"source": str(data), "test_split": "", "validation_fraction": 0.0},
        "partition": {"kind": "iid", "clients": workload.population},
        "clients": {"per_round": workload.clients},
        "train": {
            "optimizer": "sgd",
            "lr": workload.lr,
            "momentum": workload.momentum,
            "batch_size": workload.batch,
            "max_grad_norm": 0.0,
            "precision": precision,
        },
        "evaluation": {"every": 0, "diagnostics_every": 0},
    }
    if workload.head_epochs:
        config["algorithm"] = {"name": "fedrep", "head_epochs": workload.head_epochs}
    if workload.rank is not None:
        config["algorithm"] = {"name": "fedit"}
        config["train"]["what"] = "all"
        config["adapter"] = {
            "r": workload.rank,
            "lora_alpha": float(workload.rank),
            "target_modules": r"layer\d\.\d+\.conv\d",
            "from_scratch": True,
        }
    return config


def _linear(workload: LinearWorkload, rounds: int) -> dict[str, Any]:
    """RoLoRA's Algorithm 2."""
    return {
        "seed": workload.seed,
        "rounds": rounds,
        "algorithm": {"name": "rolora-linear"},
        "model": {"name": "builtin:linear"},
        "task": {"kind": "linear"},
        "data": {"source": "builtin:linear", "validation_fraction": 0.0},
        "problem": problem_config(workload),
        "clients": {"weighting": "uniform"},
        "train": {"optimizer": "sgd", "lr": workload.lr, "batch_size": workload.samples, "max_grad_norm": 0.0},
        "evaluation": {"every": 0, "diagnostics_every": 0},
    }
