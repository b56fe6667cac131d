"""Whole runs, from data files to an adapter, with a model small enough to train in a blink."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import shutil
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

import rondo
import tiny
from methods import every_method
from outcomes import verified
from rondo import algorithms, errors
from rondo.algorithms.factors.fedit import FedIT
from rondo.config import ConfigError, load
from rondo.data import population
from rondo.data.population import Population
from rondo.engine.scoring import Scorer
from rondo.errors import RunStopped
from rondo.models.loading.peft import read_tensors
from rondo.models.shortcuts.choose import telling
from rondo.results import evaluate, export
from rondo.runs import card, runner
from rondo.runs.assembling import assemble
from rondo.runs.assembling.wrapping import make_algorithm
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from small_runs import Rows, files, reviews, save_tiny_bert, save_tiny_gpt2, save_tiny_pythia, settings, write_rows
from watched import failing

Run = Callable[..., runner.RunResult]


@pytest.fixture
def run(bert: Path, tmp_path: Path) -> Run:
    """Runs :func:`settings` with changes, each time in a new directory."""
    run_dirs: list[Path] = []

    def start(**changes: Any) -> runner.RunResult:
        run_dirs.append(tmp_path / f"run-{len(run_dirs)}")
        return runner.run(settings(bert, **changes), run_dir=run_dirs[-1], device="cpu")

    return start


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "reviews.csv", reviews(48))


def with_tests(bert: Path, folder: Path, **changes: Any) -> runner.RunResult:
    """A run with a test set; do not write into its directory."""
    config = settings(bert, data=files(folder, reviews(48), reviews(12, seed=1)), **changes)
    return runner.run(config, run_dir=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def finished(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> runner.RunResult:
    """With the baseline."""
    return with_tests(bert, tmp_path_factory.mktemp("run"), evaluation={"local_only": True, "clients_every": 1})


@pytest.fixture(scope="module")
def personal(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> runner.RunResult:
    return with_tests(bert, tmp_path_factory.mktemp("personal"), algorithm={"name": "fedsa-lora"})


def weights(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


def report(result: runner.RunResult) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((result.run_dir / "partition.json").read_text(encoding="utf-8"))
    return content


def problems(start: Callable[[], object]) -> dict[str, list[str]]:
    with pytest.raises(ConfigError) as caught:
        start()
    messages: dict[str, list[str]] = {}
    for problem in caught.value.problems:
        messages.setdefault(problem.path, []).append(problem.message)
    return messages


def assert_accounted(found: Mapping[str, Any]) -> None:
    """Every training row belongs to a client or is counted under the reason why it does not."""
    dealt = sum(c["train"] + c["validation"] for c in found["clients"].values())
    lost = sum(found[f"rows_{key}"] for key in ("bad", "not_sampled", "without_client", "without_target")) + sum(
        found["clients_too_small"].values()
    )
    assert dealt == found["rows_used"] == found["rows"] - lost
    lost = sum(found[f"test_rows_{key}"] for key in ("bad", "not_sampled", "without_target"))
    assert found["test_rows_used"] == found["test_rows"] - lost


# --- the run directory ---------------------------------------------------------------------------------------------


def test_run_directory_is_complete(finished: runner.RunResult) -> None:
    names = {p.name + "/" * p.is_dir() for p in finished.run_dir.iterdir()}
    assert names == {
        "config.toml", "manifest.json", "metrics.jsonl", "summary.json", "partition.json", "partition.png",
        "curve.png", "checkpoint/", "adapter/", "adapter-best/", "run.log",
    }  # fmt: skip
    for picture in ("partition.png", "curve.png"):
        content = (finished.run_dir / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 1000


def strict(text: str) -> Any:
    """JSON by the standard, which has no NaN and no infinities."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_records_equal_the_result(finished: runner.RunResult) -> None:
    lines = (finished.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [strict(line) for line in lines] == finished.history
    assert [r["round"] for r in finished.history] == [0, 1]
    assert strict((finished.run_dir / "summary.json").read_text()) == finished.summary
    assert finished.metrics == finished.history[-1]["scores"] == finished.summary["after"]
    manifest = strict((finished.run_dir / "manifest.json").read_text())
    assert manifest["labels"] == ["neg", "pos"]
    assert (manifest["seed"], manifest["algorithm"], manifest["head"], manifest["device"]) == (
        0, "fedit", "shared", "cpu",
    )  # fmt: skip
    assert len(manifest["adapted_modules"]) == 4
    assert_accounted(report(finished))


def test_round_records_count_clients_and_bytes(finished: runner.RunResult) -> None:
    numbers = 4 * 2 * (32 + 32) + 2 * 32 + 2  # factors of four modules, and the head
    for record in finished.history:
        assert (record["clients"], record["sampled"], record["failed"]) == (3, 3, [])
        assert record["bytes_up"] == 3 * 4 * numbers
        assert {"loss", "lr", "bytes_down", "scores", "train_seconds", "seconds"} <= set(record)
    total = finished.summary["bytes"]
    assert total["up"] == 2 * 3 * 4 * numbers
    assert total["up_per_client_round"] == 4 * numbers


def test_scores_before_and_after_training(finished: runner.RunResult) -> None:
    """Scores are taken on the test set and at the clients."""
    assert finished.summary["before"]["global"]["examples"] == 12
    assert finished.metrics["global"]["examples"] == 12
    assert finished.metrics["global"]["loss"] != finished.summary["before"]["global"]["loss"]
    assert set(finished.metrics["clients"]["per_client"]) == {"client-0", "client-1", "client-2"}
    assert 0 <= finished.metrics["clients"]["accuracy"]["mean"] <= 1


def test_local_baseline_is_recorded(finished: runner.RunResult) -> None:
    local = finished.summary["local_only"]
    assert local["own"]["clients"] == local["test"]["clients"] == 3
    assert 0 <= local["own"]["worst_tenth"] <= local["own"]["mean"] <= 1
    assert 0 <= local["test"]["mean"] <= 1


def test_saved_configuration_repeats_the_run(finished: runner.RunResult) -> None:
    config = load(finished.run_dir / "config.toml")
    assert (config.rounds, config.train.lr, config.adapter.r) == (2, 0.02, 2)
    again = runner.run(config, run_dir=finished.run_dir.parent / "again", device="cpu")
    assert weights(again.run_dir / "adapter") == weights(finished.run_dir / "adapter")


def test_adapter_loads_in_stock_peft(finished: runner.RunResult, bert: Path) -> None:
    import peft
    import transformers

    folder = finished.run_dir / "adapter"
    assert json.loads((folder / "labels.json").read_text()) == ["neg", "pos"]
    base = transformers.AutoModelForSequenceClassification.from_pretrained(bert, num_labels=2)
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    factors = [p for n, p in model.named_parameters() if "lora_B" in n]
    assert len(factors) == 4
    assert [p for p in factors if not bool(p.any())] == []
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = reviews(12, seed=1)
    with torch.no_grad():
        logits = model(**tokenizer([r["text"] for r in rows], padding=True, return_tensors="pt")).logits
    truth = torch.tensor([("neg", "pos").index(r["label"]) for r in rows])
    accuracy = float((logits.argmax(-1) == truth).float().mean())
    assert accuracy == pytest.approx(finished.metrics["global"]["accuracy"])
    assert torch.nn.functional.cross_entropy(logits, truth).item() == pytest.approx(
        finished.metrics["global"]["loss"], rel=1e-4
    )


# --- configurations and data ---------------------------------------------------------------------------------------


def test_dict_path_and_configuration_run_the_same(bert: Path, data: Path, tmp_path: Path) -> None:
    from rondo.records.directory import to_toml

    config = settings(bert, data={"source": str(data)})
    file = tmp_path / "run.toml"
    file.write_text(to_toml(load(config)))
    results = [
        rondo.run(c, run_dir=tmp_path / str(i), device="cpu") for i, c in enumerate([config, str(file), load(config)])
    ]
    assert len({weights(r.run_dir / "adapter") for r in results}) == 1
    assert len({(r.run_dir / "config.toml").read_text() for r in results}) == 1


def test_seed_decides_the_run(run: Run, data: Path) -> None:
    first, again, other = (run(seed=seed, data={"source": str(data)}) for seed in (1, 1, 2))
    assert weights(first.run_dir / "adapter") == weights(again.run_dir / "adapter")
    assert weights(first.run_dir / "adapter") != weights(other.run_dir / "adapter")
    assert report(first) == report(again)


@pytest.mark.slow
def test_file_format_makes_no_difference(run: Run, tmp_path: Path) -> None:
    rows = reviews(48)
    endings = (".csv", ".jsonl", ".json", ".parquet")
    results = [run(data={"source": str(write_rows(tmp_path / f"reviews{e}", rows))}) for e in endings]
    assert len({weights(r.run_dir / "adapter") for r in results}) == 1
    assert len({(r.run_dir / "partition.json").read_text() for r in results}) == 1


@pytest.mark.slow
def test_two_text_columns(run: Run, data: Path) -> None:
    result = run(task={"text": ["first", "second"]}, data={"source": str(data)})
    assert result.history[-1]["clients"] == 3
    single = run(task={"text": ["text"]}, data={"source": str(data)})
    assert weights(result.run_dir / "adapter") != weights(single.run_dir / "adapter")


def test_one_file_per_client(run: Run, tmp_path: Path) -> None:
    for i, site in enumerate(("north", "south", "west")):
        write_rows(tmp_path / "sites" / f"{site}.csv", reviews(12 + 4 * i, seed=i))
    result = run(data={"clients_from": str(tmp_path / "sites")}, partition={"clients": None})
    partition = report(result)
    sizes = {n: c["train"] + c["validation"] for n, c in partition["clients"].items()}
    assert sizes == {"north": 12, "south": 16, "west": 20}
    assert_accounted(partition)
    pattern = run(data={"clients_from": str(tmp_path / "sites" / "*.csv")}, partition={"clients": None})
    assert weights(result.run_dir / "adapter") == weights(pattern.run_dir / "adapter")


def test_natural_clients(run: Run, data: Path) -> None:
    result = run(data={"source": str(data)}, partition={"kind": "natural", "column": "who", "clients": None})
    assert list(report(result)["clients"]) == ["site 0", "site 1", "site 2"]
    assert_accounted(report(result))


@pytest.mark.slow
def test_label_of_a_single_client(run: Run, tmp_path: Path) -> None:
    for i, site in enumerate("abc"):
        rows = [row | {"label": "mixed"} if site == "c" else row for row in reviews(12, seed=i)]
        write_rows(tmp_path / "sites" / f"{site}.csv", rows)
    result = run(data={"clients_from": str(tmp_path / "sites")}, partition={"clients": None})
    partition = report(result)
    assert partition["classes"] == ["mixed", "neg", "pos"]
    assert partition["clients"]["c"]["labels"] == {"mixed": 12}
    assert partition["clients"]["a"]["labels"] == {"neg": 6, "pos": 6}
    alone = result.metrics["clients"]["per_client"]["c"]
    assert alone["matthews"] is None
    assert alone["accuracy"] is not None
    strict((result.run_dir / "summary.json").read_text())


@pytest.mark.parametrize("reuse", [True, False])
def test_shortcuts_leave_out_only_what_a_run_can_spare(
    reuse: bool, bert: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the upper of two layers is adapted. In training the lower layer computes each row once and the upper one at
    every step, and only one token per row of the upper's output is used."""
    from transformers.models.bert.modeling_bert import BertLayer

    seen: dict[int, list[tuple[int, int]]] = {}
    forward = BertLayer.forward

    def counted(layer: BertLayer, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = forward(layer, hidden, *args, **kwargs)
        out = result[0] if isinstance(result, tuple) else result
        seen.setdefault(id(layer), []).append((len(hidden), out.shape[1]))
        return result

    computed: list[int] = []

    class Training(rondo.Observer):
        def round_started(self, index: int, clients: int) -> None:
            if index == 0:
                seen.clear()

        def round_done(self, record: dict[str, Any]) -> None:
            if record["round"] == 1:
                computed.extend(sum(rows for rows, _ in calls) for calls in seen.values())
                computed.append(max(tokens for _, tokens in list(seen.values())[-1]))

    monkeypatch.setattr(BertLayer, "forward", counted)
    config = settings(
        bert,
        data={"source": str(data), "validation_fraction": 0.0},
        adapter={"layers_to_transform": [1]},
        simulation={"reuse_prefix": reuse},
        evaluation={"every": 0},
    )
    result = runner.run(config, run_dir=data.parent / "run", device="cpu", observer=Training())
    rows, epochs = 48, 2 * 2
    assert computed == [rows if reuse else epochs * rows, epochs * rows, 1]
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["prefix"]["layers"] == int(reuse)
    assert ("reuse_prefix is off" in str(manifest["prefix"]["reason"])) != reuse
    assert manifest["first_token_only"] == {"on": True, "reason": None}


@pytest.mark.slow
def test_population_report_is_freed_before_training(
    bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has a line per client, perhaps a hundred thousand, and is already on disk."""
    reports: list[weakref.ref[Report]] = []
    build = population.build

    class Report(dict[str, Any]):
        """A report that can be referred to weakly."""

    def watched(*args: Any) -> Population:
        population = build(*args)
        report = Report(population.report)
        reports.append(weakref.ref(report))
        return replace(population, report=report)

    class Stops(rondo.Observer):
        """Stops the first run at its second round, where the resumed run continues."""

        def __init__(self, stop: threading.Event) -> None:
            self.stop, self.seen = stop, list[bool]()

        def round_started(self, index: int, clients: int) -> None:
            gc.collect()
            self.seen += [report() is None for report in reports]
            if index == 1:
                self.stop.set()

    monkeypatch.setattr(assemble, "build", watched)
    watch, again = Stops(threading.Event()), Stops(threading.Event())
    with pytest.raises(errors.RunInterrupted):
        runner.run(
            settings(bert, data={"source": str(data)}), run_dir=tmp_path / "run", observer=watch, stop=watch.stop
        )
    runner.resume(tmp_path / "run", observer=again)
    assert watch.seen == [True, True]
    assert again.seen == [True, True]
    assert len(json.loads((tmp_path / "run" / "partition.json").read_text())["clients"]) == 3


def test_shortcut_trial_uses_telling_rows(tmp_path: Path) -> None:
    """The first rows have one token: on them alone, a classifier of the last token passes for one of the first."""
    rows = [{"text": word, "label": label} for label, word in (("pos", "good"), ("neg", "bad"))] * 3
    rows += [{"text": row["text"], "label": row["label"]} for row in reviews(24)]
    config = settings(
        save_tiny_pythia(tmp_path / "pythia"),
        adapter={"target_modules": ["query_key_value"]},
        data={"source": str(write_rows(tmp_path / "rows.csv", rows)), "validation_fraction": 0.0},
        partition={"clients": 1},
        clients={"min_clients": 1},
    )
    result = runner.run(config, run_dir=tmp_path / "run", device="cpu")
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["first_token_only"] == {
        "on": False,
        "reason": "the model reads more than the first token of its last layer",
    }


def test_telling_rows_differ_in_length() -> None:
    def row(size: int) -> TextExample:
        return TextExample((1,) * size, (1,) * size)

    whole = SequenceClassification(None, ["text"], "label", ["neg", "pos"], 256)
    assert telling(whole, [row(5), row(3), row(200), row(7)]) == (row(200), row(3))
    cut = CausalLM(tiny.tokenizer(), "text", (), None, 256)
    assert telling(cut, [row(5), row(3), row(200), row(7)]) == (row(64), row(3))
    assert telling(cut, [row(80), row(300), row(70)]) == (row(64), row(32))
    assert telling(cut, [row(2)]) == (row(2), row(1))
    assert telling(cut, [row(1)]) == (row(1),)
    assert telling(cut, []) == ()


def test_run_without_held_out_rows(run: Run, data: Path) -> None:
    result = run(data={"source": str(data), "validation_fraction": 0.0})
    assert result.metrics == {}
    assert (result.run_dir / "curve.png").exists()


def replying(folder: Path, rows: Rows, **data: str) -> dict[str, Any]:
    """A run that learns what is replied to what is asked."""
    task = {"kind": "causal-lm", "prompt": "ask", "response": "reply", "text": None, "label": None}
    data = {"source": str(write_rows(folder / "replies.jsonl", rows)), **data}
    return settings(save_tiny_gpt2(folder / "gpt2"), task=task, adapter={"target_modules": ["c_attn"]}, data=data)


def test_causal_language_model_learns_responses(tmp_path: Path) -> None:
    config = replying(tmp_path, [{"ask": r["first"], "more": "", "reply": r["second"]} for r in reviews(24)])
    config["task"]["prompt"] = ["ask", "more"]
    result = runner.run(config, run_dir=tmp_path / "run", device="cpu")
    assert (result.summary["primary"], result.summary["head"]) == ("loss", None)
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["targets_only"] == {"on": True, "reason": None}
    score = next(iter(result.metrics["clients"]["per_client"].values()))
    assert score["perplexity"] > 1
    assert report(result)["clients"]["client-0"]["labels"] is None
    assert_accounted(report(result))
    verified(result.run_dir, tmp_path / "export")
    assert json.loads((tmp_path / "export" / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"
    again = evaluate.evaluate(result.run_dir, client="client-0", device="cpu")
    assert again["validation"] == score


def test_rows_with_truncated_response_are_counted(tmp_path: Path) -> None:
    rows = [{"ask": r["first"], "reply": r["second"]} for r in reviews(24)]
    for row in rows[:5]:
        row["ask"] = "film " * 40
    result = runner.run(replying(tmp_path, rows), run_dir=tmp_path / "run", device="cpu")
    assert report(result)["rows_without_target"] == 5
    assert_accounted(report(result))


def test_test_rows_with_nothing_to_learn_are_counted_or_refused(tmp_path: Path) -> None:
    rows = [{"ask": r["first"], "reply": r["second"]} for r in reviews(12)]
    long = [row | {"ask": "film " * 40} for row in rows]

    def start(test: Rows) -> runner.RunResult:
        config = replying(tmp_path, rows, test_source=str(write_rows(tmp_path / "test.jsonl", test)))
        return runner.run({**config, "rounds": 1}, run_dir=tmp_path / "run", device="cpu")

    message = problems(lambda: start(long))["task.max_length"][0]
    assert message == "of 12 rows nothing to learn is left within 32 tokens, and they are the whole test set: raise it"
    assert not (tmp_path / "run").exists()
    partition = report(start([*rows[:4], *long[:3]]))
    assert (partition["test_rows_used"], partition["test_rows_without_target"]) == (4, 3)
    assert_accounted(partition)


# --- samples and cut texts -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sorted_files_are_sampled_with_their_shares(run: Run, tmp_path: Path) -> None:
    """The first rows would be of one class."""
    train = sorted(reviews(48), key=lambda row: str(row["label"]))
    test = sorted(reviews(24, seed=1), key=lambda row: str(row["label"]))
    source = {**files(tmp_path, train, test), "max_train_rows": 20, "max_test_rows": 10}
    first, again, other = run(data=source), run(data=source), run(data=source, seed=1)
    partition = report(first)
    labels = Counter[str]()
    for client in partition["clients"].values():
        labels.update(client["labels"])
    assert labels == {"neg": 10, "pos": 10}
    assert partition["test_labels"] == {"neg": 5, "pos": 5}
    assert (partition["rows"], partition["rows_not_sampled"], partition["sampled_by"]) == (48, 28, ["label"])
    assert (partition["test_rows"], partition["test_rows_not_sampled"]) == (24, 14)
    assert partition["warnings"] == []
    assert_accounted(partition)
    assert partition == report(again)
    for key in ("examples_sha256", "test_examples_sha256"):
        assert partition[key] != report(other)[key]
    assert evaluate.evaluate(first.run_dir, device="cpu")["test"] == pytest.approx(first.metrics["global"])


@pytest.mark.slow
def test_sample_keeps_the_shares_of_natural_clients(run: Run, tmp_path: Path) -> None:
    rows = [row | {"who": "large" if i < 36 else "small"} for i, row in enumerate(reviews(48))]
    source = {"source": str(write_rows(tmp_path / "rows.csv", rows)), "max_train_rows": 16}
    partition = report(run(data=source, partition={"kind": "natural", "column": "who", "clients": None}))
    assert {n: c["labels"] for n, c in partition["clients"].items()} == {
        "large": {"neg": 6, "pos": 6},
        "small": {"neg": 2, "pos": 2},
    }
    assert partition["sampled_by"] == ["label", "who"]


def test_files_of_clients_are_sampled_together(run: Run, tmp_path: Path) -> None:
    for name, count in (("north", 36), ("south", 12), ("tiny", 1)):
        write_rows(tmp_path / "sites" / f"{name}.csv", reviews(count))
    source = {"clients_from": str(tmp_path / "sites"), "max_train_rows": 16}
    partition = report(run(data=source, partition={"clients": None}))
    assert sum(c["train"] + c["validation"] for c in partition["clients"].values()) == 16
    assert partition["sampled_by"] == ["label", "client"]
    assert partition["clients_not_sampled"] == 3 - len(partition["clients"])
    assert_accounted(partition)


def test_bad_rows_are_named_by_their_place_in_the_whole_file(run: Run, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "bad.csv", spoiled([40]))
    messages = problems(lambda: run(data={"source": str(source), "max_train_rows": 12}))
    assert messages["data"] == [f"{source}, line 42, column 'text': the text is empty"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_of_one_class_are_warned_of(run: Run, data: Path, tmp_path: Path, split: str) -> None:
    negative = [row for row in reviews(24) if row["label"] == "neg"]
    test = write_rows(tmp_path / "test.csv", negative if split == "test" else reviews(12))
    train = data
    if split == "train":
        train = write_rows(tmp_path / "train.csv", [*negative, *(row | {"text": ""} for row in reviews(2))])
    source = {"source": str(train), "test_source": str(test), "bad_rows": "drop"}
    kind = {"train": "training", "test": "test"}[split]
    with pytest.warns(UserWarning, match=f"all 12 {kind} rows are of class 'neg'") as caught:
        result = run(data=source, rounds=1)
    assert report(result)["warnings"] == [str(warning.message) for warning in caught]


@pytest.mark.slow
def test_cut_texts_are_counted(run: Run, tmp_path: Path) -> None:
    train, test = reviews(24), reviews(12)
    for row in (train[3], train[17], test[5]):
        row["text"] = "film " * 40  # 42 tokens with the special ones
    source = files(tmp_path, train, test)
    partition = report(run(data=source))
    assert partition["text"] == {"rows": 24, "rows_cut": 2, "tokens": 22 * 7 + 2 * 42, "tokens_lost": 20}
    assert partition["test_text"] == {"rows": 12, "rows_cut": 1, "tokens": 11 * 7 + 42, "tokens_lost": 10}


# --- unusable rows -------------------------------------------------------------------------------------------------


def spoiled(numbers: Sequence[int], column: str = "text", value: Any = "") -> Rows:
    return [row | {column: value} if i in numbers else row for i, row in enumerate(reviews(48))]


def test_bad_rows_are_named_by_row_and_column(run: Run, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "bad.csv", spoiled([3, 17]))
    messages = problems(lambda: run(data={"source": str(source)}))
    assert messages["data"] == [f"{source}, line {n}, column 'text': the text is empty" for n in (5, 19)]
    assert "'drop'" in messages["data.bad_rows"][0]
    many = write_rows(tmp_path / "many.jsonl", spoiled(range(0, 48, 4), value=None))
    messages = problems(lambda: run(data={"source": str(many)}))
    assert len(messages["data"]) == 6
    assert "many.jsonl, line 1, column 'text': expected text, got None" in messages["data"][0]
    assert "and 7 more rows" in messages["data"][-1]


def test_bad_rows_name_their_client(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "sites" / "north.csv", reviews(12))
    write_rows(tmp_path / "sites" / "south.csv", spoiled([2])[:12])
    messages = problems(lambda: run(data={"clients_from": str(tmp_path / "sites")}, partition={"clients": None}))
    assert messages["data"] == [f"{tmp_path / 'sites' / 'south.csv'}, line 4, column 'text': the text is empty"]


def test_dropped_rows_are_counted(run: Run, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "bad.jsonl", spoiled([3, 17], value=7))
    partition = report(run(data={"source": str(source), "bad_rows": "drop"}))
    assert (partition["rows"], partition["rows_bad"]) == (48, 2)
    assert_accounted(partition)


def test_dropped_test_rows_are_not_training_rows(run: Run, data: Path, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.csv", spoiled([1]))
    partition = report(run(data={"source": str(data), "test_source": str(test), "bad_rows": "drop"}))
    assert (partition["test_rows"], partition["test_rows_used"]) == (48, 47)
    assert_accounted(partition)


def test_rows_without_a_client_are_counted(run: Run, tmp_path: Path) -> None:
    rows = [row | {"label": str(i % 4)} for i, row in enumerate(reviews(48))]
    source = {"source": str(write_rows(tmp_path / "four.csv", rows))}
    partition = report(run(data=source, partition={"kind": "classes", "clients": 3, "classes_per_client": 1}))
    assert partition["rows_without_client"] >= 12
    assert [len(c["labels"]) for c in partition["clients"].values()] == [1, 1, 1]
    assert_accounted(partition)


def test_clients_below_min_examples_are_named(run: Run, tmp_path: Path) -> None:
    """A client with exactly as many takes part."""
    owners = ["tiny"] * 2 + ["small"] * 3
    rows = [row | {"who": [*owners, row["who"]][min(i, 5)]} for i, row in enumerate(reviews(48))]
    source = {"source": str(write_rows(tmp_path / "x.csv", rows)), "min_examples": 3}
    partition = report(run(data=source, partition={"kind": "natural", "column": "who", "clients": None}))
    assert partition["clients_too_small"] == {"tiny": 2}
    assert "small" in partition["clients"]
    assert_accounted(partition)


def test_unknown_test_label_is_named(run: Run, data: Path, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.csv", spoiled([1], "label", "mixed"))
    messages = problems(lambda: run(data={"source": str(data), "test_source": str(test)}))
    assert messages["data"] == [f"{test}, line 3, column 'label': unknown label 'mixed'; known: neg, pos"]


@pytest.mark.parametrize("value", ["", " "])
def test_empty_label_is_a_bad_row(run: Run, tmp_path: Path, value: str) -> None:
    """An empty label does not become a class."""
    source = write_rows(tmp_path / "bad.csv", spoiled([5], "label", value))
    messages = problems(lambda: run(data={"source": str(source)}))
    assert "bad.csv, line 7, column 'label'" in messages["data"][0]


@pytest.mark.parametrize("rows", ["absent", "null"])
def test_row_without_owner_is_a_bad_row(run: Run, tmp_path: Path, rows: str) -> None:
    content = spoiled([7], "who", None)
    if rows == "absent":
        del content[7]["who"]
    source = {"source": str(write_rows(tmp_path / "x.jsonl", content))}
    messages = problems(lambda: run(data=source, partition={"kind": "natural", "column": "who", "clients": None}))
    assert "x.jsonl, line 8, column 'who'" in str(messages)


@pytest.mark.parametrize("column", ["text", "label", "who"])
def test_lone_surrogate_is_a_bad_row(run: Run, tmp_path: Path, column: str) -> None:
    """A lone surrogate cannot be encoded, so no file or message could name it."""
    source = {"source": str(write_rows(tmp_path / "x.jsonl", spoiled([7], column, "x\ud800")))}
    messages = problems(lambda: run(data=source, partition={"kind": "natural", "column": "who", "clients": None}))
    assert f"x.jsonl, line 8, column '{column}'" in str(messages)


def test_label_may_be_any_text(run: Run, tmp_path: Path) -> None:
    label = "$\\frac$ [/x] 😀 \u202e"
    rows = [row | {"label": label if row["label"] == "pos" else "neg"} for row in reviews(48)]
    result = run(data={"source": str(write_rows(tmp_path / "x.jsonl", rows))})
    assert label in json.loads((result.run_dir / "manifest.json").read_text(encoding="utf-8"))["labels"]


# --- clients' ranks, and the server's optimizer ----------------------------------------------------------------------


def ranks_of(result: runner.RunResult) -> list[int | None]:
    return [c.get("rank") for c in report(result)["clients"].values()]


@pytest.mark.slow
def test_clients_get_their_configured_ranks(run: Run, data: Path) -> None:
    plain = run(data={"source": str(data)}, adapter={"r": 4}, rounds=1)
    assert ranks_of(plain) == [None] * 3
    listed = run(data={"source": str(data)}, adapter={"r": 4}, clients={"ranks": [4, 1, 2]}, rounds=1)
    assert ranks_of(listed) == [4, 1, 2]
    manifests = [json.loads((result.run_dir / "manifest.json").read_text()) for result in (plain, listed)]
    assert [manifest["linear"] for manifest in manifests] == [True, False]
    factors = 4 * 4 * (32 + 32)  # bytes of rank 1: four modules
    head = 4 * (2 * 32 + 2)
    assert listed.history[0]["bytes_up"] == (4 + 1 + 2) * factors + 3 * head
    shared = {"ranks": {"1": 0.34, "4": 0.66}}
    dealt, again = (run(data={"source": str(data)}, adapter={"r": 4}, clients=shared, rounds=1) for _ in range(2))
    assert sorted(filter(None, ranks_of(dealt))) == [1, 4, 4]
    assert ranks_of(again) == ranks_of(dealt)
    budget = {"bytes_budget": [3 * factors - 1, factors, 9 * factors]}
    afforded = run(data={"source": str(data)}, adapter={"r": 4}, clients=budget, rounds=1)
    assert ranks_of(afforded) == [2, 1, 4]
    manifest = json.loads((afforded.run_dir / "manifest.json").read_text())
    scales = {m["scale"] for m in manifest["adapted_modules"].values()}
    assert scales == {1.0}  # alpha / the run's rank, for every client


@pytest.mark.slow
def test_bytes_budget_ignores_layers_without_weights(run: Run, data: Path, bert: Path, tmp_path: Path) -> None:
    """A pooler that the checkpoint lacks is drawn, so it is head and not adapted. Only loading the model tells."""
    folder = Path(shutil.copytree(bert, tmp_path / "without-pooler"))
    file = folder / "model.safetensors"
    tensors = {n: t for n, t in safetensors.torch.load_file(file).items() if "pooler" not in n}
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    dense = 4 * 2 * ((32 + 32) + (32 + 64) + (64 + 32))  # bytes of rank 1
    result = run(
        data={"source": str(data)},
        model={"name": str(folder)},
        adapter={"r": 4, "target_modules": ["dense"]},
        clients={"bytes_budget": 2 * dense},
        rounds=1,
    )
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert len(manifest["adapted_modules"]) == 6
    assert ranks_of(result) == [2] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedit", "flora"])
def test_run_with_different_ranks(name: str, run: Run, data: Path, tmp_path: Path) -> None:
    """The run is exported, evaluated and compared with the local baseline."""
    source = {"source": str(data), "test_source": str(write_rows(tmp_path / "test.csv", reviews(12, seed=1)))}
    result = run(
        data=source,
        algorithm={"name": name},
        adapter={"r": 4},
        clients={"ranks": [4, 1, 2]},
        evaluation={"local_only": True, "clients_every": 1},
    )
    assert result.summary["local_only"]["own"]["clients"] == 3
    per_client = result.metrics["clients"]["per_client"]
    for client, rank in (("client-1", 1), ("client-2", 2), (None, 4)):
        verified(result.run_dir, tmp_path / str(client), client=client)
        if name == "fedit":  # flora's base grows
            assert json.loads((tmp_path / str(client) / "adapter_config.json").read_text())["r"] == rank
    assert evaluate.evaluate(tmp_path / "client-1", device="cpu")["test"]["examples"] == 12
    assert evaluate.evaluate(result.run_dir, device="cpu")["test"] == pytest.approx(result.metrics["global"])
    scored = evaluate.evaluate(result.run_dir, client="client-1", device="cpu")
    assert scored["validation"] == pytest.approx(per_client["client-1"])


@pytest.mark.slow
def test_server_optimizer_steps_and_keeps_its_moments(run: Run, data: Path, tmp_path: Path) -> None:
    source = {"source": str(data), "test_source": str(write_rows(tmp_path / "test.csv", reviews(12, seed=1)))}
    baseline = {"local_only": True}
    plain = run(data=source, evaluation=baseline)
    momentum = run(data=source, evaluation=baseline, server={"optimizer": "momentum", "beta1": 0.5})
    unit_step = run(data=source, server={"optimizer": "sgd", "lr": 1.0})
    # The first round of momentum is plain averaging, the second is not.
    losses = [[r["scores"]["global"]["loss"] for r in result.history] for result in (plain, momentum, unit_step)]
    assert losses[1][0] == pytest.approx(losses[0][0], rel=1e-5)
    assert losses[1][1] != pytest.approx(losses[0][1], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    assert momentum.summary["local_only"] == plain.summary["local_only"]  # a client alone has no server
    saved = safetensors.torch.load_file(momentum.run_dir / "checkpoint" / "round-000002" / "state.safetensors")
    moments = {n: t for n, t in saved.items() if "moments" in n}
    assert len(moments) == 4 * 2 + 2
    assert {n: t for n, t in moments.items() if not t.any()} == {}
    verified(momentum.run_dir, tmp_path / "out")
    assert weights(tmp_path / "out") == weights(momentum.run_dir / "adapter")
    assert evaluate.evaluate(momentum.run_dir, device="cpu")["test"] == pytest.approx(momentum.metrics["global"])


@pytest.mark.parametrize(
    ("name", "changes", "path", "fragment"),
    [
        (
            "rolora",
            {"clients": {"ranks": [1, 2, 1]}},
            "clients.ranks",
            "rolora: it does not define clients of different",
        ),
        ("fedsvd", {"clients": {"bytes_budget": 999}}, "clients.bytes_budget", "or take one of fedit, flexlora"),
        ("fedit", {"clients": {"bytes_budget": 9}}, "clients.bytes_budget", "9 bytes do not hold an upload of rank 1"),
        (
            "lora-fair",
            {"server": {"optimizer": "adam"}},
            "server.optimizer",
            "lora-fair: its server works on single uploads",
        ),
        ("florg", {"server": {"optimizer": "adam"}}, "server.optimizer", "other coordinates than what it sent"),
        ("fedsvd", {"server": {"optimizer": "yogi"}}, "server.optimizer", "other coordinates than what it sent"),
        ("scaffold", {"server": {"optimizer": "adam"}}, "server.optimizer", "it defines its server's step itself"),
    ],
)
def test_option_undefined_for_a_method_is_refused(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: Any, path: str, fragment: str
) -> None:
    if "bytes do not hold" not in fragment:  # only this check needs the model
        monkeypatch.setattr(assemble, "look", lambda *_: pytest.fail("a model was loaded"))
    messages = problems(lambda: run(data={"source": str(data)}, algorithm={"name": name}, **changes))
    assert fragment in messages[path][0]


@pytest.mark.parametrize(
    ("train", "paths"),
    [
        pytest.param({}, {"train.optimizer", "train.max_grad_norm"}, id="adamw"),
        pytest.param({"optimizer": "sgd"}, {"train.max_grad_norm"}, id="clipping"),
        pytest.param({"optimizer": "sgd", "momentum": 0.5, "max_grad_norm": 0.0}, {"train.momentum"}, id="momentum"),
        pytest.param({"optimizer": "sgd", "max_grad_norm": 0.0}, set(), id="plain"),
    ],
)
def test_method_for_plain_sgd_refuses_other_training(train: Any, paths: set[str]) -> None:
    raw = {"algorithm": {"name": "scaffold", "option": "II"}, "train": train}
    if paths:
        assert problems(lambda: make_algorithm(load(raw))).keys() == paths
    assert make_algorithm(load({**raw, "algorithm": {"name": "scaffold", "option": "I"}})).linear


# --- refused and stopped runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "path", "fragment"),
    [
        ({"task": {"label": "labl"}}, "task.label", "no column 'labl'; there are: text, label, who, first, second"),
        ({"task": {"text": "txt"}}, "task.text", "no column 'txt'; there are: text, label"),
        ({"partition": {"kind": "natural", "column": "woh", "clients": None}}, "partition.column", "no column 'woh'"),
        ({"data": {"max_train_rows": 2}}, "partition.clients", "2 rows are not enough for 3 clients"),
        ({"data": {"min_examples": 99}}, "partition", "no client has data.min_examples = 99"),
        ({"partition": {"clients": 99}}, "partition.clients", "48 rows are not enough for 99 clients"),
        ({"clients": {"min_clients": 4}}, "clients.min_clients", "4, but there are only 3 clients"),
        ({"adapter": {"target_modules": ["q_proj"]}}, "adapter.target_modules", "query, key, value, dense"),
        ({"adapter": {"target_modules": "(("}}, "adapter.target_modules", "'(('"),
        ({"adapter": {"target_modules": []}}, "adapter.target_modules", ""),
        ({"adapter": {"r": 33}}, "adapter.r", "rank 33 exceeds bert.encoder.layer.0.attention.self.query"),
        ({"algorithm": {"name": "no_such_module:X"}}, "algorithm.name", "cannot load 'no_such_module:X'"),
        ({"algorithm": {"name": "json:dumps"}}, "algorithm.name", "is not a frozen dataclass derived from"),
        ({"algorithm": {"name": "rolora", "alternate_for": 7.0}}, "algorithm", "0 to 1; got 7.0"),
        ({"model": {"name": "no-such-model"}}, "model.name", "'no-such-model' is no file or folder here, HF_HUB_"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_misfit_with_data_or_model_is_named(
    run: Run, data: Path, tmp_path: Path, changes: dict[str, Any], path: str, fragment: str
) -> None:
    source = {"source": str(data), **changes.pop("data", {})}
    messages = problems(lambda: run(data=source, **changes))
    assert path in messages
    assert fragment in messages[path][0]
    assert list(tmp_path.glob("run-*")) == []


def test_more_tokens_than_positions_are_refused(run: Run, tmp_path: Path) -> None:
    rows = spoiled([4], value="film " * 100)
    with pytest.raises(ConfigError, match=r"task\.max_length: 512, but this model takes 64 tokens"):
        run(data={"source": str(write_rows(tmp_path / "x.csv", rows))}, task={"max_length": 512})


def test_more_clients_per_round_than_clients_are_refused(run: Run, data: Path) -> None:
    partition = {"kind": "natural", "column": "who", "clients": None}
    messages = problems(lambda: run(data={"source": str(data)}, partition=partition, clients={"per_round": 4}))
    assert messages["clients.per_round"] == ["4, but there are only 3 clients: lower it"]


@pytest.mark.parametrize("content", [None, b"", b"xx"], ids=["absent", "empty", "broken"])
def test_model_with_broken_weights_is_named(bert: Path, data: Path, tmp_path: Path, content: bytes | None) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bert, broken)
    (broken / "model.safetensors").unlink()
    if content is not None:
        (broken / "model.safetensors").write_bytes(content)
    messages = problems(lambda: runner.run(settings(broken, data={"source": str(data)}), run_dir=tmp_path / "run"))
    assert "cannot be loaded" in messages["model.name"][0]


def test_existing_run_is_refused_and_left_alone(finished: runner.RunResult) -> None:
    before, place = {p: p.stat().st_mtime_ns for p in finished.run_dir.rglob("*")}, str(finished.run_dir)
    messages = problems(lambda: runner.run(finished.run_dir / "config.toml", run_dir=finished.run_dir, device="cpu"))
    ways = f"already holds a run, or what is left of one (manifest.json); go on with it by rondo.resume({place!r}) or "
    assert ways + "resume=True, replace it by overwrite=True, or name another" in messages["run_dir"][0]
    assert {p: p.stat().st_mtime_ns for p in finished.run_dir.rglob("*")} == before


def test_unknown_device_is_refused(bert: Path, data: Path) -> None:
    messages = problems(lambda: runner.run(settings(bert, data={"source": str(data)}), device="gpu"))
    assert "use auto, cpu, cuda, cuda:INDEX or mps" in messages["--device"][0]


def test_run_that_cannot_train_stops_with_the_reason(run: Run, data: Path) -> None:
    with pytest.raises(
        RunStopped, match=r"2 rounds in a row were skipped, the last: 0 uploads, min_clients is 1.*client-0: nonfinite"
    ) as stopped:
        run(data={"source": str(data)}, train={"optimizer": "sgd", "lr": 1e30})
    assert "rondo resume --allow-nondeterministic goes on. Committed rounds are in" in str(stopped.value)


@pytest.mark.slow
def test_run_whose_rounds_have_no_failed_client_stops_with_the_reason(run: Run, data: Path) -> None:
    with failing(FedIT, "aggregate", ZeroDivisionError("no")), pytest.raises(RunStopped) as stopped:
        run(data={"source": str(data)})
    assert str(stopped.value).startswith(
        "2 rounds in a row were skipped, the last: the uploads cannot be aggregated: ZeroDivisionError: no. "
        "rondo resume"
    )


def test_unwritable_adapter_stops_the_run(run: Run, tmp_path: Path) -> None:
    """The run can be resumed once the adapter can be written."""
    folder = tmp_path / "run-0"
    folder.mkdir()
    blocked = folder / "adapter"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(RunStopped, match=r"cannot be written: .*\. Committed rounds are in"):
        run(data={"source": str(write_rows(tmp_path / "rows.csv", reviews(12)))}, rounds=1)
    blocked.unlink()
    assert runner.resume(folder, device="cpu").history[-1]["round"] == 0
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    assert not (folder / "adapter.tmp").exists()


def test_evaluation_out_of_memory_stops_the_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a message, and what it had committed is resumed."""
    rows = str(write_rows(tmp_path / "rows.csv", reviews(12)))
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "at_clients", lambda *_: torch.empty(2**50))
        with pytest.raises(RunStopped, match=r"out of memory: .*DefaultCPUAllocator.*\. Committed rounds are in"):
            run(data={"source": rows}, rounds=2, evaluation={"clients_every": 2})
    assert len(runner.resume(tmp_path / "run-0", device="cpu").history) == 2


def test_observer_is_told_of_progress(bert: Path, data: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []

    class Listener(rondo.Observer):
        def prepared(self, partition: Mapping[str, Any]) -> None:
            seen.append(("prepared", partition["rows"]))

        def round_started(self, index: int, clients: int) -> None:
            seen.append(("started", (index, clients)))

        def client_done(self, client: str, loss: float | None) -> None:
            seen.append(("client", client))

        def round_done(self, record: dict[str, Any]) -> None:
            seen.append(("done", record["round"]))

    config = settings(bert, data={"source": str(data)}, rounds=1)
    runner.run(config, run_dir=tmp_path / "run", device="cpu", observer=Listener())
    clients = [("client", f"client-{i}") for i in range(3)]
    assert seen == [("prepared", 48), ("started", (0, 3)), *clients, ("done", 0)]


# --- export and evaluate -------------------------------------------------------------------------------------------


def test_export_equals_the_adapter_and_verifies(finished: runner.RunResult, tmp_path: Path) -> None:
    verified(finished.run_dir, tmp_path / "out")
    assert weights(tmp_path / "out") == weights(finished.run_dir / "adapter")
    assert export.export(finished.run_dir, tmp_path / "plain").verification is None


@pytest.mark.parametrize("name", every_method())
@pytest.mark.sweep(3)
def test_export_of_every_method_reloads_in_stock_peft(name: str, run: Run, data: Path, tmp_path: Path) -> None:
    fields = {"fedloru": {"tau": 1}, "mfedloru": {"tau": 1}, "pfedloru": {"tau": 1}, "slora": {"sparse_rounds": 1}}
    algorithm = {"name": name, **fields.get(name, {})}
    result = run(data={"source": str(data)}, algorithm=algorithm, rounds=2, train={"lr": 0.05, "local_epochs": 1})
    personal = algorithms.entry(name).traits.personal
    whole = verified(result.run_dir, tmp_path / "out", client="client-1" if personal else None)
    assert whole.relative_error == 0
    width = 32  # the model's hidden size
    assert 2 <= whole.rank <= {"pfedlora": width + 2, "pfedloru": 2 * (2 + 2)}.get(name, 4 + 2 * 6)
    small = verified(
        result.run_dir, tmp_path / "small", rank=1
    )  # the reloaded model computes the same as the truncated one
    assert small.rank == 1
    before = read_tensors(result.run_dir / "adapter")
    after = read_tensors(tmp_path / "small")
    lost = total = 0.0
    adapted = json.loads((result.run_dir / "manifest.json").read_text())["adapted_modules"]
    for path, site in adapted.items():
        full, cut = (site["scale"] * t[f"{path}.B"].double() @ t[f"{path}.A"].double() for t in (before, after))
        values = torch.linalg.svdvals(full)
        lost, total = lost + float((values[1:] ** 2).sum()), total + float((values**2).sum())
        assert float((full - cut).norm()) == pytest.approx(float(values[1:].norm()), abs=1e-5)
    assert small.relative_error == pytest.approx((lost / total) ** 0.5 if total > 0 else 0.0, abs=1e-5)


def test_export_rank_below_one_is_refused(finished: runner.RunResult, tmp_path: Path) -> None:
    assert "at least 1" in problems(lambda: export.export(finished.run_dir, tmp_path / "out", rank=0))["--rank"][0]


def test_merged_export_is_a_plain_model(finished: runner.RunResult, tmp_path: Path) -> None:
    import transformers

    verified(finished.run_dir, tmp_path / "out", merged=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "neg", 1: "pos"}
    assert [name for name, _ in model.named_parameters() if "lora" in name] == []


@pytest.mark.sweep(2)
@pytest.mark.parametrize("merged", [False, True], ids=["adapter", "merged"])
def test_merged_export_of_a_base_in_bfloat16_says_its_type(merged: bool, run: Run, data: Path, tmp_path: Path) -> None:
    model = save_tiny_bert(tmp_path / "half")
    stored = tmp_path / "half" / "config.json"
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "dtype": "bfloat16"}))
    result = run(model={"name": str(model)}, data={"source": str(data)}, rounds=1)
    made = export.export(result.run_dir, tmp_path / "out", merged=merged)
    card = (tmp_path / "out" / "README.md").read_text()
    assert [note in card for note in made.notes] == [True] * merged
    assert ("The weights are in float32: the base model's own bfloat16" in card) is merged


@pytest.mark.sweep(2)
@pytest.mark.parametrize("merged", [False, True], ids=["adapter", "merged"])
def test_export_of_a_fast_run_is_verified_in_float32(
    merged: bool, run: Run, data: Path, tmp_path: Path, bf16: Callable[[bool], None]
) -> None:
    """Stock libraries load the model in float32, so the rounding of training makes no difference to them."""
    bf16(True)
    result = run(data={"source": str(data)}, train={"precision": "fast"}, rounds=1)
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["kernels"]["dtype"] == "bfloat16"
    verified(result.run_dir, tmp_path / "out", merged=merged)


def test_personal_method_exports_a_model_per_client(personal: runner.RunResult, tmp_path: Path) -> None:
    written = {}
    for client in ("client-0", "client-1", None):
        verified(personal.run_dir, tmp_path / str(client), client=client)
        written[client] = weights(tmp_path / str(client))
    assert len(set(written.values())) == 3
    assert written[None] == weights(personal.run_dir / "adapter")


@pytest.mark.slow
def test_client_without_a_model_of_its_own_is_refused(run: Run, data: Path, tmp_path: Path) -> None:
    result = run(data={"source": str(data)}, rounds=1)
    reason = "fedit keeps nothing at its clients: 'client-1' has the global model"
    with pytest.raises(ConfigError, match=re.escape(f"--client: {reason}; leave it out")):
        export.export(result.run_dir, tmp_path / "out", client="client-1")
    assert not (tmp_path / "out").exists()
    assert evaluate.evaluate(result.run_dir, client="client-1", device="cpu")["note"] == reason


def test_personal_method_scores(personal: runner.RunResult) -> None:
    """Each client's model is scored, and the cold-start model on the test set."""
    assert set(personal.metrics) == {"cold_start", "personal"}
    scores = [evaluate.evaluate(personal.run_dir, client=f"client-{i}", device="cpu") for i in range(3)]
    per_client = personal.metrics["personal"]["per_client"]
    for i, score in enumerate(scores):
        assert score["test"]["examples"] == 12
        assert score["validation"] == pytest.approx(per_client[f"client-{i}"])
    assert len({s["test"]["loss"] for s in scores}) == 3
    assert evaluate.evaluate(personal.run_dir, device="cpu")["test"] == pytest.approx(personal.metrics["cold_start"])


def test_run_adapter_and_export_score_the_same(finished: runner.RunResult, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.run_dir, copy)
    export.export(copy, copy / "export")
    for path in (copy, copy / "adapter", copy / "export"):
        assert evaluate.evaluate(path, device="cpu")["test"] == pytest.approx(finished.metrics["global"])


def test_run_starts_from_an_adapter(run: Run, data: Path, finished: runner.RunResult) -> None:
    result = run(
        data={"source": str(data)}, adapter={"start_from": str(finished.run_dir / "adapter")}, train={"lr": 1e-9}
    )
    assert result.history[0]["loss"] < finished.history[0]["loss"]


def test_export_needs_no_data(run: Run, data: Path, tmp_path: Path) -> None:
    """The data stay at their site; an export reads only the run directory and the model."""
    result = run(data={"source": str(data)})
    data.unlink()
    export.export(result.run_dir, tmp_path / "out")
    assert weights(tmp_path / "out") == weights(result.run_dir / "adapter")
    messages = problems(lambda: evaluate.evaluate(result.run_dir, device="cpu"))
    assert "no such file or folder" in messages["data.source"][0]


def test_export_into_a_file_is_refused(finished: runner.RunResult, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "--to" in problems(lambda: export.export(finished.run_dir, tmp_path / "file"))


def test_export_into_a_full_folder_is_refused(finished: runner.RunResult, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is not empty" in problems(lambda: export.export(finished.run_dir, tmp_path))["--to"][0]


def test_working_folder_is_not_replaced_by_an_export(
    finished: runner.RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".", tmp_path):
        (message,) = problems(lambda folder=folder: export.export(finished.run_dir, folder))["--to"]  # type: ignore[misc]
        assert "cannot be replaced; name a new folder in it" in message


@pytest.mark.sweep(2)
@pytest.mark.parametrize("merged", [False, True])
def test_export_killed_midway_does_not_block_the_next(
    merged: bool, finished: runner.RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(card, "to_toml", lambda _: os._exit(9))
        child = os.fork()
        if child == 0:
            export.export(finished.run_dir, target, merged=merged)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not target.exists()
    verified(finished.run_dir, target, merged=merged)
    assert [p.name for p in target.parent.iterdir()] == ["out"]


FULL = "No space left on device"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, FULL),
        SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)"),
        Exception(f"{FULL} (os error 28)"),  # as tokenizers raises it
    ],
)
def test_export_to_a_full_disk_is_told_and_leaves_nothing(
    error: Exception, finished: runner.RunResult, tmp_path: Path
) -> None:
    with failing(card, "to_toml", error):
        (message,) = problems(lambda: export.export(finished.run_dir, tmp_path / "out"))["--to"]
    assert f"{tmp_path / 'out'} cannot be written: " in message
    assert FULL in message
    assert "make room, or name a folder on another disk" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checkpoint/round-00000[12]/state.safetensors", b"xx"),
        ("checkpoint/round-00000[12]/state.safetensors", None),
        ("checkpoint/round-00000[12]/manifest.json", b"{}"),
        ("checkpoint/round-00000[12]/manifest.json", None),
        ("manifest.json", b"{"),
        ("manifest.json", b"{}"),
        ("config.toml", b"rounds = 0"),
    ],
    ids=str,
)
def test_broken_run_directory_is_named(
    finished: runner.RunResult, tmp_path: Path, name: str, content: bytes | None
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.run_dir, copy)
    for path in copy.glob(name):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    assert problems(lambda: export.export(copy, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
