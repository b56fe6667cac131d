"""The papers' settings as configurations, for ``rondo init --paper NAME``. Imports no torch.

At small scale the same row runs on a laptop, with another model and fewer rows, clients and rounds.
"""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from typing import Any

from rondo.config.papers.rows import SETTINGS, Keys
from rondo.errors import ConfigError


def names() -> dict[str, str]:
    """All settings: their names in order, each with its row of the paper."""
    return {name: SETTINGS[name].source[1] for name in sorted(SETTINGS)}


def text(name: str, scale: str = "paper") -> str:
    """The configuration ``name`` as TOML with comments, at scale ``"paper"`` or ``"small"``. Raises
    :class:`ConfigError` for an unknown name or scale."""
    import tomli_w

    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "rondo init --paper list shows them all"
        raise ConfigError.at("--paper", f"there is no setting {name!r}: {hint}", "rondo init")
    if scale not in ("paper", "small"):
        raise ConfigError.at("--scale", f"{scale!r} is neither 'paper' nor 'small'", "rondo init")
    setting = SETTINGS[name]
    keys = setting.keys
    changes = {} if scale == "paper" else {k: v for k, v in _small(keys).items() if keys.get(k) != v}
    lines = list(setting.source)
    lines.append("Data and model come from a hub. For files of your own set data.source, its splits and its columns.")
    chosen = {key: reason for key, reason in setting.chosen.items() if key not in changes}
    lines += ["Chosen here:"] if chosen else []
    lines += [f"- {key} = {_shown(keys[key])}: {reason}" for key, reason in chosen.items()]
    lines += ["Changed for the small scale:"] if changes else []
    for key, value in changes.items():
        before = f"in place of {_shown(keys[key])}" if key in keys else "which the paper's scale leaves out"
        lines.append(f"- {key} {f'= {_shown(value)}' if value is not None else 'left out'}, {before}")
    keys = {key: value for key, value in {**keys, **changes}.items() if value is not None}
    folded = [
        part for line in lines for part in textwrap.wrap(line, 115, subsequent_indent="  ", break_on_hyphens=False)
    ]
    toml = re.sub(
        r"\[\n    ([^\[\]]*?),\n\]", lambda m: f"[{m[1].replace(chr(10) + '   ', '')}]", tomli_w.dumps(_nested(keys))
    )
    return "".join(f"# {line}\n" for line in folded) + toml


def _nested(keys: Keys) -> dict[str, Any]:
    """Sections of values; those of the first level come first."""
    sections: dict[str, Any] = {key: value for key, value in keys.items() if "." not in key}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        if name:
            sections.setdefault(section, {})[name] = value
    return sections


def _small(keys: Keys) -> dict[str, Any]:
    """The changes that let a setting run on a few cores in minutes. None leaves a key out."""
    few = {"rounds": min(keys["rounds"], 6), "data.max_train_rows": 1200, "data.max_test_rows": 300}
    kind = keys.get("task.kind", "sequence-classification")
    clients = min(keys.get("partition.clients", 10), 10)
    few["partition.clients"] = clients
    if "algorithm.tau" in keys:  # factors are merged within the rounds that are left
        few["algorithm.tau"] = min(keys["algorithm.tau"], 2)
    if "clients.per_round" in keys:
        few["clients.per_round"] = max(2, round(clients * keys["clients.per_round"] / keys["partition.clients"]))
    if kind == "image-classification" or keys.get("model.name") == "builtin:lstm":
        return {**few, "train.local_epochs": 1}
    generated = kind in ("causal-lm", "multiple-choice")
    few |= {"train.local_epochs": None, "train.local_steps": 8, "train.batch_size": 4 if generated else 8}
    few |= {"task.max_length": min(keys["task.max_length"], 128), "train.lr": 2e-3 if generated else 5e-3}
    few |= {"train.optimizer": "adamw", "model.name": "HuggingFaceTB/SmolLM2-135M" if generated else "builtin:minilm"}
    if "adapter.layers_to_transform" in keys:
        there, here = (32, 30) if generated else (24, 6)  # layers of the paper's model, and of the small one
        layers = keys["adapter.layers_to_transform"]
        few["adapter.layers_to_transform"] = sorted({layer * here // there for layer in layers})
    return few


def _shown(value: Any) -> str:
    """A value as TOML writes it."""
    import tomli_w

    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_shown(part)}' for key, part in value.items())}}}"
    text = tomli_w.dumps({"x": value}).partition("=")[2]
    return " ".join(text.split()).replace("[ ", "[").replace(", ]", "]").replace(",]", "]")
