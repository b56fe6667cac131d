"""Admission: every upload is checked here before an algorithm sees it.

The server knows what it sent to each client, and so which tensors can come back. Any other upload is rejected with a
typed reason, counted, and changes nothing; the round goes on without it. The checks, in this order: size, header,
envelope, one upload per client, names, number of examples, parsing of the tensors, types and shapes, finite values,
weight, norm. Each takes a time in proportion to the bytes. The number of examples is the one that the server knew of
the client when the round began: an upload cannot raise its own weight in the mean.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, UnreadableUpload, Upload
from rondo.algorithms.trial import trial_upload
from rondo.config.schema import AdmissionConfig
from rondo.engine.wire.envelope import Envelope, Identity, decode_upload, header_limit, largest_upload
from rondo.engine.wire.strict import Rejected, short
from rondo.params import Packed, Params, num_bytes


class Admission:
    """The admission of one round, in which ``clients`` received ``algorithm``'s broadcast of ``state``.

    The norm limit holds for the change from the broadcast, and clipping scales that change. Where uploads are in other
    coordinates than the broadcast (``same_coordinates`` is false), the limit holds for the upload itself.
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
        """Reject every upload from now on: the round is over."""
        self._closed = True

    def largest(self) -> int:
        """Bytes of the largest upload that can be admitted."""
        return largest_upload(self._tensor_limit, self._header_limit)

    def admit(self, data: bytes, sender: str | None = None) -> Upload:
        """The upload in ``data``, which are bytes from :func:`rondo.engine.wire.envelope.encode_upload`. Raises
        :class:`~rondo.engine.wire.strict.Rejected`.

        ``sender``: id of the client that the bytes came from, as the transport knows it.
        """
        received = decode_upload(data, self._tensor_limit, self._header_limit)
        envelope = received.envelope
        client = self._known(envelope)
        if sender is not None and client.id != sender:
            raise Rejected("wrong_client", f"{short(client.id)}, and it came from {short(sender)}")
        self._once(client, hashlib.sha256(data).digest())
        self._must_have(client, received.names)
        if envelope.examples != client.num_examples:
            raise Rejected("bad_examples", f"{envelope.examples}, and its client has {client.num_examples}")
        return self._content(Upload(client, received.tensors(), envelope.weight))

    def check(self, upload: Upload) -> Upload:
        """An upload that was never bytes, as in a simulation. Raises :class:`~rondo.engine.wire.strict.Rejected`."""
        if self._closed:
            raise Rejected("round_closed", f"round {self.round.attempt} is over")
        if upload.client.id not in self._clients:
            raise Rejected("unknown_client", f"{short(upload.client.id)} has no part in round {self.round.attempt}")
        self._once(upload.client, b"")
        self._must_have(upload.client, upload.params.keys())
        return self._content(upload)

    @functools.cached_property
    def _used(self) -> torch.dtype:
        """The narrowest floating-point type in the server's state."""
        types = {t.dtype for t in self.state.params.values() if t.is_floating_point()}
        return min(types, key=lambda dtype: torch.finfo(dtype).max, default=torch.float32)

    def _known(self, envelope: Envelope) -> Client:
        """The client that sent the upload, if the upload belongs to this run, this model and this round."""
        for key, expected, received in (
            ("run", self.identity.run, envelope.run),
            ("model", self.identity.model, envelope.model),
            ("round", self.round.attempt, envelope.round),
        ):
            if expected != received:
                raise Rejected(f"wrong_{key}", f"{short(received)}, this is {short(expected)}")
        client = self._clients.get(envelope.client)
        if client is None:
            raise Rejected("unknown_client", f"{short(envelope.client)} has no part in round {self.round.attempt}")
        if self._closed:
            raise Rejected("round_closed", f"round {self.round.attempt} is over")
        return client

    def _once(self, client: Client, digest: bytes) -> None:
        """A client's first upload is final, accepted or not: a retry would let it probe the limits. The digest
        distinguishes a resend, from a client that got no answer, from another upload."""
        if client.id in self._came:
            which = "the same" if self._came[client.id] == digest else "another"
            raise Rejected("duplicate", f"{which} upload of {short(client.id)} came before")
        self._came[client.id] = digest

    def _trial(self, client: Client) -> Upload:
        """The upload of a client of this rank that learned nothing."""
        if client.rank not in self._expected:
            shared = self.algorithm.broadcast(self.state, client, self.round)
            self._expected[client.rank] = trial_upload(self.algorithm, shared, client, self.round)
        return self._expected[client.rank]

    @functools.cached_property
    def _tensor_limit(self) -> int:
        """Bytes of tensors in the largest upload that a client of this round can send."""
        return max(map(self._bytes, self._trials), default=0)

    @functools.cached_property
    def _header_limit(self) -> int:
        """Bytes of header that no client of this round reaches."""
        longest_id = max(self._clients, key=len, default="")
        return max((header_limit(t.params.keys(), longest_id) for t in self._trials), default=0)

    @property
    def _trials(self) -> list[Upload]:
        return [self._trial(c) for c in {c.rank: c for c in self._clients.values()}.values()]

    def _bytes(self, trial: Upload) -> int:
        if self.algorithm.traits.form != "chosen":
            return num_bytes(trial.params)
        # At most every number that it can expand to, and as many again to say which of them it holds.
        return 2 * num_bytes(self.algorithm.expand(self.state, trial).params)

    def _must_have(self, client: Client, names: Set[str]) -> None:
        """The tensors of an upload from ``client`` must have the names of the trial's."""
        expected = self._trial(self._clients[client.id]).params.keys()
        missing, surplus = expected - names, names - expected
        if missing or surplus:
            kinds = (("missing", missing), ("unexpected", surplus))
            diff = ", ".join(f"{kind} {short(min(differing))}" for kind, differing in kinds if differing)
            raise Rejected("wrong_names", f"{diff}; {len(missing) + len(surplus)} differ")

    def _content(self, upload: Upload) -> Upload:
        trial = self._trial(self._clients[upload.client.id])
        expected, form = trial.params, self.algorithm.traits.form
        for name, tensor in expected.items():
            _must_be_like(name, upload.params[name], tensor, shapes=form != "chosen")
        if form != "full":
            self._must_expand(upload, trial)
        # In one order for all clients: methods and rules may lay a client's tensors end to end.
        params = {name: upload.params[name] for name in expected}
        upload = replace(upload, params=Packed.of(params) if len({t.dtype for t in expected.values()}) == 1 else params)
        _must_be_finite(upload.params, self._used)
        examples, max_examples = upload.client.num_examples, self.limits.max_examples
        if not 1 <= examples <= (max_examples or math.inf):
            allowed = f"1 to {max_examples}" if max_examples else "at least 1"
            raise Rejected("bad_examples", f"{examples}, allowed are {allowed}")
        self._must_weigh(upload, trial)
        return self._bounded(upload)

    def _must_weigh(self, upload: Upload, trial: Upload) -> None:
        """The weight must be the one that the method gives the upload, or the run does where the method gives none."""
        weight, examples, kind = upload.weight, upload.client.num_examples, self.algorithm.traits.weighting
        if not 0 < weight < math.inf:
            raise Rejected("bad_weight", f"{weight}, must be positive and finite")
        if kind == "tensors":
            expected = self.algorithm.weight_of(self.state, upload)
            if not math.isclose(expected, weight, rel_tol=1e-6):
                raise Rejected("bad_weight", f"{weight}, by its tensors it is {expected:g}")
        elif kind == "equal" or math.isnan(trial.weight):
            expected = float(examples) if kind == "run" and self.weighting == "examples" else 1.0
            if weight != expected:
                raise Rejected("bad_weight", f"{weight}, for {examples} examples it is {expected:g}")

    def _must_expand(self, upload: Upload, trial: Upload) -> None:
        """The algorithm must read the upload and expand it to finite values of the types and shapes of the trial."""
        try:
            expanded = self.algorithm.expand(self.state, upload).params
        except UnreadableUpload as error:
            raise Rejected(error.reason, error.detail) from None
        for name, tensor in self.algorithm.expand(self.state, trial).params.items():
            _must_be_like(name, expanded[name], tensor)
        _must_be_finite(expanded, self._used)

    def _bounded(self, upload: Upload) -> Upload:
        bound = self.limits.max_norm
        if bound is None:
            return upload
        params = self.algorithm.expand(self.state, upload).params
        same_coordinates = self.algorithm.traits.same_coordinates
        start: Params = self.state.params if same_coordinates else {}
        change = {n: t.double() - start[n].double() if n in start else t.double() for n, t in params.items()}
        norm = math.sqrt(math.fsum(float(t.square().sum()) for t in change.values()))
        if norm <= bound:
            return upload
        if not self.limits.clip:
            raise Rejected("norm_exceeded", f"{norm:.3g}, allowed is {bound:g}")
        clipped = {n: (t * (bound / norm) + (start[n].double() if n in start else 0)) for n, t in change.items()}
        return replace(upload, params={n: t.to(params[n].dtype) for n, t in clipped.items()})


def _must_be_like(name: str, tensor: Tensor, like: Tensor, *, shapes: bool = True) -> None:
    """``tensor`` must have the type and shape of ``like``; without ``shapes``, its type and number of axes."""
    if tensor.dtype is not like.dtype:
        raise Rejected("wrong_dtype", f"{name} is {tensor.dtype}, expected {like.dtype}")
    if tensor.dim() != like.dim() or (shapes and tensor.shape != like.shape):
        wanted = str(tuple(like.shape)) if shapes else f"{like.dim()} axes"
        raise Rejected("wrong_shape", f"{name} is {short(tuple(tensor.shape))}, expected {wanted}")


def _must_be_finite(params: Params, dtype: torch.dtype) -> None:
    """All values must be finite in ``dtype``, the type in which they are used: 1e39 in float64 is infinite in
    float32."""
    tensors = {"": params.vector} if isinstance(params, Packed) else params
    if all(t.to(dtype).isfinite().all() for t in tensors.values() if t.is_floating_point()):
        return
    name = next(n for n, t in params.items() if t.is_floating_point() and not t.to(dtype).isfinite().all())
    raise Rejected("not_finite", name)
