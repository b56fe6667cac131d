"""Tables of methods in a file: a run has the values of its own table, and every table is checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rondo.config.load import load, method_tables
from rondo.errors import ConfigError
from rondo.records.directory import to_toml

FILE = """
rounds = 3
algorithm.name = "florg"
adapter = { r = 4, rank_pattern = { query = 2 } }
train = { lr = 0.1, optimizer = "adamw" }

[methods.florg]
algorithm.gram_init = "gaussian"

[methods.fedit]
adapter.rank_pattern = { value = 3 }

[methods.fedloru]
algorithm.tau = 5
train.lr = 0.5

[methods."fedavg:whole"]
algorithm.name = "fedavg"
train.what = "all"
adapter = false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.toml"
    path.write_text(FILE)
    return path


def test_run_has_the_values_of_its_own_table(file: Path) -> None:
    assert tuple(method_tables(file)) == ("florg", "fedit", "fedloru", "fedavg:whole")
    florg, fedit, fedloru, whole, other = (
        load(file, [f"algorithm.name={name}"]) for name in (*method_tables(file), "ffa-lora")
    )
    assert load(file) == florg
    assert (florg.algorithm.fields, fedit.algorithm.fields) == ({"gram_init": "gaussian"}, {})
    assert (fedloru.algorithm.fields, fedloru.train.lr, florg.train.lr) == ({"tau": 5}, 0.5, 0.1)
    assert (whole.algorithm.name, whole.has_factors, florg.has_factors) == ("fedavg", False, True)
    assert fedit.adapter.rank_pattern == {"value": 3}  # a value that is a table is replaced, not merged
    assert other.algorithm.fields == {}


def test_kept_configuration_has_no_tables(file: Path) -> None:
    assert "methods" not in to_toml(load(file, ["algorithm.name=fedit"]))


def test_overrides_come_after_the_table(file: Path) -> None:
    settings = load(file, ["algorithm.name=fedloru", "algorithm.tau=2", "train.lr=0.9"])
    assert (settings.algorithm.fields, settings.train.lr) == ({"tau": 2}, 0.9)
    assert load(file, ["methods.florg.algorithm.gram_init=kaiming"]).algorithm.fields == {"gram_init": "kaiming"}


@pytest.mark.parametrize(
    ("sets", "problems"),
    [
        (["methods.fedloru.algorithm.tau=x"], ["methods.fedloru.algorithm.tau: should be a valid integer, got 'x'"]),
        (["methods.florg.algorithm.tau=1"], ["methods.florg.algorithm.tau: florg has no such field"]),
        (["methods.fedit.train.momentum=0.5"], ["methods.fedit.train.momentum: only sgd has momentum, not adamw"]),
        (["methods.fedit.train.optimizer=sgd", "train.momentum=0.5"], ["train.momentum: only sgd has momentum"]),
        (["methods.fedit.rounds=2"], ["methods.fedit.rounds: no key that one method may have for itself"]),
        (["methods.fedit.model.name=x"], ["methods.fedit.model.name: no key that one method may have for itself"]),
        (["methods.fedit.train=false"], []),
        (["methods.fedit=3"], ["methods.fedit: should be a section: [methods.fedit]"]),
        (["methods=3"], ["methods: should be a table per method: [methods.fedit]"]),
        (["methods.fedti.train.lr=1"], ["methods.fedti.algorithm.name: no algorithm is called 'fedti'"]),
        (["rounds=x", "methods.fedit.train.lr=-1"], ["rounds: should be an integer", "methods.fedit.train.lr: "]),
        (["method.fedit.train.lr=1"], ["method: unknown key; did you mean 'methods'?"]),
    ],
)
def test_every_table_is_checked_when_the_file_is_read(sets: list[str], problems: list[str], file: Path) -> None:
    told: tuple[Any, ...] = ()
    try:
        load(file, sets)
    except ConfigError as error:
        told = error.problems
    assert [text for text in problems if not any(str(p).startswith(text) for p in told)] == []
    assert len(told) == len(problems), told


def test_overrides_mend_the_other_tables_too(file: Path, tmp_path: Path) -> None:
    """A paper's row names files that are elsewhere here, and every method reads them."""
    (tmp_path / "rows.csv").write_text("text,label\na,1\n", encoding="utf-8")
    file.write_text(FILE + "[data]\nsource = './leaf/femnist'\n", encoding="utf-8")
    sets = ["task.text=text", "task.label=label", "partition.kind=iid", "partition.clients=1"]
    sets.append(f"data.source='{tmp_path / 'rows.csv'}'")
    assert load(file, sets).data.source.endswith("rows.csv")
    with pytest.raises(ConfigError) as caught:
        load(file, sets[:-1])
    assert [p.path for p in caught.value.problems] == ["data.source"]
    # A value that suits this method alone is no fault of another's table.
    assert load(file, [*sets, "algorithm.name=fedloru", "algorithm.tau=2"]).algorithm.fields == {"tau": 2}
    # One that is mended in part only is told as it is now.
    late = FILE.replace("train.lr = 0.5", "train.warmup_rounds = 10")
    file.write_text(late, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"methods\.fedloru\.train\.warmup_rounds: must be below rounds = 8"):
        load(file, ["rounds=8"])
    assert load(file, ["rounds=12"]).rounds == 12


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("algorithm.tau=1,10,50", "--vary algorithm.tau=1,10,50"),
        ("algorithm.tau=[1, 10]", "--vary algorithm.tau=1,10"),
        ("adapter.r=[2,4]", "--vary adapter.r=2,4"),
        ("train.schedule=linear,cosine", "--vary train.schedule=linear,cosine"),
    ],
)
def test_several_values_of_a_key_point_to_vary(text: str, hint: str, file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, ["algorithm.name=fedloru", text])
    assert hint in str(caught.value)
