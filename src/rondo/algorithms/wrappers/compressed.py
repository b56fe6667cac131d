"""Uploads of fewer bytes, around any linear algorithm: numbers of 8 or 4 bits, or the largest ones alone.

The change of an upload is packed: its difference from the upload of a client that learned nothing, which the server
knows. The server unpacks it in ``expand``, so whatever it does with uploads it does with unpacked ones. Broadcasts are
not compressed. Integers and statistics (batch normalisation) travel as they are.

Rounding is stochastic, so that its mean is the tensor. Numbers of a block share a scale, their largest magnitude. With
L = 127 or 7 levels on each side of zero and u uniform in [0, 1), a number x becomes ``floor(x L / scale + u)``.
Source: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017.

With the largest numbers alone, a client holds the rest back and adds it to its next upload (error feedback). It keeps
these numbers as it keeps tensors of its own, and they count only if the round does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from rondo.algorithm import Client, Mean, Round, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.compatible import Option, refused
from rondo.algorithms.trial import trial_upload
from rondo.algorithms.wrappers.wrapper import InnerState, StateWrapper
from rondo.messages import UnreadableUpload
from rondo.params import Params, buffer, client_row, fixed, pick
from rondo.roles import HELD_PREFIX, PLACES_PREFIX, SCALES_PREFIX
from rondo.traits import Traits

Bits = Literal[4, 8]
"""Bits of a number."""
BLOCK = 256
"""Numbers that share a scale."""


def rounded(values: Tensor, bits: Bits, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The codes of ``values`` (n,), as uint8 (ceil(n bits / 8),), and the scales of their blocks, as float32
    (ceil(n / 256),). A code is a level plus L; of two codes of 4 bits in a byte, the first has the lower bits."""
    count, levels = len(values), _levels(bits)
    blocks = torch.nn.functional.pad(values.double(), (0, -count % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1)
    scales = largest.float()
    # Never below the largest number, which would have no level.
    scales = torch.where(scales.double() < largest, scales.nextafter(torch.tensor(math.inf)), scales)
    step = (scales.double() / levels).unsqueeze(1)
    draws = torch.rand(blocks.shape, generator=generator, dtype=torch.float64)
    level = (torch.where(step > 0, blocks / step, 0.0) + draws).floor().clamp(-levels, levels)
    codes = (level + levels).to(torch.uint8).flatten()[:count]
    if bits == 4:
        pairs = torch.nn.functional.pad(codes, (0, count % 2)).view(-1, 2)
        codes = pairs[:, 0] | (pairs[:, 1] << 4)
    return codes, scales


def unrounded(name: str, codes: Tensor, scales: Tensor, count: int, bits: Bits) -> Tensor:
    """The ``count`` numbers in ``codes`` and ``scales``, in float64 (count,). Raises :class:`UnreadableUpload` for what
    :func:`rounded` does not write; ``name`` names the tensor there."""
    levels = _levels(bits)
    if not (scales.isfinite().all() and (scales >= 0).all()):
        raise UnreadableUpload("bad_scale", f"{name}: scales must be finite and not negative")
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], 1).flatten()
    if (codes > 2 * levels).any() or codes[count:].any():
        raise UnreadableUpload("bad_code", f"{name}: codes of {bits} bits lie between 0 and {2 * levels}")
    steps = (scales.double() / levels).repeat_interleave(BLOCK)[:count]
    return (codes[:count].double() - levels) * steps


def _levels(bits: Bits) -> int:
    return 127 if bits == 8 else 7


def largest(values: Tensor, keep: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The ``ceil(keep n)`` numbers of largest magnitude among ``values`` (n,), in ``dtype``, and their places, in
    ascending order. Of equal magnitudes the first counts. Places are int16 where they fit, else int32."""
    count = math.ceil(keep * len(values))
    places = values.abs().sort(descending=True, stable=True).indices[:count].sort().values
    kind = torch.int16 if len(values) <= 2**15 else torch.int32
    return values[places].to(dtype), places.to(kind)


def spread_out(name: str, values: Tensor, places: Tensor, count: int) -> Tensor:
    """``count`` numbers in float64: ``values`` at their ``places``, and zeros. Raises :class:`UnreadableUpload` unless
    the places are in ascending order, without repetition, and within ``count``; ``name`` names the tensor there."""
    wide = places.long()
    if len(wide) and (wide[0] < 0 or wide[-1] >= count or (wide.diff() <= 0).any()):
        raise UnreadableUpload("bad_places", f"{name}: places must ascend and lie between 0 and {count - 1}")
    return torch.zeros(count, dtype=torch.float64).index_copy(0, wide, values.double())


class Packing(Protocol):
    """A form of a tensor's change in fewer bytes."""

    @property
    def option(self) -> Option:
        """Its column in the table of options."""

    @property
    def holds_back(self) -> bool:
        """Whether the rest of a change goes into the next one."""

    def packed(self, name: str, change: Tensor, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
        """The tensors that travel in place of the tensor ``name``. ``change``: (n,) in float64, of a tensor of
        ``dtype``."""

    def unpacked(self, name: str, params: Params, count: int) -> Tensor:
        """The change, ``(count,)`` in float64. Raises :class:`~rondo.algorithm.UnreadableUpload`."""


@dataclass(frozen=True)
class Rounding:
    """Stochastic rounding to ``bits`` per number: uint8 under the tensor's name, scales in float32 beside it."""

    bits: Bits = 8
    option: Option = "rounding"
    holds_back: bool = False

    def packed(self, name: str, change: Tensor, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
        codes, scales = rounded(change, self.bits, generator)
        return {name: codes, SCALES_PREFIX + name: scales}

    def unpacked(self, name: str, params: Params, count: int) -> Tensor:
        return unrounded(name, params[name], params[SCALES_PREFIX + name], count, self.bits)


@dataclass(frozen=True)
class TopK:
    """The share ``keep`` of each tensor's numbers, the largest ones: values under the tensor's name, places beside
    it."""

    keep: float = 0.1
    option: Option = "top-k"
    holds_back: bool = True

    def packed(self, name: str, change: Tensor, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
        values, places = largest(change, self.keep, dtype)
        return {name: values, PLACES_PREFIX + name: places}

    def unpacked(self, name: str, params: Params, count: int) -> Tensor:
        return spread_out(name, params[name], params[PLACES_PREFIX + name], count)


@dataclass(frozen=True)
class CompressedState(InnerState):
    """The wrapped algorithm's state, and the round that it is before, skipped ones left out: a method may send other
    tensors in other rounds."""

    round: Round


@final
@dataclass(frozen=True)
class Compressed(StateWrapper[CompressedState]):
    """``algorithm``, whose clients send their changes in the form of ``packing``.

    It stays linear, and is no longer exact. Raises ValueError for an algorithm that does not go with ``packing``.
    """

    packing: Packing

    def __post_init__(self) -> None:
        algorithm = self.algorithm
        reason = refused(algorithm.traits, linear=algorithm.linear).get(self.packing.option)
        if reason is not None:
            raise ValueError(reason)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return replace(self.algorithm.traits, exact=False, form="packed")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> CompressedState:
        return CompressedState(self.algorithm.init(params, weights, round), replace(round, skipped=0))

    def local_init(self, shared: Shared, client: Client) -> Params:
        """The wrapped algorithm's tensors, and zeros for everything that may be held back."""
        sent = pick(shared.params, ~(fixed | self.algorithm.traits.keeps))
        held = {n: torch.zeros_like(t) for n, t in sent.items() if _is_packed(n, t)}
        nothing_held = {HELD_PREFIX + n: t for n, t in held.items()} if self.packing.holds_back else {}
        return {**self.algorithm.local_init(shared, client), **nothing_held}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        uploads, kept = self.algorithm.client_update(shared, _own(local), trainer)
        packed: list[Upload] = []
        held_now: dict[str, list[Tensor]] = {}
        for k, upload in enumerate(uploads):
            of_client = replace(shared, params=client_row(shared.params, k))
            held = {n: t[k] for n, t in local.items() if n.startswith(HELD_PREFIX)}
            sent, rest = self._packed(upload, of_client, held, trainer.round)
            packed.append(sent)
            for name, tensor in rest.items():
                held_now.setdefault(name, []).append(tensor)
        return tuple(packed), {**kept, **{n: torch.stack(rows) for n, rows in held_now.items()}}

    def _packed(self, upload: Upload, shared: Shared, held: Params, round: Round) -> tuple[Upload, Params]:
        """``upload`` as it travels, and what its client holds back from now on. The work is done on the processor, so
        it has the same bits wherever the client has trained."""
        nothing = trial_upload(self.algorithm, shared, upload.client, round).params
        generator = round.generator("compression", upload.client.id)
        params: dict[str, Tensor] = {}
        held = dict(held)
        for name, tensor in sorted(upload.params.items()):
            if not _is_packed(name, tensor):
                params[name] = tensor
                continue
            change = _flat(tensor) - _flat(nothing[name])
            before = held.get(HELD_PREFIX + name)
            if before is not None:
                change = change + _flat(before)
            parts = self.packing.packed(name, change, tensor.dtype, generator)
            params |= parts
            if before is not None:
                rest = change - self.packing.unpacked(name, parts, len(change))
                held[HELD_PREFIX + name] = rest.to(before).view(before.shape)
        return replace(upload, params=params), held

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        held = {n: t for n, t in local.items() if n.startswith(HELD_PREFIX)}
        return {**self.algorithm.adapt(shared, _own(local), trainer), **held}

    def expand(self, state: CompressedState, upload: Upload) -> Upload:
        """``upload`` unpacked; one that is unpacked already stays as it is. Raises
        :class:`~rondo.algorithm.UnreadableUpload` for numbers that no client sends."""
        if not any(n.startswith((SCALES_PREFIX, PLACES_PREFIX)) for n in upload.params):
            return self.algorithm.expand(state.inner, upload)
        shared = self.algorithm.broadcast(state.inner, upload.client, state.round)
        params = dict(trial_upload(self.algorithm, shared, upload.client, state.round).params)
        for name, nothing in params.items():
            if _is_packed(name, nothing):
                change = self.packing.unpacked(name, upload.params, nothing.numel())
                params[name] = (nothing.double() + change.view(nothing.shape)).to(nothing.dtype)
            else:
                params[name] = upload.params[name]
        return self.algorithm.expand(state.inner, replace(upload, params=params))

    def finish(self, state: CompressedState, mean: Mean, round: Round) -> CompressedState:
        after = replace(round, index=round.index + 1, skipped=0)
        return CompressedState(self.algorithm.finish(state.inner, mean, round), after)

    def view(self, shared: Shared, local: Params) -> Params:
        return self.algorithm.view(shared, _own(local))


def _is_packed(name: str, tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not buffer(name)


def _own(local: Params) -> dict[str, Tensor]:
    """The tensors that the wrapped algorithm keeps."""
    return {n: t for n, t in local.items() if not n.startswith(HELD_PREFIX)}


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().reshape(-1).double()
