"""The Python API: run, export and evaluate. The command line is a thin layer over these functions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo import algorithms, peft
from rondo.algorithm import Algorithm, Client, HeadPolicy
from rondo.config import BUILTIN_MODEL, ConfigError, Problem, RunConfig, load
from rondo.data.loading import Source, label_names
from rondo.data.loading import load as load_source
from rondo.engine import checkpoint
from rondo.engine.evaluate import scores, spread
from rondo.engine.population import Population, build
from rondo.engine.simulation import Observer, RunStopped, Simulation
from rondo.head import LocalHead
from rondo.model import Network, fingerprint, load_pretrained
from rondo.params import HEAD_PREFIX, Params, add_client_axis
from rondo.record import RunDirectory, environment
from rondo.report import pictures
from rondo.tasks import CausalLM, SequenceClassification, Task


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``history``: one dict a round (as in ``metrics.jsonl``); ``metrics``: the final scores by kind
    ("global", or "cold_start" and "personal"; "clients"); ``summary``: all that the final table shows."""

    history: list[dict[str, Any]]
    run_dir: Path
    metrics: dict[str, Any]
    summary: dict[str, Any]


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
    model_name: str
    model_hash: str

    def simulation(self, population: Population) -> Simulation:
        """A simulation over ``population``, at its start."""
        return Simulation(self.algorithm, self.network, self.task, population, self.config, self.initial)


def run(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    sets: Sequence[str] = (),
    run_dir: str | Path | None = None,
    device: str = "auto",
    observer: Observer | None = None,
) -> RunResult:
    """Run a whole federated fine-tuning and write its run directory.

    ``config``: a path, a dict or a :class:`RunConfig`; ``sets``: ``key.path=value`` overrides; ``device``: "auto",
    "cpu" or "cuda". Raises :class:`ConfigError` for anything the user must mend, before training starts, and
    :class:`rondo.engine.simulation.RunStopped` where a round keeps failing.
    """
    began = time.perf_counter()
    settings = load(config, sets)
    algorithm = _algorithm(settings)
    target = _device(device)
    source = load_source(settings)
    settings = _with_columns(settings, source)
    labels = _labels(settings, source)
    prepared = prepare(settings, labels, algorithm, target)
    population = build(settings, source, prepared.task, settings.task.label, labels)
    _check_population(settings, population)
    directory = RunDirectory.create(run_dir, settings.algorithm.name)
    directory.write_config(settings)
    directory.write("manifest.json", _manifest(prepared, labels, target))
    directory.write("partition.json", population.report)
    pictures.partition(population.report, directory.path / "partition.png")
    return _Runner(prepared, population, directory, labels, observer, began).run()


class _Runner:
    """The rounds of a run, and what is written as they pass."""

    def __init__(
        self,
        prepared: Prepared,
        population: Population,
        directory: RunDirectory,
        labels: Sequence[str],
        observer: Observer | None,
        began: float,
    ) -> None:
        self.prepared, self.population, self.directory = prepared, population, directory
        self.labels, self.observer, self.began = labels, observer, began
        self.simulation = prepared.simulation(population)
        self.history: list[dict[str, Any]] = []

    def run(self) -> RunResult:
        config = self.prepared.config
        before = self.simulation.score_newcomer(0)
        try:
            for index in range(config.rounds):
                self._round(index)
        except RunStopped as stopped:
            if self.history:
                self._write_adapter()
            raise RunStopped(f"{stopped}. What was done so far is in {self.directory.path}") from None
        after: dict[str, Any] = self.history[-1]["scores"]
        self._write_adapter()
        summary = self._summary(before, after)
        self.directory.write("summary.json", summary)
        metric = self.prepared.task.primary
        start: Mapping[str, Any] = next(iter(before.values()), {})
        title = f"{config.algorithm.name}, {len(self.population.members)} clients"
        pictures.curve(start, self.history, metric, title, self.directory.path / "curve.png")
        return RunResult(self.history, self.directory.path, after, summary)

    def _round(self, index: int) -> None:
        config, simulation = self.prepared.config, self.simulation
        started = time.perf_counter()
        record, changed = simulation.run_round(index, self.observer)
        last = index == config.rounds - 1
        found: dict[str, Any] = {}
        if last or _due(index, config.evaluation.every):
            found |= simulation.score_newcomer(index + 1)
        if last or _due(index, config.evaluation.clients_every):
            found |= simulation.score_clients(index + 1)
        record["scores"] = found
        record["seconds"] = time.perf_counter() - started
        point = checkpoint.Checkpoint(index + 1, simulation.state, simulation.locals)
        checkpoint.save(self.directory.checkpoint, point, changed)
        self.directory.add_round(record)
        self.history.append(record)
        if self.observer is not None:
            self.observer.round_done(record)

    def _write_adapter(self) -> None:
        seen, base = self.simulation.newcomer(self.prepared.config.rounds)
        _write(self.prepared, self.directory.adapter, seen, base, self.labels)

    def _summary(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        history, config = self.history, self.prepared.config
        exchanges = max(1, sum(r["sampled"] for r in history))
        up, down = (sum(r[key] for r in history) for key in ("bytes_up", "bytes_down"))
        first = sum(r["bytes_first_contact"] for r in history)
        summary = {
            "algorithm": config.algorithm.name,
            "rounds": len(history),
            "clients": len(self.population.members),
            "primary": self.prepared.task.primary,
            "head": self.prepared.head,
            "before": dict(before),
            "after": dict(after),
            "bytes": {
                "up": up,
                "down": down,
                "first_contact": first,
                "up_per_client_round": up / exchanges,
                "down_per_client_round": (down - first) / exchanges,
            },
            "failed_clients": sum(len(r["failed"]) for r in history),
        }
        if config.evaluation.local_only:
            summary["local_only"] = self._local_only()
        summary["seconds"] = {
            "train": sum(r["train_seconds"] for r in history),
            "all": time.perf_counter() - self.began,
        }
        return summary

    def _local_only(self) -> dict[str, Any]:
        """The same algorithm and rounds with each client on its own: a federation of one, scored at its end."""
        rounds, task = self.prepared.config.rounds, self.prepared.task
        own: dict[str, Any] = {}
        test: dict[str, Any] = {}
        settings = self.prepared.config.clients.model_copy(
            update={"per_round": None, "sampling": "full", "min_clients": 1}
        )
        alone_config = self.prepared.config.model_copy(update={"clients": settings})
        for name, member in self.population.members.items():
            alone = Simulation(
                self.prepared.algorithm,
                self.prepared.network,
                task,
                replace(self.population, members={name: member}),
                alone_config,
                self.prepared.initial,
            )
            for index in range(rounds):
                alone.run_round(index)
            seen, base = alone.model(member.client, rounds)
            for target, examples in ((own, member.validation), (test, self.population.test)):
                if examples:
                    target[name] = alone.scores(seen, base, examples)
        metric, higher = task.primary, task.higher_is_better
        return {
            "own": spread(own, metric, higher_is_better=higher),
            "test": spread(test, metric, higher_is_better=higher) if test else None,
        }


def _due(index: int, every: int) -> bool:
    return every > 0 and (index + 1) % every == 0


def prepare(config: RunConfig, labels: Sequence[str], algorithm: Algorithm[Any], device: torch.device) -> Prepared:
    """Load the model, find where adapters go, and settle the head policy. Raises :class:`ConfigError`."""
    kind = config.task.kind
    name, module, tokenizer, head_names = _load_model(config, labels, config.seed)
    module_hash = fingerprint(module)
    task_type = "SEQ_CLS" if kind == "sequence-classification" else "CAUSAL_LM"
    planned = peft.plan(module, config.adapter, task_type, head_names, config.seed)  # type: ignore[arg-type]
    network = Network(module.to(device), planned.sites, head_names)
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
    task = _task(config, tokenizer, labels)
    return Prepared(config, algorithm, policy, network, task, tokenizer, planned.lora, initial, name, module_hash)


def _load_model(config: RunConfig, labels: Sequence[str], seed: int) -> tuple[str, Any, Any, tuple[str, ...]]:
    """The resolved name, the module, its tokenizer and its head's tensor names."""
    model = config.model
    name = model.name
    if name == BUILTIN_MODEL:
        from rondo.data.homes import minilm_path

        try:
            name = minilm_path()
        except ImportError as error:
            raise ConfigError([Problem("model.name", str(error))]) from None
    try:
        module, tokenizer, head = load_pretrained(
            config.task.kind,
            name,
            seed=seed,
            labels=labels,
            revision=model.revision,
            gguf_file=model.gguf_file,
            quantization=model.quantization,
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError([Problem("model.name", f"{model.name!r} cannot be loaded: {reason}")]) from None
    return name, module, tokenizer, head


def _task(config: RunConfig, tokenizer: Any, labels: Sequence[str]) -> Task:
    task = config.task
    if task.kind == "sequence-classification":
        columns = [task.text] if isinstance(task.text, str) else list(task.text or ())
        return SequenceClassification(tokenizer, columns, task.label or "", labels, task.max_length)
    text = task.text if isinstance(task.text, str) else None
    prompt = [task.prompt] if isinstance(task.prompt, str) else list(task.prompt or ())
    return CausalLM(tokenizer, text, prompt, task.response, task.max_length)


def _algorithm(config: RunConfig) -> Algorithm[Any]:
    try:
        return algorithms.get(config.algorithm.name, **config.algorithm.fields)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError([Problem("algorithm.name", str(error))]) from None
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem("algorithm", str(error))]) from None


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError([Problem("--device", "there is no CUDA device here; use auto or cpu")])
    if name not in ("cpu", "cuda"):
        raise ConfigError([Problem("--device", f"{name!r} is unknown; use auto, cpu or cuda")])
    return torch.device(name)


def _with_columns(config: RunConfig, source: Source) -> RunConfig:
    """Columns that the user left open and the data know."""
    if config.task.kind != "sequence-classification":
        return config
    known = {"text": config.task.text or source.text, "label": config.task.label or source.label}
    return config.model_copy(update={"task": config.task.model_copy(update=known)})


def _labels(config: RunConfig, source: Source) -> tuple[str, ...]:
    """Label names, from all rows that will be used. Raises :class:`ConfigError` where there are not two."""
    if config.task.kind != "sequence-classification":
        return ()
    rows = source.train if source.train is not None else [r for rs in (source.clients or {}).values() for r in rs]
    column = config.task.label or ""
    if rows and all(column not in r for r in rows):
        there = ", ".join(map(str, rows[0]))
        raise ConfigError([Problem("task.label", f"no column {column!r}; there are: {there}")])
    names = label_names(rows, column)
    if len(names) < 2:
        raise ConfigError([Problem("task.label", f"column {column!r} has {len(names)} distinct labels; it needs two")])
    if len(names) > 1000:
        words = f"column {column!r} has {len(names)} distinct values; is it the label?"
        raise ConfigError([Problem("task.label", words)])
    return names


def _check_population(config: RunConfig, population: Population) -> None:
    count, wanted = len(population.members), config.clients.per_round
    if wanted is not None and wanted > count:
        raise ConfigError([Problem("clients.per_round", f"{wanted}, but there are only {count} clients")])
    if config.clients.min_clients > count:
        raise ConfigError(
            [Problem("clients.min_clients", f"{config.clients.min_clients}, but there are {count} clients")]
        )


def _manifest(prepared: Prepared, labels: Sequence[str], device: torch.device) -> dict[str, Any]:
    config, network = prepared.config, prepared.network
    return {
        **environment(),
        "seed": config.seed,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "precision": config.train.precision,
        "algorithm": config.algorithm.name,
        "linear": prepared.algorithm.linear,
        "personal": prepared.algorithm.personal,
        "model": prepared.model_name,
        "model_sha256": prepared.model_hash,
        "head": prepared.head,
        "labels": list(labels),
        "adapted_modules": {s.path: {"rank": s.rank, "scale": s.scale} for s in network.sites.values()},
    }


def _write(prepared: Prepared, folder: Path, seen: Params, base: Any, labels: Sequence[str]) -> None:
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
            import difflib

            near = difflib.get_close_matches(client, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(list(known)[:10])}"
            raise ConfigError([Problem("--client", f"no client {client!r}; {hint}")])
        return self.simulation.model(Client(client, known[client]["train"]), self.rounds)


def reopen(run_dir: str | Path, population: Population | None = None, device: str = "auto") -> Reopened:
    """Load a run's model and state from its directory. Raises :class:`ConfigError`."""
    directory = RunDirectory.open(run_dir)
    config = directory.config()
    labels = tuple(directory.read("manifest.json")["labels"])
    prepared = prepare(config, labels, _algorithm(config), _device(device))
    members = population or Population({}, (), {})
    simulation = prepared.simulation(members)
    try:
        point = checkpoint.load(directory.checkpoint, simulation.state)
    except (OSError, ValueError, KeyError) as error:
        words = f"its checkpoint cannot be read: {error}"
        raise ConfigError([Problem("RUN_DIR", words)]) from None
    simulation.state, simulation.locals = point.state, dict(point.locals)
    return Reopened(prepared, directory, labels, simulation, point.rounds)


@dataclass(frozen=True)
class Verification:
    """Logits of Rondo's network and of stock PEFT on the same texts: the largest difference, and the largest logit."""

    max_difference: float
    largest: float
    tolerance: float = 1e-4

    @property
    def passed(self) -> bool:
        """Whether the difference is within ``tolerance`` of the largest logit (float32 rounding)."""
        return self.max_difference <= self.tolerance * max(1.0, self.largest)


def export(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None = None,
    merged: bool = False,
    verify: bool = False,
) -> Verification | None:
    """Write a run's result to ``to`` as a PEFT adapter, or ``merged`` into a whole model.

    ``client``: that client's model (for personal methods), else the global or cold-start one. With ``verify`` it is
    loaded again by stock libraries and its logits are compared. Raises :class:`ConfigError`.
    """
    opened = reopen(run_dir, device="cpu")
    seen, base = opened.model(client)
    to = Path(to)
    if to.exists() and any(to.iterdir()):
        raise ConfigError([Problem("--to", f"{str(to)!r} is not empty; name another folder")])
    adapter = to if not merged else to / "adapter"
    _write(opened.prepared, adapter, seen, base, opened.labels)
    if merged:
        _, module, tokenizer, _ = _load_model(opened.prepared.config, opened.labels, opened.prepared.config.seed + 1)
        peft.merged(module, adapter).save_pretrained(str(to))  # type: ignore[operator]
        tokenizer.save_pretrained(str(to))
        (adapter / "README.md").unlink(missing_ok=True)
    return _verify(opened, seen, base, to, merged) if verify else None


_TEXTS = (
    "Turn on the lights in the kitchen.",
    "The film is a charming and often affecting journey.",
    "No weapons of mass destruction were found.",
    "What is the capital of France?",
    "It rains; it pours, and nobody minds.",
    "A",
)


@torch.no_grad()
def _verify(opened: Reopened, seen: Params, base: Any, folder: Path, merged: bool) -> Verification:
    """Load ``folder`` with transformers and peft only. The base model is drawn with another seed, so that a head that
    was not saved would show."""
    import transformers

    prepared = opened.prepared
    config = prepared.config
    tokenizer = prepared.tokenizer
    batch = dict(tokenizer(list(_TEXTS), padding=True, return_tensors="pt"))
    ours = prepared.network(add_client_axis(seen), base, batch).logits
    if merged:
        auto = transformers.AutoModelForCausalLM
        if config.task.kind == "sequence-classification":
            auto = transformers.AutoModelForSequenceClassification
        stock = auto.from_pretrained(str(folder)).eval()
    else:
        _, module, _, _ = _load_model(config, opened.labels, config.seed + 1)
        stock = peft.stock_model(module, folder)
    theirs = stock(**batch).logits
    mask = torch.ones_like(ours, dtype=torch.bool)
    if ours.dim() == 3:  # positions of padding mean nothing
        mask = batch["attention_mask"].bool()[:, :, None].expand_as(ours)
    difference = float((ours - theirs).abs()[mask].max())
    return Verification(difference, float(ours.abs()[mask].max()))


def evaluate(path: str | Path, *, client: str | None = None, device: str = "auto") -> dict[str, Any]:
    """Scores of a run directory, or of a PEFT adapter inside or exported from one.

    A run: the newcomer's model on the test set, or with ``client`` that client's model on the test set and on its own
    validation rows. Raises :class:`ConfigError`.
    """
    path = Path(path)
    is_adapter = (path / "adapter_config.json").is_file()
    directory = RunDirectory.open(path.parent if is_adapter and not (path / "config.toml").is_file() else path)
    config = directory.config()
    source = load_source(config)
    labels = tuple(directory.read("manifest.json")["labels"])
    if is_adapter:
        if client is not None:
            raise ConfigError([Problem("--client", "an adapter folder has one model; name the run directory instead")])
        adapter = config.adapter.model_copy(update={"start_from": str(path)})
        config = config.model_copy(update={"adapter": adapter})
        prepared = prepare(config, labels, _algorithm(config), _device(device))
        population = build(config, source, prepared.task, config.task.label, labels)
        seen: Params = {**prepared.network.initial_head, **prepared.initial}
        return {"test": _scored(prepared, seen, {}, population.test)}
    opened = reopen(path, device=device)
    population = build(config, source, opened.prepared.task, config.task.label, labels)
    seen, base = opened.model(client)
    result = {"test": _scored(opened.prepared, seen, base, population.test)}
    if client is not None:
        result["validation"] = _scored(opened.prepared, seen, base, population.members[client].validation)
    return result


def _scored(prepared: Prepared, seen: Params, base: Any, examples: Any) -> dict[str, Any]:
    device = prepared.network.device
    there = {n: t.to(device) for n, t in seen.items()}
    size, precision = prepared.config.evaluation.batch_size, prepared.config.train.precision
    return scores(prepared.network, prepared.task, there, base, examples, batch_size=size, precision=precision)
