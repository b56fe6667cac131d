"""Named settings of the papers: each is a configuration at both scales, with the papers' values."""

from __future__ import annotations

import csv
import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rondo.cli import app
from rondo.config.load import load
from rondo.config.papers import writer
from rondo.config.papers.rows import SETTINGS

PUBLISHED = Path(__file__).parents[3] / "shared" / "published"
published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the papers' tables are not here")
DATA_SETS = {"SST-2": "sst2", "QNLI": "qnli", "MNLI": "mnli", "QQP": "qqp", "RTE": "rte"}


def config(name: str, scale: str = "paper") -> Any:
    return load(tomllib.loads(writer.text(name, scale)), check_paths=False)


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_a_configuration(name: str, scale: str) -> None:
    settings = config(name, scale)
    assert settings.algorithm.name in ("rolora", "florg", "fedloru", "fedrep")
    assert [line for line in writer.text(name, scale).splitlines() if not len(line) <= 120] == []


@pytest.mark.parametrize(
    ("paper", "digest"),
    [
        ("fedloru", "76f0fa96a9fed0d0"),
        ("fedrep", "d4f4025ae987da66"),
        ("florg", "bef9812770a47f97"),
        ("rolora", "d1b4c7c6b9ff1b76"),
    ],
)
def test_files_of_a_paper_are_byte_for_byte_as_before(paper: str, digest: str) -> None:
    """A change of a value or a remark changes a digest, which is then written here on purpose."""
    rows = sorted(name for name in SETTINGS if name.startswith(f"{paper}/"))
    texts = "".join(f"{name} {scale}\n{writer.text(name, scale)}" for name in rows for scale in ("paper", "small"))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == digest


def table(number: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"rolora_table{number}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def layers(text: str) -> list[int]:
    first, _, last = text.partition("..")
    return list(range(int(first), int(last) + 1))


@published
def test_rolora_has_the_rounds_and_batches_of_table_5() -> None:
    for row in table("5_hyperparameters"):
        train, rounds = config(f"rolora/{DATA_SETS[row['dataset']]}").train, row["key"].startswith("Total")
        known = {"Batch Size": train.batch_size, "Local Epochs": train.local_epochs}
        seen = config(f"rolora/{DATA_SETS[row['dataset']]}").rounds if rounds else known[row["key"]]
        assert seen == int(row["value"]), row


@published
def test_rolora_has_the_layers_of_table_9() -> None:
    types = {"Wv": "value", "Wq": "query"}
    for row in table("9_layers"):
        suffix = {"P1": "-p1", "P2": "", "P3": "-p3"}[row["key"].split("=")[1][:2]]
        adapter = config(f"rolora/{DATA_SETS[row['dataset']]}{suffix}").adapter
        if row["key"].endswith("type"):
            assert set(adapter.target_modules) == {types[t] for t in row["value"].split(",")}, row
        else:
            assert adapter.layers_to_transform == layers(row["value"]), row


@published
def test_rolora_has_the_layers_of_the_budgets() -> None:
    for row in table("10_layers"):
        if row["dataset"] == "RoLoRA" and row["key"].endswith("layer_index"):
            budget = "187kb" if "187.5KB" in row["key"] else "250kb"
            assert config(f"rolora/qqp-{budget}").adapter.layers_to_transform == layers(row["value"])


@published
@pytest.mark.parametrize(("number", "name"), [("11", "rolora/commonsense"), ("13", "rolora/alpaca")])
def test_rolora_has_the_settings_of_language_tasks(number: str, name: str) -> None:
    settings = config(name)
    known = {
        "Total comm. rounds": settings.rounds,
        "Batch size": settings.train.batch_size,
        "Local Epochs": settings.train.local_epochs,
    }
    for row in table(f"{number}_hyperparameters"):
        if row["key"] == "Layer index":
            assert settings.adapter.layers_to_transform == layers(row["value"])
        elif row["key"] == "Layer type":
            assert len(settings.adapter.target_modules) == len(row["value"].split(","))
        else:
            assert known[row["key"]] == int(row["value"]), row


def test_more_clients_have_fewer_rounds() -> None:
    assert [config(f"rolora/mnli{n}").rounds for n in ("", "-20", "-50")] == [500, 75, 30]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["init", *words])


def test_init_writes_a_setting(tmp_path: Path) -> None:
    result = run(str(tmp_path / "a.toml"), "--paper", "rolora/sst2", "--scale", "small")
    assert result.exit_code == 0
    text = (tmp_path / "a.toml").read_text()
    assert text == writer.text("rolora/sst2", "small")
    assert "# - rounds = 6, in place of 500" in text
    assert load(tmp_path / "a.toml", check_paths=False).rounds == 6


def test_init_lists_the_settings() -> None:
    result = run("--paper", "list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == sorted(SETTINGS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--paper", "rolora/sst"], "--paper: there is no setting 'rolora/sst': did you mean rolora/sst2"),
        (["--paper", "xyz"], "rondo init --paper list shows them all"),
        (["--paper", "rolora/sst2", "--scale", "tiny"], "--scale: 'tiny' is neither 'paper' nor 'small'"),
        (["--scale", "small"], "--scale: is the scale of a paper's setting: name one by --paper"),
    ],
)
def test_wrong_setting_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    result = run(str(tmp_path / "a.toml"), *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "a.toml").exists()


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", [n for n in SETTINGS if n.startswith("fedloru/") and n != "fedloru/alpaca"])
def test_ranks_of_images_fit_the_networks_layers(name: str, scale: str) -> None:
    from rondo.models.forms.outline import look

    settings = config(name, scale)
    settings = settings.model_copy(update={"task": settings.task.model_copy(update={"image_shape": [32, 32, 3]})})
    outline = look(settings, tuple(map(str, range(10))))
    assert not outline.problems
    assert {site.rank for site in outline.sites} == {64, 128}
    assert [site for site in outline.sites if not site.rank <= min(site.shape)] == []


def test_small_scale_keeps_what_tells_rows_apart() -> None:
    """Layers in proportion, and factors that are merged within the rounds."""
    adapters = {name: config(f"rolora/{name}", "small").adapter for name in ("sst2", "sst2-p1", "sst2-p3")}
    assert [a.layers_to_transform for a in adapters.values()] == [[4, 5], [5], [0, 1, 2, 3, 4, 5]]
    assert adapters["sst2-p1"].target_modules == ["value"]
    assert config("rolora/alpaca", "small").adapter.layers_to_transform == list(range(22, 30))
    for name in ("fedloru/cifar10", "fedloru/alpaca"):
        settings = config(name, "small")
        assert settings.algorithm.fields["tau"] < settings.rounds


@pytest.mark.parametrize("name", SETTINGS)
def test_text_says_each_value_that_a_paper_leaves_open_or_the_scale_changes(name: str) -> None:
    whole, small = writer.text(name), writer.text(name, "small")
    for key in SETTINGS[name].chosen:
        assert f"# - {key} = " in whole
        assert f"# - {key} " in small
    assert "f1" not in whole  # GLUE's own metric for MRPC and QQP; the papers have accuracy
