"""The gate: what every upload must pass before an algorithm sees it.

The server knows what it sent to whom, and so which tensors can come back. Everything else is turned away with a typed
reason, counted, and changes nothing; the round goes on without it. In this order: size, parsing, envelope, one upload a
client, names, types and shapes, finite values, number of examples and weight, norm.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, UnreadableUpload, Upload
from rondo.config.schema import AdmissionConfig
from rondo.engine.server.expected_upload import trial_upload
from rondo.engine.wire import Envelope, Identity, Rejected, decode_upload, short
from rondo.params import Packed, Params, num_bytes


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

    @functools.cached_property
    def _used(self) -> torch.dtype:
        """The narrowest type of numbers in the server's state."""
        types = {t.dtype for t in self.state.params.values() if t.is_floating_point()}
        return min(types, key=lambda dtype: torch.finfo(dtype).max, default=torch.float32)

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
        clients = {c.rank: c for c in self._clients.values()}.values()
        return max((self._bytes(self._trial(c)) for c in clients), default=0)

    def _bytes(self, trial: Upload) -> int:
        if not self.algorithm.varying_shapes:
            return num_bytes(trial.params)
        # At most everything that it can expand to, and as many numbers again to say which part of that it is.
        return 2 * num_bytes(self.algorithm.expand(self.state, trial).params)

    def _content(self, upload: Upload) -> Upload:
        trial = self._trial(self._clients[upload.client.id])
        expected = trial.params
        if upload.params.keys() != expected.keys():
            missing, surplus = expected.keys() - upload.params.keys(), upload.params.keys() - expected.keys()
            told = [f"{word} {short(sorted(names)[0])}" for word, names in (("no", missing), ("a", surplus)) if names]
            raise Rejected("wrong_names", f"there is {' and '.join(told)}; in all {len(missing) + len(surplus)} differ")
        for name, tensor in expected.items():
            _must_be_like(name, upload.params[name], tensor, shapes=not self.algorithm.varying_shapes)
        if self.algorithm.varying_shapes:
            self._must_expand(upload, trial)
        if len({t.dtype for t in expected.values()}) == 1:
            upload = replace(upload, params=Packed.of(upload.params))
        _must_be_finite(upload.params, self._used)
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

    def _must_expand(self, upload: Upload, trial: Upload) -> None:
        """The method can read the upload, and makes of it what it makes of the trial's shapes."""
        try:
            expanded = self.algorithm.expand(self.state, upload).params
        except UnreadableUpload as error:
            raise Rejected(error.reason, error.detail) from None
        for name, tensor in self.algorithm.expand(self.state, trial).params.items():
            _must_be_like(name, expanded[name], tensor)

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


def _must_be_like(name: str, tensor: Tensor, like: Tensor, *, shapes: bool = True) -> None:
    """The type and shape of ``like``; without ``shapes`` only its number of axes."""
    if tensor.dtype is not like.dtype:
        raise Rejected("wrong_dtype", f"{name} is {tensor.dtype}, expected {like.dtype}")
    if tensor.dim() != like.dim() or (shapes and tensor.shape != like.shape):
        wanted = str(tuple(like.shape)) if shapes else f"{like.dim()} axes"
        raise Rejected("wrong_shape", f"{name} is {tuple(tensor.shape)}, expected {wanted}")


def _must_be_finite(params: Params, used: torch.dtype) -> None:
    """In the type in which they will be used: 1e39 in float64 is infinite in float32."""
    whole = {"": params.vector} if isinstance(params, Packed) else params
    if all(t.to(used).isfinite().all() for t in whole.values() if t.is_floating_point()):
        return
    name = next(n for n, t in params.items() if t.is_floating_point() and not t.to(used).isfinite().all())
    raise Rejected("not_finite", name)
