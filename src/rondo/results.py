"""A finished run, used again: exported as a stock PEFT adapter or a merged model, verified, evaluated."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rondo import peft
from rondo.algorithm import Client
from rondo.config import ConfigError, Problem, load
from rondo.data.dealing import deal_rows
from rondo.data.loading import load as load_source
from rondo.engine import checkpoint
from rondo.engine.evaluate import scores
from rondo.engine.population import Population, build
from rondo.engine.simulation import Simulation
from rondo.params import Params, add_client_axis
from rondo.prepare import Prepared, find_device, load_model, make_algorithm, prepare, write_adapter
from rondo.record import RunDirectory, to_toml
from rondo.structure import look


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


@dataclass(frozen=True)
class Exported:
    """What was written: the largest rank of its layers, what truncation lost (of the change's Frobenius norm; 0 where
    nothing was truncated), and how it compared, if it was verified."""

    rank: int
    relative_error: float
    verification: Verification | None


def export(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None = None,
    merged: bool = False,
    rank: int | None = None,
    verify: bool = False,
) -> Exported:
    """Write a run's result to ``to`` as a PEFT adapter, or ``merged`` into a whole model.

    ``client``: that client's model (for personal methods), else the global or cold-start one. ``rank``: truncate to it;
    else the adapter has the rank that it needs, which for methods that change the base is above the run's. With
    ``verify`` it is loaded again by stock libraries and its logits are compared. Raises :class:`ConfigError`.
    """
    if rank is not None and rank < 1:
        raise ConfigError([Problem("--rank", f"must be at least 1, got {rank}")])
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        what = "is not empty" if to.is_dir() else "is not a folder"
        raise ConfigError([Problem("--to", f"{str(to)!r} {what}; name another folder")])
    if merged and RunDirectory.open(run_dir).config().model.quantization is not None:
        words = "the base is int8, and merging would round the adapter away with it; export the adapter alone"
        raise ConfigError([Problem("--merged", words)])
    # Stock libraries load the model in float32, so that is what their logits are compared with.
    opened = reopen(run_dir, device="cpu", exact=True)
    seen, base = opened.model(client)
    error = 0.0
    sites = tuple(opened.prepared.network.sites.values())
    if rank is not None:
        seen, error = peft.truncated(sites, seen, base, rank)
        base = {}
    adapter = to if not merged else to / "adapter"
    write_adapter(opened.prepared, adapter, seen, base, opened.labels)
    (adapter / "rondo.toml").write_text(to_toml(opened.directory.config()))
    if merged:
        prepared = opened.prepared
        config = prepared.config
        module, _ = load_model(config, prepared.model_config, prepared.tokenizer, config.seed + 1)
        peft.merged(module, adapter).save_pretrained(str(to))  # type: ignore[operator]
        prepared.tokenizer.save_pretrained(str(to))
        (adapter / "README.md").unlink(missing_ok=True)
    ranks = [a.shape[0] for a, _, _ in peft.adapter_factors(sites, seen, base).values()]
    return Exported(max(ranks), error, _verify(opened, seen, base, to, merged) if verify else None)


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
        module, _ = load_model(config, prepared.model_config, tokenizer, config.seed + 1)
        stock = peft.stock_model(module, folder)
    theirs = stock(**batch).logits
    mask = torch.ones_like(ours, dtype=torch.bool)
    if ours.dim() == 3:  # positions of padding mean nothing
        mask = batch["attention_mask"].bool()[:, :, None].expand_as(ours)
    difference = float((ours - theirs).abs()[mask].max())
    return Verification(difference, float(ours.abs()[mask].max()))


def evaluate(path: str | Path, *, client: str | None = None, device: str = "auto") -> dict[str, Any]:
    """Scores of a run directory, or of a PEFT adapter inside or exported from one, on the run's test set.

    A run: the newcomer's model, or with ``client`` that client's, which is also scored on its own validation rows.
    Raises :class:`ConfigError`.
    """
    path = Path(path)
    if (path / "adapter_config.json").is_file():
        if client is not None:
            raise ConfigError([Problem("--client", "an adapter folder has one model; name the run directory instead")])
        return _evaluate_adapter(path, device)
    opened = reopen(path, device=device)
    config = opened.prepared.config
    seen, base = opened.model(client)
    population = build(config, deal_rows(config, load_source(config), opened.labels), opened.prepared.task)
    opened.prepared.shorten(population)  # computed as in the run, so that the same bits come out
    result = {"test": _scored(opened.prepared, seen, base, population.test)}
    if client is not None:
        result["validation"] = _scored(opened.prepared, seen, base, population.members[client].validation)
    return result


def _evaluate_adapter(path: Path, device: str) -> dict[str, Any]:
    """The adapter in ``path``, on the data that the configuration in it, or in the run around it, names."""
    beside = [f for f in (path / "rondo.toml", path.parent / "config.toml") if f.is_file()]
    if not beside:
        words = f"{str(path)!r} does not say what to score it on: it has no rondo.toml (rondo export writes one)"
        raise ConfigError([Problem("ADAPTER_DIR", words)])
    config = load(beside[0])
    labels: tuple[str, ...] = ()
    if config.task.kind == "sequence-classification":
        labels = tuple(RunDirectory(path).read("labels.json"))
    adapter = config.adapter.model_copy(update={"start_from": str(path)})
    config = config.model_copy(update={"adapter": adapter})
    algorithm, target = make_algorithm(config), find_device(device)
    dealt = deal_rows(config, load_source(config), labels)
    structure = look(config, labels, algorithm)
    population = build(config, dealt, structure.task)
    prepared = prepare(config, algorithm, target, structure)
    prepared.shorten(population)
    seen: Params = {**prepared.network.initial_head, **prepared.initial}
    return {"test": _scored(prepared, seen, {}, population.test)}


def _scored(prepared: Prepared, seen: Params, base: Any, examples: Any) -> dict[str, Any]:
    device = prepared.network.device
    there = {n: t.to(device) for n, t in seen.items()}
    size = prepared.config.evaluation.batch_size
    return scores(prepared.network, prepared.task, there, base, examples, batch_size=size)
