"""The table of algorithms agrees with every class, and importing the table does not import torch."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from declare import fields, trains_plainly
from page_tables import filled, tables

import rondo
from rondo import algorithms
from rondo.algorithm import Algorithm
from rondo.algorithms import TABLE, Entry, UnknownAlgorithm, formulas, other_words
from rondo.algorithms.entries import declared
from rondo.config import load
from rondo.config.explain import unknown
from rondo.errors import ConfigError, Problem
from rondo.study.claims import entry as claims

every_entry = pytest.mark.parametrize(("name", "entry"), TABLE.items(), ids=TABLE)


@every_entry
def test_entry_agrees_with_its_class(name: str, entry: Entry) -> None:
    """Names and types of the fields too. After a change to a class, run tests/algorithms/declare.py."""
    cls, algorithm = algorithms.load(name), algorithms.get(name)
    assert f"{cls.__module__}:{cls.__qualname__}" == entry.cls
    assert (entry.traits, entry.linear, dict(entry.fields)) == (algorithm.traits, algorithm.linear, fields(cls))
    assert entry.plain_loss == trains_plainly(algorithm)


def test_core_methods_are_the_seed_papers_or_have_a_claim() -> None:
    own = {"rolora", "rolora-linear", "ffa-linear", "florg", "florg-unaligned", "fedrep", "fedrep-linear", "fedloru"}
    own |= {"pfedloru", "mfedloru"}
    for name in claims.names():
        arms = claims.read(name).arms.values()
        own |= {arm["algorithm"]["name"] for arm in arms if "name" in arm.get("algorithm", {})}
    assert {name for name, entry in TABLE.items() if entry.core} == own


@pytest.mark.parametrize("page", ["README.md", "docs/methods.md"])
def test_tables_of_methods_are_generated(page: str) -> None:
    """After a change to the table, run tests/algorithms/page_tables.py."""
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    assert filled(text, tables()[page]) == text


def test_declared_classes_are_those_of_the_table() -> None:
    assert declared().keys() == {entry.cls for entry in TABLE.values()}


@every_entry
def test_algorithm_is_final_and_frozen(name: str, entry: Entry) -> None:
    """Every field has a default."""
    cls = algorithms.load(name)
    assert cls.__final__  # type: ignore[attr-defined]
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert [f for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING] == []
    assert algorithms.get(name) == algorithms.get(entry.cls)


def numbers(text: str, r: int, i: int, o: int, t: int, k: int) -> int:
    """The value of an entry's formula in words, with the algorithm's default fields.

    ``"r*out, r*in in turn"`` alternates by the round.
    ``", and ... more after every tau rounds"`` adds to the value in rounds 10, 20 ...
    ``" after every period rounds, else ..."``: the first part in every round.
    ``", but ... in round 1"`` holds in that round.
    ``" at most"``: the data decide, and the law of bytes takes less.
    ``", then "`` separates the first five rounds from the rest.
    """
    phrase, _, more = text.removesuffix(" at most").removesuffix(" more after every tau rounds").partition(", and ")
    if more and t > 0 and t % 10 == 0:
        return numbers(phrase, r, i, o, t, k) + numbers(more, r, i, o, t, k)
    phrase, _, exception = phrase.removesuffix(" in round 1").partition(", but ")
    if exception and t == 1:
        phrase = exception
    phrase = phrase.partition(" after every period rounds")[0]
    if ", then " in phrase:
        phrase = phrase.split(", then ")[0 if t < 5 else 1]
    if phrase == "density*in*out":
        return max(1, int(0.01 * i * o + 0.5))
    turns = (
        re.split(r", (?=[^()]*(?:\(|$))", phrase.removesuffix(" in turn")) if phrase.endswith(" in turn") else [phrase]
    )
    formula = re.sub(r"(?<=[r)])\(", "*(", turns[t % len(turns)])
    formula = re.sub(r"\bout\b", "o", re.sub(r"\bin\b", "i", formula))
    return int(
        eval(
            formula, {"__builtins__": {}, "min": min}, {"r": r, "i": i, "o": o, "K": k, "heads": formulas.divisor(r, 4)}
        )
    )


@every_entry
@pytest.mark.parametrize("way", ["up", "down"])
def test_formula_in_words_equals_the_code(name: str, entry: Entry, way: str) -> None:
    for case in [
        (2, 5, 7, 0, 3),
        (2, 5, 7, 1, 1),
        (3, 7, 5, 4, 2),
        (3, 7, 5, 7, 9),
        (1, 4, 4, 10, 2),
        (1, 40, 30, 2, 5),
    ]:
        assert numbers(getattr(entry, way), *case) == getattr(entry, f"{way}_numbers")(*case)


@every_entry
def test_formula_has_the_default_fields_of_its_class(name: str, entry: Entry) -> None:
    algorithm = algorithms.get(name)
    for formula in (entry.up_numbers, entry.down_numbers):
        for field, parameter in list(inspect.signature(formula).parameters.items())[5:]:
            if field != "in_turn":  # a number of rounds, for RoLoRA's share of them
                assert getattr(algorithm, field) == parameter.default


@every_entry
@pytest.mark.parametrize("line", ["Uploads:", "Exact:", "Linear:", "Personal:", "Reference:"])
def test_paper_card_has_its_lines(name: str, entry: Entry, line: str) -> None:
    assert algorithms.load(name).__doc__.count(line) == 1  # type: ignore[union-attr]


@every_entry
def test_paper_card_agrees_with_its_entry(name: str, entry: Entry) -> None:
    card = " ".join((algorithms.load(name).__doc__ or "").split())
    assert re.search(r"Linear: (yes|no)\b", card)[1] == ("yes" if entry.linear else "no")  # type: ignore[index]
    assert re.search(r"Personal: (yes|no)\b", card)[1] == ("yes" if entry.traits.personal else "no")  # type: ignore[index]
    assert bool(re.search(r"Exact: yes\b", card)) == entry.traits.exact
    assert f"here {entry.traits.default_head} by default" in card
    author, year = re.match(r"(\w+) (?:et al\.|and \w+).*?(\d{4})$", entry.paper).groups()  # type: ignore[union-attr]
    reference = card.partition("Reference:")[2]
    assert author in reference
    assert year in reference


@pytest.mark.parametrize(
    ("typed", "near"),
    [("rolora2", "rolora"), ("RoLoRA", "rolora"), ("ffa", "ffa-lora"), ("flrog", "florg"), ("fedsa", "fedsa-lora")],
)
def test_unknown_name_is_an_error_with_near_matches(typed: str, near: str) -> None:
    for look_up in (algorithms.entry, algorithms.load, algorithms.get):
        with pytest.raises(UnknownAlgorithm, match=f"did you mean .*'{near}'"):
            look_up(typed)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("LoRA+", "train.lr_ratio, the rate of B over that of A, beside a method"),
        ("loraplus", "train.lr_ratio"),
        ("Fed-Adam", 'server.optimizer = "adam"'),
        ("IA3", "methods train pairs of factors"),
    ],
)
def test_method_of_another_tool_is_answered_by_its_key(typed: str, said: str) -> None:
    for look_up in (algorithms.entry, algorithms.load, algorithms.get):
        with pytest.raises(UnknownAlgorithm, match=re.escape(said)):
            look_up(typed)


@pytest.mark.parametrize("word", sorted(other_words.WORDS))
def test_answer_about_another_tools_method_is_a_configuration(word: str) -> None:
    """The key that it names exists, and takes the value that it names."""
    answer = str(other_words.other_word(word))
    for key, value in re.findall(r"\b([a-z]+\.[a-z_]+) = ([^\s,]+)", answer):
        assert [p for p in faults(f"{key}={value}") if p.path == key] == []
    for key in re.findall(r"\b[a-z]+\.[a-z_]+\b", answer):
        assert unknown(key.split(".")) is None
    assert word not in TABLE


def faults(setting: str) -> Sequence[Problem]:
    try:
        load({}, [setting], check_paths=False)
    except ConfigError as error:
        return error.problems
    return ()


def test_name_without_near_match_lists_all_names() -> None:
    with pytest.raises(UnknownAlgorithm) as caught:
        algorithms.get("xyzzy")
    assert [name for name in algorithms.names() if name not in str(caught.value)] == []
    assert isinstance(caught.value, ValueError)


class Ours(Algorithm[Any]):
    """Not a dataclass."""


@dataclasses.dataclass
class Thawed(Algorithm[Any]):
    """A dataclass that is not frozen."""


@pytest.mark.parametrize(
    "name",
    [
        "no.such.module:Class",
        "rondo.algorithm:NoSuchClass",
        "rondo.algorithm:",
        "rondo.algorithm:Client",
        "rondo.algorithm:Algorithm",
        "os:path",
        f"{__name__}:Ours",
        f"{__name__}:Thawed",
        ":RoLoRA",
        ".rolora:RoLoRA",
        ":",
        "",
    ],
)
def test_class_that_is_no_algorithm_is_an_error(name: str) -> None:
    with pytest.raises(UnknownAlgorithm):
        algorithms.load(name)


@dataclasses.dataclass(frozen=True)
class Undeclared(Algorithm[Any]):
    """A class without traits."""


def test_class_without_traits_is_told_how_to_declare_them() -> None:
    with pytest.raises(UnknownAlgorithm, match="Undeclared' declares no traits: write traits = Traits"):
        algorithms.load(f"{__name__}:Undeclared")


def test_custom_class_is_given_by_its_path() -> None:
    assert algorithms.get("rondo.algorithms.factors.rolora:RoLoRA", alternate_for=0.5) == algorithms.get(
        "rolora", alternate_for=0.5
    )


def test_unknown_field_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="alternate"):
        algorithms.get("rolora", alternate=0.5)


def test_names_follow_the_table() -> None:
    """Methods of least squares are no choice for other tasks."""
    assert algorithms.names() == tuple(n for n, e in TABLE.items() if not n.endswith("-linear"))
    linear = {n: n.endswith("-linear") for n in TABLE}
    assert {n: e.traits.least_squares for n, e in TABLE.items()} == linear


IMPORT = """
import sys
import rondo, rondo.algorithms
assert rondo.algorithms.entry("rolora").traits.exact and rondo.__version__
heavy = {"torch", "numpy", "transformers", "peft", "datasets", "safetensors", "rondo.algorithm"} & set(sys.modules)
print(sorted(heavy))
"""


def test_package_and_table_import_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_attribute_is_an_attribute_error() -> None:

    assert rondo.algorithms is algorithms
    with pytest.raises(AttributeError, match="nope"):
        _ = rondo.nope
