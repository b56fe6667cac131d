"""From a configuration to everything loaded: model, adapters, head policy, task. Where a run, an export and an
evaluation start."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, HeadPolicy
from rondo.algorithms.wrappers.local_head import LocalHead
from rondo.algorithms.wrappers.robust import Robust
from rondo.algorithms.wrappers.server_optimizer import ServerStep
from rondo.config.schema import RunConfig
from rondo.data.population import Population
from rondo.engine.client.cohorts import one_cohort
from rondo.engine.simulation import Simulation
from rondo.errors import ConfigError, Problem
from rondo.models import peft
from rondo.models.network import Network
from rondo.models.outline import Structure, adapters, loading, look, model_name
from rondo.models.precision import Kernels, apply, choose
from rondo.models.pretrained import fingerprint, load_pretrained
from rondo.models.shortcuts.choose import _LOOKED_AT, Shortened, _telling
from rondo.models.shortcuts.first_token import AllTokensMatter, first_token_only
from rondo.models.shortcuts.prefix import Prefix, PrefixRefused
from rondo.models.shortcuts.target_logits import LogitsNeeded, split_off
from rondo.params import HEAD_PREFIX, Params
from rondo.runs.collector import collector_paused
from rondo.runs.storage import checkpoint
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.wrapping import _server_optimizer, make_algorithm
from rondo.tasks.causal_lm import CausalLM
from rondo.tasks.task import Example, Task


@dataclass(frozen=True)
class Prepared:
    """A configuration with everything loaded: what a run, an export and an evaluation start from."""

    config: RunConfig
    algorithm: Algorithm[Any]
    head: HeadPolicy | None
    network: Network
    task: Task
    tokenizer: Any
    lora: Any
    initial: dict[str, Tensor]
    kernels: Kernels
    model_name: str
    model_config: Any
    model_hash: str

    def simulation(self, population: Population) -> Simulation:
        """A simulation over ``population``, at its start."""
        return Simulation(self.algorithm, self.network, self.task, population, self.config, self.initial)

    def shorten(self, population: Population) -> Shortened:
        """Leave out what need not be computed: all but the first token at the end, where only that is read; the layers
        below the lowest adapted one, which are computed once an example; logits of tokens that have no target."""
        examples = _telling(population.sample(_LOOKED_AT), cut=isinstance(self.task, CausalLM))
        if not examples:
            return Shortened(None, *["there is nothing to train on"] * 3)
        with one_cohort(self.network):
            return self._shorten(examples)

    def _shorten(self, examples: Sequence[Example]) -> Shortened:
        device = self.network.device
        seen = {n: t.to(device) for n, t in {**self.network.initial_head, **self.initial}.items()}
        inputs = {n: t.to(device) for n, t in self.task.collate(examples)[0].items()}
        all_tokens = all_logits = prefix = no_prefix = None
        try:
            first_token_only(self.network, seen, inputs)
        except AllTokensMatter as reason:
            all_tokens = str(reason)
        config = self.config.simulation
        try:
            if not config.reuse_prefix:
                raise PrefixRefused("simulation.reuse_prefix is off")
            memory, disk = config.prefix_memory_mb * 2**20, config.prefix_disk_mb * 2**20
            prefix = Prefix(self.network, self.task, memory=memory, disk=disk)
            prefix.check(seen, inputs)
        except PrefixRefused as reason:
            prefix, no_prefix = None, str(reason)
        try:
            if not isinstance(self.task, CausalLM):
                raise LogitsNeeded("a classifier has one row of logits an example")
            self.task.output = split_off(self.network, seen, inputs)
        except LogitsNeeded as reason:
            all_logits = str(reason)
        return Shortened(prefix, no_prefix, all_tokens, all_logits)


def prepare(config: RunConfig, algorithm: Algorithm[Any], device: torch.device, structure: Structure) -> Prepared:
    """Load the model whose ``structure`` has been looked at, find where adapters go, and settle the head policy. Raises
    :class:`ConfigError`."""
    with collector_paused():
        module, head_names = load_model(config, structure.model_config, structure.tokenizer, config.seed)
        planned = adapters(config, module, head_names)
    module_hash = fingerprint(module)
    kernels = choose(config.train.precision, device, quantized=config.model.quantization is not None)
    network = Network(module.to(device), planned.sites, head_names)
    apply(module, kernels)
    for tensor_name in network.initial_head:
        if tensor_name in planned.params:
            network.initial_head[tensor_name] = planned.params[tensor_name].to(device)
    policy: HeadPolicy | None = None
    if head_names:
        policy = config.model.head or algorithm.default_head
    initial = {n: t for n, t in planned.params.items() if not n.startswith(HEAD_PREFIX)}
    if policy in ("shared", "local"):
        initial |= {n: t.cpu() for n, t in network.initial_head.items()}
    if policy == "local":
        algorithm = LocalHead(algorithm)
    if config.server.optimizer != "none":
        algorithm = ServerStep(algorithm, _server_optimizer(config.server))
    if config.robust.rule != "none":
        algorithm = Robust(algorithm, config.robust.rule, config.robust.byzantine)
    return Prepared(
        config=config,
        algorithm=algorithm,
        head=policy,
        network=network,
        task=structure.task,
        tokenizer=structure.tokenizer,
        lora=planned.lora,
        initial=initial,
        kernels=kernels,
        model_name=structure.model_name,
        model_config=structure.model_config,
        model_hash=module_hash,
    )


def load_model(config: RunConfig, model_config: Any, tokenizer: Any, seed: int) -> tuple[Any, tuple[str, ...]]:
    """The module that ``model_config`` describes and its head's tensor names. Raises :class:`ConfigError`."""
    model = config.model
    with loading(config, "its weights"):
        return load_pretrained(
            config.task.kind,
            model_name(config),
            model_config,
            tokenizer,
            seed=seed,
            revision=model.revision,
            gguf_file=model.gguf_file,
            quantization=model.quantization,
        )


def find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError([Problem("--device", "there is no CUDA device here; use auto or cpu")])
    if name not in ("cpu", "cuda"):
        raise ConfigError([Problem("--device", f"{name!r} is unknown; use auto, cpu or cuda")])
    return torch.device(name)


def write_adapter(prepared: Prepared, folder: Path, seen: Params, base: Any, labels: Sequence[str]) -> None:
    peft.write_adapter(
        folder,
        prepared.network,
        prepared.lora,
        seen,
        base,
        model_name=prepared.model_name,
        tokenizer=prepared.tokenizer,
        labels=labels,
    )


@dataclass(frozen=True)
class Reopened:
    """A finished run, loaded again."""

    prepared: Prepared
    directory: RunDirectory
    labels: tuple[str, ...]
    simulation: Simulation
    rounds: int

    def model(self, client: str | None) -> tuple[Params, Any]:
        """What the network sees for a client by id, or for a newcomer. Raises :class:`ConfigError`."""
        if client is None:
            return self.simulation.newcomer(self.rounds)
        known = self.directory.read("partition.json")["clients"]
        if client not in known:
            near = difflib.get_close_matches(client, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(list(known)[:10])}"
            raise ConfigError([Problem("--client", f"no client {client!r}; {hint}")])
        try:
            found = known[client]
            return self.simulation.model(Client(client, found["train"], found.get("rank")), self.rounds)
        except (OSError, ValueError) as error:
            words = f"what client {client!r} keeps cannot be read: {error}"
            raise ConfigError([Problem("RUN_DIR", words)]) from None


def reopen(
    run_dir: str | Path, population: Population | None = None, device: str = "auto", *, exact: bool = False
) -> Reopened:
    """Load a run's model and state from its directory; ``exact``: in float32 even if it was trained otherwise. Raises
    :class:`ConfigError`."""
    directory = RunDirectory.open(run_dir)
    config = directory.config()
    if exact:
        config = config.model_copy(update={"train": config.train.model_copy(update={"precision": "exact"})})
    labels = _manifest_labels(directory)
    algorithm = make_algorithm(config)
    prepared = prepare(config, algorithm, find_device(device), look(config, labels, algorithm))
    members = population or Population({}, (), {})
    simulation = prepared.simulation(members)
    try:
        point, _ = checkpoint.load(directory.checkpoint, simulation.state)
    except (OSError, ValueError, KeyError) as error:
        words = f"its checkpoint cannot be read: {error}"
        raise ConfigError([Problem("RUN_DIR", words)]) from None
    simulation.state, simulation.locals = point.state, point.locals
    return Reopened(prepared, directory, labels, simulation, point.rounds)


def _manifest_labels(directory: RunDirectory) -> tuple[str, ...]:
    labels = directory.read("manifest.json").get("labels")
    if not isinstance(labels, list):
        raise ConfigError([Problem("RUN_DIR", "manifest.json has no labels: it is not one that a run has written")])
    return tuple(map(str, labels))
