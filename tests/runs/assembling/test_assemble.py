"""The device of a run."""

from __future__ import annotations

import pytest
import torch

from rondo.config import load
from rondo.errors import ConfigError
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.device import find_device

ACCELERATORS = {"cuda": 2, "mps": 1}
PROCESSOR_ALONE = {"cuda": 0, "mps": 0}


@pytest.mark.parametrize(
    ("name", "device"),
    [("auto", "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("mps", "mps")],
)
def test_named_device_is_taken(name: str, device: str) -> None:
    assert find_device(name, ACCELERATORS) == torch.device(device)


def test_processor_is_taken_where_there_is_nothing_else() -> None:
    assert find_device("auto", PROCESSOR_ALONE) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:2", "cuda:9"])
def test_index_of_no_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--device: there is no {name} here; the last one is cuda:1"):
        find_device(name, ACCELERATORS)


@pytest.mark.parametrize(("name", "kind"), [("cuda", "CUDA"), ("cuda:1", "CUDA"), ("mps", "MPS")])
def test_missing_device_is_refused(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"--device: there is no {kind} device here; use auto or cpu"):
        find_device(name, PROCESSOR_ALONE)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cpu:0", "mps:0", "CUDA", "meta"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is unknown; use auto, cpu, cuda, cuda:INDEX or mps"):
        find_device(name, ACCELERATORS)


def test_device_with_an_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory and the check for bfloat16 go by the current device."""
    chosen: list[torch.device] = []
    monkeypatch.setattr("rondo.runs.assembling.assemble.find_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)

    def no_data(*_: object) -> None:
        raise ConfigError.at("data", "the device comes first")

    monkeypatch.setattr("rondo.runs.assembling.assemble.load_source", no_data)
    for name in ("cuda", "cuda:1", "mps", "cpu"):
        with pytest.raises(ConfigError, match="the device comes first"):
            assemble(load({}), name)
    assert chosen == [torch.device("cuda:1")]
