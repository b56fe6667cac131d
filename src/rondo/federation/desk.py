"""A site's desk: it answers the letters of a server, by its clients' training. It knows no network."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rondo import __version__
from rondo.config.checks import is_path, own_names
from rondo.config.inputs import GIVEN
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.data.client_rows import resolved
from rondo.data.labels import label_names
from rondo.data.sources import Source
from rondo.data.tables import Rows
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.party import Party
from rondo.engine.letters import Reply, Request
from rondo.engine.wire import short
from rondo.errors import ConfigError, StopRequested
from rondo.federation.disk import Disk, Log
from rondo.federation.environment import here
from rondo.federation.limits import Limits
from rondo.federation.plan import Consent, NotAPlan, Plan
from rondo.params import Params
from rondo.runs.assemble import assemble
from rondo.runs.given import Given
from rondo.runs.storage import durable


class Declined(Exception):
    """A site takes no part, for a reason that the server may read."""


@dataclass
class Desk:
    """The desk of a site.

    ``rows``: the rows of each client, by its id.
    ``folder``: the folder of :class:`Disk` and :class:`Log`.
    ``model``: the site's own copy of the base model: a folder or file in place of the name in the plan.
    ``allow_code``: import code of one's own that the plan names, from here.
    ``told``: called with a line of text per change.
    """

    rows: Mapping[str, Rows]
    folder: Path
    device: str
    limits: Limits
    told: Callable[[str], None]
    stop: threading.Event
    model: str | None = None
    memory_mb: int | None = None
    allow_code: bool = False
    parties: dict[str, Party] = field(default_factory=dict)
    _plan: str = ""
    """Digest of the plan that ``parties`` were made for."""
    _run: str = ""
    """The name of its run."""
    _disk: Disk | None = None
    _log: Log | None = None

    def answer(self, kind: str | None, letter: bytes) -> bytes:
        """The answer to a letter of a kind of :data:`rondo.federation.letter.KINDS`. Raises
        :class:`~rondo.errors.StopRequested`."""
        if kind == "plan":
            return self._consent(letter)
        if kind == "round":
            return self._round(letter)
        return b""

    @property
    def log(self) -> Log:
        """The log of letters."""
        if self._log is None:
            self._log = Log(self.folder / "letters.jsonl")
        return self._log

    # --- the plan -------------------------------------------------------------------------------------------------

    def _consent(self, letter: bytes) -> bytes:
        self.log.note("in", "plan", letter)
        try:
            answer = self._joined(Plan.decode(letter))
        except StopRequested:
            raise
        except Exception as error:  # a plan can be anything
            self.parties, self._plan = {}, ""
            (self.folder / _PLAN).unlink(missing_ok=True)
            answer = Consent({}, refused=_for_the_server(error))
            reason = "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__
            self.told(f"not taking part: {reason}")
        data = answer.encode()
        self.log.note("out", "consent", data)
        return data

    def _joined(self, plan: Plan) -> Consent:
        """Take part. Raises :class:`Declined`, :class:`ConfigError`, and whatever a plan that is none leads to."""
        if plan.rondo != __version__:
            raise Declined(f"the server has Rondo {plan.rondo}, this site {__version__}")
        if (reason := self.limits.against_plan(plan)) is not None:
            raise Declined(reason)
        own = {name: rows for name, rows in self.rows.items() if plan.clients is None or name in plan.clients}
        if not own:
            raise Declined(f"its data are of {_listed(self.rows)}, the roster has {_listed(plan.clients or ())}")
        config = self._config(plan)
        if plan.labels is None:
            source = Source(GIVEN, None, own, None)
            names = label_names(resolved(config, source), source)
            return Consent({name: len(rows) for name, rows in own.items()}, labels=names, environment=here())
        digest = hashlib.sha256(replace(plan, clients=()).encode()).hexdigest()
        if digest != self._plan:
            self.told(f"run {plan.run}: {config.algorithm.name} with {config.model.name}; loading")
            self.parties = self._assembled(plan, config, own)
            self._plan, self._run = digest, plan.run
            durable.write(self.folder / _PLAN, plan.encode())
            self.told("ready: " + ", ".join(f"{n} ({len(p.examples)} examples)" for n, p in self.parties.items()))
        clients = {name: len(party.examples) for name, party in self.parties.items()}
        return Consent(clients, environment=here())

    def _config(self, plan: Plan) -> RunConfig:
        """The plan's configuration with this site's data, model and memory. Raises :class:`ConfigError`, and
        :class:`Declined` if it names files or code: the server does not say what is read or run here."""
        content: dict[str, Any] = {k: v for k, v in plan.config.items() if k not in ("data", "partition", "problem")}
        data = {k: v for k, v in _section(plan, "data").items() if k in _OF_THE_RUN}
        content["data"] = {**data, "clients_from": GIVEN, "test_split": ""}
        for section, key in (("task", "chat_template"), ("adapter", "start_from")):
            if _section(plan, section).get(key) is not None:
                raise Declined(f"{section}.{key} names a file, and the server's files are not here")
        model = dict(_section(plan, "model"))
        if self.model is None and (is_path(str(model.get("name"))) or Path(str(model.get("name"))).exists()):
            raise Declined("model.name is a path of the server's: this site's owner names a copy by --model")
        if ".." in Path(str(model.get("gguf_file"))).parts:
            raise Declined("model.gguf_file leads out of the model's folder, and the server's files are not here")
        if self.model is not None:
            content["model"] = {**model, "name": self.model}
        content["simulation"] = {k: v for k, v in _section(plan, "simulation").items() if k in _OF_ONE_CLIENT}
        if self.memory_mb is not None:
            content["simulation"]["memory_mb"] = self.memory_mb
        config = load(_without_none(content), [])
        if (own := own_names(config)) and not self.allow_code:
            names = ", ".join(f"{key} = {name!r}" for key, name in own.items())
            raise Declined(f"the run asks for code from here ({names}): its owner looks at it, then sets --allow-code")
        return config

    def _assembled(self, plan: Plan, config: RunConfig, rows: Mapping[str, Rows]) -> dict[str, Party]:
        alone = {"per_round": None, "min_clients": 1, "ranks": None, "bytes_budget": None}
        here = config.model_copy(update={"clients": config.clients.model_copy(update=alone)})
        assembly = assemble(here, self.device, labels=plan.labels, given=Given(clients=rows))
        assembly = replace(assembly, config=assembly.config.model_copy(update={"clients": config.clients}))
        if assembly.model_sha256 != plan.model:
            other = assembly.model_sha256
            raise Declined(f"model: the server's is {plan.model}, this site's {other}: take a copy of the same model")
        self._disk = Disk(self.folder, plan.run)
        parties = {}
        for name, member in assembly.population.members.items():
            kept: dict[str, Params] = {}
            network, task = assembly.model.network, assembly.task
            local = LocalRound(assembly.algorithm, network, task, assembly.config, kept, assembly.prefix, self.stop)
            scorer = assembly.scorer(kept)
            party = Party(name, plan.model, local, tuple(member.train), scorer, tuple(member.validation), kept)
            if (damage := self._disk.load(party)) is not None:
                self.told(damage)
            parties[name] = party
        return parties

    # --- a round --------------------------------------------------------------------------------------------------

    def _round(self, letter: bytes) -> bytes:
        try:
            request = Request.decode(letter)
        except ValueError as error:
            self.log.note("in", "unreadable", letter)
            return Reply(reason="refused", detail=str(error)).encode()
        client, round = request.client.id, request.round.attempt
        client = client if client in self.parties else short(client)
        self.log.note("in", "scores asked" if request.scores else "work", letter, client, round)
        try:
            reply = self._reply(request)
            data = reply.encode()
        except StopRequested:
            raise
        except Exception as error:  # tensors can be anything, and the disk full
            self.told(f"round {round + 1}: {type(error).__name__}: {error}")
            reply = Reply(reason="refused", detail=f"it cannot be answered: {type(error).__name__}")
            data = reply.encode()
        if (reason := self.limits.against_upload(data)) is not None:
            reply = Reply(reason="refused", detail=reason)
            data = reply.encode()
        kind = "upload" if reply.upload else "scores" if reply.scores is not None else "reason"
        self.log.note("out", kind, data, client, round)
        if reply.upload:
            loss = "" if reply.loss is None else f", loss {reply.loss:.3f}"
            self.told(f"round {round + 1}: {client} trained{loss}, {len(letter)} bytes in, {len(data)} out")
        elif reply.reason:
            self.told(f"round {round + 1}: {client} has no upload: {reply.reason}: {reply.detail}")
        return data

    def _reply(self, request: Request) -> Reply:
        if not self.parties and (self.folder / _PLAN).is_file():  # a process of its own for every letter
            self._joined(Plan.decode((self.folder / _PLAN).read_bytes()))
        party = self.parties.get(request.client.id)
        if party is None:
            return Reply(reason="refused", detail=f"{short(request.client.id)} is no client of this site")
        if request.identity.run != self._run:
            return Reply(reason="refused", detail=f"this is run {self._run}, not {request.identity.run}")
        left = self.log.left_today("scores" if request.scores else "upload")
        if (reason := self.limits.against_request(request, left)) is not None:
            return Reply(reason="refused", detail=reason)
        reply = party.reply(request)
        if not request.scores:
            # On the disk before it leaves: what was trained counts once the server says so.
            assert self._disk is not None
            self._disk.save(party)
        return reply


def _for_the_server(error: Exception) -> str:
    """The reason why a site takes no part, without what is in its rows and on its disk."""
    if isinstance(error, Declined | NotAPlan):
        return str(error)
    keys = ", ".join(dict.fromkeys(p.path for p in error.problems)) if isinstance(error, ConfigError) else ""
    return f"it cannot run the plan as it is{keys and ': ' + keys}; its owner sees why"


def _section(plan: Plan, name: str) -> Mapping[str, Any]:
    section = plan.config.get(name)
    return section if isinstance(section, dict) else {}


_PLAN = "plan.json"
"""The file of the last plan that the site consented to."""
_OF_THE_RUN = ("validation_fraction", "bad_rows", "min_examples")
"""Keys of ``[data]`` that the server sets."""
_OF_ONE_CLIENT = ("cohort", "reuse_prefix")
"""Keys of ``[simulation]`` that the server sets. Memory, disk space and other processes are the site's own."""


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """``tree`` without keys that are not set, as in a file."""
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in tree.items() if v is not None}


def _listed(names: Mapping[str, Any] | tuple[str, ...]) -> str:
    shown = list(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "") or "no client"
