"""A finished run as a stock PEFT adapter or a merged model, verified by stock libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from rondo.config.schema import RunConfig
from rondo.data.files.tables import Table
from rondo.errors import ConfigError, RunStopped, headed
from rondo.models.forms.model import Form, Model, Verification
from rondo.models.networks.network import Base
from rondo.models.networks.pairs import is_one_pair
from rondo.params import Params, module_of, pick, router
from rondo.records import durable
from rondo.records.directory import RunDirectory
from rondo.results.reopen import Reopened, reopen
from rondo.results.thresholds import with_thresholds
from rondo.runs.assembling.assemble import assemble
from rondo.runs.card import Facts, card, save
from rondo.tasks.task import Batch


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    ``rank``: the largest rank of its layers; 0 for a whole model.
    ``relative_error``: the share of the change's Frobenius norm lost by truncation, 0 without.
    ``verification``: None if it was not verified.
    ``notes``: sentences about the files that their reader may not expect.

    >>> exported = rondo.export("runs/digits", "digits-unverified")
    >>> exported.rank, exported.verification  # a whole model has no rank
    (0, None)
    """

    rank: int
    relative_error: float
    verification: Verification | None
    notes: tuple[str, ...] = ()


DType: TypeAlias = Literal["float32", "bfloat16", "float16"]
_TOLERANCES = {"bfloat16": 0.1, "float16": 0.01}
"""The share of the largest logit by which rounded weights may move one: some hundred roundings of 2^-8 or 2^-11."""


GATED = (
    "a router weighs several pairs of factors in each layer for each token, and PEFT has one matrix; the run keeps "
    "the model, for rondo predict --client and rondo evaluate --client"
)
"""The reason why a client's model of a method that is ``gated`` is not written."""


@headed("rondo export")
def export(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None = None,
    merged: bool = False,
    rank: int | None = None,
    verify: bool = False,
    base_name: str | None = None,
    dtype: DType | None = None,
    thresholds: str | Path | Table | None = None,
    allow_code: bool = False,
    allow_changed: bool = False,
) -> Exported:
    """Write a run's result to ``to`` as a PEFT adapter, or ``merged`` into a whole model. A model that was trained
    whole is written whole.

    ``client``: export this client's model; by default the global or cold-start one. It is refused where the client has
    no other.
    ``rank``: truncate to this rank. By default the adapter has the rank that it needs, which is above the run's for
    methods that change the base.
    ``verify``: load the result with stock libraries and compare logits.
    ``base_name``: the name by which others find the base model, for the card and ``adapter_config.json``. By default
    its name on a hub. A folder's path is never written there.
    ``dtype``: the type of a whole model's weights, "float32" by default. The others halve its size and round it.
    ``thresholds``: rows that no client trained on, on which each label gets the threshold with the highest F1, if a row
    may have several labels. They are in the result's configuration, by which it is scored and predicts.
    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: export even if the base model, the settings or that code are not those of the run.

    Raises :class:`ConfigError`.

    >>> exported = rondo.export("runs/digits", "digits-model", verify=True)
    >>> exported.verification.max_difference
    0.0
    """
    to = check_target(to)
    _check(run_dir, rank, merged=merged)
    # Stock libraries load the model in float32, so their logits are compared with float32.
    opened = reopen(
        run_dir, "cpu", source="rondo export", exact=True, allow_code=allow_code, allow_changed=allow_changed
    )
    if client is not None and (reason := opened.not_its_own(client)) is not None:
        raise ConfigError.at("--client", f"{reason}; leave it out")
    model = opened.assembly.model
    if dtype is not None and not (merged or model.form == "merged"):
        raise ConfigError.at("--dtype", "an adapter is kept in float32, which is small: add --merged, or leave it out")
    if model.form == "tensors":
        message = "a network of one's own has no PEFT adapter; the tensors of its result are in the run's adapter "
        raise ConfigError.at("RUN_DIR", f"{message}folder")
    if merged:
        model = model.merged()
    model.base_name, rounded = base_name, dtype not in (None, "float32")
    opened.assembly.model.base_name = base_name
    if rounded:
        model.dtype = getattr(torch, str(dtype))
    (seen, base), error = opened.model(client), 0.0
    _must_be_one_pair(seen, client)
    if rank is not None:
        (seen, error), base = model.truncated(seen, base, rank), {}
    notes = tuple(model.notes)
    bare = f"the tensors that {client} keeps" if client and opened.assembly.config.guarantee.bares_own_tensors else None
    config = opened.directory.config()
    if thresholds is not None:
        config = with_thresholds(config, opened.assembly, seen, base, thresholds)
    sentences = [*notes, *_notes(client, rank, error, config.evaluation.threshold)]
    write(to, opened, model, seen, base, sentences, bare=bare, config=config)
    verification = None
    if verify:
        verification = model.verified(to, seen, base, opened.assembly.task, lambda: _some_rows(opened))
        verification = replace(verification, tolerance=_TOLERANCES.get(str(dtype), verification.tolerance))
    return Exported(model.rank(seen, base), error, verification, notes)


def _must_be_one_pair(seen: Params, client: str | None) -> None:
    """Raise :class:`ConfigError` for a model with several pairs of factors in a layer."""
    if any(not is_one_pair(seen, path) for path in map(module_of, pick(seen, router))):
        message = f"{GATED}; leave it out for the cold-start model" if client else GATED
        raise ConfigError.at("--client" if client else "RUN_DIR", message)


def _check(run_dir: str | Path, rank: int | None, *, merged: bool) -> None:
    """Raise :class:`ConfigError` for options that no result can have."""
    if rank is not None and rank < 1:
        raise ConfigError.at("--rank", f"must be at least 1, got {rank}")
    if merged and (bits := RunDirectory.open(run_dir).config().model.quantization) is not None:
        message = f"the base is {bits}, and merging would round the adapter away with it; export the adapter alone"
        raise ConfigError.at("--merged", message)


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


def write(
    to: Path,
    opened: Reopened,
    model: Model,
    seen: Params,
    base: Base,
    notes: Sequence[str],
    *,
    bare: str | None,
    config: RunConfig | None = None,
) -> None:
    """Write ``model``, with the tensors ``seen`` (no client axis), to the folder ``to`` in one step, with a card that
    has ``notes``. ``bare``: what is in it that no noise of the run reached. ``config``: in place of the run's own.
    Raises :class:`ConfigError`."""
    facts, text = _card(opened, config or opened.directory.config(), model.form, notes, bare)
    try:
        with durable.written(to):
            durable.make_folder(to.parent)
            durable.write_folder(to, lambda folder: save(folder, model, seen, base, facts, text))
    except RunStopped as stopped:
        raise ConfigError.at("--to", f"{stopped}; make room, or name a folder on another disk") from None


def _card(opened: Reopened, config: RunConfig, form: Form, notes: Sequence[str], bare: str | None) -> tuple[Facts, str]:
    """The facts of the run, and the text of the model card."""
    directory, point = opened.directory, opened.point
    report, manifest = directory.read("partition.json"), directory.manifest()
    facts = Facts.of(config, opened.assembly, report, manifest["versions"])
    record = directory.rounds()[point.rounds - 1] if point.rounds else {"scores": {}}
    told = {"before": point.scores["before"], "after": record["scores"]}
    told |= {"said": record.get("guarantee"), "bare": bare}
    return facts, card(facts, form, rounds=point.rounds, notes=notes, **told)


def _notes(client: str | None, rank: int | None, error: float, thresholds: object) -> Iterator[str]:
    """Sentences of the card about everything that makes the exported model another than the scored one, and about the
    thresholds of its labels, which stock libraries do not know."""
    if thresholds is not None:
        yield "A row has a label from its probability in `evaluation.threshold` of `rondo.toml` on."
    if client is not None:
        yield "This is one client's own model, and the scores are of the models named above."
    if rank is not None:
        share = f"{error:.2%} of the change (Frobenius norm) is lost"
        yield f"Truncated to rank {rank}: {share}. The scores are from before the truncation."


def _some_rows(opened: Reopened) -> Batch:
    """Inputs of some rows of the run. Raises :class:`ConfigError` if the rows are gone."""
    with_rows = assemble(opened.assembly.config, "cpu", labels=opened.assembly.labels)
    inputs, _ = with_rows.task.collate(with_rows.population.sample(6))
    return inputs
