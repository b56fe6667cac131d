"""A site's reading of a plan: within its contract, and with its own rows, model and memory in place of the server's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rondo import __version__
from rondo.algorithm import Upload
from rondo.config.checks import is_path
from rondo.config.inputs import GIVEN
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.data.client_rows import resolved
from rondo.data.files.tables import Rows
from rondo.data.labels import label_names
from rondo.data.sources import Source
from rondo.engine.wire.strict import short
from rondo.errors import ConfigError, Problem
from rondo.federation.environment import here
from rondo.federation.identity.peers import Voice
from rondo.federation.plan import NotAPlan, Plan
from rondo.federation.site import behind
from rondo.federation.site.behind import Behind
from rondo.federation.site.contract import terms
from rondo.federation.site.contract.document import Contract, Term
from rondo.federation.site.ledger import SiteLedger
from rondo.federation.site.sums import of_sum
from rondo.params import num_bytes
from rondo.records import durable
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.given import Given
from rondo.tasks.make import task_class


class Declined(Exception):
    """A site takes no part, for a reason that the server may read."""


@dataclass(frozen=True)
class Offer:
    """A plan beside the contract, as the owner reads it before anything leaves."""

    plan: Plan
    terms: Sequence[Term]
    leaving: Sequence[str]
    """The letters that would leave, and their sizes, in sentences; empty where the plan is refused."""
    labels: tuple[str, ...] = ()
    """This site's class names, where the plan asks for them."""
    assembly: Assembly | None = None
    """The run, ready to train. While class names are asked for it has this site's own; None if it has one at most."""

    @property
    def digest(self) -> str:
        """SHA-256 of what an owner consents to: the configuration, whatever the run is called."""
        return _digest(self.plan, asks=self.plan.labels is None)

    @property
    def covered(self) -> frozenset[str]:
        """Digests of all that a consent to it covers: who tells class names also trains with given ones."""
        return frozenset({self.digest, _digest(self.plan, asks=False)})

    @property
    def examples(self) -> dict[str, int]:
        """Numbers of training examples by client."""
        members = self.assembly.population.members if self.assembly is not None else {}
        return {name: len(member.train) for name, member in members.items()}


@dataclass(frozen=True)
class Joining:
    """The owner's side of every plan.

    ``rows``: the rows of each client, by its id, with the contract's columns and no other.
    ``ledger``: what was spent on them.
    ``behind``: what is behind earlier uploads; None where the contract lets runs repeat rows.
    ``model``: the site's own copy of the base model: a folder or file in place of the name in the plan.
    ``tests``: test rows of clients, on which their models are scored in place of rows that a run holds back.
    ``voice``: signs for masked sums; None for a site that has no peers.
    """

    rows: Mapping[str, Rows]
    device: str
    contract: Contract
    ledger: SiteLedger
    behind: Behind | None
    model: str | None = None
    tests: Mapping[str, Rows] = field(default_factory=dict)
    voice: Voice | None = None
    _loaded: dict[str, Assembly] = field(default_factory=dict)

    def terms(self, plan: Plan) -> list[Term]:
        """The terms of ``plan`` that show without a row. Raises :class:`Declined` and :class:`ConfigError`."""
        config, _ = self._read(plan)
        # Columns that a plan leaves open have a default.
        settled = resolved(config, Source(GIVEN, None, None, None))
        of_plan = terms.of_plan(plan, settled, self.contract, self.model)
        of_behind = () if self.behind is None else behind.of_plan(settled)
        return [*of_plan, *of_behind, *of_sum(settled, self.contract, self.voice)]

    def offer(self, plan: Plan) -> Offer:
        """``plan`` beside the contract. If its terms are kept, model and rows are loaded for it. Nothing leaves.

        Raises :class:`Declined`, :class:`ConfigError`, and whatever a plan that is none leads to."""
        plan_terms = self.terms(plan)
        if terms.refusal(plan_terms) is not None:
            return Offer(plan, plan_terms, ())
        config, clients = self._read(plan)
        leaving, labels = [*_now({name: len(rows) for name, rows in clients.items()})], plan.labels
        if labels is None:
            labels = self._labels(config, clients)
            leaving.append(f"now: the class names {', '.join(labels)}")
            if len(labels) < 2:
                return Offer(plan, plan_terms, leaving, labels)
        elif not set(self._labels(config, clients)) <= set(labels):
            raise Declined("class names: its rows have others than the run")
        assembly = self._assembly(plan, config, clients, labels)
        counts = {name: len(rows) for name, rows in clients.items()}
        uploads = list(terms.trials(assembly))
        plan_terms += terms.of_training(self.contract, config, assembly, counts, uploads, self.ledger, plan.run)
        said = assembly.population.report["warnings"]
        return Offer(plan, plan_terms, [*leaving, *self._per_round(assembly, uploads), *said], labels, assembly)

    def counts(self, plan: Plan) -> dict[str, int]:
        """Numbers of rows by client, of the clients that ``plan`` names."""
        return {name: len(rows) for name, rows in self._own(plan).items()}

    def _read(self, plan: Plan) -> tuple[RunConfig, dict[str, Rows]]:
        """The plan's configuration for this site, and the rows of its clients. No row is read. Raises :class:`Declined`
        and :class:`ConfigError`."""
        clients = self._own(plan)
        try:
            return self._config(plan, tested=bool(self.tests.keys() & clients.keys())), clients
        except ConfigError as error:
            if plan.rondo == __version__:
                raise
            versions = f"the server has {short(plan.rondo)}, this site {__version__!r}: upgrade the older one"
            raise ConfigError([*error.problems, Problem("rondo", versions)], error.source) from None

    def _own(self, plan: Plan) -> dict[str, Rows]:
        clients = {name: rows for name, rows in self.rows.items() if plan.clients is None or name in plan.clients}
        if not clients:
            raise Declined("the roster's clients for this site have no rows here")
        return clients

    def _config(self, plan: Plan, *, tested: bool) -> RunConfig:
        """The plan's configuration with this site's data, model and memory. Raises :class:`ConfigError`, and
        :class:`Declined` if it names files: the server does not say what is read here."""
        content: dict[str, Any] = {k: v for k, v in plan.config.items() if k not in ("data", "partition", "problem")}
        data = {k: v for k, v in _section(plan, "data").items() if k in _OF_THE_RUN}
        tests = {"test_source": GIVEN} if tested else {}
        content["data"] = {**data, **tests, "clients_from": GIVEN, "test_split": ""}
        for section, key in (("task", "chat_template"), ("model", "vectors"), ("adapter", "start_from")):
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
        if self.contract.training.memory_mb is not None:
            content["simulation"]["memory_mb"] = self.contract.training.memory_mb
        config = load(_without_none(content), [])
        if (reason := terms.refusal([terms.of_code(config, self.contract)])) is not None:  # before anything imports it
            raise Declined(reason)
        if not task_class(config.task.kind).classes:
            return config
        # The server has no rows, so this site's do not say whether a row may have several labels.
        return config.changed("task", multi_label=config.task.several_labels)

    def _labels(self, config: RunConfig, clients: dict[str, Rows]) -> tuple[str, ...]:
        """The class names in this site's rows. Raises :class:`Declined` where they are beyond the contract, and
        :class:`ConfigError` where a column has no classes."""
        source = Source(GIVEN, None, clients, None)
        names = label_names(resolved(config, source), source)
        known, most = self.contract.rows.label_names, self.contract.rows.most_labels
        if known is not None and not set(names) <= set(known):
            raise Declined("class names: its rows have others than those that its owner allows to leave")
        if known is None and len(names) > most:
            raise Declined(f"class names: the label column has more distinct values than the {most} that may leave")
        return names

    def _assembly(self, plan: Plan, config: RunConfig, rows: Mapping[str, Rows], labels: tuple[str, ...]) -> Assembly:
        """The run with these class names: the one of the last call where nothing is another. Raises :class:`Declined`
        for another base model than the plan's, if it names one."""
        key = json.dumps([plan.config, labels, sorted(rows)], sort_keys=True)
        if key not in self._loaded:
            single = config.changed("clients", per_round=None, min_clients=1, ranks=None, bytes_budget=None)
            self._loaded.clear()
            tests = {name: self.tests[name] for name in rows if name in self.tests} or None
            parting = None if self.behind is None or behind.is_free(config) else self.behind.parts
            given = Given(clients=rows, test=tests, parting=parting)
            made = assemble(single, self.device, labels=labels, given=given)
            self._loaded[key] = replace(made, config=made.config.model_copy(update={"clients": config.clients}))
        assembly = self._loaded[key]
        if plan.labels is not None and assembly.model_sha256 != plan.model:
            other = assembly.model_sha256
            raise Declined(f"model: the server's is {plan.model}, this site's {other}: take a copy of the same model")
        return assembly

    def _per_round(self, assembly: Assembly, uploads: Sequence[Upload]) -> list[str]:
        """The letters that would leave per round, in sentences. ``uploads``: those of the first rounds."""
        outgoing = self.contract.outgoing
        sizes = [f"{len(upload.params)} tensors of {num_bytes(upload.params):,} bytes" for upload in uploads]
        turns = " or ".join(dict.fromkeys(sizes))
        if assembly.config.guarantee.masks_uploads:
            return [f"per round: a masked vector in place of {turns} per client: only the sum over all sites is opened"]
        lines = [f"per round and client: an upload of {turns}, its number of examples and its weight"]
        if outgoing.losses:
            lines.append("per round and client: the mean training loss")
        population = assembly.population
        if outgoing.scores and any(map(population.own_rows, population.members.values())):
            whose = "test rows of its own" if population.tested_at_clients else "its held-back rows"
            lines.append(f"when scores are asked: the client's metrics on {whose}")
        return lines


def _digest(plan: Plan, *, asks: bool) -> str:
    """SHA-256 of a plan's configuration, and of whether it asks for class names."""
    content = json.dumps([plan.config, plan.rondo, asks], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def for_the_server(error: Exception) -> str:
    """The reason why a site takes no part, without what is in its rows and on its disk."""
    if isinstance(error, Declined | NotAPlan):
        return str(error)
    if durable.is_full(error):
        return "its disk is full"
    keys = ", ".join(dict.fromkeys(p.path for p in error.problems)) if isinstance(error, ConfigError) else ""
    return f"it cannot run the plan as it is{keys and ': ' + keys}; its owner sees why"


def _now(counts: Mapping[str, int]) -> list[str]:
    """The facts that would leave with a consent, in sentences."""
    clients = ", ".join(f"{name} ({count})" for name, count in counts.items())
    where = ", ".join(f"{key} {value}" for key, value in here().items())
    return [f"now: each client's id and number of rows: {clients}", f"now: where this site computes: {where}"]


def _section(plan: Plan, name: str) -> Mapping[str, Any]:
    section = plan.config.get(name)
    return section if isinstance(section, dict) else {}


_OF_THE_RUN = ("validation_fraction", "hold_out_by", "bad_rows", "min_examples")
"""Keys of ``[data]`` that the server sets."""
_OF_ONE_CLIENT = ("cohort", "reuse_prefix")
"""Keys of ``[simulation]`` that the server sets. Memory, disk space and other processes are the site's own."""


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """``tree`` without keys that are not set, as in a file."""
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in tree.items() if v is not None}
