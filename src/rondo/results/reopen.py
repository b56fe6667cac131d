"""Results opened again: a run at its last committed round, or a folder that it handed over."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rondo.algorithm import Client, Round
from rondo.config import task_kinds as tasks
from rondo.config.checks import check_code
from rondo.config.hub import POINTER, pointer_in
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.engine.scoring import Scorer
from rondo.errors import ConfigError
from rondo.models.forms.model import Form
from rondo.models.forms.module import WEIGHTS
from rondo.models.forms.own_network import RESULT
from rondo.models.networks.network import Base
from rondo.params import Params
from rondo.records.directory import RunDirectory
from rondo.records.manifest import OPEN_ANYWAY, must_equal, recorded
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.card import CONFIG, RECORD
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Checkpoint
from rondo.tasks.make import task_class


@dataclass(frozen=True)
class Reopened:
    """A run opened again at its newest checkpoint."""

    assembly: Assembly
    directory: RunDirectory
    point: Checkpoint
    scorer: Scorer

    @property
    def round(self) -> Round:
        """The round that would come next."""
        return self.assembly.round(self.point.aggregated)

    def not_its_own(self, client: str) -> str | None:
        """A sentence where the model of ``client`` is the newcomer's, tensor for tensor; None where it is its own.
        Raises :class:`ConfigError` as :meth:`model` does."""
        if not _equal(self.model(client), self.model(None)):
            return None
        if self.assembly.algorithm.traits.personal:
            return f"client {client!r} has trained in no round that counts, so its model is the cold-start model"
        return f"{self.assembly.config.algorithm.name} keeps nothing at its clients: {client!r} has the global model"

    def model(self, client: str | None) -> tuple[Params, Base]:
        """The tensors that the network sees, and the base's change, for a client by id, or for a newcomer. Raises
        :class:`ConfigError`."""
        if client is None:
            return self.scorer.newcomer(self.point.state, self.round)
        known = self.directory.read("partition.json")["clients"]
        if client not in known:
            near = difflib.get_close_matches(client, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(list(known)[:10])}"
            raise ConfigError.at("--client", f"no client {client!r}; {hint}")
        try:
            entry = known[client]
            return self.scorer.model(self.point.state, Client(client, entry["train"], entry.get("rank")), self.round)
        except (OSError, ValueError) as error:
            raise ConfigError.at("RUN_DIR", f"what client {client!r} keeps cannot be read: {error}") from None


def reopen(
    run_dir: str | Path,
    device: str = "auto",
    *,
    source: str,
    rows: Sequence[str] = (),
    exact: bool = False,
    allow_code: bool = False,
    allow_changed: bool = False,
) -> Reopened:
    """Load a run's model and state from its directory.

    ``source``: the command, for messages.
    ``rows``: keys of ``partition.json`` whose data are needed; without any, the data are left alone.
    ``exact``: compute in float32 even if the run trained otherwise.
    ``allow_code``: import code of one's own that the run names.
    ``allow_changed``: go on where model, data, settings or code are not those of the run.

    Raises :class:`ConfigError`, also with everything that has changed.
    """
    directory = RunDirectory.open(run_dir)
    settings = config = directory.config()
    check_code(config, allow_code, source)
    if exact:
        config = config.changed("train", precision="exact")
    then = directory.manifest()
    labels = then.get("labels")
    if not isinstance(labels, list):
        raise ConfigError.at("RUN_DIR", "manifest.json has no labels: it is not one that a run has written")
    assembly = assemble(config, device, labels=tuple(map(str, labels)), with_rows=bool(rows))
    settings = settings.model_copy(update={"task": assembly.config.task})  # with the date of its chat template
    before = {**then, "config": _settings(then.get("config")), "partition": {}}
    after = {**assembly.identity(), "config": _settings(recorded(settings)), "partition": {}}
    if rows:
        partition = directory.read("partition.json")
        before["partition"] = {key: partition.get(key) for key in rows}
        after["partition"] = {key: assembly.population.report[key] for key in rows}
    must_equal(before, after, whatever=allow_changed, remedy=OPEN_ANYWAY, source=source)
    try:
        point, _ = checkpoint.load(directory.checkpoint, assembly.first_state())
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError.at("RUN_DIR", f"its checkpoint cannot be read: {error}") from None
    return Reopened(assembly, directory, point, assembly.scorer(point.locals))


def _equal(one: tuple[Params, Base], other: tuple[Params, Base]) -> bool:
    """Whether two models have the same tensors and changes of the base, bit for bit."""
    (seen, base), (seen_too, base_too) = one, other
    if seen.keys() != seen_too.keys() or base.keys() != base_too.keys():
        return False
    pairs = [(seen[name], seen_too[name]) for name in seen]
    for name, change in base.items():
        factors, factors_too = change.factors(), base_too[name].factors()
        pairs += [(factors.up, factors_too.up), (factors.down, factors_too.down)]
    return all(torch.equal(a, b) for a, b in pairs)


_PLACES = (
    "data.source",
    "data.clients_from",
    "data.test_source",
    "data.more_tests",
    "model.name",
    "adapter.start_from",
)
"""Keys that say where a run found its data and its model, which may lie elsewhere now: the contents are compared."""


def _settings(config: Any) -> Any:
    """The configuration in a manifest, with :data:`_PLACES` blank, and without the number of rounds to come: the model
    is that of the last one."""
    blank: dict[str, Any] = {}
    for section, key in (place.split(".") for place in _PLACES):
        blank.setdefault(section, {})[key] = None
    kept = {key: value for key, value in dict(config or {}).items() if key != "rounds"}
    return {k: {**v, **blank.get(k, {})} if isinstance(v, dict) else v for k, v in kept.items()}


@dataclass(frozen=True)
class HandedOver:
    """A result in a folder of its own: an adapter, from which ``config`` starts, or a whole model."""

    folder: Path
    config: RunConfig
    labels: tuple[str, ...]
    form: Form

    def check_base(self, identity: Mapping[str, Any], *, allow_changed: bool, source: str) -> None:
        """Raise :class:`ConfigError` if a base model of this identity is not the one that the result was made from. A
        whole model of transformers is its own base."""
        if self.form != "merged":
            then = RunDirectory(self.folder).read(RECORD)
            must_equal(then, identity, whatever=allow_changed, remedy=OPEN_ANYWAY, source=source)


def is_result(folder: Path) -> bool:
    """Whether ``folder`` has an adapter as PEFT writes it, or a result with its configuration."""
    return (folder / "adapter_config.json").is_file() or (folder / CONFIG).is_file()


def handed_over(
    folder: Path, *, check_paths: bool, allow_code: bool, source: str, with_method: bool = True
) -> HandedOver:
    """Open the result in ``folder``, which a run wrote or an export.

    ``check_paths``: False does not check that the data exist.
    ``allow_code``: import code of one's own that the configuration names.
    ``source``: the command, for messages.
    ``with_method``: whether the command loads the method.

    Raises :class:`ConfigError`.
    """
    if not (folder / CONFIG).is_file():
        message = f"{str(folder)!r} does not say which columns to read: it has no {CONFIG}"
        raise ConfigError.at("ADAPTER_DIR", f"{message}, as every adapter of a run has; name such a folder")
    form = _form(folder)
    if (pointer := pointer_in(folder)) is not None:
        raise ConfigError.at("ADAPTER_DIR", f"{str(pointer)!r} {POINTER}")
    # The files that these keys name may be gone. The folder has its own copy of what they held.
    gone = ["task.chat_template=", *(["adapter.start_from="] if _has_section(folder / CONFIG, "adapter") else [])]
    config = load(folder / CONFIG, gone, check_paths=check_paths)
    if form in ("adapter", "merged") and config.task.kind not in tasks.TABLE:
        message = f"{config.task.kind!r} is a task of one's own, and no model of transformers is made for it"
        raise ConfigError.at("task.kind", message, str(folder / CONFIG))
    check_code(config, allow_code, source, with_method=with_method)
    task, clients, adapter, model = config.task, config.clients, config.adapter, config.model
    clients = clients.model_copy(update={"ranks": None, "bytes_budget": None})  # the adapter's rank is its own
    template = folder / "chat_template.jinja"
    task = task.model_copy(update={"chat_template": str(template) if template.is_file() else None})
    if form == "adapter":
        adapter = adapter.model_copy(update={"start_from": str(folder)})
    elif form == "merged":
        folder_only = {"name": str(folder), "revision": None, "gguf_file": None, "quantization": None}
        model = model.model_copy(update=folder_only)
    changed = {"task": task, "clients": clients, "adapter": adapter, "model": model}
    changed = {key: value for key, value in changed.items() if value != getattr(config, key)}
    return HandedOver(folder, config.model_copy(update=changed), _labels(folder, form, config), form)


def _has_section(file: Path, name: str) -> bool:
    """Whether a configuration has this section, which says that there are factors. :func:`load` reports malformed
    files."""
    try:
        return name in tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _form(folder: Path) -> Form:
    """The form of the result in ``folder``. Raises :class:`ConfigError` where it has none."""
    for name, form in _FILES.items():
        if (folder / name).is_file():
            return form
    message = f"{str(folder)!r} has no PEFT adapter, no whole model and no tensors: name the folder of a result"
    raise ConfigError.at("ADAPTER_DIR", message)


_FILES: Mapping[str, Form] = {
    "adapter_config.json": "adapter",
    "config.json": "merged",
    WEIGHTS: "weights",
    RESULT: "tensors",
}
"""The file by which a form is known, in the order of looking."""


def _labels(folder: Path, form: Form, config: RunConfig) -> tuple[str, ...]:
    """The label names of a classifier, in the order of the classes."""
    if not task_class(config.task.kind).classes:
        return ()
    if form != "merged":
        return tuple(map(str, RunDirectory(folder).read("labels.json")))
    by_class = RunDirectory(folder).read("config.json")["id2label"]
    return tuple(str(by_class[key]) for key in sorted(by_class, key=int))
