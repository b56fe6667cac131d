"""Messages about bad input: each one in full, printed before anything slow is loaded.

The messages are in ``bad_input.txt``, one section per case. After a change of wording,
``PYTHONPATH=tests python tests/config/test_bad_input.py`` writes them anew. Then read each one: it names the key path
or the row, the fault, the reason and the remedy.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

import rondo.models.forms.outline
import rondo.models.forms.transformer
import rondo.runs.assembling.assemble
import rondo.runs.runner
import tiny
from rondo.cli.app import app
from rondo.runs.watching import progress

GOLDEN = Path(__file__).with_name("bad_input.txt")

ROWS = "text,label,who\n" + "".join(f"w{i} w{i + 1},{'ab'[i % 2]},site {i % 3}\n" for i in range(12))
"""Twelve rows of two classes and three owners."""

BASE: dict[str, Any] = {
    "rounds": 2,
    "algorithm": {"name": "fedit"},
    "adapter": {"r": 2, "target_modules": ["query", "value"]},
    "model": {"name": "./model"},
    "task": {"text": "text", "label": "label", "max_length": 16},
    "data": {"source": "rows.csv", "test_split": ""},
    "partition": {"kind": "iid", "clients": 3},
}


CHOICES = {
    "kind": "multiple-choice",
    "text": None,
    "label": None,
    "prompt": "text",
    "choices": "who",
    "answer": "label",
}


@dataclass(frozen=True)
class Case:
    """One faulty configuration, with its data and model.

    ``phase``: "config" faults are found before any data are read, "data" faults before the model's layers are looked
    at, "structure" faults before its weights are loaded, "weights" faults while they are loaded.
    ``changes``: changes to ``BASE`` by section; None takes a key away.
    ``rows``: the content of rows.csv.
    ``files``: further files beside the configuration; None removes a file.
    ``toml``: a whole configuration file in place of ``changes``.
    ``flags``: further arguments of the command.
    """

    phase: str
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    rows: str | bytes = ROWS
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    toml: str | None = None
    flags: tuple[str, ...] = ()

    def lay_out(self, folder: Path) -> None:
        """Write everything that the run reads into ``folder``, except the model."""
        config = json.loads(json.dumps(BASE))
        for section, change in self.changes.items():
            if isinstance(change, Mapping):
                config.setdefault(section, {}).update(change)
                config[section] = {k: v for k, v in config[section].items() if v is not None}
            else:
                config[section] = change
        (folder / "run.toml").write_text(self.toml if self.toml is not None else _toml(config), encoding="utf-8")
        for name, content in {"rows.csv": self.rows, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


def _toml(config: Mapping[str, Any]) -> str:
    """The configuration as TOML. JSON values are TOML values, except for tables within a section."""
    lines = [f"{k} = {_value(v)}" for k, v in config.items() if not isinstance(v, Mapping)]
    for section, keys in config.items():
        if isinstance(keys, Mapping):
            lines += [f"[{section}]", *(f"{k} = {_value(v)}" for k, v in keys.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f'"{k}" = {_value(v)}' for k, v in value.items()) + " }"
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps(value)


def rows(*lines: str) -> str:
    """``ROWS``, followed by ``lines``."""
    return ROWS + "".join(line + "\n" for line in lines)


def jsonl(*objects: object) -> dict[str, Any]:
    return {"rows.jsonl": "".join(json.dumps(o) + "\n" for o in objects)}


GOOD = [{"text": f"w{i}", "label": "ab"[i % 2]} for i in range(6)]
CHATS = [
    [{"role": "user", "content": "w1"}],
    [{"role": "assistant", "content": "w1"}],
    [{"from": "human", "value": "w1"}, {"from": "function_call", "value": "w2"}],
    [{"role": "user", "content": "w1"}, {"role": "assistant", "content": ""}],
]
TALK = [{"chat": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": f"w{i}"}]} for i in range(6)]
PICTURES: dict[str, Any] = {"task": {"kind": "image-classification", "text": None, "label": None}}
BOTH = {"equal_sizes": True, "sigma": 1.0}
JSONL = {"data": {"source": "rows.jsonl"}}
OWNERS: dict[str, Any] = {"partition": {"kind": "natural", "column": "who", "clients": None}}
SITES = {"data": {"source": None, "clients_from": "./sites"}}
START = {"adapter": {"start_from": "adapter"}}
CAUSAL: dict[str, Any] = {
    "task": {"kind": "causal-lm", "label": None, "text": "text"},
    "adapter": {"target_modules": "all-linear"},
}
PAIRS: dict[str, Any] = {
    "task": {"kind": "seq2seq-lm", "label": None, "text": None, "prompt": "text", "response": "label"},
    "adapter": {"target_modules": "all-linear"},
}
CHAT: dict[str, Any] = {
    **CAUSAL,
    **JSONL,
    "task": {"kind": "causal-lm", "label": None, "text": None, "messages": "chat"},
}
BERT = {"model_type": "bert", "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
DECODER = {"model/config.json": json.dumps({**BERT, "is_decoder": True})}
T5 = {"model_type": "t5", "vocab_size": 40, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
MBART = {
    "model_type": "mbart",
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "decoder_start_token_id": 2,
    "max_position_embeddings": 64,
}
LORA = {"peft_type": "LORA", "r": 2, "target_modules": ["query"]}


def tensors(value: float = 0.0) -> bytes:
    """Tensors for the layers and the rank of ``LORA``."""
    return safetensors.torch.save(
        {
            f"base_model.model.bert.encoder.layer.{i}.attention.self.query.lora_{factor}.weight": torch.full(
                shape, value
            )
            for i in range(2)
            for factor, shape in (("A", (2, 32)), ("B", (32, 2)))
        }
    )


def adapter(value: float = 0.0, **changes: Any) -> dict[str, str | bytes | None]:
    """The files of ``LORA`` with ``changes`` to its configuration."""
    return {
        "adapter/adapter_config.json": json.dumps({**LORA, **changes}),
        "adapter/adapter_model.safetensors": tensors(value),
    }


PART = safetensors.torch.save(
    {f"bert.embeddings.{n}_embeddings.weight": torch.zeros(48, 32) for n in ("word", "position")}, {"format": "pt"}
)
"""Two tensors of BERT, of which the first has the wrong size."""
SMALL = {**BERT, "vocab_size": 20, "intermediate_size": 64, "max_position_embeddings": 48}
CASES = [
    # the file itself
    Case("config", "not TOML", toml="rounds = \n"),
    Case("config", "a key twice", toml="rounds = 1\nrounds = 2\n"),
    Case("config", "a section twice", toml="[train]\nlr = 0.1\n[train]\nlr = 0.2\n"),
    Case("config", "text without quotes", toml="[algorithm]\nname = fedit\n"),
    Case("config", "no data for a model of one's own", toml='[model]\nname = "./model"\n[data]\nsource = "rows.csv"\n'),
    # keys
    Case("config", "an unknown key", {"adapter": {"lora_alhpa": 4}}),
    Case("config", "an unknown section", {"trian": {"lr": 0.1}}),
    Case("config", "a key in the wrong section", {"partition": {"local_steps": 1}}),
    Case("config", "a key outside its section", {"lr": 0.1}),
    Case("config", "a key of PEFT's", {"adapter": {"use_bdlora": True}}),
    Case("config", "modules to train whole", {"adapter": {"modules_to_save": ["lm_head"]}}),
    Case(
        "config",
        "layers by number of all kinds",
        {"adapter": {"target_modules": "all-linear", "layers_to_transform": [1]}},
    ),
    Case("config", "a start of PEFT's", {"adapter": {"init_lora_weights": "pissa_niter_16"}}),
    Case("config", "a section that is a value", {"adapter": 5}),
    Case("config", "several faults at once", {"rounds": "2", "seed": -1, "adapter": {"rr": 3}, "train": {"lr": 0}}),
    # types and ranges
    Case("config", "a number in quotes", {"rounds": "10"}),
    Case("config", "a fraction for a count", {"rounds": 1.5}),
    Case("config", "true for a count", {"rounds": True}),
    Case("config", "no rounds", {"rounds": 0}),
    Case("config", "a negative seed", {"seed": -1}),
    Case("config", "a learning rate of zero", {"train": {"lr": 0.0}}),
    Case("config", "a learning rate that is not a number", {"train": {"lr": float("nan")}}),
    Case("config", "a batch of none", {"train": {"batch_size": 0}}),
    Case("config", "yes for true", {"train": {"length_grouping": "yes"}}),
    Case("config", "rank 0", {"adapter": {"r": 0}}),
    Case("config", "dropout 1", {"adapter": {"lora_dropout": 1.0}}),
    Case("config", "target modules that are a number", {"adapter": {"target_modules": 3}}),
    Case("config", "a rank pattern of rank 0", {"adapter": {"rank_pattern": {"query": 0}}}),
    Case("config", "a validation share of 1", {"data": {"validation_fraction": 1.0}}),
    Case("config", "three text columns", {"task": {"text": ["a", "b", "c"]}}),
    Case("config", "too few tokens", {"task": {"max_length": 3}}),
    Case("config", "a probability above 1", {"faults": {"crash": 1.5}}),
    # names
    Case("config", "an algorithm with a typing error", {"algorithm": {"name": "fedlt"}}),
    Case("config", "an unknown algorithm", {"algorithm": {"name": "zzzzz"}}),
    Case("config", "an algorithm's unknown field", {"algorithm": {"name": "florg", "base": "svd"}}),
    Case("config", "a field's wrong value", {"algorithm": {"name": "florg", "bases": "qr"}}),
    Case("config", "an algorithm without fields", {"algorithm": {"mu": 0.1}}),
    Case("config", "an unknown optimizer", {"train": {"optimizer": "adam"}}),
    Case("config", "an unknown kind of partition", {"partition": {"kind": "diriclet"}}),
    Case("config", "an unknown sampling", {"clients": {"sampling": "random"}}),
    Case("config", "an unknown robust rule", {"robust": {"rule": "medain"}}),
    Case("config", "an unknown built-in model", {"model": {"name": "builtin:minilm2"}}),
    Case("config", "vectors of words for a transformer", {"model": {"vectors": "rows.csv"}}),
    Case("config", "vectors of words that are not there", {"model": {"name": "builtin:lstm", "vectors": "glove.txt"}}),
    Case("config", "an answer's text without a place for the choice", {"task": {**CHOICES, "answer_text": "it is"}}),
    Case("config", "a model folder that is not there", {"model": {"name": "./modle"}}),
    Case("config", "data that are not there", {"data": {"source": "row.csv"}}),
    Case("config", "a model by its address", {"model": {"name": "file:/models/bert"}}),
    Case("config", "data by their address", {"data": {"source": "file:///data/rows"}}),
    Case("config", "an adapter that is not there", {"adapter": {"start_from": "adapter"}}),
    # between keys
    Case("config", "steps and epochs", {"train": {"local_steps": 5, "local_epochs": 1}}),
    Case("config", "momentum without sgd", {"train": {"momentum": 0.9}}),
    Case("config", "warm-up to the end", {"train": {"warmup_rounds": 2}}),
    Case("config", "two sources of data", {"data": {"clients_from": "sites"}}),
    Case("config", "Dirichlet without alpha", {"partition": {"kind": "dirichlet"}}),
    Case("config", "alpha without Dirichlet", {"partition": {"alpha": 0.5}}),
    Case("config", "shards of no number", {"partition": {"kind": "shards"}}),
    Case("config", "owners of no column", {"partition": {"kind": "natural", "clients": None}}),
    Case("config", "no number of clients", {"partition": {"clients": None}}),
    Case("config", "more clients a round than clients", {"clients": {"per_round": 5}}),
    Case("config", "more at least than a round has", {"clients": {"per_round": 2, "min_clients": 3}}),
    Case("config", "Poisson of no number", {"clients": {"sampling": "poisson"}}),
    Case("config", "over-selection of nothing", {"clients": {"over_select": 0.5}}),
    Case("config", "clipping to nothing", {"admission": {"clip": True}}),
    Case("config", "half of the clients dishonest", {"robust": {"rule": "median", "byzantine": 2}}),
    Case("config", "faults that sum above 1", {"faults": {"crash": 0.6, "hang": 0.6}}),
    Case("config", "slow clients that are waited for", {"faults": {"slow": 0.5}}),
    Case("config", "ranks for other clients", {"clients": {"ranks": [2, 2]}}),
    Case("config", "shares of ranks that do not sum", {"clients": {"ranks": {"1": 0.5, "2": 0.4}}}),
    Case("config", "a client's rank above the run's", {"clients": {"ranks": [2, 2, 4]}}),
    Case("config", "a server option without an optimizer", {"server": {"beta1": 0.9}}),
    Case("config", "a language model with a label", {"task": {"kind": "causal-lm"}}),
    Case("config", "one text of two", {**PAIRS, "task": {**PAIRS["task"], "response": None}}),
    Case("config", "conversations for an encoder", {**PAIRS, "task": {**PAIRS["task"], "messages": "chat"}}),
    Case("config", "a chat template for an encoder", {**PAIRS, "task": {**PAIRS["task"], "chat_template": "rows.csv"}}),
    Case("config", "a prompt for a classifier", {"task": {"prompt": "q"}}),
    Case("config", "conversations for a classifier", {"task": {"messages": "chat"}}),
    Case("config", "conversations beside a text", {**CAUSAL, "task": {**CAUSAL["task"], "messages": "chat"}}),
    Case("config", "a separator of nothing", {**CAUSAL, "task": {**CAUSAL["task"], "separator": "\n"}}),
    Case("config", "a template for plain text", {**CAUSAL, "task": {**CAUSAL["task"], "chat_template": "rows.csv"}}),
    Case("config", "a template that is not there", {"task": {**CHAT["task"], "chat_template": "chat.jinja"}}),
    Case("config", "no text column", {"task": {"text": None}}),
    Case("config", "GGUF and int8", {"model": {"gguf_file": "m.gguf", "quantization": "int8"}}),
    Case("config", "a GGUF file twice", {"model": {"name": "m.gguf", "gguf_file": "m.gguf"}}, files={"m.gguf": "x"}),
    Case("config", "a GGUF file by its path", {"model": {"gguf_file": "/models/m.gguf"}}),
    Case("config", "a GGUF file as name that is not there", {"model": {"name": "models/m.gguf"}}),
    # changes on the command line
    Case("config", "--set without a value", flags=("--set", "rounds")),
    Case("config", "--set into a value", flags=("--set", "rounds.x=1")),
    Case("config", "--set of a wrong type", flags=("--set", "train.lr=high")),
    Case("config", "an unknown device", flags=("--device", "gpu")),
    # options that the algorithm does not define
    Case("config", "workers in one process", {"simulation": {"workers": 2}}),
    Case("config", "an engine that there is not", {"simulation": {"engine": "rey"}}),
    Case(
        "config",
        "ranks that a method does not define",
        {"algorithm": {"name": "rolora"}, "clients": {"ranks": [1, 2, 2]}},
    ),
    Case(
        "config",
        "a server optimizer that a method does not allow",
        {"algorithm": {"name": "lora-fair"}, "server": {"optimizer": "adam"}},
    ),
    Case(
        "config",
        "a server optimizer for a method with a step of its own",
        {"algorithm": {"name": "scaffold"}, "server": {"optimizer": "adam"}},
    ),
    Case("config", "an optimizer that a method cannot read", {"algorithm": {"name": "scaffold", "option": "II"}}),
    Case("config", "regression without columns", {"task": {"kind": "regression", "text": None, "label": None}}),
    Case("config", "a key of pictures for text", {"task": {"image_size": 32, "augment": "crop-flip"}}),
    Case("config", "four channels", {**PICTURES, "task": {**PICTURES["task"], "image_shape": [8, 8, 4]}}),
    Case("config", "two sizes of pictures", {"task": {**PICTURES["task"], "image_size": 4, "image_shape": [8, 8, 1]}}),
    Case("config", "sentences for a task of pictures", {**PICTURES, "data": {"source": "builtin:home-intents"}}),
    Case("config", "equal and spread sizes", {"partition": {"kind": "classes", "classes_per_client": 2, **BOTH}}),
    Case("config", "equal sizes of parts at random", {"partition": {"equal_sizes": True}}),
    Case("config", "a class that is not there", {"algorithm": {"name": "no_such_module:X"}}),
    Case("config", "a class that is no algorithm", {"algorithm": {"name": "json:JSONDecoder"}}),
    Case("config", "a field's impossible value", {"algorithm": {"name": "rolora", "alternate_for": 7.0}}),
    # files of data
    Case(
        "structure",
        "vectors of words with a line that is too short",
        {"adapter": {"target_modules": ["fc1"]}, "model": {"name": "builtin:lstm", "vectors": "glove.txt"}},
        files={"glove.txt": "w1 0.1 0.2\nw2 0.3\n"},
    ),
    Case(
        "data",
        "rows of many users as those of a client",
        {"data": {"source": None, "clients_from": "sites"}},
        files={"sites/a.json": json.dumps({"users": ["a", "b"], "user_data": {}})},
    ),
    Case(
        "data",
        "rows of LEAF's without a user's answers",
        {"data": {"source": "leaf.json"}},
        files={"leaf.json": json.dumps({"users": ["a"], "user_data": {"a": {"x": ["w1"]}}})},
    ),
    Case(
        "data",
        "pixels in a list of unknown height",
        {"task": {"kind": "image-classification", "text": None, "max_length": None, "image": "x", "label": "y"}}
        | {"data": {"source": "leaf.json"}, "model": {"name": "builtin:2nn"}}
        | {"adapter": {"target_modules": ["hidden1"]}},
        files={"leaf.json": json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.1, 0.2]] * 2, "y": [1, 2]}}})},
    ),
    Case("data", "an unknown ending", {"data": {"source": "./rows.txt"}}, files={"rows.txt": ROWS}),
    Case("data", "an empty file", rows=""),
    Case("data", "a header alone", rows="text,label,who\n"),
    Case("data", "no UTF-8", rows=ROWS.encode() + b"caf\xe9,a,site 1\n"),
    Case("data", "a row that is too short", rows=rows("w1,a")),
    Case("data", "a row that is too long", rows=rows("w1,a,site 1,more")),
    Case("data", "a quote that is never closed", rows=rows('"w1,a,site 1')),
    Case("data", "two columns of one name", rows=ROWS.replace("who", "text", 1)),
    Case("data", "broken JSON lines", JSONL, files={"rows.jsonl": '{"text": "w1", "label": "a"}\n{"text": \n'}),
    Case("data", "JSON lines that are no objects", JSONL, files={"rows.jsonl": '["w1", "a"]\n'}),
    Case("data", "no Parquet", {"data": {"source": "rows.parquet"}}, files={"rows.parquet": b"PAR1"}),
    Case("data", "a folder without the split", {"data": {"source": "./folder"}}, files={"folder/test.csv": ROWS}),
    Case("data", "client files of no known ending", SITES, files={"sites/a.txt": ROWS}),
    Case("data", "two files for one client", SITES, files={"sites/a.csv": ROWS, "sites/a.jsonl": "{}"}),
    # columns and rows
    Case("data", "no such text column", {"task": {"text": "txt"}}),
    Case("data", "no such label column", {"task": {"label": "labels"}}),
    Case(
        "data",
        "neither label nor owner column",
        {"task": {"label": "labels"}, "partition": {"kind": "natural", "column": "woh", "clients": None}},
    ),
    Case("data", "no such owner column", {"partition": {"kind": "natural", "column": "woh", "clients": None}}),
    Case("data", "an empty text", rows=rows(" ,a,site 1")),
    Case("data", "a missing label", rows=rows("w1,,site 1")),
    Case("data", "a missing owner", OWNERS, rows=rows("w1,a,")),
    Case("data", "null for a text", JSONL, files=jsonl(*GOOD, {"text": None, "label": "a"})),
    Case("data", "a number for a text", JSONL, files=jsonl(*GOOD, {"text": 7, "label": "a"})),
    Case("data", "a row without the column", JSONL, files=jsonl(*GOOD, {"txt": "w1", "label": "a"})),
    Case("data", "a list for a text", JSONL, files=jsonl(*GOOD, {"text": ["w1", "w2"], "label": "a"})),
    Case("config", "columns of labels and their names", {"task": {"label": ["a", "b"], "labels": ["a", "b"]}}),
    Case("config", "one label, and a separator", {"task": {"label_separator": ";", "multi_label": False}}),
    Case("data", "joined labels without a separator", {"task": {"multi_label": True}}, rows=rows("w1,a;b,site 1")),
    Case("data", "a list for a label", JSONL, files=jsonl(*GOOD, {"text": "w1", "label": ["a"]})),
    Case("data", "NaN for a label", JSONL, files=jsonl(*GOOD, {"text": "w1", "label": math.nan})),
    Case("data", "half of a Unicode pair", JSONL, files=jsonl(*GOOD, {"text": "\ud800", "label": "a"})),
    Case("data", "many bad rows", rows=rows(*[",a,site 1"] * 9)),
    Case("data", "nothing but bad rows", {"data": {"bad_rows": "drop"}}, rows="text,label,who\n,a,x\n,b,x\n"),
    Case("data", "one class", rows=ROWS.replace(",b,", ",a,")),
    Case(
        "data",
        "a label that is a text",
        {"task": {"label": "id"}},
        rows="text,id\n" + "".join(f"w1,{i}\n" for i in range(1001)),
    ),
    Case(
        "data",
        "numbers to predict",
        {"task": {"label": "score"}},
        rows="text,score\n" + "".join(f"w1,{i / 40}\n" for i in range(40)),
    ),
    Case("data", "NaN among numbers", {"task": {"label": "score"}}, rows="text,score\nw1,0\nw2,1\nw3,nan\n"),
    Case(
        "data",
        "lists for all labels",
        {**JSONL, "task": {"multi_label": False}},
        files=jsonl(*({"text": "w1", "label": [i]} for i in range(6))),
    ),
    Case(
        "data",
        "column names that a terminal obeys",
        {"task": {"label": "labl"}},
        rows="text,[red]label\x1b[2J\n" + "w1,a\nw2,b\n",
    ),
    Case("data", "more rows than memory", {"data": {"max_read_mb": 1}}, rows=ROWS + "w1,a,site 1\n" * 100_000),
    Case(
        "data",
        "an unknown label in the test set",
        {"data": {"test_source": "./test.csv"}},
        files={"test.csv": rows("w1,c,site 1")},
    ),
    Case(
        "data",
        "conversations in a column of texts",
        {**CHAT, "data": {"source": "rows.csv"}, "task": {**CHAT["task"], "messages": "text"}},
    ),
    Case("data", "no such column of conversations", CHAT, files=jsonl(*GOOD)),
    Case("data", "conversations of another form", CHAT, files=jsonl(*({"chat": chat} for chat in CHATS))),
    # clients
    Case("data", "fewer rows than clients", {"partition": {"clients": 13}}),
    Case("data", "clients without enough rows", {"data": {"min_examples": 99}}),
    Case("data", "more clients a round than owners", {**OWNERS, "clients": {"per_round": 4}}),
    Case("data", "more at least than there are", {"clients": {"min_clients": 4}}),
    Case("data", "more shards than rows", {"partition": {"kind": "shards", "shards_per_client": 5}}),
    Case("data", "more classes a client than there are", {"partition": {"kind": "classes", "classes_per_client": 3}}),
    Case("data", "labels dealt where there are none", {**CAUSAL, "partition": {"kind": "dirichlet", "alpha": 0.5}}),
    Case("data", "no pictures in an archive", {**PICTURES, "data": {"source": "a.npz"}}, files={"a.npz": b"no zip"}),
    Case(
        "data", "a picture that is text", {**PICTURES, "data": {"source": "rows.csv"}}, rows="image,label\na,x\nb,y\n"
    ),
    Case("data", "pictures without a class", {**PICTURES, "data": {"source": "rows.csv"}}),
    Case("data", "more users than have rows", {**OWNERS, "partition": {**OWNERS["partition"], "clients": 5}}),
    Case("data", "ranks for other owners", {**OWNERS, "clients": {"ranks": [1, 2]}}),
    # the model: its files, its layers, its sizes
    Case("structure", "no model", {"model": {"name": "./empty"}}, files={"empty/x": ""}),
    Case("structure", "a model's broken config", files={"model/config.json": "{"}),
    Case("structure", "a model of unknown kind", files={"model/config.json": '{"model_type": "zzz"}'}),
    Case("structure", "no tokenizer", {"model": {"name": "./bare"}}, files={"bare/config.json": json.dumps(BERT)}),
    Case("structure", "a broken tokenizer", files={"model/tokenizer.json": "{"}),
    Case("structure", "a tokenizer of another model", files={"model/config.json": json.dumps(SMALL)}),
    Case(
        "structure",
        "a tokenizer that can neither pad nor end",
        files={
            "model/tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
            "model/special_tokens_map.json": "{}",
        },
    ),
    Case("structure", "a GGUF file that is not there", {"model": {"gguf_file": "q4.gguf"}}),
    Case("structure", "a name that no hub knows", {"model": {"name": "no-such-model"}}),
    Case("structure", "a rank above a layer's size", {"adapter": {"r": 33}}),
    Case("structure", "layers that are not there", {"adapter": {"target_modules": ["q_proj", "v_proj"]}}),
    Case("structure", "no layers named", {"adapter": {"target_modules": []}}),
    Case("structure", "a pattern that is none", {"adapter": {"target_modules": ".*(query"}}),
    Case("structure", "layers that are no matrices", {"adapter": {"target_modules": ["query", "LayerNorm"]}}),
    Case("structure", "the head alone", {"adapter": {"target_modules": ["classifier"]}}),
    Case("structure", "more tokens than positions", {"task": {"max_length": 512}}),
    Case("structure", "two faults of the structure", {"task": {"max_length": 512}, "adapter": {"r": 33}}),
    Case(
        "structure",
        "an adapter of another model",
        START,
        files={"adapter/adapter_config.json": json.dumps({**LORA, "target_modules": ["q_proj"]})},
    ),
    Case("structure", "an adapter without tensors", START, files={"adapter/adapter_config.json": json.dumps(LORA)}),
    Case("structure", "an adapter that is none", START, files={"adapter/adapter_config.json": '{"peft_type": "IA3"}'}),
    # files that somebody else wrote
    Case("structure", "a model with an adapter beside it", files={"model/adapter_config.json": json.dumps(LORA)}),
    Case("structure", "pickled weights", files={"model/model.safetensors": None, "model/pytorch_model.bin": b"\x80"}),
    Case(
        "structure",
        "a model's size that is no number",
        files={"model/config.json": '{"model_type": "bert", "hidden_size": "x"}'},
    ),
    Case("structure", "a model's config without end", files={"model/config.json": '{"a":' * 100_000}),
    Case("structure", "a rank of a billion", {"adapter": {"r": 10**9}}),
    Case("structure", "an adapter's rank of a billion", START, files=adapter(r=10**9)),
    Case("structure", "an adapter's rank that is a text", START, files=adapter(r="8")),
    Case("structure", "an adapter of unknown type", START, files=adapter(peft_type="ZZZ")),
    Case(
        "structure",
        "an adapter that names a module",
        START,
        files=adapter(megatron_config={"a": 1}, megatron_core="evil"),
    ),
    Case("structure", "an adapter that copies layers", START, files=adapter(layer_replication=[[0, 2], [0, 2]])),
    Case("structure", "an adapter that is more than LoRA", START, files=adapter(use_bdlora=True)),
    Case("structure", "an adapter's config without end", START, files={"adapter/adapter_config.json": "[" * 100_000}),
    Case(
        "structure",
        "a pickled adapter",
        START,
        files={"adapter/adapter_config.json": json.dumps(LORA), "adapter/adapter_model.bin": b"\x80"},
    ),
    Case("structure", "an adapter of other shapes", START, files=adapter(r=4)),
    Case("structure", "an adapter with NaN", START, files=adapter(math.nan)),
    # clients' ranks that do not fit the layers
    Case("structure", "a budget that holds no upload", {"clients": {"bytes_budget": 999}}),
    Case("structure", "budgets of which one holds none", {"clients": {"bytes_budget": [4096, 4096, 9]}}),
    Case(
        "structure", "a client's rank above an adapter's", {**START, "clients": {"ranks": [4, 4, 4]}}, files=adapter()
    ),
    Case(
        "structure",
        "a client's rank above every layer's",
        {"adapter": {"r": 4, "rank_pattern": {"query": 2, "value": 2}}, "clients": {"ranks": [4, 4, 4]}},
    ),
    Case(
        "structure",
        "nothing to learn within the tokens",
        {
            **CAUSAL,
            "task": {
                "kind": "causal-lm",
                "label": None,
                "text": None,
                "prompt": "text",
                "response": "label",
                "max_length": 4,
            },
        },
        rows=ROWS.replace("\nw", "\nw1 w2 w3 w4 w5 w"),
        files=DECODER,
    ),
    Case("structure", "an encoder as a language model", CAUSAL),
    Case("structure", "an encoder that has no decoder", PAIRS),
    Case("structure", "a decoder without a first token", PAIRS, files={"model/config.json": json.dumps(T5)}),
    Case("structure", "a decoder that begins with a row's end", PAIRS, files={"model/config.json": json.dumps(MBART)}),
    Case(
        "structure",
        "more tokens than a decoder has positions",
        {
            **PAIRS,
            "task": {**PAIRS["task"], "max_target_length": 65},
            "evaluation": {"generate": 1, "max_new_tokens": 70},
        },
        files={"model/config.json": json.dumps({**MBART, "model_type": "bart"})},
    ),
    Case("structure", "no chat template", CHAT, files={**jsonl(*TALK), **DECODER}),
    Case(
        "structure",
        "a template that does not show the answers",
        {**CHAT, "task": {**CHAT["task"], "chat_template": "chat.jinja"}},
        files={**jsonl(*TALK), **DECODER, "chat.jinja": "{{ messages | length }} {{ messages[-1].content }}"},
    ),
    Case("structure", "a file that is no GGUF", {"model": {"name": "m.gguf"}}, files={"m.gguf": "GGUF" + "x" * 60}),
    # the model's weights
    Case("weights", "no weights", files={"model/model.safetensors": None}),
    Case("weights", "empty weights", files={"model/model.safetensors": b""}),
    Case("weights", "broken weights", files={"model/model.safetensors": b"\xff" * 64}),
    Case("weights", "weights without most layers", files={"model/model.safetensors": PART}),
    Case("weights", "weights of another size", files={"model/config.json": json.dumps({**BERT, "num_labels": 2})}),
]

NEVER = {"config": "load_source", "data": "look"}
"""A fault of this phase is found before this function is called. Structure faults have a check of their own."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny.saved(tmp_path_factory.mktemp("model"), tiny.bert(), tiny.tokenizer()))


@pytest.fixture
def folder(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(model, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message(case: Case) -> str:
    """The message of ``rondo run`` in the working folder, where ``case`` is laid out, without the phases before it."""
    with patch.object(progress, "_PATIENCE", 3600):
        result = CliRunner().invoke(app, ["run", "run.toml", "--run-dir", "out", *case.flags])
    assert result.exit_code == 2, (case.name, result.exit_code, result.output)
    assert not Path("out").exists()
    return result.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.sweep(3)
def test_message_names_place_fault_and_remedy(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case.lay_out(folder)
    if case.phase in NEVER:
        monkeypatch.setattr(
            rondo.runs.assembling.assemble, NEVER[case.phase], lambda *_: pytest.fail(f"no {case.phase} fault")
        )
    if case.phase == "structure":
        monkeypatch.setattr(
            rondo.models.forms.transformer, "load_pretrained", lambda *_, **__: pytest.fail("weights were loaded")
        )
    assert message(case) == goldens()[case.name]


def test_every_message_has_its_case() -> None:
    assert list(goldens()) == [case.name for case in CASES]
    assert len(CASES) >= 80


def goldens() -> dict[str, str]:
    sections = GOLDEN.read_text(encoding="utf-8").split("== ")[1:]
    return {name: text.rstrip("\n") + "\n" for name, _, text in (s.partition("\n") for s in sections)}


@pytest.mark.parametrize(
    ("phase", "absent"), [("config", {"torch", "pyarrow"}), ("data", {"transformers", "peft"})], ids=["config", "data"]
)
def test_faults_are_found_before_slow_imports(folder: Path, phase: str, absent: set[str]) -> None:
    Case(phase, "", {"rounds": "2"} if phase == "config" else {}, rows=rows(" ,a,site 1")).lay_out(folder)
    code = "import sys, rondo.cli\ntry: rondo.cli.app(['run', 'run.toml'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not absent & set(done.stdout.split())


def test_structure_is_checked_without_weights(folder: Path) -> None:
    Case("structure", "", {"adapter": {"r": 33}}, files={"model/model.safetensors": None}).lay_out(folder)
    assert message(CASES[0]).count("adapter.r: rank 33 exceeds") == 1


@pytest.mark.parametrize(
    ("key", "value", "requirement"),
    [
        ("gguf_file", "model.gguf", "gguf>="),
        ("quantization", "int8", "torchao>="),
        ("quantization", "nf4", "bitsandbytes>="),
    ],
)
def test_missing_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str, requirement: str
) -> None:
    Case("structure", "", {"model": {key: value}}).lay_out(folder)
    monkeypatch.setitem(sys.modules, requirement.removesuffix(">="), None)
    looked = "the model was looked at"
    monkeypatch.setattr(rondo.models.forms.outline, "load_config", lambda *_, **__: pytest.fail(looked))
    assert f"model.{key}: needs the package" in message(CASES[0])
    assert f"pip install '{requirement}" in message(CASES[0])


def test_unspoiled_configuration_runs(folder: Path) -> None:
    Case("", "").lay_out(folder)
    result = CliRunner().invoke(app, ["run", "run.toml", "--run-dir", "out"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["round"] * 2


def _all() -> Iterator[str]:
    """Every section of ``bad_input.txt``, computed anew."""
    with tempfile.TemporaryDirectory() as model_folder:
        saved = tiny.saved(Path(model_folder), tiny.bert(), tiny.tokenizer())
        for case in CASES:
            with tempfile.TemporaryDirectory() as work:
                shutil.copytree(saved, Path(work, "model"))
                os.chdir(work)
                case.lay_out(Path(work))
                yield f"== {case.name}\n{message(case).rstrip()}\n"
                os.chdir("/")


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(_all()), encoding="utf-8")
