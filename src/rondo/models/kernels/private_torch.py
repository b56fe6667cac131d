"""The private parts of torch that Rondo uses, as no public part does the same: all of them, and nowhere else.

``tests/models/kernels/test_private_parts.py`` names the part that a new version of torch no longer has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

Convolution = nn.modules.conv._ConvNd
Dropout = nn.modules.dropout._DropoutNd
Normalisation = nn.modules.batchnorm._BatchNorm
ONEDNN_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's linear layer; None in a torch that was built without it."""


def has_onednn() -> bool:
    return bool(torch._C._has_mkldnn) and ONEDNN_LINEAR is not None


def has_mkl() -> bool:
    return bool(torch._C.has_mkl)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = ONEDNN_LINEAR(x, weight, bias, "none", [], "")
    return result


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def softmax_backward(grad: Tensor, p: Tensor) -> Tensor:
    """The gradient of the scores of a softmax ``p`` over the last axis."""
    return torch._softmax_backward_data(grad, p, -1, p.dtype)


def changes_in_place(tensor: Tensor) -> int:
    return tensor._version


def operation(func: Any) -> Any:
    """The operation, of all types, that ``func`` of a dispatch mode is of."""
    return func._overloadpacket


def holders(layer: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dictionaries in which a layer keeps its own parameters and buffers."""
    return layer._parameters, layer._buffers


def equal_in_all_processes(model: nn.Module, names: list[str]) -> None:
    """``DistributedDataParallel`` need not send the tensors ``names`` of ``model``."""
    leave_out: Any = nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    leave_out(model, names)
