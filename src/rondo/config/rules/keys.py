"""Rules between the keys of a configuration. Imports no torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from rondo import own_code
from rondo.algorithms.table import SERVER_OPTIONS
from rondo.config import task_kinds as tasks
from rondo.config.checks import (
    BUILTINS,
    client_checks,
    data_source,
    is_path,
    nothing_at,
    partition_kind,
    text_form_checks,
)
from rondo.config.inputs import BUILTIN_DATA, BUILTIN_MODEL, BUILTIN_NETWORKS, LINEAR, ModelConfig
from rondo.config.rules.trainer import trainer_checks
from rondo.config.schema import FaultKind, RunConfig
from rondo.config.section import ProblemConfig
from rondo.errors import Problem

_NEEDS = {
    "dirichlet": ("alpha", "for instance alpha = 0.5"),
    "shards": ("shards_per_client", "for instance shards_per_client = 2"),
    "classes": ("classes_per_client", "for instance classes_per_client = 2"),
    "natural": ("column", "the column that says whose a row is"),
}

_USED_BY = {
    "alpha": ("dirichlet",),
    "shards_per_client": ("shards",),
    "classes_per_client": ("classes",),
    "sigma": ("lognormal", "classes"),
    "equal_sizes": ("classes", "dirichlet"),
}
"""Keys of ``[partition]`` that only some kinds use, with these kinds."""


def cross_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults between keys."""
    own_data = data_source(config) not in BUILTINS
    yield from _train_checks(config)
    yield from _partition_checks(config, own_data)
    yield from _client_checks(config)
    yield from compression_checks(config)
    yield from _fault_checks(config)
    yield from _rank_checks(config)
    yield from _server_checks(config)
    yield from _task_checks(config, own_data)
    yield from _model_checks(config)
    yield from _whole_checks(config)
    yield from linear_checks(config, data_source(config))
    yield from _source_checks(config)
    yield from text_form_checks(config.data.separator, config.data.encoding, "data.")
    yield from _more_tests_checks(config)
    yield from _gguf_checks(config.model)
    yield from trainer_checks(config)


def _train_checks(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.local_epochs is not None and train.local_steps is not None:
        yield Problem("train.local_steps", "set local_steps or local_epochs, not both")
    if train.momentum and train.optimizer != "sgd":
        yield Problem("train.momentum", f"only sgd has momentum, not {train.optimizer}: remove one of the two")
    if train.lr_ratio != 1 and (reason := _no_ratio(config)) is not None:
        yield Problem("train.lr_ratio", f"{reason}: remove it")
    if train.warmup_rounds >= config.rounds:
        message = f"must be below rounds = {config.rounds}, or nothing follows the warm-up: lower it or raise rounds"
        yield Problem("train.warmup_rounds", message)


def _no_ratio(config: RunConfig) -> str | None:
    """The reason why no factor has a learning rate of its own, if there is one."""
    name = config.algorithm.name
    if not config.has_factors:
        return "it is B's learning rate over A's, and no factors are trained"
    if name in ("fed-sb", "florg", "florg-unaligned"):
        return f"it is B's learning rate over A's, and clients of {name} train another matrix"
    return "the method has a ratio of its own, algorithm.lr_ratio" if name == "lora-a2" else None


def _partition_checks(config: RunConfig, own_data: bool) -> Iterator[Problem]:
    partition, data, kind = config.partition, config.data, partition_kind(config)
    if data.clients_from is not None:
        if data.source is not None:
            yield Problem("data.clients_from", "set data.source or data.clients_from, not both")
        return
    needed, hint = _NEEDS.get(kind, (None, ""))
    if needed and getattr(partition, needed) is None and (own_data or kind != "natural"):
        yield Problem(f"partition.{needed}", f"partition.kind = {kind!r} needs it: set it, {hint}")
    for key, users in _USED_BY.items():
        if kind not in users and getattr(partition, key) not in (None, False):
            message = f"only kind = {' or '.join(map(repr, users))} uses it, not {kind!r}: remove it or set kind"
            yield Problem(f"partition.{key}", message)
    if partition.equal_sizes and partition.sigma is not None:
        yield Problem("partition.sigma", "sizes are either equal or spread: remove it, or equal_sizes")
    if kind != "natural" and partition.clients is None:
        message = f"partition.kind = {kind!r} needs the number of clients: set it, for instance clients = 10"
        yield Problem("partition.clients", message)


def _client_checks(config: RunConfig) -> Iterator[Problem]:
    """The sampling of clients, and what is made of their uploads."""
    clients, partition = config.clients, config.partition
    if clients.sampling == "full" and clients.per_round is not None:
        yield Problem("clients.per_round", "sampling = 'full' takes every client; remove per_round")
    if clients.sampling in ("poisson", "weighted") and clients.per_round is None:
        yield Problem("clients.per_round", f"sampling = {clients.sampling!r} needs it: set it")
    if partition.clients is not None and config.data.clients_from is None:
        yield from client_checks(config, partition.clients)
    if clients.per_round is not None and clients.min_clients > clients.per_round:
        message = f"above clients.per_round = {clients.per_round}, so no round could succeed: lower it"
        yield Problem("clients.min_clients", message)
    if clients.over_select and clients.per_round is None:
        yield Problem("clients.over_select", "it goes beyond clients.per_round, which is not set: set both or neither")
    yield from _buffer_checks(config)
    if config.admission.clip and config.admission.max_norm is None:
        yield Problem("admission.clip", "there is nothing to clip to: set admission.max_norm too")
    least = 2 * config.robust.byzantine + 1
    key, uploads = ("min_clients", clients.min_clients) if clients.buffer is None else ("buffer", clients.buffer)
    if config.robust.rule != "none" and uploads < least:
        message = f"robust.byzantine = {config.robust.byzantine} of {uploads} uploads may be half or more"
        yield Problem(f"clients.{key}", f"{message}: raise it to {least} or lower robust.byzantine")
    if config.simulation.workers is not None and config.simulation.engine != "ray":
        yield Problem("simulation.workers", "only engine = 'ray' has workers: set simulation.engine, or remove it")


def _buffer_checks(config: RunConfig) -> Iterator[Problem]:
    """Rounds that wait for no client."""
    clients = config.clients
    if clients.mode == "rounds":
        if clients.buffer is not None:
            yield Problem("clients.buffer", 'only mode = "buffered" has one: set clients.mode, or remove it')
        return
    if clients.buffer is None:
        yield Problem("clients.buffer", 'mode = "buffered" needs it: set it, for instance buffer = 10')
    at_once = clients.per_round or config.partition.clients
    if clients.buffer is not None and at_once is not None and clients.buffer > at_once:
        message = f"above the {at_once} clients that train at once, so a step would wait for all of them: lower it"
        yield Problem("clients.buffer", message)
    for key, there, reason in (
        ("sampling", clients.sampling in ("poisson", "weighted"), "a client that is done makes room for any other"),
        ("deadline", clients.deadline is not None, "no upload comes too late"),
        ("over_select", clients.over_select > 0, "no upload comes too late"),
        ("min_clients", clients.min_clients > 1, "a step takes clients.buffer uploads"),
        ("ranks", clients.ranks is not None, "a change of part of the factors is not defined"),
        ("bytes_budget", clients.bytes_budget is not None, "a change of part of the factors is not defined"),
        ("mode", config.guarantee.promises, "which uploads count would depend on the clients' speed"),
        ("mode", config.compression.kind != "none", "packed uploads are read beside the model that was sent last"),
    ):
        if there:
            yield Problem(f"clients.{key}", f'with mode = "buffered" {reason}: remove it')


def _model_checks(config: RunConfig) -> Iterator[Problem]:
    """The names of the model and of the adapter to start from."""
    if config.adapter.start_from is not None and not Path(config.adapter.start_from, "adapter_config.json").is_file():
        yield Problem(
            "adapter.start_from",
            f"no adapter_config.json in {config.adapter.start_from!r}: name one that PEFT wrote",
        )
    if is_path(config.model.name) and (reason := nothing_at(config.model.name)) is not None:
        yield Problem("model.name", f"{reason}, or give a Hugging Face name")
    builtin = (BUILTIN_MODEL, *BUILTIN_NETWORKS, LINEAR)
    if config.model.name.startswith("builtin:") and config.model.name not in builtin:
        near = difflib.get_close_matches(config.model.name, builtin, n=1) or [BUILTIN_MODEL]
        yield Problem("model.name", f"unknown built-in; did you mean {near[0]!r}?")


def _whole_checks(config: RunConfig) -> Iterator[Problem]:
    """Keys of models that are trained whole, or have no checkpoint."""
    model = config.model
    is_module = own_code.is_name(model.name) or model.name in BUILTIN_NETWORKS
    if model.norm != "batch" and not model.name.startswith("builtin:resnet"):
        yield Problem("model.norm", f"only the built-in residual networks have it, not {model.name!r}: remove it")
    if model.vectors is not None and model.name != "builtin:lstm":
        yield Problem("model.vectors", f"only 'builtin:lstm' has them, not {model.name!r}: remove it")
    if model.head_layers is not None and not is_module:
        yield Problem("model.head_layers", "the head of a transformers model is known: remove it")
    if model.buffers != "average" and not is_module and config.whole_tensors is None:
        yield Problem("model.buffers", "the frozen layers' statistics stay as they are: remove it, or set train.what")
    if config.adapter.layers_to_transform is not None and isinstance(config.adapter.target_modules, str):
        message = (
            "it counts the layers of names, as PEFT does: give adapter.target_modules a list of names, or remove it"
        )
        yield Problem("adapter.layers_to_transform", message)
    if config.adapter.from_scratch and config.adapter.init_lora_weights is not True:
        message = "both factors are drawn as A is by default: remove init_lora_weights"
        yield Problem("adapter.from_scratch", message)
    if config.adapter.from_scratch and config.adapter.use_dora:
        yield Problem("adapter.use_dora", "the norms are those of weights that from_scratch sets to zero: remove it")


def _gguf_checks(model: ModelConfig) -> Iterator[Problem]:
    if model.gguf and model.quantization:
        message = f"a GGUF file is rounded already, and {model.quantization} would round it again"
        message += ": remove it, or name another model"
        yield Problem("model.quantization", message)
    if model.gguf_file and model.name.endswith(".gguf") and Path(model.name).expanduser().is_file():
        yield Problem("model.gguf_file", "model.name is a GGUF file already: remove gguf_file, or name the folder")
    elif model.gguf_file and Path(model.gguf_file).expanduser().is_absolute():
        yield Problem("model.gguf_file", "it is looked for in the folder model.name: give the whole path as model.name")


def _source_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults of ``data.source`` that its name shows."""
    source, kind = data_source(config), tasks.TABLE.get(config.task.kind)
    if source is None and config.data.clients_from is None:
        yield Problem("data.source", f"a {config.task.kind} task has no built-in data: name a file, or a data set")
    elif (source or "").startswith("builtin:") and source not in BUILTINS:
        near = kind.builtin if kind is not None and kind.builtin is not None else BUILTIN_DATA
        yield Problem("data.source", f"unknown built-in; did you mean {near!r}?")
    elif kind is not None and source in BUILTINS and source != kind.builtin:
        message = f"{source!r} is not for {config.task.kind}: name another, or set task.kind"
        yield Problem("data.source", message)


def _more_tests_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults of the names in ``data.more_tests``, which are keys of records."""
    for name in config.data.more_tests:
        if not re.fullmatch("[A-Za-z0-9_-]+", name) or name in ("test", "validation", "own_test", "titles"):
            message = f"{name!r} cannot name a test set: take letters, digits, - and _, and not test, validation, "
            message += "own_test or titles"
            yield Problem("data.more_tests", message)


def _fault_checks(config: RunConfig) -> Iterator[Problem]:
    faults = config.faults
    rates = {kind: value for kind in get_args(FaultKind) if isinstance(value := getattr(faults, kind), float) and value}
    if sum(rates.values()) > 1:
        message = (
            f"the probabilities of {', '.join(rates)} sum to {sum(rates.values()):g}: a client has one fault per round"
        )
        yield Problem("faults", f"{message}, so lower them to 1 or less in all")
    clients = config.clients
    if faults.slow and clients.deadline is None and not clients.over_select and clients.mode == "rounds":
        message = 'slow clients are waited for: set clients.deadline, clients.over_select or clients.mode = "buffered"'
        yield Problem("faults.slow", message)


def _rank_checks(config: RunConfig) -> Iterator[Problem]:
    clients, adapter = config.clients, config.adapter
    ranks = clients.ranks
    if ranks is not None and clients.bytes_budget is not None:
        yield Problem("clients.bytes_budget", "set clients.ranks or clients.bytes_budget, not both")
    if isinstance(ranks, dict):
        not_ranks = [k for k in ranks if not (k.isdecimal() and k == str(int(k)) and int(k) > 0)]
        if not_ranks:
            message = (
                f"{not_ranks[0]!r} is no rank: give shares of the clients by rank, for instance {{ 4 = 0.5, 8 = 0.5 }}"
            )
            yield Problem("clients.ranks", message)
            return
        if abs(sum(ranks.values()) - 1) > 1e-6:
            yield Problem("clients.ranks", f"the shares sum to {sum(ranks.values()):.6g}: mend them to sum to 1")
    largest = max(map(int, ranks)) if ranks is not None else 0
    if largest > adapter.r and adapter.start_from is None and not adapter.rank_pattern:
        yield Problem("clients.ranks", f"rank {largest} is above adapter.r = {adapter.r}: lower it or raise adapter.r")
    if adapter.init_lora_weights in ("orthogonal", "pissa"):
        yield from _start_checks(config)


def _start_checks(config: RunConfig) -> Iterator[Problem]:
    """Starts with B other than zero: no factor may be cut off. Orthogonal ones come in pairs whose products cancel, so
    a rank is even."""
    adapter, start, reason = config.adapter, config.adapter.init_lora_weights, None
    odd = [r for r in (adapter.r, *adapter.rank_pattern.values()) if r % 2 and start == "orthogonal"]
    if adapter.start_from is not None:
        reason = "the factors are those of adapter.start_from"
    elif odd:
        reason = f"rank {odd[0]} is odd"
    elif config.clients.ranks is not None or config.clients.bytes_budget is not None:
        reason = "a client whose rank is below the run's would not start from the pre-trained model"
    if reason is not None:
        yield Problem("adapter.init_lora_weights", f"with {start!r}, {reason}: take true or 'gaussian'")


def _server_checks(config: RunConfig) -> Iterator[Problem]:
    kind = config.server.optimizer
    known = SERVER_OPTIONS[kind]
    for key in ("lr", "beta1", "beta2", "tau"):
        if key not in known and getattr(config.server, key) is not None:
            message = f"{kind!r} has no {key}; it has {', '.join(known)}" if known else "name server.optimizer too"
            yield Problem(f"server.{key}", message)


def _task_checks(config: RunConfig, own_data: bool) -> Iterator[Problem]:
    kind = tasks.TABLE.get(config.task.kind)
    if kind is not None and not kind.head and config.model.head is not None:
        yield Problem("model.head", f"a {config.task.kind} model has no task head; remove it")
    yield from tasks.check(config.task.model_dump(), own_data)
    if kind is not None and kind.mixes_rows and config.train.micro_batch is not None:
        message = "the rows of a batch are each other's negatives, so a part of it has another loss: lower batch_size"
        yield Problem("train.micro_batch", f"{message} instead")
    for key, users in tasks.CLASS_KEYS.items() if kind is not None else ():
        if getattr(config.evaluation, key) and config.task.kind not in users:
            message = f"only kind = {' and '.join(map(repr, users))} use it: remove it, or set task.kind"
            yield Problem(f"evaluation.{key}", message)
    if config.task.kind == "preference" and config.whole_tensors is not None:
        message = "a pair is compared with the model without its adapter, and whole tensors have none to switch off: "
        yield Problem("train.what", f"{message}remove it, and train low-rank factors")
    if config.evaluation.positive is not None and config.evaluation.f1 is not None:
        message = "a mean over all classes, and evaluation.positive names one class: remove one of the two"
        yield Problem("evaluation.f1", message)
    if config.evaluation.generate and kind is not None and not (kind.generates or kind.peft == "TOKEN_CLS"):
        message = f"{config.task.kind!r} generates no text: remove it, or set task.kind = 'causal-lm' or 'seq2seq-lm'"
        yield Problem("evaluation.generate", message)


def compression_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults of ``[compression]``."""
    compression = config.compression
    for key, kind in (("bits", "rounding"), ("keep", "top-k")):
        if getattr(compression, key) is not None and compression.kind != kind:
            yield Problem(f"compression.{key}", f"only kind = {kind!r} uses it: set that, or remove it")
    if compression.kind == "none":
        return
    if config.admission.clip:
        message = "a packed upload has no numbers that could be scaled: remove it, and larger uploads are turned away"
        yield Problem("admission.clip", message)


def linear_checks(config: RunConfig, source: str | None) -> Iterator[Problem]:
    """Yield the faults of a linear problem: of its section, and of data, task and network that do not go together.

    ``source``: the data of the run.
    """
    problem, data, model = config.problem, source == LINEAR, config.model.name == LINEAR
    if model and config.task.kind != "linear":
        yield Problem("model.name", f"{LINEAR!r} is a network for task.kind = 'linear': set it, or name another")
    if config.task.kind == "linear" and not model and not own_code.is_name(config.model.name):
        message = f"kind = 'linear' needs {LINEAR!r}, or a network of one's own as package.module:factory: name one"
        yield Problem("model.name", message)
    if not (data or model) and problem != ProblemConfig():
        yield Problem("problem", f"only data.source = {LINEAR!r} uses this section: set it, or remove the section")
    if problem.kind == "heads":
        for key in ("outputs", "spread"):
            if getattr(problem, key):
                yield Problem(f"problem.{key}", "only kind = 'factors' uses it: remove it")
    outputs = problem.inputs if problem.outputs is None else problem.outputs
    largest = problem.inputs if problem.kind == "heads" else min(problem.inputs, outputs)
    if problem.rank > largest:
        yield Problem("problem.rank", f"above {largest}, the most that these sizes allow: lower it")
    if problem.kind == "heads" and problem.clients < problem.rank:
        yield Problem("problem.clients", f"fewer than rank = {problem.rank}, so the heads cannot differ: raise it")
    if problem.design == "isotropic" and problem.rows < problem.inputs:
        message = f"isotropic inputs need as many rows as inputs, {problem.inputs}: raise it, or take gaussian ones"
        yield Problem("problem.rows", message)
    if problem.start_distance is not None and problem.inputs < 2 * problem.rank:
        message = f"{problem.inputs} inputs have no room for rank = {problem.rank} rows at a distance of as many others"
        yield Problem("problem.start_distance", f"{message}: raise problem.inputs, or remove it")
