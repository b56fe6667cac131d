"""From a configuration to everything loaded: model, adapters, head policy, task. Where a run, an export and an
evaluation start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from rondo import algorithms, peft
from rondo.algorithm import Algorithm, HeadPolicy
from rondo.config import BUILTIN_MODEL, ConfigError, Problem, RunConfig, ServerConfig
from rondo.engine.population import Population
from rondo.engine.ranks import client_ranks, upload_bytes
from rondo.engine.simulation import Simulation
from rondo.head import LocalHead
from rondo.importing import collector_paused
from rondo.kernels import Kernels, apply, choose
from rondo.model import Network
from rondo.params import HEAD_PREFIX, Params
from rondo.pooled import AllTokensMatter, first_token_only
from rondo.prefix import Prefix, PrefixRefused
from rondo.pretrained import fingerprint, load_pretrained, load_structure, load_tokenizer
from rondo.robust import MEANS, Robust
from rondo.schema import RULES
from rondo.server_optim import OPTIMIZERS, ServerOptimizer
from rondo.server_step import ServerStep
from rondo.tasks import CausalLM, SequenceClassification, Task


@dataclass(frozen=True)
class Shortened:
    """The layers that are computed once an example, or why none are; and why all tokens are computed to the end, if
    they are."""

    prefix: Prefix | None
    no_prefix: str | None
    all_tokens: str | None

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        layers = self.prefix.layers if self.prefix is not None else 0
        return {
            "prefix": {"layers": layers, "reason": self.no_prefix},
            "first_token_only": {"on": self.all_tokens is None, "reason": self.all_tokens},
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
    model_hash: str

    def simulation(self, population: Population) -> Simulation:
        """A simulation over ``population``, at its start."""
        return Simulation(self.algorithm, self.network, self.task, population, self.config, self.initial)

    def ranks(self, count: int) -> tuple[int, ...] | None:
        """The ranks of ``count`` clients, in the order of their ids, where they have ranks of their own. Raises
        :class:`ConfigError`."""

        def size(rank: int) -> int:
            return upload_bytes(self.algorithm, self.initial, self.network.weights(), self.config.rounds, rank)

        return client_ranks(self.config, count, max(s.rank for s in self.network.sites.values()), size)

    def shorten(self, population: Population) -> Shortened:
        """Leave out what need not be computed: all but the first token at the end, where only that is read, and the
        layers below the lowest adapted one, which are computed once an example."""
        examples = population.sample(4)
        if not examples:
            return Shortened(None, "there is nothing to train on", "there is nothing to train on")
        device = self.network.device
        seen = {n: t.to(device) for n, t in {**self.network.initial_head, **self.initial}.items()}
        inputs = {n: t.to(device) for n, t in self.task.collate(examples)[0].items()}
        all_tokens = prefix = no_prefix = None
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
        return Shortened(prefix, no_prefix, all_tokens)


def prepare(config: RunConfig, labels: Sequence[str], algorithm: Algorithm[Any], device: torch.device) -> Prepared:
    """Load the model, find where adapters go, and settle the head policy. Raises :class:`ConfigError`; what the model's
    structure does not allow is found before its weights are loaded."""
    name = model_name(config)
    with collector_paused():  # transformers and PEFT are imported by the first of these
        tokenizer = _check_structure(config, name, labels)
        module, head_names = load_model(config, tokenizer, labels, config.seed)
        planned = _plan(config, module, head_names)
    module_hash = fingerprint(module)
    kernels = choose(config.train.precision, device, quantized=config.model.quantization is not None)
    network = Network(module.to(device), planned.sites, head_names)
    apply(module, kernels)
    for tensor_name in network.initial_head:
        if tensor_name in planned.params:
            network.initial_head[tensor_name] = planned.params[tensor_name]
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
    task = _task(config, tokenizer, labels)
    return Prepared(
        config, algorithm, policy, network, task, tokenizer, planned.lora, initial, kernels, name, module_hash
    )


def _check_structure(config: RunConfig, name: str, labels: Sequence[str]) -> Any:
    """The tokenizer, after a look at the model without its weights. Raises :class:`ConfigError` with all that its
    layers and sizes do not allow."""
    model, problems = config.model, []
    wanted = model.gguf_file or "config.json"
    if Path(name).is_dir() and not Path(name, wanted).is_file():
        key = "model.name" if model.gguf_file is None else "model.gguf_file"
        raise ConfigError([Problem(key, f"no {wanted} in {model.name!r}: name what has the model")])
    with _loading(config, "it"):
        empty, head_names = load_structure(
            config.task.kind, name, labels=labels, revision=model.revision, gguf_file=model.gguf_file
        )
    with _loading(config, "its tokenizer"):
        tokenizer = load_tokenizer(name, revision=model.revision, gguf_file=model.gguf_file)
    limit = _longest(empty, tokenizer)
    if config.task.max_length > limit:
        words = f"{config.task.max_length}, but this model takes {limit} tokens: lower it to {limit}"
        problems.append(Problem("task.max_length", words))
    embedded = int(empty.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if len(tokenizer) > embedded:
        words = f"its tokenizer has {len(tokenizer)} tokens and its embedding only {embedded}: is it another model's?"
        problems.append(Problem("model.name", words))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again with the model itself
            _plan(config, empty, head_names)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tokenizer


def _plan(config: RunConfig, module: Any, head_names: Sequence[str]) -> peft.Plan:
    task_type: peft.TaskType = "SEQ_CLS" if config.task.kind == "sequence-classification" else "CAUSAL_LM"
    return peft.plan(module, config.adapter, task_type, head_names, config.seed)


def _longest(module: Any, tokenizer: Any) -> int:
    """The most tokens that the model's positions allow (the tokenizer knows of padding offsets, as RoBERTa's)."""
    positions = getattr(module.config, "max_position_embeddings", None)
    return min(int(tokenizer.model_max_length), int(positions) if positions else int(tokenizer.model_max_length))


def model_name(config: RunConfig) -> str:
    """Where the model is: a folder, or a name on a hub. Raises :class:`ConfigError`."""
    name = config.model.name
    if name != BUILTIN_MODEL:
        return name if not name.startswith("~") else str(Path(name).expanduser())
    from rondo.data.homes import minilm_path

    try:
        return minilm_path()
    except ImportError as error:
        raise ConfigError([Problem("model.name", str(error))]) from None


def load_model(config: RunConfig, tokenizer: Any, labels: Sequence[str], seed: int) -> tuple[Any, tuple[str, ...]]:
    """The module and its head's tensor names. Raises :class:`ConfigError`."""
    model = config.model
    with _loading(config, "its weights"):
        return load_pretrained(
            config.task.kind,
            model_name(config),
            tokenizer,
            seed=seed,
            labels=labels,
            revision=model.revision,
            gguf_file=model.gguf_file,
            quantization=model.quantization,
        )


@contextmanager
def _loading(config: RunConfig, part: str) -> Iterator[None]:
    """What libraries say of a model of which they cannot load a part, as a :class:`ConfigError`."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".:")
        words = f"{config.model.name!r}: {part} cannot be loaded: {reason}; name another, or save it there anew"
        raise ConfigError([Problem("model.name", words)]) from None


def _task(config: RunConfig, tokenizer: Any, labels: Sequence[str]) -> Task:
    task = config.task
    if task.kind == "sequence-classification":
        columns = [task.text] if isinstance(task.text, str) else list(task.text or ())
        return SequenceClassification(tokenizer, columns, task.label or "", labels, task.max_length)
    text = task.text if isinstance(task.text, str) else None
    prompt = [task.prompt] if isinstance(task.prompt, str) else list(task.prompt or ())
    return CausalLM(tokenizer, text, prompt, task.response, task.max_length)


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
