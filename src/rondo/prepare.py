"""From a configuration to everything loaded: model, adapters, head policy, task. Where a run, an export and an
evaluation start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo import algorithms, peft
from rondo.algorithm import Algorithm, HeadPolicy
from rondo.config import ConfigError, Problem, RunConfig, ServerConfig
from rondo.engine.cohort import one_cohort
from rondo.engine.population import Population
from rondo.engine.simulation import Simulation
from rondo.head import LocalHead
from rondo.importing import collector_paused
from rondo.kernels import Kernels, apply, choose
from rondo.model import Network
from rondo.params import HEAD_PREFIX, Params
from rondo.pooled import AllTokensMatter, first_token_only
from rondo.prefix import Prefix, PrefixRefused
from rondo.pretrained import fingerprint, load_pretrained
from rondo.robust import MEANS, Robust
from rondo.schema import RULES
from rondo.server_optim import OPTIMIZERS, ServerOptimizer
from rondo.server_step import ServerStep
from rondo.structure import Structure, adapters, loading, model_name
from rondo.tasks import CausalLM, Example, Task
from rondo.tasks.output import LogitsNeeded, split_off


@dataclass(frozen=True)
class Shortened:
    """The layers that are computed once an example, or why none are; why all tokens are computed to the end, if they
    are; and why they all have logits, if they have."""

    prefix: Prefix | None
    no_prefix: str | None
    all_tokens: str | None
    all_logits: str | None

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        layers = self.prefix.layers if self.prefix is not None else 0
        return {
            "prefix": {"layers": layers, "reason": self.no_prefix},
            "first_token_only": {"on": self.all_tokens is None, "reason": self.all_tokens},
            "targets_only": {"on": self.all_logits is None, "reason": self.all_logits},
        }


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


_LOOKED_AT = 256
"""Rows of which two are chosen to try a shortened model on."""
_TRIED_TOKENS = 64
"""Their length at most where all tokens have logits, which for longer rows would be what a whole run needs most memory
for. A classifier's rows stay whole: their ends may be what it reads."""


def _telling(examples: Sequence[Example], *, cut: bool) -> tuple[Example, ...]:
    """The longest and the shortest of these: several tokens, of which the first is not the last, and padding. ``cut``:
    to ``_TRIED_TOKENS``, and to half as many."""
    if not examples:
        return ()
    by_length = sorted(examples, key=lambda e: e.length)
    longest, shortest = by_length[-1], by_length[0]
    if cut:
        longest, shortest = _cut(longest, _TRIED_TOKENS), _cut(shortest, _TRIED_TOKENS // 2)
    return (longest,) if longest == shortest else (longest, shortest)


def _cut(example: Example, size: int) -> Example:
    target, segments = example.target, example.segments
    return Example(
        example.ids[:size],
        target[:size] if isinstance(target, tuple) else target,
        None if segments is None else segments[:size],
    )


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


def make_algorithm(config: RunConfig) -> Algorithm[Any]:
    """The algorithm, without a head policy or a server optimizer. Raises :class:`ConfigError`, also for options of the
    run that this algorithm does not define."""
    try:
        algorithm = algorithms.get(config.algorithm.name, **config.algorithm.fields)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError([Problem("algorithm.name", str(error))]) from None
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem("algorithm", str(error))]) from None
    problems = list(_refused(config, algorithm))
    if problems:
        raise ConfigError(problems)
    return algorithm


def _refused(config: RunConfig, algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """Options of the run that ``algorithm`` does not define, with the reason."""
    name = config.algorithm.name
    for key in ("ranks", "bytes_budget"):
        if getattr(config.clients, key) is not None and not algorithm.client_ranks:
            others = ", ".join(n for n in algorithms.names() if algorithms.load(n).client_ranks)
            words = f"{name} does not define clients of different ranks; remove {key}, or take one of {others}"
            yield Problem(f"clients.{key}", words)
    rule = config.robust.rule
    if rule in MEANS and not algorithm.linear:
        words = f"{rule} makes a mean of uploads, and {name}'s server works on single ones; "
        yield Problem("robust.rule", f"{words}take {', '.join(r for r in RULES if r not in MEANS)}, or a linear method")
    if config.server.optimizer == "none":
        return
    if not algorithm.linear:
        words = f"{name} is not linear: its server works on single uploads, so there is no mean to step towards; "
        yield Problem("server.optimizer", words + 'set it to "none", or take a linear method (rondo list)')
    elif not algorithm.same_coordinates:
        words = f"{name}'s server puts what it gets into other coordinates than what it sent, so the difference is no "
        words += 'direction to step in; set it to "none", or take another linear method (rondo list)'
        yield Problem("server.optimizer", words)


def _server_optimizer(config: ServerConfig) -> ServerOptimizer:
    options = config.model_dump(exclude={"optimizer"}, exclude_none=True)
    return OPTIMIZERS[config.optimizer](**options)


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
