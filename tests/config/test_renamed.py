"""Old names of keys and of public names: read with a warning, until the version that they go with."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import rondo
from rondo.config import ConfigError, load, renamed
from rondo.config.load import method_tables
from rondo.config.reference import sections
from rondo.config.renamed import RENAMED, Renamed


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys with an old name, one of them in another section."""
    monkeypatch.setitem(RENAMED, "train.rate", Renamed("train.lr", "0.9"))
    monkeypatch.setitem(RENAMED, "rank", Renamed("adapter.r", "0.9"))


def problems(config: dict[str, object], sets: tuple[str, ...] = ()) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(config, sets, check_paths=False)
    return {p.path: p.message for p in caught.value.problems}


@pytest.mark.usefixtures("old")
def test_old_key_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.toml"
    file.write_text("rank = 3\n[train]\nrate = 0.5\n")
    with caplog.at_level(logging.WARNING, "rondo"):
        config = load(file, check_paths=False)
    assert (config.adapter.r, config.train.lr) == (3, 0.5)
    assert "train.rate is called train.lr now; the old name is read until version 0.9" in caplog.text
    assert caplog.text.count("until version 0.9") == 2
    assert load({"train": {"lr": 0.5}}, ["train.rate=0.25"], check_paths=False).train.lr == 0.25


@pytest.mark.usefixtures("old")
def test_old_key_in_a_methods_table() -> None:
    tables = method_tables({"methods": {"fedit": {"train": {"rate": 0.5}}, "rolora": {"rank": 2}}})
    assert {label: dict(table) for label, table in tables.items()} == {
        "fedit": {"train": {"lr": 0.5}},
        "rolora": {"adapter": {"r": 2}},
    }


@pytest.mark.usefixtures("old")
def test_both_names_and_faults_of_the_value() -> None:
    assert problems({"train": {"rate": 0.5, "lr": 0.1}}) == {
        "train.rate": "is called train.lr now, which is given too: remove this one"
    }
    assert problems({"train": {"rate": -1}}).keys() == {"train.lr"}
    assert problems({"train": {"rates": 1}}).keys() == {"train.rates"}
    assert problems({"rank": 2, "adapter": 3}).keys() == {"adapter"}
    assert problems({"train": 1}).keys() == {"train"}


def test_configuration_that_is_given_is_left_alone(old: None) -> None:
    given = {"train": {"rate": 0.5}}
    load(given, check_paths=False)
    assert given == {"train": {"rate": 0.5}}


def test_promise_is_kept_and_ends() -> None:
    """Old keys are no keys, new ones are, and no old name is left in the version that it goes with."""
    known = {key.path for section in sections() for key in section.keys}
    assert {old for old in RENAMED if old in known} == set()
    assert {fate.new for fate in RENAMED.values()} <= known
    ends = {**{old: fate.goes for old, fate in RENAMED.items()}, **{o: goes for o, (_, goes) in rondo._RENAMED.items()}}
    assert [old for old, goes in ends.items() if version(rondo.__version__) >= version(goes)] == []
    assert {new for new, _ in rondo._RENAMED.values()} <= {*rondo.__all__}
    assert {*rondo._RENAMED} & {*rondo.__all__} == set()


def test_old_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rondo._RENAMED, "launch", ("run", "0.9"))
    with pytest.warns(DeprecationWarning, match=r"rondo.launch is called rondo.run now; .* until version 0.9") as told:
        assert rondo.launch is rondo.run  # type: ignore[attr-defined]
    assert told[0].filename == __file__


def test_nothing_is_told_without_an_old_name(caplog: pytest.LogCaptureFixture) -> None:
    assert renamed.current("train.lr") == "train.lr"
    load({"train": {"lr": 0.5}}, check_paths=False)
    assert caplog.text == ""
