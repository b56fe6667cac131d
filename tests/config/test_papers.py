"""Named settings of the papers: each is a configuration at both scales, with the papers' values."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rondo.cli import app
from rondo.config.load import load
from rondo.config.papers import writer
from rondo.config.papers.writer import SETTINGS, read
from rondo.config.reference import HEADING
from rondo.study import compare

PUBLISHED = next((path for p in Path(__file__).parents if (path := p / "shared" / "published").is_dir()), Path())
published = pytest.mark.skipif(Path() == PUBLISHED, reason="the papers' tables are not here")
DATA_SETS = {"SST-2": "sst2", "QNLI": "qnli", "MNLI": "mnli", "QQP": "qqp", "RTE": "rte"}


OFFICIAL = [name for name, setting in SETTINGS.items() if setting.official]


def config(name: str, scale: str = "paper", method: str | None = None) -> Any:
    sets = [] if method is None else [f"algorithm.name={method}"]
    return load(tomllib.loads(writer.text(name, scale)), sets, check_paths=False)


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_a_configuration(name: str, scale: str) -> None:
    settings = config(name, scale)
    assert settings.algorithm.name in SETTINGS[name].methods
    assert [line for line in writer.text(name, scale).splitlines() if not len(line) <= 120] == []


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_scale_has_the_values_of_the_code(name: str) -> None:
    content = tomllib.loads(writer.text(name, "official"))
    for key, value in SETTINGS[name].official.items():
        place = content
        for part in key.split(".")[:-1]:
            place = place[part]
        assert place[key.rpartition(".")[2]] == value, key
    assert [key for key in SETTINGS[name].official if f"# - {key} = " not in writer.text(name)] == []


def test_every_method_of_a_row_can_be_run() -> None:
    """The instruction that a row's file gives."""
    fedit = config("florg/rte", method="fedit")
    assert (fedit.algorithm.name, fedit.algorithm.fields) == ("fedit", {})
    assert config("florg/rte", method="federa").algorithm.fields == {"aggregation": "product"}
    whole = config("fedloru/cifar10", method="fedavg:whole")
    assert (whole.algorithm.name, whole.has_factors, whole.whole_tensors) == ("fedavg", False, "all")
    assert config("rolora/qnli-187kb", method="fedit").adapter.layers_to_transform == [21, 22, 23]
    assert config("rolora/qnli-187kb").adapter.layers_to_transform == [18, 19, 20, 21, 22, 23]


def paper(rows: dict[str, Any], **shared: Any) -> dict[str, Any]:
    return {"paper": "a paper", "shared": shared, "rows": rows}


def test_row_takes_methods_of_other_tables_and_drops_some() -> None:
    table = {"methods": {"fedit": {"train": {"lr": 1.0}}, "flora": {}}, "chosen": {"methods.flora.train.lr": "why"}}
    row = {"like": ["all"], "methods": {"flora": False, "fedit": {"adapter": False}}}
    setting = read(paper({"a": row}, all=table), {})["a"]
    assert setting.methods == {"fedit": {"train.lr": 1.0, "adapter": False}}
    assert (setting.chosen, setting.all_keys) == ({}, {"methods.fedit.train.lr": 1.0, "methods.fedit.adapter": False})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (paper({"glue": {"like": ["glue"]}}, glue={"rounds": 3}), "two tables of one name: glue"),
        (paper({"a": {"like": ["b"]}, "b": {"like": ["a"]}}), "a table that is like itself: a > b > a"),
        (paper({"a": {"like": ["a"]}}), "a table that is like itself: a > a"),
    ],
)
def test_tables_that_refer_to_themselves_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(content, {})


@published
def test_every_deviation_has_the_source_value_or_a_line() -> None:
    """Each of the 43 differences that a reader found has the source's value now, or is told in its file."""
    with (PUBLISHED / "deviations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 43
    untold = []
    for row in rows:
        setting, key = SETTINGS[row["setting"]], row["key"]
        is_source = str(setting.keys.get(key)) == row["source value"]
        told = setting.deviations | {k: str(v) for k, v in setting.official.items()}
        if not is_source and f"# - {key} = " not in writer.text(row["setting"]):
            untold.append((row["setting"], key))
        if not is_source and key in setting.official:
            assert float_or_text(told[key]) == float_or_text(row["source value"]), row
    assert untold == []


def float_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def rows_of(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"{name}_hyperparameters.csv").open(newline="") as file:
        return list(csv.DictReader(file))


CIFAR = ("fedrep/cifar10", "fedrep/cifar10-5", "fedrep/cifar10-1000", "fedrep/cifar100", "fedrep/cifar100-5")
ONE_EPOCH, HUNDRED = ("fedrep/cifar10", "fedrep/cifar10-5"), ("fedrep/cifar100", "fedrep/cifar100-5")
FEMNIST, SENT140 = ("fedrep/femnist",), ("fedrep/sent140",)
LEAF = FEMNIST + SENT140
FEDREP = CIFAR + LEAF
FLORG = tuple(name for name in SETTINGS if name.startswith("florg/"))
ROBERTA = tuple(name for name in FLORG if SETTINGS[name].keys["model.name"] == "FacebookAI/roberta-large")
IMAGES = tuple(name for name in SETTINGS if name.startswith("fedloru/") and name != "fedloru/alpaca")
NON_IID = ("fedloru/fashion-mnist-non-iid", "fedloru/cifar10-non-iid", "fedloru/cifar100-non-iid")
ALPACA = ("fedloru/alpaca",)
TENTH = tuple(name for name in IMAGES if name.endswith("-tenth"))
ALL_RANKS = tuple(name for name in IMAGES if name.endswith("-all-ranks"))
IN_TEXT = "in the text of the file"

HYPERPARAMETERS: dict[tuple[str, str, str], Any] = {
    ("fedrep", "all", "participation"): (CIFAR + FEMNIST, "share", 0.1),
    ("fedrep", "all", "optimizer"): (FEDREP, "train.momentum", 0.5),
    ("fedrep", "all", "learning_rate"): (FEDREP, "train.lr", 0.01),
    ("fedrep", "CIFAR10", "batch"): (CIFAR[:3], "train.batch_size", 10),
    ("fedrep", "CIFAR100", "batch"): (HUNDRED, "train.batch_size", 10),
    ("fedrep", "FEMNIST", "batch"): (FEMNIST, "train.batch_size", 10),
    ("fedrep", "Sent140", "batch"): (SENT140, "train.batch_size", 4),
    ("fedrep", "CIFAR10", "rounds"): (CIFAR[:3], "rounds", 100),
    ("fedrep", "CIFAR100", "rounds"): (HUNDRED, "rounds", 100),
    ("fedrep", "FEMNIST", "rounds"): (FEMNIST, "rounds", 200),
    ("fedrep", "Sent140", "rounds"): (SENT140, "rounds", 50),
    ("fedrep", "all", "head_local_epochs"): (FEDREP, "methods.fedrep.algorithm.head_epochs", 10),
    ("fedrep", "CIFAR10 n=100", "representation_local_epochs"): (ONE_EPOCH, "methods.fedrep.algorithm.body_epochs", 1),
    ("fedrep", "others", "representation_local_epochs"): (CIFAR[2:] + LEAF, "methods.fedrep.algorithm.body_epochs", 5),
    ("fedrep", "all", "reported"): (FEDREP, IN_TEXT, "--last 10"),
    ("fedrep", "fine-tuned variants", "head_finetune_epochs"): (FEDREP, IN_TEXT, "evaluation.fine_tune_epochs = 10"),
    ("fedrep", "L2GD", "p;alpha;lambda"): (FEDREP, "methods.l2gd.algorithm.p", 0.9),
    ("fedrep", "L2GD FEMNIST", "learning_rate"): (FEMNIST, "methods.l2gd.train.lr", 0.001),
    ("fedrep", "APFL", "alpha"): (FEDREP, "methods.apfl.algorithm.alpha", 0.25),
    ("fedrep", "Ditto", "lambda"): (CIFAR[:3] + LEAF, "methods.ditto.algorithm.lam", 0.75),
    ("fedrep", "PerFedAvg", "inner_lr;support;target"): (FEDREP, "methods.per-fedavg.algorithm.inner_lr", 1e-4),
    ("fedrep", "FedProx", "mu"): (CIFAR, "methods.fedprox.algorithm.mu", 0.1),
    ("fedrep", "SCAFFOLD", "global_lr"): (CIFAR + SENT140, "methods.scaffold.algorithm.server_lr", 1.0),
    ("fedrep", "FEMNIST new clients", "setup"): (FEMNIST, IN_TEXT, "100 of them, each with 500 rows of 5 digits"),
    ("florg", "all", "batch_size"): (FLORG, "train.batch_size", 4),
    ("florg", "all", "batch_size_grid"): (FLORG, IN_TEXT, "batches of 2, 4, 8 and 16 rows"),
    ("florg", "all", "local_epochs"): (FLORG, "train.local_epochs", 1),
    ("florg", "all", "learning_rate_grid"): (FLORG, IN_TEXT, "train.lr=5e-4,1e-4,5e-5,1e-5"),
    ("florg", "all", "learning_rate_default"): (FLORG, "train.lr", 5e-5),
    ("florg", "all", "max_sequence_length"): (FLORG, "task.max_length", 128),
    ("florg", "all", "optimizer"): (FLORG, "train.optimizer", "adamw"),
    ("florg", "all", "lora_scaling_factor"): (FLORG, "adapter.lora_alpha", 16),
    ("florg", "all", "clients"): (FLORG, "partition.clients", 20),
    ("florg", "all", "rank_default"): (FLORG, "adapter.r", 4),
    ("florg", "all", "dirichlet_rho_default"): (
        [name for name in FLORG if "squad" not in name],
        "partition.alpha",
        0.5,
    ),
    ("florg", "all", "participation_default"): (FLORG, "share", 1.0),
    ("florg", "all", "seeds"): (FLORG, IN_TEXT, "means over 2 seeds"),
    ("florg", "all", "LR_init"): (FLORG, "methods.florg.algorithm.bases", "orthogonal"),
    ("florg", "all", "A_init"): (FLORG, IN_TEXT, "the start of A is not stated"),
    ("florg", "all", "target_modules"): (ROBERTA, IN_TEXT, 'adapter.target_modules = ["query", "value"]: not stated'),
    ("florg", "all", "rounds"): (FLORG, IN_TEXT, "rounds = 50: not stated"),
    ("fedloru", "vision", "clients"): (("fedloru/cifar100-400",), "partition.clients", 400),
    ("fedloru", "vision", "participation"): (sorted({*IMAGES} - {*TENTH}), "share", 0.5),
    ("fedloru", "vision", "local_epochs"): (IMAGES, "train.local_epochs", 5),
    ("fedloru", "vision", "batch"): (IMAGES, "train.batch_size", 32),
    ("fedloru", "vision", "optimizer"): (IMAGES, "train.momentum", 0.9),
    ("fedloru", "vision", "learning_rate_grid"): (IMAGES, IN_TEXT, "the best of 0.3, 0.2, 0.1, 0.05 and 0.01"),
    ("fedloru", "vision", "lr_schedule"): (IMAGES, IN_TEXT, "falls to a rate of 0.001 in 50 or all rounds"),
    ("fedloru", "vision", "ranks"): (ALL_RANKS, "ranks", [16, 32, 64, 128]),
    ("fedloru", "vision", "factorised"): (IMAGES, "adapter.target_modules", ".*layer[1-4].*conv[12]"),
    ("fedloru", "vision", "accumulation_cycle_grid"): (IMAGES[:8], IN_TEXT, "algorithm.tau=20,30,40,50,60,70,80"),
    ("fedloru", "vision", "dirichlet_psi"): (NON_IID, "partition.alpha", 0.5),
    ("fedloru", "vision", "noniid_reported"): (NON_IID, IN_TEXT, "--last 5"),
    ("fedloru", "vision", "val;test"): (IMAGES, IN_TEXT, "10,000 training rows are left aside"),
    ("fedloru", "vision", "runs"): (IMAGES, IN_TEXT, "means over 3 runs"),
    ("fedloru", "Alpaca LLaMA2-3B", "clients"): (ALPACA, "partition.clients", 10),
    ("fedloru", "Alpaca LLaMA2-3B", "participation"): (ALPACA, "share", 0.5),
    ("fedloru", "Alpaca LLaMA2-3B", "local_epochs"): (ALPACA, "train.local_epochs", 1),
    ("fedloru", "Alpaca LLaMA2-3B", "batch"): (ALPACA, "train.batch_size", 16),
    ("fedloru", "Alpaca LLaMA2-3B", "optimizer"): (ALPACA, "train.optimizer", "adamw"),
    ("fedloru", "Alpaca LLaMA2-3B", "learning_rate"): (ALPACA, "train.lr", 3e-4),
    ("fedloru", "Alpaca LLaMA2-3B", "ranks"): (ALPACA, IN_TEXT, "adapter.r=8,16"),
    ("fedloru", "Alpaca LLaMA2-3B", "target_modules"): (
        ALPACA,
        "adapter.target_modules",
        ["q_proj", "k_proj", "v_proj", "o_proj"],
    ),
    ("fedloru", "Alpaca LLaMA2-3B", "accumulation_cycle"): (ALPACA, "methods.fedloru.algorithm.tau", 15),
    ("fedloru", "Alpaca LLaMA2-3B", "trainable_percent"): (ALPACA, IN_TEXT, "0.124 % of trained parameters"),
    ("fedloru", "mFedLoRU", "alpha_A/r_A = alpha_B/r_B"): (IMAGES, "scale", 0.5),
    ("fedloru", "all", "init"): (IMAGES, IN_TEXT, "the paper says that B starts at zero"),
    ("fedloru", "all", "cosine-sim experiment"): (TENTH, "share", 0.1),
}
"""Each line of the papers' hyperparameters (paper, data set, key): the rows with their key and value, or a passage of
their text."""
IN_ENTRIES = {("fedrep", "synthetic fig3", "d;k;m;r"): "10;2;5;0.1", ("fedrep", "synthetic fig4", "n;d;k"): "100;20;2"}
"""Lines that entries of ``rondo reproduce`` have in place of rows, valued in tests/study/claims/test_entries."""
IN_TENTHS = {("fedrep", "PerFedAvg", "inner_lr;support;target"): {8, 2}}
"""Eight rows to two are a support of 0.8."""
MORE: tuple[tuple[tuple[str, str, str], Any, str, Any], ...] = (
    (("fedrep", "all", "optimizer"), FEDREP, "train.optimizer", "sgd"),
    (("fedrep", "all", "learning_rate"), FEDREP, IN_TEXT, "train.lr=0.001,0.01,0.1"),
    (("fedrep", "all", "reported"), FEDREP, IN_TEXT, "over 5 repetitions"),
    (("fedrep", "all", "participation"), SENT140, "clients.per_round", 18),  # of 183
    (("fedrep", "all", "participation"), SENT140, "partition.clients", 183),
    (("fedrep", "all", "participation"), FEMNIST, "partition.clients", 150),
    # A.2: all other methods have fedrep's epochs of the representation.
    (("fedrep", "CIFAR10 n=100", "representation_local_epochs"), CIFAR[:2], "train.local_epochs", 1),
    (("fedrep", "others", "representation_local_epochs"), CIFAR[2:] + LEAF, "train.local_epochs", 5),
    (("fedrep", "FedProx", "mu"), LEAF, "methods.fedprox.algorithm.mu", 0.25),
    (("fedrep", "SCAFFOLD", "global_lr"), FEMNIST, "methods.scaffold.algorithm.server_lr", 0.5),
    (("fedrep", "APFL", "alpha"), (CIFAR[0], CIFAR[4]), IN_TEXT, "another of 0.1, 0.5 and 0.75"),
    (("fedrep", "Ditto", "lambda"), HUNDRED, "methods.ditto.algorithm.lam", 1.0),
    (("fedrep", "L2GD", "p;alpha;lambda"), FEDREP, "methods.l2gd.algorithm.lam", 1.0),
    (("fedrep", "L2GD", "p;alpha;lambda"), CIFAR[:4] + LEAF, IN_TEXT, "alpha of 0.25"),
    (("fedrep", "L2GD", "p;alpha;lambda"), CIFAR[4:], IN_TEXT, "alpha, 0.1 in this row"),
    (("fedrep", "PerFedAvg", "inner_lr;support;target"), FEDREP, "methods.per-fedavg.algorithm.support", 0.8),
    (("fedrep", "PerFedAvg", "inner_lr;support;target"), FEDREP, "methods.per-fedavg.algorithm.variant", "hf"),
    (("fedrep", "FEMNIST new clients", "setup"), FEMNIST, IN_TEXT, "to fine-tune on and 100 to test on"),
    (
        ("florg", "all", "target_modules"),
        [name for name in FLORG if name not in ROBERTA],
        IN_TEXT,
        'adapter.target_modules = ["q_proj", "v_proj"]: not stated',
    ),
    (("fedloru", "vision", "optimizer"), IMAGES, "train.optimizer", "sgd"),
    (("fedloru", "vision", "clients"), ("fedloru/fashion-mnist",), "partition.clients", 20),
    (("fedloru", "vision", "dirichlet_psi"), ("fedloru/cifar100-personal",), IN_TEXT, "partition.alpha=0.1,0.5"),
    (("fedloru", "vision", "noniid_reported"), NON_IID, IN_TEXT, "mean over the last five"),
    (("fedloru", "vision", "val;test"), IMAGES, IN_TEXT, "its test set of 10,000 is the test split"),
    (("fedloru", "Alpaca LLaMA2-3B", "optimizer"), ALPACA, IN_TEXT, "AdamW's betas of 0.9 and 0.999"),
    (("fedloru", "Alpaca LLaMA2-3B", "trainable_percent"), ALPACA, IN_TEXT, "(0.248 % with rank 16)"),
    (("fedloru", "all", "cosine-sim experiment"), ("fedloru/cifar100-100-tenth",), "partition.clients", 100),
    (("fedloru", "all", "cosine-sim experiment"), ("fedloru/cifar100",), "partition.clients", 20),
)
"""Further numbers of lines that have several."""


def value(name: str, key: str, wanted: Any) -> Any:
    """The value of ``key`` in a row, or ``wanted`` where it is a passage that the row's text has."""
    keys = SETTINGS[name].all_keys
    if key == "share":
        return keys["clients.per_round"] / keys["partition.clients"]
    if key == "scale":
        return keys["adapter.lora_alpha"] / keys["adapter.r"]
    if key == "ranks":
        return sorted(
            {v for k, v in keys.items() if k == "adapter.r" or re.fullmatch(r"methods\.fedloru:\d+\.adapter\.r", k)}
        )
    if key == IN_TEXT:
        text = re.sub(r"\s*\n#?\s+", " ", writer.text(name))
        return wanted if wanted in text else text
    return keys[key]


NUMBER = r"\d+(?:\.\d+)?(?:e-\d+)?"
OF_A_LINE = re.compile(rf"(?<![\w=/-])(?<![^.]\.)(?<!table ){NUMBER}")
"""Not the number of a name (CIFAR100, layer1, ResNet-10), of a case (n=100) or of a table."""


def numbers(told: Any) -> set[float]:
    """The numbers of a value or a passage."""
    if isinstance(told, list):
        return {float(one) for one in told if isinstance(one, int)}
    return {float(number) for number in re.findall(NUMBER, str(told).replace("0,000", "0000"))}


@published
@pytest.mark.parametrize("name", ["fedrep", "florg", "fedloru"])
def test_every_published_hyperparameter_is_that_of_the_files(name: str) -> None:
    """Every number of a line is one that its rows are checked for."""
    lines = {(name, row["dataset"], row["key"]): row["value"] for row in rows_of(name)}
    assert sorted(line for line in (*HYPERPARAMETERS, *IN_ENTRIES) if line[0] == name) == sorted(lines)
    assert [line for line, said in IN_ENTRIES.items() if line[0] == name and lines[line] != said] == []
    checks = [(line, *HYPERPARAMETERS[line]) for line in lines if line not in IN_ENTRIES]
    checks += [check for check in MORE if check[0][0] == name]
    wrong = [
        (row, key, value(row, key, wanted))
        for _, rows, key, wanted in checks
        for row in rows
        if value(row, key, wanted) != wanted
    ]
    assert wrong == []
    unchecked = {}
    for line, said in lines.items():
        checked = IN_TENTHS.get(line, set()).union(*(numbers(wanted) for of, *_, wanted in checks if of == line))
        if line not in IN_ENTRIES and (left := {*map(float, OF_A_LINE.findall(said))} - checked):
            unchecked[line] = left
    assert unchecked == {}


@pytest.mark.parametrize(("row", "shared"), [("fedrep/femnist", ["out"]), ("fedrep/sent140", ["fc1", "fc2"])])
def test_lg_fedavg_shares_the_layers_of_appendix_a2(row: str, shared: list[str]) -> None:
    assert SETTINGS[row].all_keys["methods.lg-fedavg.model.head_layers"] == shared


@pytest.mark.parametrize(
    ("paper", "digest"),
    [
        ("fedloru", "fdd8df78dd8d39c0"),
        ("fedrep", "284d8ef7c97c0b8b"),
        ("florg", "bdc618adb036a2d7"),
        ("rolora", "22b9374fbf84eefe"),
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
        layer_set = row["key"].split("=")[1][:2].lower()
        adapter = config(f"rolora/{DATA_SETS[row['dataset']]}-{layer_set}").adapter
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
@pytest.mark.parametrize(
    ("number", "name"), [("11", "rolora/commonsense"), ("13", "rolora/alpaca"), ("13", "rolora/code-alpaca")]
)
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
            types = {f"{layer.removeprefix('W')}_proj" for layer in row["value"].split(",")}
            assert set(settings.adapter.target_modules) == types, row
        else:
            assert known[row["key"]] == int(row["value"]), row


COMMAND = re.compile(
    r"rondo compare (?P<names>[a-z,-]+ )?--config FILE(?P<options>( --vary \S+)?)|(?P<axis>--vary \S+=\S+)"
)


def test_commands_in_the_files_run_their_rows() -> None:
    """Each command of a file is a plan of a run per method and value."""
    told: dict[tuple[str, str, str], str] = {}
    for name in SETTINGS:
        text = re.sub(r"\n#\s+", " ", writer.text(name))
        for command in COMMAND.finditer(text):
            axis = (command["axis"] or command["options"]).removeprefix(" ").removeprefix("--vary ").rstrip(".,;:)")
            told.setdefault((name.partition("/")[0], (command["names"] or "").strip(), axis), name)
    assert ("florg", "florg,florg-unaligned", "") in told
    keys = {axis.partition("=")[0] for _, _, axis in told}
    assert keys >= {"adapter.r", "clients.per_round", "partition.alpha", "algorithm.bases", "algorithm.tau", "train.lr"}
    for (_, names, axis), name in told.items():
        vary = compare.varied([axis] if axis else [])
        runs = compare.plan(names.split(",") if names else [], tomllib.loads(writer.text(name)), vary=vary)
        assert {run.method for run in runs} == set(names.split(",") if names else SETTINGS[name].methods), name
        for key, values in vary.items():
            assert {json.dumps(run.values[key]) for run in runs if run.values} == set(map(json.dumps, values)), name


def test_more_clients_have_fewer_rounds() -> None:
    assert [config(f"rolora/mnli{n}").rounds for n in ("", "-20", "-50")] == [500, 75, 30]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["init", *words])


def test_init_writes_a_setting(tmp_path: Path) -> None:
    result = run(str(tmp_path / "a.toml"), "--paper", "rolora/sst2", "--scale", "small")
    assert result.exit_code == 0
    text = (tmp_path / "a.toml").read_text()
    assert text == f"{HEADING}\n" + writer.text("rolora/sst2", "small")
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
        (["--paper", "rolora/sst2", "--scale", "tiny"], "--scale: 'tiny' is not one of 'paper', 'small', 'official'"),
        (["--paper", "rolora/sst2", "--scale", "official"], "--scale: no official code is known that differs"),
        (["--scale", "small"], "--scale: is the scale of a paper's setting: name one by --paper"),
    ],
)
def test_wrong_setting_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    result = run(str(tmp_path / "a.toml"), *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "a.toml").exists()


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.sweep(16)
def test_every_factorised_layer_of_images_has_its_rank_and_scale(name: str, scale: str) -> None:
    """A method's rank, or the 64 channels of the first block where that is more, and alpha / r = 1/2 in every layer."""
    from rondo.models.forms.outline import look

    for run in compare.plan([], tomllib.loads(writer.text(name, scale))):
        if not run.config.has_factors:
            continue
        task = run.config.task.model_copy(update={"image_shape": [32, 32, 3]})
        outline = look(run.config.model_copy(update={"task": task}), tuple(map(str, range(10))))
        assert not outline.problems
        method, _, number = run.method.partition(":")
        rank = int(number) if method in ("fedloru", "fedit") and number else 128
        assert {(s.rank, s.scale) for s in outline.sites} == {(min(rank, 64), 0.5), (rank, 0.5)}, run.label


@pytest.mark.parametrize("scale", writer.SCALES)
@pytest.mark.parametrize("name", [name for name in SETTINGS if name.startswith("fedloru/")])
def test_training_goes_on_after_the_last_merge(name: str, scale: str) -> None:
    """A merge with restart = "momentum" moves the model, so none falls on the last round."""
    if scale == "official" and name not in OFFICIAL:
        return
    settings = [run.config for run in compare.plan([], tomllib.loads(writer.text(name, scale)))]
    cycles = {(s.rounds, s.algorithm.fields["tau"]) for s in settings if "tau" in s.algorithm.fields}
    assert [cycle for cycle in cycles if cycle[0] % cycle[1] == 0] == []


@pytest.mark.parametrize("name", [name for name in OFFICIAL if name.startswith("fedloru/")])
def test_official_merges_are_those_of_the_code(name: str) -> None:
    methods = SETTINGS[name].methods
    of_method = [run.config for run in compare.plan([], tomllib.loads(writer.text(name, "official")))]
    merges = {
        tuple(range(s.algorithm.fields["tau"], s.rounds + 1, s.algorithm.fields["tau"]))
        for s in of_method
        if s.algorithm.name == "fedloru"
    }
    has_fedloru = any(label.partition(":")[0] == "fedloru" for label in methods)
    assert merges == ({(50, 100, 150, 200, 250, 300, 350)} if has_fedloru else set())
    assert ("350" in writer.text(name)) == has_fedloru


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
    for key in (*SETTINGS[name].chosen, *SETTINGS[name].deviations):
        assert f"# - {key} = " in whole
        assert f"# - {key} " in small
    assert "f1" not in whole  # GLUE's own metric for MRPC and QQP; the papers have accuracy
