"""The reference of all configuration keys: complete, and equal to the page docs/configuration.md.

After a change of the schema, ``PYTHONPATH=src:tests python tests/config/test_reference.py`` writes the page anew.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pydantic import BaseModel, TypeAdapter

from rondo import algorithms
from rondo.config import reference
from rondo.config.reference import sections, text
from rondo.config.schema import FileConfig
from rondo.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
MARK = "<!-- The rest of this page is made of the schema: see tests/config/test_reference.py. -->\n"


_LONG = 30
"""The most characters of a key's values that a row of the page repeats from the row above."""


def markdown() -> str:
    """The reference as a page's last part: one table per section, and one of the methods' fields."""
    lines, of_methods = list[str](), {key.path for key in reference._algorithm_fields()}
    for section in sections():
        title = f"`[{section.name}]`" if section.name else "The run"
        lines += ["", f"## {title}", "", *textwrap.wrap(section.meaning, 120), ""]
        lines += ["| key | values (default) | meaning |", "|---|---|---|"]
        above = ""
        for key in section.keys:
            if key.path not in of_methods:
                values = "as above" if key.values == above and len(above) > _LONG else key.values
                default = f" (`{key.default}`)" if key.default else ""
                lines.append(f"| `{key.name}` | {values}{default} | {key.meaning} |")
                above = key.values
        if section.name == "algorithm":
            lines += ["", "| method | its keys: `rondo show METHOD` explains them |", "|---|---|", *_rows_of_methods()]
    return "\n".join(lines) + "\n"


def _rows_of_methods() -> list[str]:
    """A row for the methods with the same fields."""
    methods: dict[str, list[str]] = {}
    for method, entry in algorithms.TABLE.items():
        fields = [
            f"`{name}` ({reference._values(TypeAdapter(kind).json_schema())})" for name, kind in entry.fields.items()
        ]
        methods.setdefault(", ".join(fields), []).append(f"`{method}`")
    return [f"| {', '.join(users)} | {fields} |" for fields, users in methods.items() if fields]


def schema_paths() -> set[str]:
    """The path of every key, read from the models alone."""
    paths = set()
    for name, field in FileConfig.model_fields.items():
        model = field.annotation
        is_section = isinstance(model, type) and issubclass(model, BaseModel)
        paths |= {f"{name}.{key}" for key in model.model_fields} if is_section else {name}
    return paths | {f"algorithm.{field}" for entry in algorithms.TABLE.values() for field in entry.fields}


def test_reference_has_every_key() -> None:
    assert {key.path for section in sections() for key in section.keys} == schema_paths()


def test_every_key_has_values_and_a_meaning() -> None:
    assert [k.path for section in sections() for k in section.keys if not (k.values and k.meaning)] == []


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(MARK)[2] == markdown()


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("train.lr", ["train.lr = 0.001", "    number > 0 and <= 1e+30", "    Learning rate."]),
        ("seed", ["seed = 0", "    integer >= 0 and < 9.22337e+18"]),
        ("faults.crash", ["faults.crash = 0.0", "    number >= 0 and < 1 or list of texts"]),
        ("clients.ranks", ["clients.ranks (not set)", "    list of integers > 0 or table of numbers > 0 and <= 1"]),
        (
            "adapter.init_lora_weights",
            ["adapter.init_lora_weights = true", '    true, "gaussian", "orthogonal", "pissa"'],
        ),
        ("adapter.rank_pattern", ["adapter.rank_pattern = {}", "    table of integers > 0"]),
        ("model.quantization", ["model.quantization (not set)", '    "int8", "nf4"']),
        ("task.text", ["task.text (not set)", "    text or list of at most 2 texts"]),
        ("algorithm.restart", ["algorithm.restart (not set)", '    "random", "momentum"']),
    ],
)
def test_key_is_shown_with_default_and_values(path: str, lines: list[str]) -> None:
    assert text(path).splitlines()[: len(lines)] == lines


def test_section_is_shown_with_its_keys() -> None:
    shown = text("train")
    assert shown.startswith("[train]\nLocal training.\n")
    assert "train.momentum = 0.0\n" in shown
    assert shown in text()


@pytest.mark.parametrize("path", ["lr", "train.rl", "trian.lr"])
def test_unknown_key_gets_a_near_match(path: str) -> None:
    with pytest.raises(ConfigError, match=r"rondo show config: 1 problem\n  KEY: no key .* did you mean 'train.lr'"):
        text(path)


if __name__ == "__main__":
    kept = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(kept + MARK + markdown(), encoding="utf-8")
