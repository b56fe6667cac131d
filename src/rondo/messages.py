"""Clients and their failures, rounds, the messages between server and clients, and the weighted mean of uploads."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from rondo.lowrank import GrowingSum
from rondo.params import FactorStart, Layout, Packed, Params, fresh_factors


class UnreadableUpload(ValueError):
    """:meth:`rondo.algorithm.Algorithm.expand` cannot read an upload.

    ``reason``: a short code.
    ``detail``: the circumstances, in words.

    >>> from rondo.algorithm import UnreadableUpload
    >>> print(UnreadableUpload("slots", "slot 9 of a layer with 8"))
    slots: slot 9 of a layer with 8
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class ClientFailed(Exception):
    """A client cannot finish its part of the round. It uploads nothing and the round goes on.

    ``client``: the client's id.
    ``reason``: a short code (``nonfinite_loss``, ``no_targets``, ``out_of_memory``).
    ``detail``: the circumstances, in words.

    >>> from rondo.algorithm import ClientFailed
    >>> print(ClientFailed("st-anna", "nonfinite_loss", "step 3"))
    client st-anna: nonfinite_loss (step 3)
    """

    def __init__(self, client: str, reason: str, detail: str) -> None:
        super().__init__(f"client {client}: {reason} ({detail})")
        self.client, self.reason, self.detail = client, reason, detail


@dataclass(frozen=True)
class Client:
    """A client of the federation.

    >>> from rondo.algorithm import Client
    >>> Client("st-anna", num_examples=120)
    Client(id='st-anna', num_examples=120, rank=None)
    """

    id: str
    num_examples: int
    """Number of training examples."""
    rank: int | None = None
    """The client's own rank where ranks differ, else None."""


@dataclass(frozen=True)
class Round:
    """One round of a run.

    >>> from rondo.algorithm import Round
    >>> round = Round(index=3, total=20, seed=0, population=12)
    >>> first, again = (round.generator("noise").initial_seed() for _ in range(2))
    >>> first == again, first == round.generator("start").initial_seed()
    (True, False)
    """

    index: int
    """Number of rounds aggregated before this one."""
    total: int
    """Number of attempts in the run."""
    seed: int
    """The run's seed."""
    population: int
    """Number of clients in the population."""
    skipped: int = 0
    """Number of attempts skipped before this one. No algorithm depends on it, so a skipped attempt leaves alternation,
    periods and stages as they are."""
    init_lora_weights: FactorStart = True
    """PEFT's key of the adapters: the distribution of factors that a method draws itself."""

    @property
    def attempt(self) -> int:
        """0-based number of the attempt. Sampling, data order, dropout and faults go by it, so a new attempt is not a
        repetition of a skipped one."""
        return self.index + self.skipped

    def generator(self, *tags: str | int) -> torch.Generator:
        """A CPU generator seeded from (run seed, index, tags). Different tags give independent streams."""
        return self._generator(self.index, tags)

    def attempt_generator(self, *tags: str | int) -> torch.Generator:
        """A CPU generator seeded from (run seed, attempt, tags), for the engine's own streams."""
        return self._generator(self.attempt, tags)

    def _generator(self, number: int, tags: tuple[str | int, ...]) -> torch.Generator:
        text = "/".join(map(str, (self.seed, number, *tags)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest) & 0x7FFF_FFFF_FFFF_FFFF)

    def factors(self, shape: tuple[int, int], rank: int, *tags: str | int) -> tuple[Tensor, Tensor]:
        """A (rank, in) and B (out, rank) in float64 for a matrix of ``shape`` (out, in), drawn as PEFT starts adapters
        in this run, so their product is zero. Every method that starts factors anew draws them here."""
        return fresh_factors(shape, rank, self.init_lora_weights, self.generator(*tags))


@dataclass(frozen=True)
class Weight:
    """A frozen base matrix, read only when asked for.

    >>> import torch
    >>> from rondo.algorithm import Weight
    >>> weight = Weight((7, 5), 2.0, lambda: torch.ones(7, 5))  # read when asked for
    >>> weight.matrix().shape
    torch.Size([7, 5])
    """

    shape: tuple[int, int]
    """(out, in)."""
    scale: float
    """The adapter's scale on this matrix."""
    matrix: Callable[[], Tensor]
    """Reads the (out, in) matrix."""


@dataclass(frozen=True)
class Shared:
    """Everything a client must know from the server.

    >>> import torch
    >>> from rondo.algorithm import Shared
    >>> Shared({"query.A": torch.ones(2, 5), "query.B": torch.zeros(7, 2)}).base
    {}
    """

    params: Params
    base: Mapping[str, GrowingSum] = field(default_factory=dict)
    """Cumulative change of the frozen base by module path, in W's units. It only grows, by whole chunks. A client holds
    a sum and its number of chunks. The transport sends it the later chunks, which the client adds one by one with
    ``+``, or the new sum where that is smaller; the bits are the same."""


@dataclass(frozen=True)
class Upload:
    """One client's message to the server.

    >>> import torch
    >>> from rondo.algorithm import Client, Upload
    >>> upload = Upload(Client("st-anna", 120), {"query.B": torch.zeros(7, 2)}, weight=120.0)
    >>> list(upload.params)
    ['query.B']
    """

    client: Client
    params: Params
    """Tensors without a client axis."""
    weight: float
    """The client's weight in the mean, not normalised."""


Uploads: TypeAlias = tuple[Upload, ...]


@dataclass(frozen=True)
class Mean:
    """The weighted mean of a round's uploads.

    >>> import torch
    >>> from rondo.algorithm import Client, Upload, weighted_mean
    >>> uploads = [Upload(Client(f"site-{k}", 10), {"query.B": torch.ones(7, 2)}, 10.0) for k in range(3)]
    >>> mean = weighted_mean(uploads)
    >>> mean.weight, mean.count, mean.params["query.B"].dtype
    (30.0, 3, torch.float64)
    """

    params: Params
    """The mean itself in float64, all tensors parts of one vector."""
    weight: float
    """Sum of the uploads' weights."""
    count: int
    """Number of uploads."""


def weighted_mean(uploads: Iterable[Upload]) -> Mean:
    """``sum w_k x_k / sum w_k``, accumulated in float64 in the order given, with ``_HELD`` uploads in memory at a time.

    The engine sorts uploads by client id, so the result does not depend on which client answered first. Raises
    ValueError if there are no uploads, a weight is not positive and finite, or names or shapes differ.

    >>> import torch
    >>> from rondo.algorithm import Client, Upload, weighted_mean
    >>> one = Upload(Client("st-anna", 30), {"head:out.bias": torch.tensor([4.0])}, weight=30.0)
    >>> two = Upload(Client("st-mary", 10), {"head:out.bias": torch.tensor([0.0])}, weight=10.0)
    >>> weighted_mean([one, two]).params["head:out.bias"]
    tensor([3.], dtype=torch.float64)
    """
    packed_uploads = _packed(uploads)
    held = list(itertools.islice(packed_uploads, _HELD))
    if not held:
        raise ValueError("no uploads to average")
    first, _ = held[0]
    layout, total = first.layout, torch.zeros_like(first.vector, dtype=torch.float64)
    weight_sum, count = 0.0, 0
    del first
    while held:
        _add(total, held)
        count += len(held)
        for weight in [weight for _, weight in held]:  # a loop over pairs would hold the last upload until the next
            weight_sum += weight
        held.clear()  # free these before asking for more
        held += itertools.islice(packed_uploads, _HELD)
    return Mean(Packed(total.div_(weight_sum), layout), weight_sum, count)


_HELD = 8
"""Uploads in memory at a time: few, so that memory does not grow with the number of uploads."""
_TOGETHER = 2**19
"""Numbers added at a time: enough to outweigh the cost of a call, few enough for a processor's cache."""


def _add(total: Tensor, held: Sequence[tuple[Packed, float]]) -> None:
    """``total += weight * vector``, in place, one upload after another; each product and sum is rounded to float64."""
    scratch = torch.empty_like(total[:_TOGETHER])
    vectors = [torch.split(packed.vector, _TOGETHER) for packed, _ in held]
    for part, *addends in zip(torch.split(total, _TOGETHER), *vectors, strict=True):
        product = scratch[: len(part)]
        for (_, weight), addend in zip(held, addends, strict=True):  # every upload while ``part`` is in the cache
            part.add_(product.copy_(addend).mul_(weight))


def _packed(uploads: Iterable[Upload]) -> Iterator[tuple[Packed, float]]:
    """Each upload as one vector, in the first upload's layout, with its weight. Raises ValueError if a weight is not
    positive and finite, or an upload's names or shapes differ from the first's."""
    layout: Layout | None = None
    for upload in uploads:
        if not 0 < upload.weight < float("inf"):
            raise ValueError(f"client {upload.client.id}: weight must be positive and finite, got {upload.weight}")
        packed = _fitting(upload, layout)
        layout = packed.layout
        yield packed, upload.weight


def _fitting(upload: Upload, layout: Layout | None) -> Packed:
    """The upload's tensors packed in ``layout``, or in their own order if it is None. Raises ValueError if names or
    shapes differ."""
    params = upload.params
    if layout is None:
        return params if isinstance(params, Packed) else Packed.of(params)
    if isinstance(params, Packed) and params.layout == layout:
        return params
    names = [name for name, _ in layout]
    if params.keys() != set(names):
        differing = sorted(params.keys() ^ set(names))
        raise ValueError(f"client {upload.client.id} uploaded other tensors than the first: {differing}")
    for name, shape in layout:
        if params[name].shape != shape:
            actual = tuple(params[name].shape)
            raise ValueError(f"client {upload.client.id}: {name} is {actual}, expected {tuple(shape)}")
    return Packed.of({name: params[name] for name in names})
