"""A run directory opened again: it runs no code unasked, and its result is not taken for another's."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import rondo
from outcomes import problems
from rondo.config import ConfigError
from small_runs import reviews, save_tiny_bert, settings, write_rows

OWN = '''
from dataclasses import dataclass
from pathlib import Path

from rondo.algorithms.factors.fedit import FedIT

Path("imported").write_text("x")


@dataclass(frozen=True)
class Own(FedIT.__mro__[1]):
    """FedIT by another name."""

    traits = FedIT.traits
    init, client_update = FedIT.init, FedIT.client_update
'''


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, rows, a run of both and an export of it, named from within."""
    folder = tmp_path_factory.mktemp("received")
    before = os.getcwd()
    os.chdir(folder)
    try:
        save_tiny_bert(Path("bert"))
        write_rows(Path("test.csv"), reviews(6, seed=1))
        for i in range(3):
            write_rows(Path("sites", f"site-{i}.csv"), reviews(8, seed=i))
        data = {"clients_from": "sites", "test_source": "test.csv"}
        config = settings(Path("./bert"), data=data, partition={"clients": None}, rounds=1)
        rondo.run(config, run_dir="run", device="cpu")
        rondo.export("run", "exported")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a copy of :func:`finished`, with a second run directory that has a round to go. Files name
    the model and the rows of the copy."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for file in (Path("run/config.toml"), Path("run/manifest.json"), Path("exported/rondo.toml")):
        file.write_text(file.read_text().replace(str(finished), str(tmp_path)))
    shutil.copytree("run", "stopped")
    Path("stopped/summary.json").unlink()
    return tmp_path


def edit_config(**changes: Any) -> None:
    file = Path("bert/config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def other_weights() -> None:
    torch.manual_seed(1)
    transformers.BertForSequenceClassification(transformers.BertConfig.from_pretrained("bert")).save_pretrained("bert")


def hand_over_a_row() -> None:
    """The last row of one client becomes the first of the next; all rows together stay as they are."""
    rows = {i: list(csv.DictReader(Path("sites", f"site-{i}.csv").read_text().splitlines())) for i in (0, 1)}
    rows[1].insert(0, rows[0].pop())
    for i in rows:
        write_rows(Path("sites", f"site-{i}.csv"), rows[i])


def rename_a_client() -> None:
    Path("sites/site-1.csv").rename("sites/site-1b.csv")


def edit_tokenizer() -> None:
    file = Path("bert/tokenizer.json")
    file.write_text(file.read_text().replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}'))


def edit_run_settings() -> None:
    for run in ("run", "stopped"):
        file = Path(run, "config.toml")
        file.write_text(file.read_text().replace("lora_alpha = 4.0", "lora_alpha = 8.0"))


def other_test_rows() -> None:
    write_rows(Path("test.csv"), reviews(6, seed=2))


EVERYWHERE = ("resume", "evaluate", "client", "export", "adapter")


@pytest.mark.parametrize(
    ("change", "path", "refused"),
    [
        (lambda: edit_config(hidden_act="relu"), "model_config.hidden_act", EVERYWHERE),
        (lambda: edit_config(num_attention_heads=4), "model_config.num_attention_heads", EVERYWHERE),
        (lambda: edit_config(layer_norm_eps=1e-3), "model_config.layer_norm_eps", EVERYWHERE),
        (other_weights, "model_sha256", EVERYWHERE),
        (edit_tokenizer, "tokenizer_sha256", EVERYWHERE),
        (hand_over_a_row, "partition.clients_sha256", ("resume", "client")),
        (rename_a_client, "partition.clients_sha256", ("resume", "client")),
        (other_test_rows, "partition.test_examples_sha256", ("resume", "evaluate", "client")),
        (edit_run_settings, "config.adapter.lora_alpha", ("resume", "evaluate", "client", "export")),
    ],
    ids=["activation", "heads", "epsilon", "weights", "tokenizer", "owner", "name", "test rows", "settings"],
)
@pytest.mark.sweep(9)
def test_change_since_the_run_is_refused(
    folder: Path, change: Callable[[], None], path: str, refused: tuple[str, ...]
) -> None:
    change()
    commands: dict[str, Callable[..., object]] = {
        "resume": lambda: rondo.resume("stopped"),
        "evaluate": lambda **allow: rondo.evaluate("run", device="cpu", **allow),
        "client": lambda **allow: rondo.evaluate("run", client="site-0", device="cpu", **allow),
        "export": lambda **allow: rondo.export("run", "new", **allow),
        "adapter": lambda **allow: rondo.evaluate("exported", device="cpu", **allow),
    }
    for name, command in commands.items():
        if name not in refused:
            continue
        found = problems(command)
        assert found[path].startswith("was "), name
        assert ("--allow-nondeterministic" if name == "resume" else "--allow-changed") in found
        assert not Path("new").exists()
    if "evaluate" in refused:
        commands["evaluate"](allow_changed=True)


def test_unchanged_run_is_opened_from_another_place(folder: Path, invoke: Callable[..., tuple[int, str]]) -> None:
    """Where model and data lie does not matter: their contents do."""
    os.chdir(folder)
    Path("moved").mkdir()
    for name in ("bert", "test.csv", "sites"):
        Path(name).rename(Path("moved", name))
    for file in (Path("run/config.toml"), Path("exported/rondo.toml")):
        text = file.read_text()
        for name in ("bert", "test.csv", "sites"):
            assert f'"{folder / name}"' in text
            text = text.replace(f'"{folder / name}"', f'"./moved/{name}"')
        file.write_text(text)
    assert invoke("export", "run", "--to", "new", "--verify")[0] == 0
    assert rondo.evaluate("run", device="cpu") == rondo.evaluate("exported", device="cpu")


def test_manifest_of_an_older_version_counts_as_another(folder: Path) -> None:
    file = Path("run/manifest.json")
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in manifest.items() if k != "tokenizer_sha256"}))
    with pytest.raises(ConfigError, match="tokenizer_sha256: was null"):
        rondo.export("run", "new")
    rondo.export("run", "new", allow_changed=True)


@pytest.fixture
def own(folder: Path, invoke: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working folder with an algorithm, of which there are a run and an adapter."""
    monkeypatch.chdir(folder)
    name = f"own_{folder.parent.name}_{folder.name}".replace("-", "_")
    Path(f"{name}.py").write_text(OWN)
    sets = ("--set", f"algorithm.name={name}:Own")
    code, output = invoke("run", "run/config.toml", *sets, "--run-dir", "own-run", "--device", "cpu")
    assert code == 0, output
    assert invoke("export", "own-run", "--to", "own-adapter", "--allow-code")[0] == 0
    Path("own-run/summary.json").unlink()
    Path("imported").unlink()
    return name


COMMANDS = (
    ("resume", "own-run"),
    ("evaluate", "own-run", "--device", "cpu"),
    ("evaluate", "own-adapter", "--device", "cpu"),
    ("export", "own-run", "--to", "new"),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_code_that_a_directory_names_is_not_imported_unasked(
    own: str, invoke: Callable[..., tuple[int, str]], command: tuple[str, ...]
) -> None:
    del sys.modules[own]
    code, output = invoke(*command)
    assert code == 2
    assert f"algorithm.name: '{own}:Own' is no part of Rondo" in output
    assert f"{own}.py" in output
    assert "--allow-code" in output
    assert not Path("imported").exists()
    assert invoke(*command, "--allow-code")[0] == 0
    assert Path("imported").exists()


def test_changed_source_of_own_code_is_refused(own: str) -> None:
    Path(f"{own}.py").write_text(OWN + "\n# changed\n")
    for command in (rondo.resume, rondo.evaluate):
        with pytest.raises(ConfigError, match=f"code_sha256.{own}: was "):
            command("own-run", device="cpu", allow_code=True)
    rondo.resume("own-run", allow_code=True, allow_nondeterministic=True)


def test_pipe_in_a_run_directory_is_refused(folder: Path) -> None:
    os.mkfifo("run/checkpoint/pipe")
    for command in (lambda: rondo.evaluate("run"), lambda: rondo.export("run", "new")):
        with pytest.raises(ConfigError, match="is a pipe or a device"):
            command()


def test_manifest_without_end_is_refused(folder: Path) -> None:
    Path("run/manifest.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"manifest.json is not as a run writes it"):
        rondo.evaluate("run")
