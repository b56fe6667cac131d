"""The names that users import."""

from __future__ import annotations

import pytest

import rondo


def test_public_names() -> None:
    assert rondo.__all__ == [
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


@pytest.mark.parametrize("name", rondo.__all__)
def test_public_name_loads(name: str) -> None:
    assert getattr(rondo, name) is not None


@pytest.mark.parametrize("name", ["algorithm", "algorithms", "config", "lowrank", "params", "testing"])
def test_public_module_loads(name: str) -> None:
    assert getattr(rondo, name).__name__ == f"rondo.{name}"


def test_dir_shows_what_is_public() -> None:
    modules = {"algorithm", "algorithms", "config", "lowrank", "params", "testing"}
    assert set(dir(rondo)) == {*rondo.__all__, *modules}
