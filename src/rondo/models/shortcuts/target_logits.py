"""Language models that never form whole logits: the output layer moves from the network to the loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Network
from rondo.params import Params, add_client_axis
from rondo.tasks.language.output_layer import OutputLayer, itself
from rondo.tasks.task import Batch


class LogitsNeeded(Exception):
    """The output layer cannot be left to the loss; the message says why."""


def split_off(network: AdaptedNetwork, seen: Params, inputs: Batch) -> OutputLayer:
    """Take the output layer out of ``network``, which then returns the states before that layer in place of logits.

    Raises :class:`LogitsNeeded`, having changed nothing, if the layer is adapted, if its output on ``inputs`` is not
    the logits, or if the model does not run without it.
    """
    find = getattr(network.module, "get_output_embeddings", None)
    layer = find() if find is not None else None
    weight = getattr(layer, "weight", None)
    if not isinstance(layer, nn.Module) or not isinstance(weight, Tensor):
        raise LogitsNeeded("the model names no output layer")
    if any(network.module.get_submodule(path) is layer for path in network.sites):
        raise LogitsNeeded("the output layer is adapted")
    if layer.forward is itself:
        raise LogitsNeeded("the output layer has been taken out before")
    params, forward = add_client_axis(seen), layer.forward
    outputs: list[Tensor] = []
    # Clone the output: the model may change it in place.
    hook = layer.register_forward_hook(lambda _, __, out: outputs.append(out.clone()))
    try:
        with torch.no_grad():
            logits = network(params, {}, inputs)
    finally:
        hook.remove()
    if not logits.isfinite().all():
        raise LogitsNeeded("the logits that it was tried on are not finite")
    if len(outputs) != 1 or outputs[0].dtype != logits.dtype or not torch.equal(outputs[0], logits):
        raise LogitsNeeded("the model changes what its output layer gives, or its type")
    layer.forward = itself
    try:
        with torch.no_grad():
            recomputed = forward(network(params, {}, inputs))
        # Allow for rounding: an accelerator may add in another order the second time.
        allowed = torch.finfo(logits.dtype).eps ** 0.5 * max(1.0, float(logits.abs().max()))
        same = recomputed.shape == logits.shape and float((recomputed - logits).abs().max()) <= allowed
    except Exception:  # a model may raise anything on states that it takes for logits
        same = False
    if not same:
        layer.forward = forward
        raise LogitsNeeded("the model does not do the same without its output layer")
    return OutputLayer(forward, logits.shape[-1])


@contextmanager
def put_back(network: Network, output: OutputLayer | None) -> Iterator[None]:
    """Within, ``network`` has the output layer again that :func:`split_off` took, if it took any."""
    if output is None:
        yield
        return
    layer = network.module.get_output_embeddings()  # type: ignore[operator]
    layer.forward = output.layer
    try:
        yield
    finally:
        layer.forward = itself
