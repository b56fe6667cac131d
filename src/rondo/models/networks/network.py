"""The engine's view of a model: which tensors it takes from clients, its output for them, and whether two ways through
it agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from rondo.algorithm import Weight
from rondo.errors import ConfigError
from rondo.lowrank import GrowingSum
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.models.networks.adapted_layer import Site, frozen_matrix
from rondo.models.networks.call import Recomputed
from rondo.models.networks.rows import Rows
from rondo.params import Params, add_client_axis, down, magnitude, on_device, pick, up
from rondo.tasks.task import Batch

Base = Mapping[str, GrowingSum]
Streams: TypeAlias = Sequence[torch.Generator] | None
"""A generator per client in training, else None."""


def freeze(module: nn.Module) -> None:
    """Put ``module`` into eval mode, without gradients. A module of one's own may override these methods and return
    nothing, so no call is chained to them."""
    module.eval()
    module.requires_grad_(False)


class Network(ABC):
    """A module that takes some of its tensors from clients. Everything else in it is frozen and shared."""

    module: nn.Module
    """In eval mode, without gradients."""
    initial: Params
    """The start value of every tensor that it takes, without a client axis. A name gives the tensor's role
    (:mod:`rondo.params`)."""
    sites: Mapping[str, Site] = MappingProxyType({})
    """The adapted layers by module path."""
    one_at_a_time: str | None = None
    """The reason why clients cannot share a call; None if they can."""
    no_pairs: str | None = "whole tensors are trained beside, where a layer has one matrix"
    """The reason why its layers cannot have several pairs of factors (:mod:`rondo.models.networks.pairs`); None if they
    can."""
    one_thread: bool = False
    """Whether calls cannot run in several threads at once."""
    minds_padding: bool | None = False
    """Whether a row's output depends on how far it is padded; None if no padded row was tried."""
    draws: bool = False
    """Whether a call in training draws from a stream of the process, which all rows share."""
    products: torch.dtype | None = None
    """The type that layers multiply in; None for that of their tensors."""
    layout: Literal["channels last", "contiguous"] | None = None
    """The layout of images in memory: pixel by pixel, which is faster, or channel by channel for a module that runs in
    that alone; None before the first call with images."""
    moves_statistics: bool = False
    """Whether a batch normalisation normalises by the batch in training, and notes its statistics."""
    head_alone: ClassVar[bool] = False
    """Whether the head can be computed alone, from its inputs."""
    head_layer: str | None = None
    """The layer that is the head and is computed alone (:mod:`rondo.models.shortcuts.head_inputs`)."""
    recomputed: Sequence[Recomputed] = ()
    """Layers that keep their inputs alone for the backward pass."""
    _device = torch.device("cpu")
    _moved: tuple[Base, Base] | None = None

    @property
    def device(self) -> torch.device:
        parameter = next(self.module.parameters(), None)
        return self._device if parameter is None else parameter.device

    def move(self, device: torch.device) -> None:
        """Move the module to ``device``. Tensors of a call are moved there by the caller."""
        self.module.to(device)
        self._device = device

    def weights(self) -> dict[str, Weight]:
        """The frozen matrix of every adapted layer, read lazily."""
        return {
            p: Weight(s.shape, s.scale, lambda s=s: frozen_matrix(self.module.get_submodule(s.path), s))  # type: ignore[misc]
            for p, s in self.sites.items()
        }

    @torch.no_grad()
    def switched_off(self, batch: Batch) -> Tensor:
        """The output on ``batch`` without low-rank factors and magnitudes, and without a change of the base."""
        factors, initial = down | up, pick(self.initial, ~magnitude)
        zero = {n: torch.zeros((), dtype=t.dtype).expand(t.shape) for n, t in initial.items() if factors(n)}
        params = on_device({**initial, **zero}, self.device)
        return self(add_client_axis(params), {}, on_device(batch, self.device))

    def on_device(self, base: Base) -> Base:
        """A change of the base on the device. The result is kept, so that clients with the same change share it."""
        if self._moved is None or self._moved[0] is not base:
            self._moved = (base, {path: change.on(self.device) for path, change in base.items()})
        return self._moved[1]

    @contextmanager
    def lent(self, seen: Params, base: Base) -> Iterator[nn.Module]:
        """The module itself with the tensors ``seen`` (no client axis) and ``base`` in their places, within. Raises
        TypeError for a network that lends none."""
        raise TypeError(f"{type(self).__name__} lends no module")
        yield self.module

    def laid_out(self, batch: Batch, run: Callable[[Batch], object]) -> Batch:
        """``batch`` in :attr:`layout`, which a trial on the first images finds out. ``run``: runs the module on a batch
        as it is."""
        images = {n: t for n, t in batch.items() if t.dim() == 4 and t.is_floating_point()}
        if not images or self.layout == "contiguous":
            return batch
        # Not by ``contiguous``, which leaves images of a single channel as they are.
        pixel_by_pixel = {**batch, **{n: t.to(memory_format=torch.channels_last) for n, t in images.items()}}
        if self.layout is None:
            try:
                with torch.no_grad():
                    run(pixel_by_pixel)
                self.layout = "channels last"
            except Exception as error:  # a ``view`` of a convolution's output, as in many published networks
                if is_out_of_memory(error):
                    raise
                self.layout = "contiguous"
                return batch
        return pixel_by_pixel

    def tried(self, one_at_a_time: str | None, *, minds_padding: bool | None, draws: bool) -> None:
        """Take the outcome of the trial (:mod:`rondo.models.forms.trial`): the reason for which a call of several
        clients goes wrong, :attr:`minds_padding` and :attr:`draws`."""
        self.one_at_a_time, self.minds_padding, self.draws = one_at_a_time, minds_padding, draws

    def check_training(self, inputs: Batch) -> None:  # noqa: B027
        """Raise :class:`ConfigError` for a module that does in training something that Rondo would not do. Default:
        it stays in eval mode."""

    def freeze_head(self) -> None:
        """Let clients give no tensor of the head, which keeps its start. Raises :class:`ConfigError` for a network that
        takes all of its tensors in each call."""
        raise ConfigError.at("model.head", "a network of one's own trains its head: set it to shared or local")

    def head_input(self, params: Params, base: Base, batch: Batch) -> Tensor:
        """The input of :attr:`head_layer` on one client's ``batch``, (rows, width), with tensors as for a call."""
        raise TypeError(f"{type(self).__name__} computes no head alone")

    def recompute_layers(self) -> None:
        """Make every layer keep its inputs alone for the backward pass. Raises :class:`ConfigError` if it cannot."""
        message = "it is for low-rank factors in a model of transformers that divides into layers: remove it"
        raise ConfigError.at("train.checkpointing", message)

    @abstractmethod
    def __call__(
        self, params: Params, base: Base, batch: Batch, dropout: Streams = None, rows: Rows | None = None
    ) -> Tensor:
        """Compute the output on ``batch``, whose rows are ordered by client, with tensors as ``view`` returns them.

        ``params`` has a client axis K; ``base`` has none. ``rows`` gives the rows of each client; None means the same
        number for each. ``dropout`` holds one generator per client during training. Raises KeyError if ``params`` lacks
        a tensor, ValueError for several clients if :attr:`one_at_a_time` gives a reason.
        """


def rounding(network: Network, *also: torch.dtype) -> float:
    """The relative spacing of numbers in the coarsest of the network's types and those it computes in ``also``. The
    output's type does not tell: a head of float32 ends a body of bfloat16. Rounding leaves half of a type's digits
    right in a norm over rows or a tensor, and rows that are mixed up leave none, so its root is what two ways may
    differ by. Types of a single byte are how weights are kept, and no layer between them computes in one."""
    kept = {p.dtype for p in network.module.parameters() if p.is_floating_point()}
    types = {t for t in kept if t.itemsize > 1} | set(also)
    return max(torch.finfo(t).eps for t in types)


def agree(found: Tensor, expected: Tensor, allowed: float, floor: float = 0.0) -> bool:
    """Whether both have one shape and differ by at most ``allowed`` of the norm of ``expected``, or of ``floor`` if
    that is larger."""
    if found.shape != expected.shape:
        return False
    return float((found - expected).norm()) <= allowed * max(float(expected.norm()), floor)
