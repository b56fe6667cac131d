"""A finished run as a stock PEFT adapter or a merged model, verified by stock libraries."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from rondo.config import task_kinds as tasks
from rondo.errors import ConfigError, RunStopped, headed
from rondo.models.forms.model import Form
from rondo.models.forms.module import WEIGHTS, WholeModel
from rondo.models.forms.transformer import Transformer, load_base
from rondo.models.kernels.quiet import quiet
from rondo.models.loading import peft, result_factors
from rondo.models.loading.merged import merge_adapter
from rondo.models.loading.pretrained import auto
from rondo.models.networks.call import output_of
from rondo.models.networks.network import Base
from rondo.params import Params, add_client_axis
from rondo.results.reopen import Reopened, reopen
from rondo.runs.assemble import assemble
from rondo.runs.card import Facts, card, describe, save
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory
from rondo.tasks.language.language_model import IGNORED
from rondo.tasks.language.pair_store import PairExample
from rondo.tasks.language.seq2seq_lm import Seq2SeqLM
from rondo.tasks.task import Batch


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
    """The result of an export.

    ``rank``: the largest rank of its layers; 0 for a whole model.
    ``relative_error``: the share of the change's Frobenius norm lost by truncation, 0 without.
    ``verification``: None if it was not verified.
    """

    rank: int
    relative_error: float
    verification: Verification | None


@headed("rondo export")
def export(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None = None,
    merged: bool = False,
    rank: int | None = None,
    verify: bool = False,
    allow_code: bool = False,
    allow_changed: bool = False,
) -> Exported:
    """Write a run's result to ``to`` as a PEFT adapter, or ``merged`` into a whole model. A model that was trained
    whole is written whole.

    ``client``: export this client's model (for personal methods); by default the global or cold-start one.
    ``rank``: truncate to this rank. By default the adapter has the rank that it needs, which is above the run's for
    methods that change the base.
    ``verify``: load the result with stock libraries and compare logits.
    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: export even if the base model, the settings or that code are not those of the run.

    Raises :class:`ConfigError`.
    """
    if rank is not None and rank < 1:
        raise ConfigError.at("--rank", f"must be at least 1, got {rank}")
    to = check_target(to)
    if merged and (bits := RunDirectory.open(run_dir).config().model.quantization) is not None:
        message = f"the base is {bits}, and merging would round the adapter away with it; export the adapter alone"
        raise ConfigError.at("--merged", message)
    # Stock libraries load the model in float32, so their logits are compared with float32.
    opened = reopen(
        run_dir, "cpu", source="rondo export", exact=True, allow_code=allow_code, allow_changed=allow_changed
    )
    model = opened.assembly.model
    if model.form == "tensors":
        message = (
            "a network of one's own has no PEFT adapter; the tensors of its result are in the run's adapter folder"
        )
        raise ConfigError.at("RUN_DIR", message)
    if model.form != "adapter" and rank is not None:
        raise ConfigError.at("--rank", "a model that was trained whole has no adapter to truncate: leave it out")
    seen, base = opened.model(client)
    if model.form != "adapter" or not isinstance(model, Transformer):
        write(to, opened, seen, base, list(_notes(client, rank, 0.0)))
        return Exported(0, 0.0, _verify_whole(opened, seen, base, to) if verify else None)
    error = 0.0
    sites = tuple(model.network.sites.values())
    if rank is not None:
        seen, error = result_factors.truncated(sites, seen, base, rank)
        base = {}
    facts, text = _card(opened, "merged" if merged else "adapter", list(_notes(client, rank, error)))

    def fill(folder: Path) -> None:
        if not merged:
            save(folder, model, seen, base, facts, text)
            return
        adapter = folder / "adapter"
        model.save(adapter, seen, base, facts.labels)
        merged_model = merge_adapter(_stock_base(opened, model), adapter)
        with quiet():
            merged_model.save_pretrained(str(folder))  # type: ignore[operator]
        shutil.rmtree(adapter)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(str(folder))
        describe(folder, facts, text)

    _put(to, fill)
    ranks = [a.shape[0] for a, _, _ in result_factors.adapter_factors(sites, seen, base).values()]
    return Exported(max(ranks), error, _verify(opened, model, seen, base, to, merged) if verify else None)


def check_target(to: str | Path) -> Path:
    """The folder that a result can be written to. Raises :class:`ConfigError` if it is in use."""
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        reason = "is not empty" if to.is_dir() else "is not a folder"
        raise ConfigError.at("--to", f"{str(to)!r} {reason}; name another folder")
    if to.exists() and (to.is_mount() or to.samefile(".")):
        # The export takes the folder's place in one step, when it is complete.
        raise ConfigError.at("--to", f"{str(to)!r} cannot be replaced; name a new folder in it")
    return to


def write(to: Path, opened: Reopened, seen: Params, base: Base, notes: Sequence[str]) -> None:
    """Write a model of a run to the folder ``to`` in one step, in its own form and with a card that has ``notes``.
    ``seen`` holds the tensors that the network takes, without a client axis. Raises :class:`ConfigError`."""
    model = opened.assembly.model
    facts, text = _card(opened, model.form, notes)
    _put(to, lambda folder: save(folder, model, seen, base, facts, text))


def _put(to: Path, fill: Callable[[Path], None]) -> None:
    """Write the folder ``to`` in one step. Raises :class:`ConfigError` where the disk does not take it."""
    try:
        with durable.written(to):
            durable.make_folder(to.parent)
            durable.write_folder(to, fill)
    except RunStopped as stopped:
        raise ConfigError.at("--to", f"{stopped}; make room, or name a folder on another disk") from None


def _card(opened: Reopened, form: Form, notes: Sequence[str]) -> tuple[Facts, str]:
    """The facts of the run, and the text of the model card."""
    directory, point = opened.directory, opened.point
    report, manifest = directory.read("partition.json"), directory.manifest()
    facts = Facts.of(directory.config(), opened.assembly, report, manifest["versions"])
    after = directory.rounds()[point.rounds - 1]["scores"] if point.rounds else {}
    return facts, card(facts, form, rounds=point.rounds, before=point.scores["before"], after=after, notes=notes)


def _notes(client: str | None, rank: int | None, error: float) -> Iterator[str]:
    """Sentences of the card about everything that makes the exported model another than the scored one."""
    if client is not None:
        yield "This is one client's own model, and the scores are of the models named above."
    if rank is not None:
        share = f"{error:.2%} of the change (Frobenius norm) is lost"
        yield f"Truncated to rank {rank}: {share}. The scores are from before the truncation."


def _stock_base(opened: Reopened, model: Transformer) -> torch.nn.Module:
    """The base model alone, drawn with another seed, so that an unsaved head would show."""
    config = opened.assembly.config
    return load_base(config, model.name, model.known, model.tokenizer, config.seed + 1).module


def _stock_whole(opened: Reopened, folder: Path) -> torch.nn.Module:
    """The whole model in ``folder``, loaded by transformers alone."""
    with quiet():
        loaded: torch.nn.Module = auto(tasks.TABLE[opened.assembly.config.task.kind]).from_pretrained(
            str(folder), trust_remote_code=False
        )
    return loaded


_TEXTS = (
    "Turn on the lights in the kitchen.",
    "The film is a charming and often affecting journey.",
    "No weapons of mass destruction were found.",
    "What is the capital of France?",
    "It rains; it pours, and nobody minds.",
    "A",
)


@torch.no_grad()
def _verify(opened: Reopened, model: Transformer, seen: Params, base: Base, folder: Path, merged: bool) -> Verification:
    """Compare logits with ``folder`` as transformers and peft alone load it."""
    task, real = opened.assembly.task, None  # logits at padding mean nothing
    batch: Batch
    if isinstance(task, Seq2SeqLM):
        texts = [tuple(ids) for ids in model.tokenizer(list(_TEXTS))["input_ids"]]
        batch, targets = task.collate([PairExample(ids, ids) for ids in texts])
        real = targets["labels"] != IGNORED
    elif model.tokenizer is not None:
        batch = dict(model.tokenizer(list(_TEXTS), padding=True, return_tensors="pt"))
        real = batch["attention_mask"].bool()
    else:
        height, width, channels = opened.assembly.config.task.image_shape or (0, 0, 0)
        noise = torch.rand(len(_TEXTS), channels, height, width, generator=torch.Generator().manual_seed(0))
        batch = {"pixel_values": noise}
    ours = model.network(add_client_axis(seen), base, batch)
    stock = _stock_whole(opened, folder).eval() if merged else peft.stock_model(_stock_base(opened, model), folder)
    theirs = output_of(stock, batch)
    if ours.dim() == 3 and real is not None:
        ours, theirs = ours[real], theirs[real]
    return Verification(float((ours - theirs).abs().max()), float(ours.abs().max()))


def _verify_whole(opened: Reopened, seen: Params, base: Base, folder: Path) -> Verification:
    """Compare logits with the model in ``folder`` as transformers, or ``load_state_dict``, loads it, on rows of the
    run. Raises :class:`ConfigError` if the rows are gone."""
    config, model = opened.assembly.config, opened.assembly.model
    with_rows = assemble(config, "cpu", labels=opened.assembly.labels)
    batch, _ = with_rows.task.collate(with_rows.population.sample(6))
    if isinstance(model, WholeModel):
        stock = model.fresh()
        stock.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS), strict=True)
    else:
        stock = _stock_whole(opened, folder)
    with torch.no_grad():
        theirs = output_of(stock.to(with_rows.task.precision).eval(), batch)
        ours = model.network(add_client_axis(seen), base, batch)
    return Verification(float((ours - theirs).abs().max()), float(ours.abs().max()))
