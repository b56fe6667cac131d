"""The gate: what every upload must pass before an algorithm sees it.

The server knows what it sent to whom, and so which tensors can come back. Everything else is turned away with a typed
reason, counted, and changes nothing; the round goes on without it. In this order: size, parsing, envelope, one upload a
client, names, types and shapes, finite values, number of examples and weight, norm.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.config.schema import AdmissionConfig
from rondo.engine.server.expected_upload import trial_upload
from rondo.engine.wire import Envelope, Identity, Rejected, decode_upload, short
from rondo.params import Packed, Params, Role, module_of, num_bytes, role

Shape = tuple[int | None, ...]
"""Of a declared tensor; None: any length, the same for all such axes of a module."""


class Gate:
    """The gate of one round, for ``clients``, which were sent ``algorithm``'s broadcast of ``state``.

    The norm that is bounded, and clipped, is of the change to what was sent; of the upload itself where the method puts
    that in other coordinates (``same_coordinates`` is false).
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        state: Any,
        round: Round,
        clients: Sequence[Client],
        limits: AdmissionConfig,
        identity: Identity,
        weighting: Literal["examples", "uniform"] = "examples",
    ) -> None:
        self.algorithm, self.state, self.round, self.limits, self.identity = algorithm, state, round, limits, identity
        self.weighting = weighting
        self._clients = {c.id: c for c in clients}
        self._expected: dict[int | None, Upload] = {}
        self._came: dict[str, bytes] = {}
        self._closed = False

    def close(self) -> None:
        """From now on every upload is late."""
        self._closed = True

    def admit(self, data: bytes) -> Upload:
        """The upload in ``data``, as :func:`rondo.engine.wire.encode_upload` made it. Raises
        :class:`~rondo.engine.wire.Rejected`."""
        envelope, params = decode_upload(data, self._limit)
        client = self._known(envelope)
        self._once(client, hashlib.sha256(data).digest())
        return self._content(Upload(replace(client, num_examples=envelope.examples), params, envelope.weight))

    def check(self, upload: Upload) -> Upload:
        """An upload that never was bytes, as in a simulation. Raises :class:`~rondo.engine.wire.Rejected`."""
        if self._closed:
            raise Rejected("round_closed", f"round {self.round.index} is over")
        if upload.client.id not in self._clients:
            raise Rejected("unknown_client", f"{short(upload.client.id)} has no part in round {self.round.index}")
        self._once(upload.client, b"")
        return self._content(upload)

    def _known(self, envelope: Envelope) -> Client:
        """The client, if the upload is of this round of this run on this model."""
        for key, here, there in (
            ("run", self.identity.run, envelope.run),
            ("model", self.identity.model, envelope.model),
            ("round", self.round.index, envelope.round),
        ):
            if here != there:
                raise Rejected(f"wrong_{key}", f"{short(there)}, this is {short(here)}")
        client = self._clients.get(envelope.client)
        if client is None:
            raise Rejected("unknown_client", f"{short(envelope.client)} has no part in round {self.round.index}")
        if self._closed:
            raise Rejected("round_closed", f"round {self.round.index} is over")
        return client

    def _once(self, client: Client, digest: bytes) -> None:
        """The first upload of a client stands, whatever comes of it: were it given another try, it could try bounds
        out. The same one again, of a client that got no answer, is told apart."""
        if client.id in self._came:
            which = "the same" if self._came[client.id] == digest else "another"
            raise Rejected("duplicate", f"{which} upload of {short(client.id)} came before")
        self._came[client.id] = digest

    def _trial(self, client: Client) -> Upload:
        """The upload that a client of this rank would send if it learned nothing."""
        if client.rank not in self._expected:
            self._expected[client.rank] = trial_upload(self.algorithm, self.state, client, self.round)
        return self._expected[client.rank]

    @functools.cached_property
    def _limit(self) -> int:
        """Bytes of the largest upload that a client of this round can send."""
        of_each_rank = {c.rank: c for c in self._clients.values()}.values()
        return max((self._bytes(self._trial(c).params) for c in of_each_rank), default=0)

    def _bytes(self, expected: Params) -> int:
        """Of the largest upload of such names: where it says which slots it has, it may have all."""
        total = num_bytes(expected)
        for name in expected:
            for other, count, slots in _sliced(name, expected, self.state.params) if role(name) is Role.INDEX else ():
                row = expected[other].numel() // max(1, count) * expected[other].element_size()
                total += (slots - count) * (row + expected[name].element_size())
        return total

    def _content(self, upload: Upload) -> Upload:
        trial = self._trial(self._clients[upload.client.id])
        expected = trial.params
        if upload.params.keys() != expected.keys():
            missing, surplus = expected.keys() - upload.params.keys(), upload.params.keys() - expected.keys()
            told = [f"{word} {short(sorted(names)[0])}" for word, names in (("no", missing), ("a", surplus)) if names]
            raise Rejected("wrong_names", f"there is {' and '.join(told)}; in all {len(missing) + len(surplus)} differ")
        for name, tensor in expected.items():
            _must_be(name, upload.params[name], tensor.dtype, _declared(name, expected))
        self._slots(upload.params)
        if len({t.dtype for t in expected.values()}) == 1:
            upload = replace(upload, params=Packed.of(upload.params))
        _must_be_finite(upload.params)
        examples, most = upload.client.num_examples, self.limits.max_examples
        if not 1 <= examples <= (most or math.inf):
            allowed = f"1 to {most}" if most else "at least 1"
            raise Rejected("bad_examples", f"{examples}, allowed are {allowed}")
        if not 0 < upload.weight < math.inf:
            raise Rejected("bad_weight", f"{upload.weight}, must be positive and finite")
        due = float(examples) if self.weighting == "examples" else 1.0
        if math.isnan(trial.weight) and upload.weight != due:
            raise Rejected("bad_weight", f"{upload.weight}, for {examples} examples it is {due:g}")
        return self._bounded(upload)

    def _slots(self, params: Params) -> None:
        """Numbers of slots (LoRA-A2): each once, and among those that there are."""
        for name, slots in params.items():
            if role(name) is not Role.INDEX:
                continue
            for other, count, total in _sliced(name, params, self.state.params):
                if count != len(slots):
                    raise Rejected("wrong_shape", f"{other} has {count} slots, {name} {len(slots)}")
                numbers = slots.tolist()
                if len(numbers) != len(set(numbers)) or not all(0 <= n < total for n in numbers):
                    raise Rejected("bad_slots", f"{name}: they must differ and lie between 0 and {total - 1}")

    def _bounded(self, upload: Upload) -> Upload:
        bound = self.limits.max_norm
        if bound is None:
            return upload
        params = self.algorithm.expand(self.state, upload).params
        moves = self.algorithm.same_coordinates
        start: Params = self.state.params if moves else {}
        change = {n: t.double() - start[n].double() if n in start else t.double() for n, t in params.items()}
        norm = math.sqrt(sum(float(t.square().sum()) for t in change.values()))
        if norm <= bound:
            return upload
        if not self.limits.clip:
            raise Rejected("norm_exceeded", f"{norm:.3g}, allowed is {bound:g}")
        clipped = {n: (t * (bound / norm) + (start[n].double() if n in start else 0)) for n, t in change.items()}
        return replace(upload, params={n: t.to(params[n].dtype) for n, t in clipped.items()})


def _declared(name: str, expected: Params) -> Shape:
    """The shape of a tensor; where the upload says which slots of a module it has, any number of them."""
    shape: list[int | None] = list(expected[name].shape)
    if f"{module_of(name)}.I" in expected:
        axis = {Role.DOWN: 0, Role.UP: 1, Role.INDEX: 0}.get(role(name))
        if axis is not None:
            shape[axis] = None
    return tuple(shape)


def _must_be(name: str, tensor: Tensor, dtype: torch.dtype, shape: Shape) -> None:
    if tensor.dtype is not dtype:
        raise Rejected("wrong_dtype", f"{name} is {tensor.dtype}, expected {dtype}")
    fits = len(tensor.shape) == len(shape) and all(
        s is None or s == t for s, t in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        raise Rejected("wrong_shape", f"{name} is {tuple(tensor.shape)}, expected ({wanted})")


def _must_be_finite(params: Params) -> None:
    """As float32, in which they will be used: 1e39 in float64 is infinite there."""
    whole = {"": params.vector} if isinstance(params, Packed) else params
    if all(t.float().isfinite().all() for t in whole.values() if t.is_floating_point()):
        return
    name = next(n for n, t in params.items() if t.is_floating_point() and not t.float().isfinite().all())
    raise Rejected("not_finite", name)


def _sliced(index: str, params: Params, server: Mapping[str, Tensor]) -> list[tuple[str, int, int]]:
    """The factors whose slots ``index`` numbers: name, how many are there, and how many the server has."""
    found = []
    for part, axis in (("A", 0), ("B", 1)):
        name = f"{module_of(index)}.{part}"
        if name in params:
            found.append((name, params[name].shape[axis], server[name].shape[axis]))
    return found
