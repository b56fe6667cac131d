"""Modules that would train wrongly, found before the first round."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rondo.errors import ConfigError
from rondo.models.kernels.private_torch import Dropout, Normalisation
from rondo.models.networks.call import output_of
from rondo.process import seeded
from rondo.tasks.task import Batch

_OTHER_DROPOUT = (nn.AlphaDropout, nn.FeatureAlphaDropout)


def check_module(module: nn.Module) -> None:
    """Raises :class:`ConfigError` for a module that cannot be trained whole."""
    if isinstance(module, torch.jit.ScriptModule):
        raise _refused("it is compiled by TorchScript, whose tensors cannot be replaced: give the module itself")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise _refused(f"{name} has no shape before the first batch: give the layer its sizes")
        if tensor.is_complex():
            raise _refused(f"{name} is complex, and tensors are trained in real numbers: keep both parts apart")
    if next(module.parameters(), None) is None:
        raise _refused("it has no parameters, so there is nothing to train")
    for path, layer in module.named_modules():
        if isinstance(layer, Normalisation) and layer.momentum is None:
            raise _refused(
                f"{path} averages over all batches, and a client's count of them would be lost: set momentum"
            )
        if isinstance(layer, _OTHER_DROPOUT):
            raise _refused(
                f"{path} is of {type(layer).__name__}, which does not drop by a client's stream: use Dropout"
            )


def check_training_mode(module: nn.Module, inputs: Batch) -> None:
    """Run a copy of ``module``, which is in eval mode, as in training on ``inputs``. Raises :class:`ConfigError` where
    it changes a buffer that is no statistic of batch normalisation. Warns where a network of one's own computes
    otherwise than in evaluation for another reason than ``nn.Dropout`` and batch normalisation: clients do not."""
    # The copy has buffers of its own, which its forward may change, and the module's parameters.
    shared: dict[int, Any] = {id(p): p for p in module.parameters()}
    training = copy.deepcopy(module, shared)
    training.train()
    for layer in training.modules():
        if isinstance(layer, Normalisation):
            layer.eval()
        elif isinstance(layer, Dropout):
            layer.p = 0.0
    before = {name: tensor.clone() for name, tensor in training.named_buffers()}
    with torch.no_grad(), seeded(0, next((t.device for t in training.parameters()), None)):
        output = output_of(training, inputs)
        check_buffers(before, dict(training.named_buffers()))
        expected = output_of(module, inputs)
    if type(module).__module__.startswith("transformers."):
        return  # dropout in its attention, which is known (docs/whole-models.md)
    if output.shape != expected.shape or not torch.allclose(output, expected, rtol=1e-3, atol=1e-5, equal_nan=True):
        message = "model.name: the network computes otherwise in training mode (dropout in its forward, in an LSTM or "
        warnings.warn(f"{message}in attention?), and clients train it as in evaluation", stacklevel=2)


def check_buffers(before: Mapping[str, Tensor], after: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` for the first buffer that a call changed."""
    for name, tensor in before.items():
        if name not in after or not _equal(tensor, after[name]):
            message = f"its forward changes the buffer {name}, which no client sends or keeps, so that clients would "
            raise _refused(f"{message}see one another's: make it a parameter, or leave it as it is")


def _equal(one: Tensor, other: Any) -> bool:
    if not isinstance(other, Tensor) or one.shape != other.shape or one.dtype is not other.dtype:
        return False
    return torch.equal(one, other.to(one.device)) or bool(((one == other) | (one != one) & (other != other)).all())


def _refused(why: str) -> ConfigError:
    return ConfigError.at("model.name", f"this network cannot be trained: {why}")
