"""The papers' settings as configurations, for ``rondo init --paper NAME``. Imports no torch.

At small scale the same row runs on a laptop, with another model and fewer rows, clients and rounds.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from rondo.config.papers.rows import SETTINGS, Keys, Setting
from rondo.config.toml_file import inline
from rondo.errors import ConfigError


def names() -> dict[str, str]:
    """All settings: their names in order, each with its row of the paper."""
    return {name: SETTINGS[name].source[1] for name in sorted(SETTINGS)}


SCALES = {
    "paper": "",
    "small": "Changed for the small scale:",
    "official": "Changed to the values of the official code:",
}
"""The scales, each with the heading of what it changes."""


def text(name: str, scale: str = "paper") -> str:
    """The configuration ``name`` as TOML with comments, at scale ``"paper"``, ``"small"`` or ``"official"``, which has
    the values of the paper's official code. Raises :class:`ConfigError` for an unknown name or scale, and for a paper
    whose official code is not known to differ."""
    import tomli_w

    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "rondo init --paper list shows them all"
        raise ConfigError.at("--paper", f"there is no setting {name!r}: {hint}", "rondo init")
    if scale not in SCALES:
        raise ConfigError.at("--scale", f"{scale!r} is not one of {', '.join(map(repr, SCALES))}", "rondo init")
    setting = SETTINGS[name]
    if scale == "official" and not setting.official:
        message = f"no official code is known that differs from the paper in {name!r}: leave it out"
        raise ConfigError.at("--scale", message, "rondo init")
    keys = setting.all_keys
    changes = {"paper": {}, "small": _small_with_methods(setting), "official": setting.official}[scale]
    changes = {key: value for key, value in changes.items() if keys.get(key) != value}
    lines = [*setting.source]
    if setting.methods:
        lines.append(f"Methods: {', '.join(setting.methods)}. rondo compare --config FILE compares them.")
    lines.append("Data and model come from a hub. For files of your own set data.source, its splits and its columns.")
    chosen = {key: reason for key, reason in setting.chosen.items() if key not in changes}
    lines += ["Chosen here:"] if chosen else []
    lines += [f"- {key} = {inline(keys[key])}: {reason}" for key, reason in chosen.items()]
    deviations = {key: reason for key, reason in setting.deviations.items() if key not in changes}
    lines += ["Other than in the paper:"] if deviations else []
    lines += [f"- {key} = {_value(keys.get(key))}: {reason}" for key, reason in deviations.items()]
    if setting.official and scale != "official":
        lines.append("The official code has other values (rondo init --scale official writes them):")
        lines += [f"- {key} = {_value(value)}" for key, value in setting.official.items()]
    lines += setting.official_remarks
    lines += [SCALES[scale]] if changes else []
    for key, value in changes.items():
        before = f"in place of {inline(keys[key])}" if key in keys else "which the paper's scale leaves out"
        lines.append(f"- {key} {f'= {inline(value)}' if value is not None else 'left out'}, {before}")
    folded = [
        part for line in lines for part in textwrap.wrap(line, 115, subsequent_indent="  ", break_on_hyphens=False)
    ]
    kept = {key: value for key, value in {**keys, **changes}.items() if value is not None}
    toml = re.sub(
        r"\[\n    ([^\[\]]*?),\n\]",
        lambda m: f"[{m[1].replace(chr(10) + '   ', '')}]",
        tomli_w.dumps(_nested(kept, tuple(setting.methods))),
    )
    return "".join(f"# {line}\n" for line in folded) + toml


def _value(value: Any) -> str:
    return "left out" if value is None else inline(value)


def _nested(keys: Keys, methods: Sequence[str]) -> dict[str, Any]:
    """Sections of values, and tables of methods. Values without a section come first, the methods last."""
    sections: dict[str, Any] = {key: value for key, value in keys.items() if "." not in key}
    tables: dict[str, dict[str, Any]] = {label: {} for label in methods}
    for key, value in keys.items():
        place, rest = sections, key
        if key.startswith("methods."):
            _, label, rest = key.split(".", 2)
            place = tables[label]
        section, _, name = rest.partition(".")
        if name:
            place.setdefault(section, {})[name] = value
        elif place is not sections:
            place[section] = value
    return {**sections, "methods": tables} if tables else sections


def _small_with_methods(setting: Setting) -> dict[str, Any]:
    """The changes for the small scale, those of the methods' tables too."""
    changes = _small(setting.keys)
    for label, values in setting.methods.items():
        of_method = _small({**setting.keys, **values})
        changes |= {f"methods.{label}.{key}": of_method[key] for key in values if key in of_method}
    return changes


_SMALL_MODELS = {
    "FacebookAI/roberta-large": "builtin:minilm",
    "meta-llama/Llama-2-7b-hf": "HuggingFaceTB/SmolLM2-135M",
    "meta-llama/Llama-3.2-3B": "HuggingFaceTB/SmolLM2-135M",
    "builtin:resnet18": "builtin:resnet10",
}
"""Models for the small scale by those of the papers."""


def _small(keys: Keys) -> dict[str, Any]:
    """The changes that let a setting run on a few cores in minutes. None leaves a key out."""
    few = {"rounds": min(keys["rounds"], 6), "data.max_train_rows": 1200, "data.max_test_rows": 300}
    clients = min(keys.get("partition.clients", 10), 10)
    few["partition.clients"] = clients
    for key, most in (("algorithm.tau", 4), ("algorithm.body_epochs", 1)):  # a merge, and training after it
        if key in keys:
            few[key] = min(keys[key], most)
    if "clients.per_round" in keys:
        few["clients.per_round"] = max(2, round(clients * keys["clients.per_round"] / keys["partition.clients"]))
    if "model.vectors" in keys:  # words are hashed then
        few["model.vectors"] = None
    few["model.name"] = _SMALL_MODELS.get(keys["model.name"], keys["model.name"])
    if keys["model.name"].startswith("builtin:"):
        return {**few, "train.local_epochs": 1}
    decoder = keys["model.name"] != "FacebookAI/roberta-large"
    few |= {"train.local_epochs": None, "train.local_steps": 8, "train.batch_size": 4 if decoder else 8}
    few |= {"task.max_length": min(keys["task.max_length"], 128), "train.lr": 2e-3 if decoder else 5e-3}
    few["train.optimizer"] = "adamw"
    if keys["task.kind"] == "multiple-choice":  # of eight test sets, with a forward pass per choice
        few["data.max_test_rows"] = 40
    if "adapter.layers_to_transform" in keys:
        there, here = (32, 30) if decoder else (24, 6)  # layers of the paper's model, and of the small one
        layers = keys["adapter.layers_to_transform"]
        few["adapter.layers_to_transform"] = sorted({layer * here // there for layer in layers})
    return few
