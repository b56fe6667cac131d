"""Every private part of another library that Rondo uses is there, and one file has them all."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import rondo
from rondo.models.kernels import private_torch

TORCH = (
    "_C._has_mkldnn",
    "_C.has_mkl",
    "_softmax_backward_data",
    "nn.modules.batchnorm._BatchNorm",
    "nn.modules.conv._ConvNd",
    "nn.modules.dropout._DropoutNd",
    "nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model",
    "ops.mkldnn._is_mkldnn_bf16_supported",
    "ops.mkldnn._linear_pointwise",
    "ops.aten.mm.default._overloadpacket",
    "Tensor._version",
)
PRIVATE = re.compile(
    r"torch\._(?!_)|\._set_params\w+|_python_dispatch|nn\.modules\.\w+\._|ops\.mkldnn|\._(parameters|buffers|overloadpacket)\b"
    r"|\w\._version\b|(?<!set)_attn_implementation\"|\._attn_implementation|\._model_mapping|\._weight_conversions"
)


@pytest.mark.parametrize("part", TORCH)
def test_torch_has_the_part(part: str) -> None:
    place: Any = torch
    for name in part.split("."):
        assert hasattr(place, name), f"torch {torch.__version__} has no {part} any more"
        place = getattr(place, name)


def test_torch_has_dispatch_modes() -> None:
    assert hasattr(import_module("torch.utils._python_dispatch"), "TorchDispatchMode")


def test_layers_hold_their_tensors() -> None:
    parameters, buffers = private_torch.holders(nn.BatchNorm1d(2))
    assert [*parameters] == ["weight", "bias"]
    assert "running_mean" in buffers


def test_transformers_has_the_parts() -> None:
    known = f"transformers {transformers.__version__} has no %s any more"
    assert transformers.BertConfig in transformers.AutoModel._model_mapping, known % "_model_mapping"
    assert hasattr(transformers.BertConfig(), "_attn_implementation"), known % "_attn_implementation"


def test_no_other_file_uses_them() -> None:
    house = Path(rondo.__file__).parent
    rooms = [file for room in ("engine", "models", "tasks") for file in (house / room).rglob("*.py")]
    users = {file.name for file in rooms if PRIVATE.search(file.read_text(encoding="utf-8"))}
    assert users == {"private_torch.py", "private_transformers.py"}
