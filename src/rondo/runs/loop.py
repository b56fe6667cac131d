"""The rounds of a run, one after the other, and the files that they write."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from rondo.engine.client.memory import freed_memory_kept
from rondo.engine.simulation import Workers
from rondo.engine.transport import Observer
from rondo.errors import ConfigError, RunInterrupted, RunStopped, StopRequested, visible
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.privacy.guarantee import sentence
from rondo.records import durable, schema
from rondo.records.directory import RunDirectory
from rondo.records.durable import Journal, written
from rondo.records.summary import best_so_far, totals
from rondo.report import drawing, pictures
from rondo.runs.assembling.assembly import Assembly, Federation, Start
from rondo.runs.assembling.private import protection
from rondo.runs.baseline import local_only
from rondo.runs.card import Facts, card, save
from rondo.runs.samples import answered, sample_scores, samples
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Checkpoint, Kept
from rondo.runs.watching.progress import round_line
from rondo.runs.watching.result import RunResult

SKIPS = 3
"""This many skipped rounds in a row stop a run."""

_SHEET_CLIENTS, _SHEET_PICTURES = 8, 10
"""Rows and columns of the sheet of pictures."""

_CHOSEN = "This round was chosen by its score, so the score is optimistic."


@dataclass(frozen=True)
class Onlooker:
    """The caller of a run: its observer, the event that ends the run after its current step, and the time of the call,
    in seconds of ``time.perf_counter``."""

    observer: Observer
    stop: threading.Event | None
    began: float


class Runner:
    """The rounds of a run, and the files that they write."""

    def __init__(
        self,
        assembly: Assembly,
        start: Start,
        directory: RunDirectory,
        onlooker: Onlooker,
        *,
        resumed: bool = False,
        past_skips: bool = False,
        workers: Workers | None = None,
    ) -> None:
        """``past_skips``: whether a run that stopped after skipped rounds goes on. ``workers``: workers that train
        the clients."""
        self.assembly, self.config, self.task = assembly, assembly.config, assembly.task
        report, versions = directory.read("partition.json"), directory.manifest()["versions"]
        self.facts = Facts.of(assembly.config, assembly, report, versions)
        self.directory, self.onlooker, self.observer = directory, onlooker, onlooker.observer
        self.start: Start | None = start
        self.tested, self.scores_every = bool(assembly.population.test), assembly.scores_every
        self.journal = Journal(directory.metrics)
        self.done = self.done_before = 0
        """Rounds that are done, and those of them that an earlier part of the run did."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=SKIPS)
        """The last records. Earlier ones are only in the journal, so memory does not grow with the rounds."""
        self.scores: dict[str, Any] = {"measures": {"before": {}, "after": {}}}
        self.resumed, self.past_skips, self.workers = resumed, past_skips, workers
        self.lost_workers = 0
        self.guarantee: Mapping[str, Any] | None = None
        """The guarantee of ``[privacy]`` for everything published so far."""

    def run(self) -> RunResult:
        """Run all remaining rounds and finish."""
        self._compose()
        try:
            with freed_memory_kept():
                self._rounds()
            return self._finish()  # outside, since its libraries can take the memory that training gives back
        except StopRequested:
            raise RunInterrupted(self.directory.path) from None
        except RunStopped as stopped:
            if self.done:
                with suppress(RunStopped):  # the cause may be the disk
                    self._write_adapter(
                        self.directory.adapter, self.done, self.recent[-1]["scores"] if self.recent else {}
                    )
            raise type(stopped)(self._ended(f"{stopped}")) from None
        except Exception as error:  # in training it costs a client, elsewhere the run
            if not is_out_of_memory(error):
                raise
            message = f"out of memory: {error}. Lower evaluation.batch_size, or give it more memory"
            raise RunStopped(self._ended(message)) from error

    def _ended(self, why: str) -> str:
        """The message of a run that stopped, which its log has too, if it can be written."""
        message = f"{why}. Committed rounds are in {self.directory.path}"
        with suppress(RunStopped):
            self._log(f"stopped: {message}")
        return message

    def _compose(self) -> None:
        """Put the federation together, at its start or at the newest checkpoint."""
        start, self.start = self.start, None
        assert start is not None
        protected = protection(self.config, self.assembly.population.clients, self.directory)
        self.account = protected.account
        point = self._newest_checkpoint(start.state) if self.resumed else None
        self.kept = point.locals if point is not None else Kept(self.directory.checkpoint)
        self.federation = self.assembly.federation(start, self.kept, protected, self.onlooker.stop, self.workers)
        if point is not None:
            with written(self.directory.path):
                self._take_up(point, self.federation)
        elif self.account is None and self.federation.server.exhausted(0):
            message = f"{self.config.guarantee.budget:g}, and the first round takes more: raise it, or privacy.noise"
            raise ConfigError.at("privacy.budget", message)

    def _rounds(self) -> None:
        if self.done == 0 and "before" not in self.scores:
            self.observer.phase("evaluating")
            self.scores["before"] = self._on_test(0)
            self.scores["answers"] = self._answers(0)
            first = self._measures(0, {})
            self.scores["measures"] = {"before": first, "after": first}
            self._commit(0)
        self._stop_after_skips()  # a run that was killed at this point stops at it again
        while self.done < self.config.rounds and not self._early(self.done):
            self._round(self.done)
            self._stop_after_skips()

    def _early(self, rounds: int) -> bool:
        """Whether ``patience`` or ``privacy.budget`` ends the run after ``rounds`` rounds, before its last."""
        best, patience = self.scores.get("best"), self.config.evaluation.patience
        over = patience > 0 and best is not None and best["scores_since"] >= patience
        spent = self.account.exhausted if self.account is not None else self.federation.server.exhausted(rounds)
        return (over or spent) and rounds < self.config.rounds

    def _newest_checkpoint(self, first: Any) -> Checkpoint | None:
        """The newest intact checkpoint; None if there is none and no round was recorded. Raises :class:`ConfigError` if
        all are damaged, or if rounds were recorded without one."""
        try:
            point, passed_over = checkpoint.load(self.directory.checkpoint, first, self.journal)
        except FileNotFoundError:
            if not self.directory.metrics.exists() or not self.directory.metrics.read_bytes():
                return None
            message = "metrics.jsonl has rounds, but there is no checkpoint of any: start the run in another folder"
            raise ConfigError.at("RUN_DIR", message) from None
        except ValueError as error:
            message = f"no checkpoint is as it was written, so the run cannot go on: {error}"
            raise ConfigError.at("RUN_DIR", message) from None
        self.observer.resumed(point.rounds, passed_over)
        self._log(f"going on after round {point.rounds}", *passed_over)
        return point

    def _take_up(self, point: Checkpoint, federation: Federation) -> None:
        """Continue from ``point``."""
        lines = self.journal.lines(point.journal)
        if not self.past_skips:
            self.recent.extend(map(json.loads, lines[-SKIPS:]))
        self.done = self.done_before = point.rounds
        self.journal.go_on(point.journal)
        checkpoint.clean(self.directory.checkpoint, point)
        server = federation.server
        server.state, server.ledger, server.aggregated = point.state, point.ledger, point.aggregated
        self.scores |= point.scores
        if lines:
            self._note_guarantee(json.loads(lines[-1]))

    def _commit(self, rounds: int) -> None:
        server = self.federation.server
        point = Checkpoint(
            rounds, server.aggregated, server.state, self.kept, server.ledger, self.journal.position, self.scores
        )
        with written(self.directory.path):
            checkpoint.save(self.directory.checkpoint, point)

    def _round(self, attempt: int) -> None:
        config, server = self.config, self.federation.server
        started = time.perf_counter()
        self.observer.phase("training")
        record = server.run_round(attempt, self.observer)
        done = attempt + 1
        if self.account is not None:
            record |= self.account.record(attempt)
        self._note_guarantee(record)
        measures = self.scores["measures"]
        record["measures"] = self._measures(done, measures["after"])
        self.scores["measures"] = {**measures, "after": record["measures"]}
        self._score(record, done)
        record["seconds"] = time.perf_counter() - started
        with written(self.directory.path):
            self.journal.append(schema.text(self.journal.path.name, record))
        self._commit(done)
        self.done = done
        self.recent.append(record)
        lost = () if self.workers is None else tuple(self.workers.lost)
        self._log(*lost[self.lost_workers :], round_line(record, config.rounds))
        self.lost_workers = len(lost)
        self.observer.round_done(record)

    def _note_guarantee(self, record: dict[str, Any]) -> None:
        """Note what ``[privacy]`` protects after the round of ``record``, if anything, and say so in the record."""
        promise = self.config.guarantee
        if promise.promises:
            spent: dict[str, Any] = {key: record[key] for key in ("epsilon", "epsilon_valid") if key in record}
            self.guarantee = promise.record(spent, simulated=self.assembly.place.simulated)
            record["guarantee"] = sentence(self.guarantee)

    def _score(self, record: dict[str, Any], done: int) -> None:
        """Add the scores that are due after ``done`` rounds to the last one's record, and note the best."""
        config, server, started = self.config.evaluation, self.federation.server, time.perf_counter()
        last = done == self.config.rounds
        scores: dict[str, Any] = {}
        record["scores"] = scores
        if self.task.titles:
            record["titles"] = dict(self.task.titles)
        if last or _due(done, self.scores_every):
            self.observer.phase("evaluating")
            scores |= self._on_test(done)
        if not self.assembly.best_at_clients:
            self._note_best(record, done)
        shown = not self.config.guarantee.hides_scores
        if shown and (last or self._early(done) or _due(done, config.clients_every)):
            self.observer.phase("evaluating")
            scores |= self.federation.scorer.at_clients(server.state, server.round(done))
        if self.assembly.best_at_clients:
            self._note_best(record, done)
            if self._early(done) and not _due(done, self.scores_every):  # these scores are the run's last
                scores |= self._on_test(done)
        record["evaluation_seconds"] = time.perf_counter() - started

    def _note_best(self, record: Mapping[str, Any], done: int) -> None:
        """Note the best score so far, and write the adapter that has it."""
        metric, higher = self.task.primary, self.task.higher_is_better
        before, at_clients = self.scores.get("best"), self.assembly.best_at_clients
        best = best_so_far(before, record, metric, higher_is_better=higher, at_clients=at_clients)
        if best is not None:
            self.scores["best"] = best
            if best["scores_since"] == 0 and best != before:
                self._write_adapter(self.directory.best_adapter, done, record["scores"], _CHOSEN)

    def _log(self, *lines: str) -> None:
        """Add lines to the run's log. Nothing is read back from it, so it is not flushed."""
        now = datetime.now().isoformat(timespec="seconds")
        with written(self.directory.path), self.directory.log.open("a", encoding="utf-8") as log:
            log.writelines(f"{now} {visible(line)}\n" for line in lines)

    def _stop_after_skips(self) -> None:
        """Raise :class:`RunStopped` if the last ``SKIPS`` rounds, or all of a shorter run, were skipped by more than
        the absence of clients, which ends by itself."""
        if len(self.recent) < min(SKIPS, self.config.rounds) or not all(map(self._faulty, self.recent)):
            return
        last = self.recent[-1]
        failed = "; ".join(f"{f['client']}: {f['reason']} ({f['detail']})" for f in last["failed"][:3])
        reasons = ". ".join(filter(None, (last["skipped"], failed)))
        again = "rondo resume --allow-nondeterministic" if self.assembly.place.simulated else "rondo resume"
        raise RunStopped(f"{len(self.recent)} rounds in a row were skipped, the last: {reasons}. {again} goes on")

    def _faulty(self, record: Mapping[str, Any]) -> bool:
        """Whether a round was skipped, and not because clients were absent."""
        absent = record["failed"] and {f["reason"] for f in record["failed"]} == {"absent"}
        return record["skipped"] is not None and not (absent and record["clients"] < self.config.clients.min_clients)

    def _on_test(self, rounds: int) -> dict[str, Any]:
        server = self.federation.server
        return self.federation.scorer.on_test(server.state, server.round(rounds))

    def _answers(self, rounds: int) -> list[str]:
        """Answers to test rows after ``rounds`` rounds, if any are asked for."""
        server = self.federation.server
        return answered(self.assembly, self.federation.scorer, server.state, server.round(rounds))

    def _measures(self, rounds: int, before: Mapping[str, float]) -> dict[str, float]:
        """The task's numbers about the server's model after ``rounds`` rounds, and the method's about its aggregation.
        ``before``: those before the last."""
        server, scorer = self.federation.server, self.federation.scorer
        of_model = self.task.measures(lambda: scorer.newcomer(server.state, server.round(rounds)), before)
        return {**of_model, **server.algorithm.measures(server.state)}

    def _write_adapter(self, folder: Path, rounds: int, scores: Mapping[str, Any], *notes: str) -> None:
        server, text = self.federation.server, self._card(rounds, scores, *notes)
        seen, base = self.federation.scorer.newcomer(server.state, server.round(rounds))
        with written(self.directory.path):
            durable.write_folder(folder, lambda folder: save(folder, self.assembly.model, seen, base, self.facts, text))

    def _card(self, rounds: int, scores: Mapping[str, Any], *notes: str) -> str:
        model, before = self.assembly.model, self.scores["before"]
        said = None if self.guarantee is None else sentence(self.guarantee)
        notes = (*model.notes, *notes)
        return card(self.facts, model.form, rounds=rounds, before=before, after=scores, notes=notes, said=said)

    def _finish(self) -> RunResult:
        self.observer.phase("writing")
        history = list(map(json.loads, self.journal.lines(self.journal.position)))
        before, after = self.scores["before"], history[-1]["scores"]
        self._write_adapter(self.directory.adapter, self.done, after)
        if self.guarantee is not None and self.directory.best_adapter.is_dir():
            rounds = self.scores["best"]["rounds"]  # chosen among all rounds, so it has told of all
            text = self._card(rounds, history[rounds - 1]["scores"], _CHOSEN)
            with written(self.directory.path):
                durable.write(self.directory.best_adapter / "README.md", text.encode())
        summary = self._summary(history, before, after)
        start: Mapping[str, Any] = next(iter(before.values()), {})
        title = f"{self.config.algorithm.name}, {summary['clients']} clients"
        # Pictures come last: their library takes most of a second to import.
        drawn = {
            "partition.png": drawing.png(pictures.partition(self.directory.read("partition.json"))),
            "curve.png": self._curve(start, history, title),
        }
        if sheet := self._sheet():
            drawn["partition-samples.png"] = drawing.png(pictures.contact_sheet(sheet))
        with written(self.directory.path):
            durable.write_all(self.directory.path, drawn)
            self.directory.write("summary.json", summary)  # last: a run that has it is finished
        return RunResult(history, self.directory.path, after, summary)

    def _sheet(self) -> dict[str, list[tuple[Any, str]]]:
        """Training pictures of the first clients, spread over each client's own; empty if rows are no pictures."""
        sheet: dict[str, list[tuple[Any, str]]] = {}
        for name, member in islice(self.assembly.population.members.items(), _SHEET_CLIENTS):
            step = max(1, len(member.train) // _SHEET_PICTURES)
            examples = list(member.train[::step])[:_SHEET_PICTURES]
            shown = [picture for e in examples if (picture := self.task.picture(e)) is not None]
            if shown:
                sheet[name] = [(picture.pixels, picture.caption) for picture in shown]
        return sheet

    def _curve(self, start: Mapping[str, Any], history: Sequence[dict[str, Any]], title: str) -> bytes:
        """The picture of the scores, or of a measure where no common test set is scored."""
        measures = self.scores["measures"]["before"]
        if measures and not self.tested:
            return drawing.png(pictures.measure(measures, history, title))
        return drawing.png(pictures.curve(start, history, self.task.primary, title))

    def _summary(
        self, history: Sequence[dict[str, Any]], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> dict[str, Any]:
        best, answers = self.scores.get("best"), (self.scores.get("answers", []), self._answers(self.done))
        summary = {
            "algorithm": self.config.algorithm.name,
            "rounds": len(history),
            "stopped_early": len(history) < self.config.rounds,
            "clients": len(self.assembly.population.members),
            "primary": self.task.primary,
            "titles": dict(self.task.titles),
            "head": self.assembly.head,
            "before": dict(before),
            "after": dict(after),
            "measures": self.scores["measures"],
            "best": None if best is None else {k: v for k, v in best.items() if k != "scores_since"},
            "samples": samples(self.assembly, answers[0], answers[1]),
            "generated": sample_scores(self.assembly, answers[0], answers[1]),
            **totals(history),
        }
        if self.guarantee is not None:
            summary["privacy"] = self.guarantee
        if self.config.evaluation.local_only:
            summary["local_only"] = local_only(self.assembly, self.onlooker.stop)
        summary["seconds"] = {
            "train": sum(r["train_seconds"] for r in history),
            "evaluation": sum(r["evaluation_seconds"] for r in history),
            "all": sum(r["seconds"] for r in history[: self.done_before]) + time.perf_counter() - self.onlooker.began,
        }
        return summary


def _due(rounds: int, every: int) -> bool:
    return every > 0 and rounds % every == 0
