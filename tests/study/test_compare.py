"""Comparisons: every method gets the same data, numbers come from the runs, no run repeats, faults are found first."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import statistics
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rondo
from outcomes import tree
from rondo.config import ConfigError, load
from rondo.errors import RunStopped
from rondo.records import durable
from rondo.records.directory import to_toml
from rondo.report import drawing
from rondo.report.numbers import plus_minus
from rondo.study import compare
from rondo.study import pictures as comparisons
from rondo.study.compare.comparison import set_aside
from rondo.study.compare.numbers import Question, answers, only
from rondo.study.compare.table import comparison_table, score_name
from rondo.study.compare.variants import references
from small_runs import files, reviews, save_tiny_bert, settings

Invoke = Callable[..., tuple[int, str]]
NAMES, SEEDS = ("fedit", "fedsa-lora"), (0, 3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration that runs in a second."""
    folder = tmp_path_factory.mktemp("tiny")
    source = files(folder, reviews(24), reviews(6, seed=1))
    partition = {"kind": "dirichlet", "alpha": 1.0}
    return settings(save_tiny_bert(folder / "bert"), data=source, partition=partition)


@pytest.fixture(scope="module")
def compared(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> compare.Comparison:
    """A comparison of a method with a global model and one with personal models; do not write into it."""
    return rondo.compare(NAMES, tiny, seeds=SEEDS, out=tmp_path_factory.mktemp("compared") / "out", device="cpu")


@pytest.fixture
def copy(compared: compare.Comparison, tmp_path: Path) -> Path:
    """A writable copy of a comparison's directory."""
    shutil.copytree(compared.out, tmp_path / "copy")
    return tmp_path / "copy"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def run_dir(algorithm: str, seed: int) -> str:
    return f"{algorithm}-seed-{seed}"


@pytest.mark.slow
def test_algorithms_share_the_partition(compared: compare.Comparison) -> None:
    dealt = {s: [read(compared.out / run_dir(n, s) / "partition.json") for n in NAMES] for s in SEEDS}
    for first, *others in dealt.values():
        assert [other for other in others if other != first] == []
    assert dealt[0][0] != dealt[3][0]


def test_compared_run_equals_an_ordinary_run(compared: compare.Comparison, tiny: dict[str, Any]) -> None:
    """One whose clients are scored too, since a method beside it is compared by its clients' scores."""
    alone = rondo.run(
        {**tiny, "seed": 3, "evaluation": {"clients_every": 1}}, run_dir=compared.out.parent / "alone", device="cpu"
    )
    beside = compared.out / run_dir("fedit", 3)
    assert (beside / "config.toml").read_text() == (alone.run_dir / "config.toml").read_text()
    name = "adapter/adapter_model.safetensors"
    assert (beside / name).read_bytes() == (alone.run_dir / name).read_bytes()


def test_numbers_come_from_the_run_summaries(compared: compare.Comparison) -> None:
    assert [(r["algorithm"], r["seed"]) for r in compared.runs] == [(n, s) for n in NAMES for s in SEEDS]
    for run in compared.runs:
        summary = read(compared.out / run["run_dir"] / "summary.json")
        server, clients = ("cold_start", "personal") if run["algorithm"] == "fedsa-lora" else ("global", "clients")
        assert run["test"]["score"] == summary["after"][server]["accuracy"]
        assert run["own_rows"]["score"] == summary["after"][clients]["accuracy"]["mean"]
        assert (run["bytes_up"], run["bytes_down"]) == (summary["bytes"]["up"], summary["bytes"]["down"])
        assert run["curve"][-1]["bytes"] == run["bytes_up"] + run["bytes_down"]
        assert run["curve"][-1]["score"] == run["score"]["score"]
        assert [p["round"] for p in run["curve"]] == [1, 2]  # clients have no models before the first round
        assert run["score"] == run["own_rows"]


def test_mean_and_deviation_over_seeds(compared: compare.Comparison) -> None:
    for name in NAMES:
        scores = [r["test"]["score"] for r in compared.runs if r["algorithm"] == name]
        scored = compared.algorithms[name]["test"]
        assert scored["mean"] == pytest.approx(statistics.fmean(scores))
        assert scored["sd"] == pytest.approx(statistics.stdev(scores))
    assert (
        compared.algorithms["fedit"]["test"]["model"] == compared.algorithms["fedit"]["own_rows"]["model"] == "global"
    )
    assert compared.algorithms["fedsa-lora"]["test"]["model"] == "cold start"
    assert compared.algorithms["fedsa-lora"]["own_rows"]["model"] == "personal"


def test_methods_beside_a_personal_one_are_compared_at_the_clients(compared: compare.Comparison) -> None:
    """The cold-start model that all clients begin with never learns, so it is no score to compare by."""
    scores = [(n["score"]["model"], n["test"]["model"]) for n in compared.algorithms.values()]
    assert scores == [("global", "global"), ("personal", "cold start")]
    table = comparison_table(read(compared.out / "comparison.json"))
    assert table.columns[2:5] == ("test accuracy", "at the clients", "difference to fedit")
    assert "personal" in table.rows[1][3]
    assert "Differences are of accuracy on the clients' own rows, paired by seed" in table.notes[1]


@pytest.mark.slow
def test_methods_without_a_test_set_are_scored_in_the_same_rounds(tiny: dict[str, Any], tmp_path: Path) -> None:
    """One dot each, labelled as a score on the test set, was all that the picture had."""
    config = {**tiny, "data": {"source": tiny["data"]["source"]}}
    comparison = rondo.compare(["fedit", "ffa-lora"], config, out=tmp_path / "out", device="cpu")
    assert [[p["round"] for p in run["curve"]] for run in comparison.runs] == [[1, 2], [1, 2]]
    assert score_name(vars(comparison)) == "accuracy on the clients' own rows"


def test_differences_are_paired_by_seed(compared: compare.Comparison) -> None:
    first, second = ([r["score"]["score"] for r in compared.runs if r["algorithm"] == name] for name in NAMES)
    by_seed = [b - a for a, b in zip(first, second, strict=True)]
    found = compared.algorithms["fedsa-lora"]["difference"]
    assert compared.algorithms["fedit"]["difference"] is None
    assert (found["to"], list(found["by_seed"])) == ("fedit", ["0", "3"])
    assert list(found["by_seed"].values()) == by_seed
    assert found["mean"] == pytest.approx(statistics.fmean(by_seed))
    frame = compared.to_frame()
    assert list(frame["difference"])[2:] == by_seed
    assert set(frame["difference_to"].dropna()) == {"fedit"}


def test_columns_are_those_that_are_named_in_their_order(compared: compare.Comparison) -> None:
    content = read(compared.out / "comparison.json") | {"columns": ["bytes_up", "difference", "test"]}
    assert comparison_table(content).columns == ("algorithm", "up", "difference to fedit", "test accuracy")
    with pytest.raises(ConfigError, match="--columns: 'tset' is not a column"):
        compare.Question(1, None, None, None, ("tset",))


@pytest.mark.parametrize(
    ("against", "expected"),
    [
        (None, {"fedit alpha=0.1": "rolora alpha=0.1", "fedit alpha=1.0": "rolora alpha=1.0"}),
        ("fedit", {"rolora alpha=0.1": "fedit alpha=0.1", "rolora alpha=1.0": "fedit alpha=1.0"}),
        (
            "rolora alpha=1.0",
            dict.fromkeys(["rolora alpha=0.1", "fedit alpha=0.1", "fedit alpha=1.0"], "rolora alpha=1.0"),
        ),
    ],
)
def test_reference_has_the_same_varied_values(tiny: dict[str, Any], against: str | None, expected: Any) -> None:
    variants = compare.plan(["rolora", "fedit"], tiny, vary={"partition.alpha": [0.1, 1.0]}, seeds=SEEDS)
    assert references(variants, against) == expected


def test_unknown_reference_is_refused_before_a_run(invoke: Invoke, tmp_path: Path) -> None:
    code, output = invoke("compare", "fedit,rolora", "--against", "fedti", "--out", tmp_path / "out")
    assert (code, (tmp_path / "out").exists()) == (2, False)
    assert "--against: 'fedti' is not compared; name one of those that are, such as fedit" in output


def test_frame_and_csv_have_a_row_per_run(compared: compare.Comparison) -> None:
    frame = compared.to_frame()
    assert list(zip(frame["algorithm"], frame["seed"], strict=True)) == [(n, s) for n in NAMES for s in SEEDS]
    assert list(frame["score"]) == [run["score"]["score"] for run in compared.runs]
    with (compared.out / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(frame.columns)
    assert [float(row["score"]) for row in rows] == list(frame["score"])


def test_latex_table_escapes_names(compared: compare.Comparison) -> None:
    text = (compared.out / "comparison.tex").read_text()
    assert text.count(r" \\" + "\n") == 3
    assert r"fedsa-lora & local & " in text
    assert r"$\pm$" in text
    content = read(compared.out / "comparison.json")
    content["algorithms"] = {r"a_b{50 %} \x": content["algorithms"]["fedit"]}
    assert r"a\_b\{50 \%\} \textbackslash{}x & shared" in comparison_table(content).latex()


@pytest.mark.usefixtures("drawn_pictures")
def test_svg_has_the_same_bytes_again_and_names_the_bands(compared: compare.Comparison) -> None:
    content = read(compared.out / "comparison.json")
    svg, again = (drawing.drawn(comparisons.comparison(content), "svg") for _ in range(2))
    assert svg == again
    assert b"bands are 95 % intervals of it" in svg
    assert b"<dc:date>" not in svg


@pytest.mark.parametrize("draw", [comparisons.comparison, comparisons.varied])
def test_band_of_a_measure_ends_where_measures_do(draw: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A logarithmic axis has no place for an interval that reaches zero."""
    monkeypatch.setattr(comparisons, "_shared_settings", lambda content: "")
    scores = {5: [(1.0, 0.9), (0.1, 0.9)], 10: [(1.0, 0.8), (0.2, 0.01)]}
    runs = [
        {
            "algorithm": f"fedit n={n}",
            "method": "fedit",
            "values": {"n": n},
            "curve": [{"round": i, "bytes": 100 * i, "score": run[seed]} for i, run in enumerate(pairs)],
            "curve_of": "angle",
            "primary": "loss",
            "score": None,
        }
        for n, pairs in scores.items()
        for seed in (0, 1)
    ]
    algorithms = {run["algorithm"]: {} for run in runs}
    figure = draw({"runs": runs, "algorithms": algorithms, "varied": {"n": [5, 10]}})
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert 0 < axes.get_ylim()[0] <= 0.01, "limits at or below zero draw nothing at all"
    ends = [float(path.vertices[:, 1].min()) for band in axes.collections for path in band.get_paths()]
    assert len(ends) == (2 if draw is comparisons.comparison else 1)
    assert min(ends) == pytest.approx(0.01)


@pytest.mark.slow
def test_rows_and_observers_are_given_in_python(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = {**tiny, "rounds": 1, "data": {"validation_fraction": 0.25}}
    rows, told = {"train": reviews(24), "test": reviews(6, seed=1)}, []

    class Told(rondo.Observer):
        def __init__(self, label: str, seed: int) -> None:
            self.of = (label, seed)

        def round_done(self, record: Any) -> None:
            told.append(self.of)

    options = {"out": tmp_path / "out", "device": "cpu", "seeds": SEEDS, "observer": Told, **rows}
    rondo.compare(["fedit"], config, **options)
    assert told == [("fedit", 0), ("fedit", 3)]
    again = rondo.compare(["fedit"], config, **options)  # finished runs are not repeated
    assert len(told) == 2
    assert [run["run_dir"] for run in again.runs] == [run_dir("fedit", seed) for seed in SEEDS]
    with pytest.raises(ConfigError, match="processes: rows and a model that are given in Python"):
        rondo.compare(["fedit"], config, **options, processes=2)


@pytest.mark.slow
def test_runs_with_test_rows_of_their_clients_are_not_repeated(tiny: dict[str, Any], tmp_path: Path) -> None:
    """The data settle that no training row is held back."""
    partition = {"kind": "natural", "column": "who"}
    data = {key: value for key, value in tiny["data"].items() if key != "validation_fraction"}
    config = {**tiny, "rounds": 1, "partition": partition, "data": data}
    rondo.compare(["fedit"], config, out=tmp_path / "out", device="cpu")
    before = made(tmp_path / "out")
    rondo.compare(["fedit"], config, out=tmp_path / "out", device="cpu")
    assert made(tmp_path / "out") == before


@pytest.mark.slow
def test_processes_give_the_bits_of_one_process(
    compared: compare.Comparison, tiny: dict[str, Any], tmp_path: Path
) -> None:
    beside = rondo.compare(NAMES, tiny, seeds=SEEDS, out=tmp_path / "out", device="cpu", processes=3)
    name = "adapter/adapter_model.safetensors"
    for run, other in zip(compared.runs, beside.runs, strict=True):
        assert (run["run_dir"], run["curve"]) == (other["run_dir"], other["curve"])
        first, second = ((folder / run["run_dir"] / name).read_bytes() for folder in (compared.out, beside.out))
        assert first == second


@pytest.mark.slow
def test_run_that_stops_in_its_process_is_reported(tiny: dict[str, Any], tmp_path: Path) -> None:
    sets = ["ffa-lora.train.optimizer=sgd", "ffa-lora.train.lr=1e30"]
    options = {"sets": sets, "out": tmp_path / "out", "device": "cpu", "processes": 2}
    comparison = rondo.compare(["ffa-lora", "fedit"], tiny, **options)
    assert list(comparison.algorithms) == ["fedit"]
    assert "rounds in a row were skipped" in comparison.stopped[0]["reason"]


@pytest.mark.slow
def test_stop_ends_all_processes(tiny: dict[str, Any], tmp_path: Path) -> None:
    variants = compare.plan(["fedit", "ffa-lora"], {**tiny, "rounds": 10_000})
    stop = threading.Event()
    threading.Timer(15, stop.set).start()
    with pytest.raises(rondo.RunInterrupted) as caught:
        compare.carry_out(variants, tmp_path / "out", Question(), device="cpu", processes=2, stop=stop)
    assert caught.value.run_dir.parent == tmp_path / "out"
    for name in ("fedit", "ffa-lora"):
        with durable.locked(tmp_path / "out" / run_dir(name, 0)) as alone:
            assert alone


def test_comparison_file_equals_the_result(compared: compare.Comparison) -> None:
    content = read(compared.out / "comparison.json")
    assert content == {k: v for k, v in vars(compared).items() if k != "out"}
    assert str(compared.out) not in json.dumps(content)


def test_notebook_shows_the_comparison(compared: compare.Comparison) -> None:
    html = replace(compared, out=Path("<script>"))._repr_html_()
    assert "<script>" not in html
    for name, stats in compared.algorithms.items():
        assert f'<td style="text-align:left">{name}</td>' in html
        assert plus_minus(stats["test"]["mean"], stats["test"]["sd"]) in html


def test_value_is_told_where_all_runs_share_it(compared: compare.Comparison) -> None:
    assert [only(values) for values in ([3, 3], [3, 4], [])] == [3, None, None]
    content = read(compared.out / "comparison.json")
    assert (content["rounds"], content["clients"]) == (content["runs"][0]["curve"][-1]["round"], 3)


@pytest.mark.usefixtures("drawn_pictures")
def test_comparison_picture(compared: compare.Comparison) -> None:
    content = drawing.png(comparisons.comparison(read(compared.out / "comparison.json")))
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


# --- interference --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("diagnostics", "mean"),
    [
        ([None, None], None),
        ([{}, {"interference": None}], None),
        ([{"interference": 0.5}, {"interference": 0.25}], 0.375),
        ([{"interference": 0.5}, {"interference": None}], 0.5),
    ],
)
def test_interference_is_the_mean_over_measured_rounds(
    copy: Path, tiny: dict[str, Any], diagnostics: list[Any], mean: float | None
) -> None:
    path = copy / run_dir("fedit", 0) / "metrics.jsonl"
    records = [json.loads(line) | {"diagnostics": d} for line, d in zip(path.open(), diagnostics, strict=True)]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    comparison = rondo.compare(["fedit"], tiny, out=copy, device="cpu")
    assert comparison.runs[0]["interference"] == mean
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_table(vars(comparison)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (row,) = (line.split() for line in lines if line.startswith("fedit"))
    assert row[-1] == ("-" if mean is None else f"{mean:.2g}")


# --- starting again ------------------------------------------------------------------------------------------------


def made(folder: Path) -> dict[str, float]:
    """The time at which each run finished."""
    return {p.parent.name: p.stat().st_mtime_ns for p in folder.glob("*/summary.json")}


@pytest.mark.slow
def test_repeated_comparison_resumes_unfinished_runs(copy: Path, compared: Any, tiny: dict[str, Any]) -> None:
    before, cut = made(copy), copy / run_dir("fedsa-lora", 3)
    (cut / "summary.json").unlink()
    shutil.rmtree(max((cut / "checkpoint").glob("round-*")))  # the last round was not committed
    again = rondo.compare(NAMES, tiny, seeds=SEEDS, out=copy, device="cpu")
    assert made(copy).keys() == before.keys()
    assert [n for n in before if made(copy)[n] != before[n]] == ["fedsa-lora-seed-3"]
    assert again.runs[-1]["run_dir"] == "fedsa-lora-seed-3"
    assert [r["test"] for r in again.runs] == [r["test"] for r in compared.runs]
    assert [r["bytes_up"] for r in again.runs] == [r["bytes_up"] for r in compared.runs]


@pytest.mark.slow
def test_run_of_another_configuration_is_not_reused(copy: Path, tiny: dict[str, Any]) -> None:
    before = made(copy)
    comparison = rondo.compare(["fedit"], tiny, sets=["rounds=1"], out=copy, device="cpu")
    assert comparison.runs[0]["run_dir"] == "fedit-seed-0-1"
    assert {k: v for k, v in made(copy).items() if k in before} == before
    assert rondo.compare(["fedit"], tiny, sets=["rounds=1"], out=copy, device="cpu").runs == comparison.runs


@pytest.mark.slow
def test_automatic_scoring_knows_its_finished_runs(copy: Path, tiny: dict[str, Any]) -> None:
    """The stored configuration keeps the word; the number that the data gave it is in the manifest."""
    config = {**tiny, "rounds": 1, "evaluation": {"every": "auto"}}
    first = rondo.compare(["fedit"], config, out=copy, device="cpu")
    (run,) = first.runs
    folder, before = copy / run["run_dir"], made(copy)
    assert load(folder / "config.toml").evaluation.every == "auto"
    assert read(folder / "manifest.json")["scores_every"] >= 1
    assert rondo.compare(["fedit"], config, out=copy, device="cpu").runs == first.runs
    assert made(copy) == before


def test_files_of_a_comparison_by_other_settings_are_kept(tmp_path: Path) -> None:
    def written(run_dir: str) -> None:
        runs = [{"algorithm": "fedit", "seed": 0, "run_dir": run_dir}]
        set_aside(tmp_path, runs)
        (tmp_path / "comparison.json").write_text(json.dumps({"runs": runs}))
        (tmp_path / "comparison.png").write_text(run_dir)

    written("fedit-seed-0")
    written("fedit-seed-0")
    set_aside(tmp_path, [{"algorithm": "fedit", "seed": 1, "run_dir": "fedit-seed-1"}])  # another seed is one more
    for changed in ("fedit-seed-0-1", "fedit-seed-0"):
        with pytest.warns(UserWarning, match=r"which is comparison-[12]\.json from now on"):
            written(changed)
    kept = {path.name: path.read_text() for path in tmp_path.glob("*.png")}
    assert kept == {
        "comparison-1.png": "fedit-seed-0",
        "comparison-2.png": "fedit-seed-0-1",
        "comparison.png": "fedit-seed-0",
    }


@pytest.mark.slow
def test_finished_runs_on_pictures_are_not_repeated(tmp_path: Path) -> None:
    """The data settle the shape of the pictures."""
    config = {
        "rounds": 1,
        "task": {"kind": "image-classification"},
        "model": {"name": "builtin:mlp"},
        "data": {"max_train_rows": 40, "max_test_rows": 20},
        "partition": {"kind": "iid", "clients": 2},
    }
    first = rondo.compare(["fedavg"], config, out=tmp_path / "out", device="cpu")
    before = made(tmp_path / "out")
    assert rondo.compare(["fedavg"], config, out=tmp_path / "out", device="cpu").runs == first.runs
    assert made(tmp_path / "out") == before


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["comparison.json", "comparison.png"])
def test_comparison_on_a_full_disk_is_told(
    name: str, copy: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there stays, and the comparison can be started again."""
    before = tree(copy)
    write = durable._write

    def full(path: Path, content: bytes, start: int) -> None:
        if path.name.startswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content, start)

    monkeypatch.setattr(durable, "_write", full)
    with pytest.raises(RunStopped, match=rf"{name}\S* cannot be written: No space left on device"):
        rondo.compare(NAMES, tiny, seeds=SEEDS, out=copy, device="cpu")
    assert tree(copy) == before


@pytest.mark.slow
def test_command_shows_the_table_and_reused_runs(invoke: Invoke, copy: Path, tiny: dict[str, Any]) -> None:
    Path("x.toml").write_text(to_toml(load(tiny)))
    arguments = ("--config", "x.toml", "--seeds", "0, 3", "--out", copy, "--device", "cpu")
    code, output = invoke("compare", "fedit,fedsa-lora,ffa-lora", *arguments)
    assert code == 0, output
    assert output.count("finished before, not run again") == 4
    assert "mean ± standard deviation over seeds 0, 3" in output
    rows = {line.split()[0]: line for line in output.splitlines() if " kB " in line and ", seed " not in line}
    assert rows.keys() == {"fedit", "fedsa-lora", "ffa-lora"}
    for name, line in rows.items():
        assert ("cold start" in line, "personal" in line) == ((True, True) if name == "fedsa-lora" else (False, False))
    assert set(read(copy / "comparison.json")["algorithms"]) == rows.keys()


@pytest.mark.slow
def test_every_algorithm_can_be_compared(invoke: Invoke, tiny: dict[str, Any]) -> None:
    Path("x.toml").write_text(to_toml(load(tiny)))
    code, output = invoke("compare", "--all", "--config", "x.toml", "--out", "out", "--device", "cpu")
    assert code == 0, output
    assert list(read(Path("out/comparison.json"))["algorithms"]) == list(rondo.algorithms.names())


def test_settings_for_one_algorithm(tiny: dict[str, Any]) -> None:
    sets = ["rounds=4", "fedloru.algorithm.tau=2", "fedloru.train.lr=0.5"]
    fedit, fedloru = (v.config for v in compare.plan(["fedit", "fedloru"], tiny, sets=sets))
    assert fedit.algorithm.fields == {}
    assert fedloru.algorithm.fields == {"tau": 2}
    assert (fedit.train.lr, fedloru.train.lr) == (0.02, 0.5)
    assert fedit.rounds == fedloru.rounds == 4


METHODS = {
    "fedit": {},
    "fedloru": {"algorithm": {"tau": 2}, "train": {"lr": 0.5}},
    "fast fedit": {"algorithm": {"name": "fedit"}, "train": {"lr": 0.7}},
    "fedavg:whole": {"algorithm": {"name": "fedavg"}, "train": {"what": "all"}, "adapter": False},
}


def test_methods_of_a_file_are_compared_each_with_its_own_values(tiny: dict[str, Any]) -> None:
    plan = compare.plan([], {**tiny, "methods": METHODS})
    assert [(v.label, v.config.algorithm.name, v.config.train.lr, v.config.has_factors) for v in plan] == [
        ("fedit", "fedit", 0.02, True),
        ("fedloru", "fedloru", 0.5, True),
        ("fast fedit", "fedit", 0.7, True),
        ("fedavg:whole", "fedavg", 0.02, False),
    ]
    assert [v.folder for v in plan][2:] == ["fast-fedit-seed-0", "fedavg.whole-seed-0"]
    one, two = compare.plan(["ffa-lora", "fast fedit"], {**tiny, "methods": METHODS}, sets=["fast fedit.train.lr=0.9"])
    assert (one.config.train.lr, two.config.train.lr) == (0.02, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_labels_with_one_name_of_a_folder_get_two(processes: int, tiny: dict[str, Any], tmp_path: Path) -> None:
    rates = {"a b": 0.1, "a-b": 0.2}
    methods = {label: {"algorithm": {"name": "fedit"}, "train": {"lr": lr}} for label, lr in rates.items()}
    found = rondo.compare([], {**tiny, "methods": methods}, out=tmp_path / "out", device="cpu", processes=processes)
    assert [run["run_dir"] for run in found.runs] == ["a-b-seed-0", "a-b-seed-0-1"]
    configs = [load(tmp_path / "out" / run["run_dir"] / "config.toml") for run in found.runs]
    assert [config.train.lr for config in configs] == [0.1, 0.2]


def test_method_of_full_rank_gets_no_factors_from_keys_for_all(tiny: dict[str, Any]) -> None:
    config, names = {**tiny, "methods": METHODS}, ["fedit", "fedavg:whole"]
    plan = compare.plan(names, config, sets=["adapter.r=2"], vary={"adapter.lora_alpha": [1.0, 2.0]})
    assert [(v.label, v.config.has_factors) for v in plan] == [
        ("fedit lora_alpha=1.0", True),
        ("fedit lora_alpha=2.0", True),
        ("fedavg:whole", False),
    ]
    assert plan[0].config.adapter.r == 2


def test_varied_values_are_combined_per_method(tiny: dict[str, Any]) -> None:
    vary = compare.varied(["algorithm.tau=1,10", "train.schedule=linear,cosine"])
    plan = compare.plan(["fedit", "fedloru"], tiny, vary=vary, seeds=[0, 1])
    assert list(dict.fromkeys(v.label for v in plan)) == [
        "fedit schedule=linear",
        "fedit schedule=cosine",
        "fedloru tau=1 schedule=linear",
        "fedloru tau=1 schedule=cosine",
        "fedloru tau=10 schedule=linear",
        "fedloru tau=10 schedule=cosine",
    ]
    assert plan[-1].folder == "fedloru-tau-10-schedule-cosine-seed-1"
    assert (plan[-1].config.algorithm.fields, plan[-1].config.train.schedule) == ({"tau": 10}, "cosine")


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_pictures")
def test_varied_partition_has_a_table_and_a_picture(tiny: dict[str, Any], tmp_path: Path) -> None:
    vary = {"partition.alpha": [0.5, 5.0]}
    comparison = rondo.compare(["fedit", "fedavg"], tiny, vary=vary, sets=["rounds=1"], out=tmp_path, device="cpu")
    assert list(comparison.algorithms) == ["fedit alpha=0.5", "fedit alpha=5.0", "fedavg alpha=0.5", "fedavg alpha=5.0"]
    assert comparison.varied == vary
    assert [run["values"]["partition.alpha"] for run in comparison.runs] == [0.5, 5.0, 0.5, 5.0]
    assert (comparison.rounds, comparison.runs[0]["method"]) == (1, "fedit")
    assert (tmp_path / "varied.png").read_bytes().startswith(b"\x89PNG")
    again = rondo.compare(["fedit", "fedavg"], tiny, vary=vary, sets=["rounds=1"], out=tmp_path, device="cpu")
    assert again.runs == comparison.runs


def test_picture_over_a_key_needs_one_with_numbers(compared: compare.Comparison) -> None:
    content = read(compared.out / "comparison.json")
    assert comparisons.varied(content) is None
    assert comparisons.varied({**content, "varied": {"train.schedule": ["linear", "cosine"]}}) is None
    assert comparisons.varied({**content, "varied": {"rounds": [1, 2], "adapter.r": [1, 2]}}) is None


@pytest.mark.slow
def test_measures_are_scores_on_linear_problems(tmp_path: Path) -> None:
    config = {
        "rounds": 3,
        "data": {"source": "builtin:linear"},
        "task": {"kind": "linear"},
        "model": {"name": "builtin:linear"},
        "problem": {"kind": "heads", "clients": 4, "rank": 2},
        "train": {"optimizer": "sgd", "max_grad_norm": 0, "batch_size": 50, "lr": 0.1},
    }
    asked: dict[str, Any] = {"last": 2, "target": 0.9, "at_mb": 0.001}
    comparison = rondo.compare(["fedrep-linear"], config, out=tmp_path / "out", seeds=[0, 1], device="cpu", **asked)
    measures = comparison.algorithms["fedrep-linear"]["measures"]
    assert measures["principal_angle"]["count"] == 2
    for run in comparison.runs:
        assert run["curve_of"] == "principal_angle"
        assert [p["round"] for p in run["curve"]] == [0, 1, 2, 3]
        summary = read(comparison.out / run["run_dir"] / "summary.json")
        assert run["curve"][-1]["score"] == summary["measures"]["after"]["principal_angle"]
    with (comparison.out / "comparison.csv").open(newline="") as file:
        assert [(row["metric"], row["curve_of"]) for row in csv.DictReader(file)] == [("loss", "principal_angle")] * 2
    console = Console(file=io.StringIO(), width=350)
    console.print(comparison_table(vars(comparison)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    named = ("principal angle mean of last 2", "rounds to principal angle 0.9", "principal angle at 0.001 MB")
    assert [column for column in named if column not in shown] == []
    last = comparison.algorithms["fedrep-linear"]["mean_of_last"]["mean"]
    assert f"{last:.3g} ±" in shown
    assert f"{measures['principal_angle']['mean']:.3g} ±" in shown
    assert "test loss" not in shown


CURVE = [{"round": r, "bytes": 100 * r, "score": s} for r, s in enumerate([0.1, 0.5, 0.8, 0.7, 0.6])]


@pytest.mark.parametrize(
    ("question", "higher_is_better", "expected"),
    [
        (Question(), True, {"best": (2, 0.8), "mean_of_last": 0.6, "rounds_to_target": None}),
        (Question(2, 0.5), True, {"mean_of_last": 0.65, "rounds_to_target": 1, "bytes_to_target": 100}),
        (Question(10, 0.75), True, {"mean_of_last": 0.65, "rounds_to_target": 2, "bytes_to_target": 200}),
        (Question(1, 0.9), True, {"rounds_to_target": None, "bytes_to_target": None}),
        (Question(1, 0.5), False, {"best": (1, 0.5), "rounds_to_target": 0}),  # as a run's summary
        (Question(), True, {"score_at_mb": None}),
        (Question(at_mb=250e-6), True, {"score_at_mb": 0.8}),
        (Question(at_mb=300e-6), True, {"score_at_mb": 0.7}),
        (Question(at_mb=400e-6), True, {"score_at_mb": 0.6}),
        (Question(at_mb=401e-6), True, {"score_at_mb": None}),  # the run sent less
    ],
)
def test_curve_answers(question: Question, higher_is_better: bool, expected: dict[str, Any]) -> None:
    answered = answers(CURVE, question, higher_is_better=higher_is_better)
    answered["best"] = tuple(answered["best"].values())
    assert [key for key, value in expected.items() if answered[key] != (value and pytest.approx(value))] == []


@pytest.mark.slow
def test_mean_of_last_scores_and_target_have_columns(copy: Path, tiny: dict[str, Any]) -> None:
    comparison = rondo.compare(["fedit"], tiny, seeds=SEEDS, out=copy, last=2, target=0.0, device="cpu")
    scores = [point["score"] for run in comparison.runs for point in run["curve"][1:]]
    assert comparison.algorithms["fedit"]["mean_of_last"]["mean"] == pytest.approx(statistics.fmean(scores))
    console = Console(file=io.StringIO(), width=250)
    console.print(comparison_table(vars(comparison)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert [column for column in ("mean of last 2", "rounds to 0", "sent to 0") if column not in shown] == []


@pytest.mark.parametrize(
    ("method", "options", "line"),
    [
        ("fedit", {}, "trains factors of rank 8; sends r(in+out) numbers per adapted layer; the head is sent"),
        ("fedsa-lora", {}, "sends r*in numbers per adapted layer; the head is kept by its client"),
        (
            "fedrep",
            {"train": {"what": "all"}, "model": {"name": "builtin:cnn"}, "task": {"kind": "image-classification"}},
            "trains all whole tensors; sends the body; the head is kept by its client",
        ),
        (
            "fedavg",
            {"adapter": {"r": 2}, "train": {"what": "all"}},
            "rank 2 and all other tensors; sends r(in+out) numbers per adapted layer, all whole tensors",
        ),
    ],
)
def test_line_says_what_is_trained_and_sent(method: str, options: dict[str, Any], line: str) -> None:
    config = load({**options, "algorithm": {"name": method}, "partition": {"kind": "iid", "clients": 2}})
    assert line in compare.trained(config)


def test_default_configuration_plans_every_algorithm() -> None:
    names = rondo.algorithms.names()
    assert [v.config.algorithm.name for v in compare.plan(names)] == list(names)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ((), "ALGORITHMS: none is named; name some with commas between, or give --all"),
        (("fedit,rolra",), "ALGORITHMS: no algorithm is called 'rolra'; did you mean 'rolora'"),
        (("fedit,rolora,fedit",), "ALGORITHMS: 'fedit' is named twice"),
        (("fedit", "--all"), "--all: names are given too"),
        (("fedit,no_such_module:X",), "cannot load 'no_such_module:X'"),
        (("fedit", "--config", "god.toml"), "did you mean 'good.toml'?"),
        (
            ("fedit,fedloru", "--set", "algorithm.tau=2"),
            "fedit has no such field; it has no fields, remove it (for one algorithm",
        ),
        (("fedit,rolora", "--set", "rolora.algorithm.tau=2"), "its fields: alternate_for\n"),
        (("fedit,rolora", "--set", "rolora.algorithm.alternate_for=7.0"), "rolora: "),
        (("fedit,rolora", "--set", "rolora.rounds=2"), "'rounds' is the same for all in a comparison"),
        (("fedit,rolora", "--set", "rounds=x"), "1 problem\n"),
        (("fedit", "--set", "rounds"), "expected KEY.PATH=VALUE"),
        (("fedit", "--set", "algorithm.name=rolora"), "the algorithms are named by the list; remove it"),
        (("fedit", "--set", "seed=1", "--seeds", "1,2"), "the seeds are named by --seeds; remove one of the two"),
        (("fedit", "--vary", "rounds"), "--vary rounds: expected KEY.PATH=VALUE,VALUE"),
        (("fedit", "--vary", "rounds=1,1"), "--vary rounds: a value is named twice"),
        (("fedit", "--vary", "seed=1,2"), "--vary seed: it is varied by --seeds; remove it"),
        (("fedit", "--vary", "rounds=1,2", "--set", "rounds=3"), "--vary rounds: it is set too; remove one of the two"),
        (("fedit", "--vary", "algorithm.tau=1,2"), "--vary algorithm.tau: none of the methods has this field"),
        (("fedit", "--vary", "methods.fedit.train.lr=1,2"), "name the key as a run has it, such as algorithm.tau"),
        (("fedit", "--vary", "rounds=1,x"), "rounds: should be an integer, got 'x'"),
        (("fedit", "--set", "rounds=1,2"), "rondo compare ... --vary rounds=1,2"),
        (("fedit", "--last", "0"), "--last: should be a number of scores, 1 or more, got 0"),
        (("fedit", "--target", "nan"), "--target: should be a score, got nan"),
        (("fedit", "--processes", "0"), "--processes: should be a number of processes, 1 or more, got 0"),
        (("fedit", "--at-mb", "0"), "--at-mb: should be a number of megabytes above 0, got 0"),
        (("fedit", "--seeds", "1,x"), "--seeds: '1,x' should be whole numbers with commas between"),
        (("fedit", "--seeds", "1,1"), "--seeds: 1 is named twice"),
        (("fedit", "--seeds=-1"), "--seeds: -1 is out of range"),
        (("fedit", "--device", "gpu"), "use auto, cpu, cuda, cuda:INDEX or mps"),
        (("fedit", "--out", "good.toml"), "--out: 'good.toml' cannot be made"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_exits_with_code_2_and_message(
    invoke: Invoke, tiny: dict[str, Any], arguments: tuple[str, ...], fragment: str
) -> None:
    Path("good.toml").write_text(to_toml(load(tiny)))
    if "--config" not in arguments:
        arguments = (*arguments, "--config", "good.toml")
    code, output = invoke("compare", *arguments)
    assert code == 2
    assert fragment in output
    assert not Path("runs").exists()


@pytest.mark.slow
def test_stopped_run_is_reported_and_others_continue(invoke: Invoke, tiny: dict[str, Any]) -> None:
    Path("x.toml").write_text(to_toml(load(tiny)))
    sets = ("--set", "ffa-lora.train.optimizer=sgd", "--set", "ffa-lora.train.lr=1e30")
    code, output = invoke("compare", "ffa-lora,fedit", "--config", "x.toml", "--out", "out", "--device", "cpu", *sets)
    assert code == 1
    assert "ffa-lora, seed 0 stopped: 2 rounds in a row were skipped" in output
    content = read(Path("out/comparison.json"))
    assert list(content["algorithms"]) == ["fedit"]
    assert content["stopped"][0]["algorithm"] == "ffa-lora"
