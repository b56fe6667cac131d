"""The floor of a network on pictures: the operations of a training step, over this machine's rate on its layers.

Operations that count: every convolution and linear layer forward, backward to its input (but for the first), and to its
weight if that is trained. A frozen convolution beside factors has no gradient of its own; the factors count by
themselves (two convolutions), or as a full gradient and their product, whichever is less. FedRep's head epochs count
the body forward once, since its outputs stay the same.

Rate: all threads run the layers' own passes at the same time, with one torch thread each, in batches of the workload's
size, because every client has weights of its own. The faster of the two memory formats counts, and the best of several
tries. Elementwise work is free.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from image_workloads import CLASSES, HEAD, ImageWorkload

TRY_SECONDS, TURNS = 0.1, 3


@dataclass(frozen=True)
class Layer:
    """A convolution, or a linear layer as one of 1x1 on a picture of one pixel, on one sample."""

    inputs: tuple[int, int, int]
    """Channels, height and width."""
    outputs: tuple[int, int, int]
    kernel: int
    stride: int = 1
    padding: int = 0

    def operations(self) -> float:
        """Operations of one pass: forward, backward to the input, or backward to the weight."""
        channels, height, width = self.outputs
        return 2.0 * channels * height * width * self.inputs[0] * self.kernel**2


@dataclass(frozen=True)
class Passes:
    """A layer with the passes that a sample takes through it."""

    layer: Layer
    forward: float
    to_input: float
    to_weight: float

    @property
    def count(self) -> float:
        """Number of passes."""
        return self.forward + self.to_input + self.to_weight


def passes(workload: ImageWorkload) -> list[Passes]:
    """The passes of a sample that is trained on once, the mean over the epochs of a round."""
    import torch
    from torch import nn

    from rondo.models.forms.builtin.classical import NETWORKS, Sizes

    height, width, channels = workload.image
    with torch.device("meta"):
        network = NETWORKS[workload.network](Sizes((channels, height, width), CLASSES, norm="batch")).eval()
    found: list[tuple[str, Layer]] = []

    def note(path: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            sizes = [tuple(t.shape[1:]) + (1,) * (4 - t.dim()) for t in (inputs[0], output)]
            shape = (module.kernel_size[0], module.stride[0], module.padding[0]) if hasattr(module, "stride") else (1,)
            found.append((path, Layer(*sizes, *shape)))

        return hook

    for path, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(note(path))
    network(torch.empty(1, channels, height, width, device="meta"))

    result: list[Passes] = []
    epochs = 1 + workload.head_epochs
    for number, (path, layer) in enumerate(found):
        if workload.head_epochs:
            # The body forward for the head, then a step of its own through the head, whose weight rests.
            head = path.startswith(HEAD)
            count = (epochs, 1, workload.head_epochs) if head else (2, 1, 1)
            forward, to_input, to_weight = (n / epochs for n in count)
        else:
            forward = to_input = to_weight = 1.0
        to_input = to_input if number else 0.0
        if workload.rank is not None and path.startswith("layer") and "downsample" not in path:
            result += _with_factors(layer, workload.rank, workload.batch)
        else:
            result.append(Passes(layer, forward, to_input, to_weight))
    return result


def _with_factors(layer: Layer, rank: int, batch: int) -> list[Passes]:
    """A frozen convolution with factors, in the cheaper of two ways."""
    down = Layer(layer.inputs, (rank, *layer.outputs[1:]), layer.kernel, layer.stride, layer.padding)
    up = Layer(down.outputs, layer.outputs, 1)
    # B A, and the gradients of both from that of their product, once per step.
    product = 3 * 2.0 * rank * layer.outputs[0] * layer.inputs[0] * layer.kernel**2 / batch
    if layer.operations() + product < 3 * (down.operations() + up.operations()):
        return [Passes(layer, 1, 1, 1)]
    return [Passes(layer, 1, 1, 0), Passes(down, 1, 1, 1), Passes(up, 1, 1, 1)]


def image_floor(workload: ImageWorkload, threads: int) -> dict[str, Any]:
    """The floor in float32 ("exact"), and what it would be in bfloat16 ("fast")."""
    import torch

    needed = passes(workload)
    operations = sum(p.layer.operations() * p.count for p in needed)
    result: dict[str, Any] = {"operations_per_sample": operations}
    for name, dtype in (("fast", torch.bfloat16), ("exact", torch.float32)):
        seconds = _seconds(needed, workload.batch, dtype, threads)
        result[name] = {"gflops": threads * operations / seconds / 1e9, "samples_per_second": threads / seconds}
    return result


def _seconds(needed: list[Passes], batch: int, dtype: Any, threads: int) -> float:
    """Seconds per sample on one thread while all threads work."""
    import torch

    from rondo.engine.client.cohorts import in_order

    torch.set_num_threads(1)
    best: dict[tuple[Layer, int], float] = {}
    for layer in [p.layer for p in needed] * TURNS:
        for kind in range(3):
            slowest = max(in_order(lambda work: _try(*work, batch, dtype), [(layer, kind)] * threads, threads))
            best[layer, kind] = min(best.get((layer, kind), float("inf")), slowest)
    return sum(
        count * best[p.layer, kind]
        for p in needed
        for kind, count in enumerate((p.forward, p.to_input, p.to_weight))
        if count
    )


def _try(layer: Layer, kind: int, batch: int, dtype: Any) -> float:
    """Seconds per sample of one pass: forward (0), backward to the input (1) or to the weight (2)."""
    import torch

    best = float("inf")
    backward = torch.ops.aten.convolution_backward
    for memory in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(batch, *layer.inputs).to(dtype, memory_format=memory)
        weight = torch.randn(layer.outputs[0], layer.inputs[0], layer.kernel, layer.kernel)
        weight = weight.to(dtype, memory_format=memory)
        gradient = torch.randn(batch, *layer.outputs).to(dtype, memory_format=memory)
        stride, padding, one = [layer.stride] * 2, [layer.padding] * 2, [1, 1]
        mask = [kind == 1, kind == 2, False]
        until = time.perf_counter() + TRY_SECONDS / 2
        while (began := time.perf_counter()) < until:
            if kind:
                backward(gradient, x, weight, None, stride, padding, one, False, [0, 0], 1, mask)
            else:
                torch.conv2d(x, weight, None, stride, padding)
            best = min(best, (time.perf_counter() - began) / batch)
    return best
