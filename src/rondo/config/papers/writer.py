"""The papers' settings as configurations, for ``rondo init --paper NAME``. Imports no torch.

At small scale the same row runs on a laptop, with another model and fewer rows, clients and rounds.
"""

from __future__ import annotations

import difflib
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.config.toml_file import inline
from rondo.errors import ConfigError

Keys = Mapping[str, Any]
"""Values by their place in a configuration, such as ``train.lr``."""


@dataclass(frozen=True)
class Setting:
    """One row of a paper."""

    source: tuple[str, ...]
    """The paper, then the row and its tables, then remarks."""
    keys: Keys
    """The values that the paper states, those that its data set and model need, and the chosen ones."""
    methods: Mapping[str, Keys]
    """The row's methods by label, each with its own values; False in place of a section that it goes without."""
    chosen: Mapping[str, str]
    """The keys that the paper does not state, with the reason or a remark for each value."""
    deviations: Mapping[str, str]
    """The keys whose values are not the paper's, with what the paper has and why it is not so here."""
    official: Keys
    """The values of the paper's official code, if they differ from the paper's; None for a key that it lacks."""
    official_remarks: tuple[str, ...]
    """Further differences of the official code, which no key has."""

    @property
    def all_keys(self) -> Keys:
        """``keys``, and those of the methods' tables by their place, ``methods.LABEL.SECTION.KEY``."""
        return {
            **self.keys,
            **{f"methods.{label}.{k}": v for label, own in self.methods.items() for k, v in own.items()},
        }


_BESIDE_KEYS = ("like", "row", "remarks", "methods", "chosen", "deviations", "official", "official-remarks")


def read(content: Mapping[str, Any], data_sets: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a paper's file, by the names of its rows.

    A table of the file is a part of a configuration, and may have more entries: ``like``, names of tables that it is
    like, other rows among them; ``row``, its place in the paper; ``remarks``; ``methods``, the tables of methods by
    label, False for a method that another table has and this one has not; and ``chosen``, ``deviations``, ``official``
    and ``official-remarks`` as in :class:`Setting`. Tables that a table is like come before it, in their order. Of a
    value that several give the last counts, and its place is that of the first.

    Raises ValueError for two tables of one name, and for a table that is like itself.
    """
    parts_of_file = (data_sets, content["shared"], content["rows"])
    tables = {name: table for part in parts_of_file for name, table in part.items()}
    if len(tables) < sum(map(len, parts_of_file)):
        twice = sorted(name for name in tables if sum(name in part for part in parts_of_file) > 1)
        raise ValueError(f"two tables of one name: {', '.join(twice)}")

    def parts(name: str, within: tuple[str, ...] = ()) -> Iterator[Mapping[str, Any]]:
        if name in within:
            raise ValueError(f"a table that is like itself: {' > '.join((*within, name))}")
        for other in tables[name].get("like", ()):
            yield from parts(other, (*within, name))
        yield tables[name]

    return {name: _setting(content["paper"], parts(name)) for name in content["rows"]}


def _setting(paper: str, parts: Iterator[Mapping[str, Any]]) -> Setting:
    row, keys, methods = "", dict[str, Any](), dict[str, dict[str, Any]]()
    texts: dict[str, dict[str, str]] = {"remarks": {}, "chosen": {}, "deviations": {}, "official-remarks": {}}
    official: dict[str, Any] = {}
    for part in parts:
        row = part.get("row", row)
        for name, collected in texts.items():
            collected |= part.get(name, {})
        official |= part.get("official", {})
        keys |= _flat({name: value for name, value in part.items() if name not in _BESIDE_KEYS})
        for label, table in part.get("methods", {}).items():  # False: the row goes without
            methods[label] = methods.get(label, {}) | _flat(table or {})
            if table is False:
                del methods[label]

    def without_missing(by_key: Mapping[str, Any]) -> dict[str, Any]:
        """Without the keys of methods that the row has not."""
        return {k: v for k, v in by_key.items() if not k.startswith("methods.") or k.split(".")[1] in methods}

    return Setting(
        (paper, row, *(text for text in texts["remarks"].values() if text)),
        keys,
        methods,
        without_missing(texts["chosen"]),
        without_missing(texts["deviations"]),
        without_missing(official),
        tuple(text for text in texts["official-remarks"].values() if text),
    )


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their place: the keys of sections as ``section.key``."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _all() -> dict[str, Setting]:
    files = {
        path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path(__file__).parent.glob("*.toml"))
    }
    data_sets = files.pop("data_sets")
    papers = {paper: read(content, data_sets) for paper, content in files.items()}
    return {f"{paper}/{name}": setting for paper, rows in papers.items() for name, setting in rows.items()}


SETTINGS = _all()
"""All rows by name, such as ``rolora/rte``: the paper's file, then the row."""


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
