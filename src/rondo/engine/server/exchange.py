"""One exchange with the clients of a round: the uploads that come in, the ones turned away, the clients lost, and what
the server's own part costs."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from rondo.algorithm import Algorithm, Client, ClientFailed, Round, Shared, Upload
from rondo.config.schema import RunConfig
from rondo.engine.server.admission import Admission
from rondo.engine.server.diagnostics import HELD_BYTES
from rondo.engine.server.ledger import Ledger
from rondo.engine.transport import Answer, Observer, Transport, Turnout, Work
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.parcel import Parcel
from rondo.engine.wire.strict import Rejected
from rondo.models.kernels.private_torch import TorchDispatchMode
from rondo.params import Packed, Params, num_bytes
from rondo.privacy.accounts.account import RowAccount


@dataclass(frozen=True)
class RoundContext:
    """The server's side of a round: its state before it, and the parts that every exchange uses."""

    algorithm: Algorithm[Any]
    state: Any
    round: Round
    config: RunConfig
    identity: Identity
    ledger: Ledger
    rows: RowAccount | None
    """Private steps, with example-level privacy."""
    transport: Transport
    measured: bool
    observer: Observer


class Exchange:
    """The uploads of one exchange, admitted one by one as they are asked for.

    - ``kept``: tensors that clients keep, by client id; None where they stay with the client.
    - ``failed``: clients that failed unexpectedly, with the reason.
    - ``refused``: clients whose upload was turned away as expected, with the reason.
    - ``rejected``: the number of uploads turned away, by reason.
    - ``up``, ``down``, ``first_contact``: bytes. All that a client is sent in its first exchange is first contact.
    - ``held``: the uploads, where the round is measured and they have no more than ``HELD_BYTES`` together.
    - ``error``: an error on an upload's way, which passes through the algorithm that asks for it.
    - ``cost``: of the server's own part.
    """

    def __init__(self, setting: RoundContext, turnout: Turnout) -> None:
        self.setting, self.turnout = setting, turnout
        self.kept: dict[str, Params | None] = {}
        self.failed: dict[str, ClientFailed] = {}
        self.refused: dict[str, ClientFailed] = {}
        self.rejected: dict[str, int] = {}
        self.up = self.down = self.first_contact = 0
        self._losses: list[tuple[float, float]] = []
        self._flops: list[int | None] = []
        self._new: set[str] = set()
        """Ids of clients that have not been asked before."""
        self.held: list[Upload] = []
        self._held_bytes = 0
        self.error: Exception | None = None
        self.cost = AggregationCost(serialization.tensors(setting.state))
        self._arriving = self._uploads()

    def __iter__(self) -> Exchange:
        return self

    def __next__(self) -> Upload:
        """The next upload. To be asked for within ``with exchange.cost``."""
        try:
            upload = self.cost.following(self._arriving)
        except Exception as error:
            self.error = error
            raise
        if upload is None:
            raise StopIteration
        return upload

    def drain(self) -> None:
        """Ask for all further uploads, which nobody adds up."""
        for _ in self._arriving:
            pass

    def _uploads(self) -> Iterator[Upload]:
        setting, turnout = self.setting, self.turnout
        admission = Admission(
            setting.algorithm,
            setting.state,
            setting.round,
            (*turnout.asked, *turnout.spoiled),
            setting.config.admission,
            setting.identity,
            setting.config.clients.weighting,
        )
        waiting = {c.id for c in turnout.asked}
        counted, largest = setting.ledger.counted_of, admission.largest
        work = Work(turnout, self._shared, self._parcel, self._holds, counted, largest, setting.measured)
        if setting.rows is not None:
            setting.rows.ask(setting.algorithm, setting.state, turnout.asked, setting.round)
        for answer in setting.transport.exchange(setting.round, work):
            client_id = answer.client.id
            if setting.rows is not None:
                setting.rows.count(answer.client, self._private_steps(setting.rows, answer))
            upload, failure = self._admitted(admission, answer)
            if client_id not in waiting:  # not asked, or it has answered before
                if upload is not None:
                    raise AssertionError(f"client {client_id}: an upload that must not count was not turned away")
                if client_id not in self.kept and client_id not in self.failed and failure is not None:
                    self.refused.setdefault(client_id, failure)
                continue
            waiting.remove(client_id)
            if answer.summed is not None:
                setting.observer.client_done(client_id, None)
                self.up, self.kept[client_id] = self.up + answer.summed, answer.kept
                continue
            if upload is None:
                setting.observer.client_failed(client_id)
                self.failed[client_id] = failure or ClientFailed(client_id, "no_upload", "it sent none and no reason")
                continue
            setting.observer.client_done(client_id, None if setting.config.guarantee.hides_uploads else answer.loss)
            self.up += self._bytes(upload)
            self.kept[client_id] = answer.kept
            self._flops.append(answer.flops)
            if answer.loss is not None:
                self._losses.append((answer.loss, upload.weight))
            if setting.measured:
                self._hold(upload)
            yield upload
        if setting.rows is not None:
            setting.rows.settle()
        for client_id in sorted(waiting):
            self.failed[client_id] = ClientFailed(client_id, "no_answer", "it was asked and did not answer")

    def _admitted(self, admission: Admission, answer: Answer) -> tuple[Upload | None, ClientFailed | None]:
        """The upload if it is admitted, else the reason why it does not."""
        if answer.upload is None:
            return None, answer.failure
        if answer.late:
            admission.close()
        try:
            if isinstance(answer.upload, bytes):
                return admission.admit(answer.upload, answer.client.id), None
            return admission.check(answer.upload), None
        except Rejected as rejection:
            self.rejected[rejection.reason] = self.rejected.get(rejection.reason, 0) + 1
            return None, ClientFailed(answer.client.id, rejection.reason, rejection.detail)

    def _hold(self, upload: Upload) -> None:
        """Keep ``upload``, unpacked, unless the uploads exceed ``HELD_BYTES``: then none is kept."""
        algorithm = self.setting.algorithm
        if self._held_bytes <= HELD_BYTES and algorithm.traits.form == "packed":
            upload = algorithm.expand(self.setting.state, upload)
        self._held_bytes += num_bytes(upload.params)
        if self._held_bytes <= HELD_BYTES:
            self.held.append(upload)
        else:
            self.held.clear()

    def _private_steps(self, rows: RowAccount, answer: Answer) -> int:
        """The private steps behind an answer: those that it counts, or those that the method asks of a remote
        client."""
        if (answer.upload is None and answer.summed is None) or answer.work:
            return sum(steps for steps, _ in answer.work)
        return rows.planned(self.setting.algorithm, self.setting.state, answer.client, self.setting.round)

    def _shared(self, client: Client) -> Shared:
        """The broadcast to ``client``. The tensors that the client lacks are counted here."""
        shared = self._broadcast(client)
        self._count(client, shared)
        return shared

    def _parcel(self, client: Client) -> Parcel:
        """The part of the broadcast that ``client`` lacks, which is counted here."""
        shared = self._broadcast(client)
        parcel = self.setting.ledger.parcel(client.id, shared, client.rank)
        self._count(client, shared)
        return parcel

    def _holds(self, client: Client, versions: Mapping[str, str]) -> None:
        self.setting.ledger.believe(client.id, versions, client.rank)

    def _broadcast(self, client: Client) -> Shared:
        return self.setting.algorithm.broadcast(self.setting.state, client, self.setting.round)

    def _bytes(self, upload: Upload) -> int:
        if self.setting.config.guarantee.masks_uploads:  # every number travels as one of the ring
            return sum(t.numel() for t in upload.params.values()) * self.setting.config.guarantee.ring // 8
        return self.setting.ledger.receive(upload)

    def _count(self, client: Client, shared: Shared) -> None:
        ledger = self.setting.ledger
        if client.id not in ledger.held:
            self._new.add(client.id)
        down, first = ledger.send(client.id, shared, client.rank)
        self.down += down
        self.first_contact += down if client.id in self._new else first

    def loss(self) -> float | None:
        """Mean training loss, weighted like the uploads; None without a loss."""
        total = sum(w for _, w in self._losses)
        return sum(x * w for x, w in self._losses) / total if total else None

    def flops(self) -> int | None:
        """Operations of all clients' training; None if one did not count its own."""
        counted = [n for n in self._flops if n is not None]
        return sum(counted) if len(counted) == len(self._flops) else None


class AggregationCost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts within ``with``, in the thread that entered it. Results are those without it, bit for bit.

    - ``seconds``: by the clock, between uploads. Where cohorts train on other threads meanwhile, they slow it down.
    - ``peak_bytes``: the most bytes, at any moment, of uploads that the algorithm holds and of tensors that it has
      made, beside its state from before the round (``known``). Every tensor's memory counts once, however many views
      it has. The workspace within one of torch's operations is not seen.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds, self.peak_bytes = 0.0, 0
        self._bytes, self._began = 0, 0.0
        self._alive: dict[int, weakref.ref[Any]] = {}
        """Storages and uploaded tensors, by number. A reference removes its entry when its object goes."""
        for tensor in known:
            self._note(tensor.untyped_storage(), 0)

    def __enter__(self) -> AggregationCost:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        self.seconds += time.perf_counter() - self._began
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, Tensor):
                storage = made.untyped_storage()
                self._note(storage, storage.nbytes())
        return result

    def following(self, arriving: Iterator[Upload]) -> Upload | None:
        """The next of ``arriving``, whose arrival costs nothing; None behind the last. It has tensors of its own over
        the same memory, since others may hold the upload longer than the algorithm does. To be used within ``with``."""
        self.__exit__(None, None, None)
        try:
            upload = next(arriving, None)
            return None if upload is None else self._aliased(upload)
        finally:
            self.__enter__()

    def _aliased(self, upload: Upload) -> Upload:
        if isinstance(upload.params, Packed):
            packed = Packed(upload.params.vector.detach(), upload.params.layout)
            params: Params = packed
            tensors = [packed.vector]
        else:
            params = {n: t.detach() for n, t in upload.params.items()}
            tensors = list(params.values())
        for tensor in tensors:
            self._note(tensor.untyped_storage(), 0)
            self._note(tensor, tensor.nbytes)
        return replace(upload, params=params)

    def _note(self, thing: Any, size: int) -> None:
        number = id(thing)
        if number in self._alive:
            return

        def gone(_: Any) -> None:
            del self._alive[number]
            self._bytes -= size

        self._alive[number] = weakref.ref(thing, gone)
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
