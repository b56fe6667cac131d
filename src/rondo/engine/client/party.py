"""A client of a network: it has its own rows, keeps its own tensors and those that its server sent, and answers one
request at a time."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from rondo.algorithm import Client, Shared, Upload
from rondo.data.members import Member
from rondo.engine.client.local_round import LocalRound
from rondo.engine.scoring import Scorer
from rondo.engine.transport import Answer
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Envelope, encode_upload
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.parcel import Parcel, held_versions, sum_version, version
from rondo.engine.wire.strict import PROTOCOL, other_protocol
from rondo.lowrank import GrowingSum
from rondo.params import Params
from rondo.tasks.task import Example


class Lacking(Exception):
    """A parcel counts on something that the client does not have, after a loss of its disk for example.

    ``names``: names of tensors, and module paths of base changes.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"not held: {', '.join(names)}")
        self.names = names


@dataclass
class Holdings:
    """Tensors and base changes, each as the client received it last, or made it at the start."""

    params: dict[str, Tensor] = field(default_factory=dict)
    base: dict[str, GrowingSum] = field(default_factory=dict)

    @staticmethod
    def made(start: Shared, parcel: Parcel) -> Holdings:
        """The part of ``start``, which the client made itself, that ``parcel`` counts on: tensors of its versions, and
        base changes of its digests. On another machine the last bit of some may differ; these are sent."""
        return Holdings(
            {name: t for name, t in start.params.items() if version(t) == parcel.versions.get(name)},
            {path: change for path, change in start.base.items() if sum_version(change) == parcel.made.get(path)},
        )

    @property
    def versions(self) -> dict[str, str]:
        return held_versions(self.params, self.base)

    def take(self, parcel: Parcel) -> Shared:
        """The broadcast that ``parcel`` is a part of. Tensors and chunks inside are kept for later parcels.

        Raises :class:`Lacking`, and then keeps nothing, and drops base changes that another machine has rounded
        otherwise, which are sent whole; ValueError where a tensor inside has not the version that the
        parcel says.
        """
        for name, tensor in parcel.params.items():
            if version(tensor) != parcel.versions.get(name):
                raise ValueError(f"{name} does not have the version that the parcel says")
        params = {**self.params, **parcel.params}
        lacking = [n for n, v in parcel.versions.items() if n not in params or version(params[n]) != v]
        base = dict(self.base)
        for path, growth in parcel.base.items():
            try:
                base[path] = growth.onto(self.base.get(path))
            except ValueError:
                lacking.append(path)
        other = [p for p, digest in parcel.sums.items() if p in base and sum_version(base[p]) != digest]
        self.base = {path: change for path, change in self.base.items() if path not in other}
        if lacking or other:
            raise Lacking([*lacking, *other])
        self.params, self.base = params, base
        return Shared({n: params[n] for n in parcel.versions}, {path: base[path] for path in parcel.base})


NONE, LOST = -1, -2
"""Attempts that are none: none has counted yet, or what was kept of it is given up."""
_AGAIN = "begins again without what its clients kept: rondo federate site start-over STATE"


@dataclass
class Party:
    """One client. ``local.kept`` must be ``kept``."""

    member: Member
    """Its examples."""
    model: str
    """SHA-256 of the identity of its copy of the base model."""
    local: LocalRound
    scorer: Scorer
    """Scores on its own rows: those held back, or test rows where clients have such."""
    kept: MutableMapping[str, Params]
    """The client's own tensors, by its id: those of the last round that counted."""
    withheld: Callable[[Answer | None], str | None]
    """Gives the reason why an upload must not leave, or scores, for which it is called with None. None if they may."""
    start: Callable[[Client], Shared] | None
    """Makes the start of the run (:mod:`rondo.engine.wire.parcel`); None once it is not needed any more."""
    holdings: Holdings = field(default_factory=Holdings)
    pending: tuple[int, Params] | None = None
    """The last attempt that the client trained in, and what it keeps if that attempt counts."""
    counted: int = NONE
    """The attempt that ``kept`` is of, as the server said that it counted; ``LOST``: any, since the client's owner
    begins again without what it kept."""

    @property
    def id(self) -> str:
        return self.member.client.id

    @property
    def scored(self) -> Sequence[Example]:
        """The examples behind its scores."""
        return self.scorer.population.own_rows(self.member)

    def rows(self, examples: Sequence[Example]) -> int:
        """The number of rows that some of its examples are of: a long row may be several."""
        return len(self.scorer.task.row_sizes(examples))

    def reply(self, request: Request) -> Reply:
        if request.protocol != PROTOCOL:
            return Reply(reason="wrong_protocol", detail=other_protocol(request.protocol))
        if request.identity.model != self.model:
            detail = f"the server's base model is {request.identity.model}, this client's {self.model}"
            return Reply(reason="wrong_model", detail=detail)
        if request.client.id != self.id:
            return Reply(reason="refused", detail=f"this is {self.id}, not {request.client.id}")
        if (reason := self._other_time(request)) is not None:
            return Reply(reason="refused", detail=reason)
        if self.start is not None and not (self.holdings.params or self.holdings.base):
            self.holdings = Holdings.made(self.start(request.client), request.parcel)
        if request.scores:
            return self._scores(request)
        self._settle(request.counted)
        try:
            shared = self.holdings.take(request.parcel)
        except Lacking:
            return Reply(held=self.holdings.versions)
        self.start = None
        (answer,) = self.local.train((request.client,), (self.member.train,), (shared,), request.round)
        if answer.failure is not None:
            return Reply(reason=answer.failure.reason, detail=answer.failure.detail)
        if (reason := self.withheld(answer)) is not None:
            return Reply(reason="refused", detail=reason)
        self.pending = (request.round.attempt, answer.kept or {})
        return Reply(self._encoded(request, answer), answer.loss)

    def _other_time(self, request: Request) -> str | None:
        """The reason why the server's state and this client's are not of one time, as after a backup was brought back:
        the client would train on tensors of another round. None if they are.

        No crash leads here. A server says that an attempt counted, and asks for the next, once that is on its disk. A
        client's answer leaves once the attempt is on the client's.
        """
        said = NONE if request.counted is None else request.counted
        trained = NONE if self.pending is None else self.pending[0]
        if self.counted == LOST or (said in (self.counted, trained) and request.round.attempt >= trained):
            return None
        known = max(self.counted, trained)
        if said > known:
            own = "empty" if known == NONE else f"older, of round {known + 1}"
            back = f"Its owner brings the newer folder back, or {_AGAIN}"
            return f"the server counts on round {said + 1}, and the site's folder is {own}. {back}"
        back = "bring its newer run directory back"
        return f"the server went back to before round {known + 1}: {back}. Or the site's owner {_AGAIN}"

    def _scores(self, request: Request) -> Reply:
        """The scores of the client's model as it is. Nothing changes by it: what the client keeps of its last attempt
        counts once the server has that round on its disk."""
        if not self.scored:
            return Reply(scores={})
        try:
            shared = replace(self.holdings).take(request.parcel)
        except Lacking:
            return Reply(held=self.holdings.versions)
        if (reason := self.withheld(None)) is not None:
            return Reply(reason="refused", detail=reason)
        kept = dict(self.kept)
        if self.pending is not None and self.pending[0] == request.counted and self.pending[1]:
            kept[self.id] = serialization.canonical(self.pending[1])
        member = replace(self.member, client=request.client)
        return Reply(scores=replace(self.scorer, kept=kept).of_client(shared, member, request.round))

    def _settle(self, counted: int | None) -> None:
        """Take over what the last attempt would keep, if it counted, or drop it."""
        if self.pending is not None:
            attempt, kept = self.pending
            if attempt == counted and kept:
                self.kept[self.id] = serialization.canonical(kept)
            self.pending = None
        self.counted = NONE if counted is None else counted

    def _encoded(self, request: Request, answer: Answer) -> bytes:
        upload = answer.upload
        assert isinstance(upload, Upload)
        run, round = request.identity.run, request.round.attempt
        return encode_upload(
            upload, Envelope(run, round, self.id, self.model, upload.client.num_examples, upload.weight)
        )
