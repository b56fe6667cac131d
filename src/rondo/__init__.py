"""Rondo: federated low-rank fine-tuning. Importing the package imports no torch; names load on first use.

The examples of this module's names go on from here. It trains in seconds, on the pictures of digits in scikit-learn:

>>> import rondo
>>> digits = {
...     "rounds": 2,
...     "algorithm": {"name": "fedper"},
...     "model": {"name": "builtin:mlp"},
...     "task": {"kind": "image-classification"},
...     "data": {"source": "builtin:digits"},
...     "partition": {"kind": "iid", "clients": 4},
...     "train": {"optimizer": "sgd", "lr": 0.1},
... }
>>> result = rondo.run(digits, run_dir="runs/digits")
>>> result.metrics["personal"]["accuracy"]["mean"] > 0.5
True

A client that took no part in it:

>>> from sklearn.datasets import load_digits
>>> pictures = (load_digits().images * 15).astype("uint8")  # (1797, 8, 8)
>>> new_client = [{"image": p, "label": int(n)} for p, n in zip(pictures[:100], load_digits().target)]

A configuration as an object, which :func:`rondo.run` takes too:

>>> rondo.RunConfig.model_validate(digits).train.batch_size
16
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rondo.config.schema import RunConfig
    from rondo.engine.transport import Observer
    from rondo.errors import (
        ConfigError,
        Problem,
        RunInterrupted,
        RunStopped,
        UnknownAlgorithm,
    )
    from rondo.models.forms.model import Verification
    from rondo.results.adapt import Adapted, Shot, adapt
    from rondo.results.evaluate import evaluate
    from rondo.results.export import Exported, export
    from rondo.results.hessian import HessianSpectrum, hessian
    from rondo.results.predict import predict
    from rondo.runs.runner import resume, run
    from rondo.runs.watching.result import RunResult
    from rondo.study.compare import Comparison, compare

_HOMES = {
    "run": "runs.runner",
    "resume": "runs.runner",
    "RunResult": "runs.watching.result",
    "compare": "study.compare",
    "Comparison": "study.compare",
    "export": "results.export",
    "Exported": "results.export",
    "Verification": "models.forms.model",
    "evaluate": "results.evaluate",
    "hessian": "results.hessian",
    "HessianSpectrum": "results.hessian",
    "predict": "results.predict",
    "adapt": "results.adapt",
    "Adapted": "results.adapt",
    "Shot": "results.adapt",
    "RunConfig": "config.schema",
    "Observer": "engine.transport",
    "ConfigError": "errors",
    "Problem": "errors",
    "RunInterrupted": "errors",
    "RunStopped": "errors",
    "UnknownAlgorithm": "errors",
}
_MODULES = ("algorithm", "algorithms", "config", "lowrank", "params", "testing")

__all__ = [
    "Adapted",
    "Comparison",
    "ConfigError",
    "Exported",
    "HessianSpectrum",
    "Observer",
    "Problem",
    "RunConfig",
    "RunInterrupted",
    "RunResult",
    "RunStopped",
    "Shot",
    "UnknownAlgorithm",
    "Verification",
    "__version__",
    "adapt",
    "compare",
    "evaluate",
    "export",
    "hessian",
    "predict",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"rondo.{_HOMES[name]}"), name)
    if name == "trainers":
        return importlib.import_module("rondo.engine.trainers")
    if name in _MODULES:
        return importlib.import_module(f"rondo.{name}")
    raise AttributeError(f"module 'rondo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
