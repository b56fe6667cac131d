"""Language models without whole logits: the output layer is taken out of the network and left to the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rondo.models.adapted_network import AdaptedNetwork
from rondo.params import Params, add_client_axis
from rondo.tasks.output_layer import OutputLayer, itself
from rondo.tasks.task import Batch


class LogitsNeeded(Exception):
    """The output layer cannot be left to the loss; the message says why."""


def split_off(network: AdaptedNetwork, seen: Params, inputs: Batch) -> OutputLayer:
    """Take the output layer out of ``network``, which from then on gives the states before it for logits. Raises
    :class:`LogitsNeeded`, having changed nothing, where it is trained, where its output on ``inputs`` is not the
    logits, or where the model does not run without it."""
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
    given: list[Tensor] = []
    watch = layer.register_forward_hook(lambda _, __, out: given.append(out.clone()))  # it may be changed in place
    try:
        with torch.no_grad():
            logits = network(params, {}, inputs)
    finally:
        watch.remove()
    if not logits.isfinite().all():
        raise LogitsNeeded("the logits that it was tried on are not finite")
    if len(given) != 1 or given[0].dtype != logits.dtype or not torch.equal(given[0], logits):
        raise LogitsNeeded("the model changes what its output layer gives, or its type")
    layer.forward = itself
    try:
        with torch.no_grad():
            again = forward(network(params, {}, inputs))
        # Not to the bit: an accelerator may add in another order the second time.
        allowed = torch.finfo(logits.dtype).eps ** 0.5 * max(1.0, float(logits.abs().max()))
        whole = again.shape == logits.shape and float((again - logits).abs().max()) <= allowed
    except Exception:  # whatever a model says of states that it takes for logits
        whole = False
    if not whole:
        layer.forward = forward
        raise LogitsNeeded("the model does not do the same without its output layer")
    return OutputLayer(forward, logits.shape[-1])
