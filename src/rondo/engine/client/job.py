"""A cohort's work in a round, and its answers, as objects and as bytes.

The bytes pass between processes of one owner, which trust each other. Tensors common to a round's jobs travel once per
round (:class:`Common`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Round, Shared, Upload
from rondo.engine.transport import Answer
from rondo.engine.wire import serialization
from rondo.lowrank import GrowingSum
from rondo.params import Params


@dataclass(frozen=True)
class Job:
    """A cohort's work in a round."""

    round: Round
    clients: tuple[Client, ...]
    shared: tuple[Shared, ...]
    """One broadcast per client."""


@dataclass(frozen=True)
class Common:
    """The common part of a round's jobs: the tensors and base changes of the first job's broadcasts. Most methods
    send every client the same."""

    tensors: tuple[Tensor, ...]
    base: Mapping[str, GrowingSum]

    @staticmethod
    def of(job: Job) -> Common:
        """The part of ``job`` that later ones share."""
        return Common(tuple(_distinct(job)), job.shared[0].base)

    def encode(self) -> bytes:
        return serialization.pack(self)

    @staticmethod
    def decode(data: bytes) -> Common:
        common = serialization.unpack(data, Common((), {}))
        assert isinstance(common, Common)
        return common


@dataclass(frozen=True)
class _Travelling:
    """A job without what is common. ``places`` says, for each client, where each of its tensors lies in the common
    ones followed by ``tensors``. A tensor that clients share stays one tensor, since a cohort computes with it once."""

    round: Round
    clients: tuple[Client, ...]
    places: tuple[Mapping[str, int], ...]
    tensors: tuple[Tensor, ...]
    base: Mapping[str, GrowingSum] | None
    """None where it is the common one."""
    kept: Mapping[str, Params]


def encode_job(job: Job, kept: Mapping[str, Params], common: Common) -> bytes:
    """``job`` and the tensors that its clients ``kept``, without what is ``common``."""
    place = {id(t): i for i, t in enumerate(common.tensors)}
    rest = [t for t in _distinct(job) if id(t) not in place]
    place |= {id(t): len(common.tensors) + i for i, t in enumerate(rest)}
    base = job.shared[0].base  # a cohort's clients have one base
    same = base.keys() == common.base.keys() and all(change is common.base[path] for path, change in base.items())
    ids = {c.id for c in job.clients}
    return serialization.pack(
        _Travelling(
            job.round,
            job.clients,
            tuple({name: place[id(t)] for name, t in shared.params.items()} for shared in job.shared),
            tuple(rest),
            None if same else base,
            {c: tensors for c in ids if (tensors := kept.get(c)) is not None},
        )
    )


def decode_job(data: bytes, common: Common) -> tuple[Job, Mapping[str, Params]]:
    """The job from :func:`encode_job`, and what its clients kept."""
    like = _Travelling(Round(0, 1, 0, 0), (Client("", 0),), (), (), None, {})
    read = serialization.unpack(data, like)
    assert isinstance(read, _Travelling)
    tensors, base = (*common.tensors, *read.tensors), common.base if read.base is None else read.base
    shared = tuple(Shared({name: tensors[i] for name, i in places.items()}, base) for places in read.places)
    return Job(read.round, read.clients, shared), read.kept


def encode_answers(answers: Sequence[Answer]) -> bytes:
    """A cohort's answers."""
    tree = []
    for answer in answers:
        failure = answer.failure
        reason = None if failure is None else (failure.client, failure.reason, failure.detail)
        upload = answer.upload
        assert not isinstance(upload, bytes)
        tree.append((answer.client, upload, answer.kept, answer.loss, reason, answer.work, answer.flops))
    return serialization.pack(tree)


def decode_answers(data: bytes) -> list[Answer]:
    """The answers from :func:`encode_answers`."""
    tree = serialization.unpack(data, Upload(Client("", 0), {}, 1.0))
    return [
        Answer(client, upload, kept, loss, None if reason is None else ClientFailed(*reason), work=work, flops=flops)
        for client, upload, kept, loss, reason, work, flops in tree
    ]


def _distinct(job: Job) -> list[Tensor]:
    """The tensors of the broadcasts, each once."""
    return list({id(t): t for shared in job.shared for t in shared.params.values()}.values())
