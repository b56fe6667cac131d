"""A site's place in one run: its clients, ready to train, and its part in masked sums."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from rondo.algorithm import Client, Shared
from rondo.data.members import Member
from rondo.engine.client.party import Party
from rondo.engine.transport import Answer
from rondo.engine.wire.parcel import start_of
from rondo.federation.identity.peers import Voice
from rondo.federation.plan import Plan
from rondo.federation.site.audit.audit import Audit
from rondo.federation.site.behind import Behind, is_free, work_of
from rondo.federation.site.contract import terms
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.contract.protection import Allowance, allowance
from rondo.federation.site.disk import Disk
from rondo.federation.site.joining import Declined
from rondo.federation.site.ledger import SiteLedger
from rondo.federation.site.sum_state import Opened
from rondo.federation.site.sums import Sums
from rondo.params import Params
from rondo.process import on_threads
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.private import counted_by_the_server


@dataclass(frozen=True)
class Seat:
    """The place in the run of ``plan``, whose names and digests say what all of it is for. Raises :class:`Declined`
    where no upload of the plan may leave.

    ``assembly``: the run, with the site's rows.
    ``disk``: the run's folder.
    ``behind``: the record of what is behind uploads; None where the contract accepts repeats.
    """

    plan: Plan
    assembly: Assembly
    disk: Disk
    contract: Contract
    ledger: SiteLedger
    behind: Behind | None
    audit: Audit
    voice: Voice | None
    told: Callable[[str], None]

    def __post_init__(self) -> None:
        if (reason := self._work(Behind.refused)) is not None:
            raise Declined(reason)

    def parties(self, until: threading.Event) -> dict[str, Party]:
        """The clients, by id. ``until``: ends a training before its next step."""
        plan, assembly = self.plan, self.assembly
        embedded, first = terms.embeddings(assembly.model.network.module), cache(assembly.first_state)
        # The server's number of threads gives its bits. More threads than cores would wait for each other.
        threads = plan.threads if plan.threads <= (os.cpu_count() or 1) else torch.get_num_threads()

        def start(client: Client) -> Shared:
            with on_threads(threads):
                return start_of(assembly.algorithm, first(), client.rank, assembly.round(0))

        spend = self._allowance.train if assembly.config.guarantee.of_rows else counted_by_the_server
        parties = {}
        for name, member in assembly.population.members.items():
            kept: dict[str, Params] = {}
            local = assembly.local_round(kept, until, spend)
            scorer = assembly.scorer(kept, self.contract.outgoing.least_rows_scored)
            scorer = replace(scorer, fitting=replace(scorer.fitting, stop=until))
            own = Member(member.client, member.trained(), tuple(member.validation), tuple(member.test))
            sizes, noted = terms.row_sizes(assembly, own), partial(self._work, Behind.note)
            withheld = Withheld(self.contract, sizes, embedded, noted)
            party = Party(own, plan.model, local, scorer, kept, withheld, start)
            if (damage := self.disk.load(party)) is not None:
                self.told(damage)
            parties[name] = party
        return parties

    def sums(self) -> Sums | None:
        """The part in masked sums; None in a run whose uploads are not masked. Raises :class:`Declined`."""
        plan, config = self.plan, self.assembly.config
        if not config.guarantee.masks_uploads:
            return None
        assert self.voice is not None
        least, largest = self.contract.training.least_sites, self.contract.outgoing.largest_mb * 1e6
        opened = Opened(self.disk.folder.parent, plan.run, config.seed)
        facts = (plan.run, plan.digest, plan.model, config, opened, self.audit, self.told)
        counted = self._allowance if config.guarantee.noise_from == "sites" else None
        sums = Sums(self.disk.folder, self.voice, least, largest, *facts, counted)
        if (reason := sums.refused()) is not None:
            raise Declined(reason)
        return sums

    @property
    def _allowance(self) -> Allowance:
        return allowance(self.assembly.config, self.contract, self.ledger, self.plan.run, self.told)

    def _work(self, of: Callable[[Behind, int, str], str | None]) -> str | None:
        """The reason ``of`` the record why no upload may leave; None if one may."""
        config = self.assembly.config
        if self.behind is None or is_free(config) or self.plan.labels is None:
            return None
        return of(self.behind, config.seed, work_of(self.plan, config))


@dataclass(frozen=True)
class Withheld:
    """Gives the reason why an upload, or scores, must not leave, by the work behind them and the tensors inside."""

    contract: Contract
    sizes: Sequence[int]
    """See :func:`rondo.federation.site.contract.terms.row_sizes`."""
    embedded: Collection[str]
    noted: Callable[[], str | None]
    """Writes the work behind an upload down, over all runs; gives the reason if none may leave for what is there."""

    def __call__(self, answer: Answer | None) -> str | None:
        """``answer``: the one whose upload would leave; None for scores, which the site cuts by itself."""
        if answer is None:
            return self.noted()
        rows, steps = self.contract.training.least_rows, self.contract.training.least_steps
        for done, seen in answer.work:
            few = terms.rows_behind(self.sizes, seen) < rows
            if done and (few or (done < steps and seen < sum(self.sizes))):
                return f"less is behind it than the {rows} rows and {steps} steps that its owner wants"
        assert answer.upload is not None
        assert not isinstance(answer.upload, bytes)
        reason = terms.refusal(terms.of_tensors(self.contract, answer.upload.params.keys(), self.embedded))
        return self.noted() if reason is None else reason
