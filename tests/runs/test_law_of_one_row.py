"""The law of one row under ``unit = "example"``: at noise 0, with all rows in the step, one row more moves each sum of
clipped gradients by at most the clip, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_answering_run import TASK as ASKED
from test_answering_run import asked
from test_compatible import configured
from torch import Tensor, nn

from choice_rows import questions, save_tiny_llama
from embedding_rows import TASK as EMBEDDED
from embedding_rows import pairs as triplets
from embedding_rows import rated as likened
from methods import every_method
from pair_rows import requests, save_tiny
from preferred_rows import preferred
from rondo.algorithms.compatible import refused
from rondo.algorithms.table import TABLE
from rondo.config import ConfigError, load
from rondo.config import task_kinds as tasks
from rondo.config.inputs import GIVEN
from rondo.data.units import Units
from rondo.privacy.steps import PrivateSteps
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.given import Given
from small_runs import LABELLED, NEUTRAL, opinions, reviews
from tagged_rows import CLASSES, tagged
from tagged_rows import TASK as TAGGED

Table = list[dict[str, Any]]
CLIP = 1e-3
"""Below nearly every row's norm, so that many rows that moved a little would show."""
PLACES = ("front", "middle", "end")


Sums = Callable[[dict[str, Any], Table], list[Tensor]]
More = Sequence[tuple[dict[str, Any], Sequence[str]]]
"""Rows, each with the places where it is put in."""


@pytest.fixture
def sums(private_sums: list[Tensor]) -> Sums:
    """Gives the sum of clipped gradients of every private step of a client with these rows, in clips, (numbers,). No
    factor is zero."""

    def found(config: dict[str, Any], rows: Table) -> list[Tensor]:
        private_sums.clear()
        run = assemble(load(config), "cpu", given=Given(clients={"ann": rows}))
        draw = torch.Generator().manual_seed(0)
        far = {n: t + 0.3 * torch.randn(t.shape, generator=draw, dtype=t.dtype) for n, t in run.initial.items()}
        run = replace(run, initial=far)
        (member,) = run.population.members.values()
        shared = run.algorithm.broadcast(run.first_state(), member.client, run.round(0))
        (answer,) = run.local_round({}).train((member.client,), (member.trained(),), (shared,), run.round(0))
        assert answer.failure is None
        return [total / CLIP for total in private_sums]

    return found


def of_rows(config: dict[str, Any], **sections: Mapping[str, Any] | None) -> dict[str, Any]:
    """``config`` with one client, whose rows are given and all in one step, and private steps without noise."""
    privacy = {"adversary": "server", "unit": "example", "clip": CLIP, "noise": 0.0, "delta": 1e-5, "debug_seed": 0}
    train = {"optimizer": "sgd", "lr": 0.1, "max_grad_norm": 0.0, "batch_size": 1000, "local_steps": 1}
    ours: dict[str, Any] = {
        "data": {"clients_from": GIVEN, "test_split": "", "validation_fraction": 0.0},
        "clients": {"weighting": "uniform"},
        "train": {**train, "local_epochs": None, "precision": "exact"},
        "privacy": privacy,
    }
    made = {**config, **{name: {**config.get(name, {}), **keys} for name, keys in ours.items()}}
    made["data"] = ours["data"]
    for name, keys in sections.items():
        made[name] = None if keys is None else {**(made.get(name) or {}), **keys}
    made = {name: keys for name, keys in made.items() if keys is not None and name != "partition"}
    return {n: {k: v for k, v in s.items() if v is not None} if isinstance(s, dict) else s for n, s in made.items()}


def with_one_more(rows: Table, row: dict[str, Any], place: str) -> Table:
    at = {"front": 0, "middle": len(rows) // 2, "end": len(rows)}[place]
    return [*rows[:at], row, *rows[at:]]


def assert_law(sums: Sums, config: dict[str, Any], rows: Table, more: More) -> None:
    before = sums(config, rows)
    assert before
    for row, places in more:
        for place in places:
            after = sums(config, with_one_more(rows, row, place))
            moved = [float((a - b).norm()) for a, b in zip(after, before, strict=True)]
            assert max(moved) <= 1 + 1e-4, (place, moved)


LONG = {"text": " ".join(3 * NEUTRAL), "label": "neg", "who": "nobody", "first": "good", "second": "bad"}
DROPPED = {"adapter": {"r": 2, "lora_alpha": 4, "target_modules": ["query", "value"], "lora_dropout": 0.3}}
ALLOWED = [n for n, e in TABLE.items() if "example DP" not in refused(e.traits, linear=e.linear)]


@pytest.mark.parametrize("name", every_method(ALLOWED))
def test_methods(name: str, sources: Path, sums: Sums) -> None:
    """With dropout and rows that are held back."""
    base = configured(name, "example DP", sources)
    settings = of_rows(base, adapter=DROPPED["adapter"], data={"validation_fraction": 0.2})
    assert_law(sums, settings, reviews(12), [(LONG, PLACES[:1])])


RANKED = [name for name in ALLOWED if TABLE[name].traits.client_ranks]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", RANKED)
def test_methods_of_a_client_with_a_rank_of_its_own(name: str, sources: Path, sums: Sums) -> None:
    settings = of_rows(configured(name, "example DP", sources), **DROPPED, clients={"ranks": [1]})
    assert_law(sums, settings, reviews(12), [(LONG, PLACES[:1])])


WHOLE = {"algorithm": {"name": "fedavg"}, "adapter": None}
OPTIONS: dict[str, dict[str, Any]] = {
    "dropout of adapters": DROPPED,
    "rows that are held back": {"data": {"validation_fraction": 0.4}},
    "persons that are held back": {"data": {"validation_fraction": 0.4}, "privacy": {"group": "who"}},
    "persons that are held back together": {"data": {"validation_fraction": 0.4, "hold_out_by": "who"}},
    "persons that are held back by another column": {
        "data": {"validation_fraction": 0.4, "hold_out_by": "first"},
        "privacy": {"group": "who"},
    },
    "a rate of its own for B": {**DROPPED, "train": {"lr_ratio": 16.0}},
    "persons with dropout": {**DROPPED, "privacy": {"group": "who"}},
    "a whole network with its dropout": {**WHOLE, "train": {"what": "all"}},
    "a whole network in parts": {**WHOLE, "train": {"what": "all", "micro_batch": 3}},
    "parts of a step": {**DROPPED, "train": {"micro_batch": 5}},
    "checkpointing": {**DROPPED, "train": {"checkpointing": True}},
    "all layers": {"adapter": {**DROPPED["adapter"], "target_modules": "all-linear"}},
    "magnitudes": {"adapter": {"r": 2, "target_modules": ["query", "value"], "use_dora": True}},
    "the uppermost layer": {"adapter": {**DROPPED["adapter"], "layers_to_transform": [1]}},
    "a frozen head": {**DROPPED, "model": {"head": "frozen"}},
    "a head of its own": {**DROPPED, "model": {"head": "local"}},
    "the head alone": {**WHOLE, "train": {"what": "head"}},
    "bfloat16": {**DROPPED, "train": {"precision": "fast"}},
    "a whole network in bfloat16": {**WHOLE, "train": {"what": "all", "precision": "fast"}},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, sources: Path, sums: Sums, bf16: Callable[[bool], None]) -> None:
    bf16(True)
    settings = of_rows(configured("fedit", "example DP", sources), **OPTIONS[option])
    # A row of a person who is there already changes that person's part.
    another = [] if "group" in settings["privacy"] else reviews(1)
    assert_law(sums, settings, reviews(20), [(LONG, PLACES), *((row, PLACES[1:2]) for row in another)])


@pytest.mark.parametrize(
    "option", ["a frozen head", "persons with dropout", "a whole network with its dropout", "bfloat16"]
)
def test_masks_by_place_break_the_law(
    option: str, sources: Path, sums: Sums, bf16: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_place(steps: PrivateSteps, step: int, row: Any) -> int:
        return [other is row for other in steps._rows].index(True)

    bf16(True)
    monkeypatch.setattr(PrivateSteps, "_seed", by_place)
    settings = of_rows(configured("fedit", "example DP", sources), **OPTIONS[option])
    with pytest.raises(AssertionError, match="front"):
        assert_law(sums, settings, reviews(20), [(LONG, PLACES[:1])])


# --- kinds of tasks -------------------------------------------------------------------------------------------------


def pictures(count: int) -> Table:
    draw = np.random.default_rng(0)
    return [{"image": draw.integers(0, 255, (8, 8, 1), dtype=np.uint8), "label": str(i % 3)} for i in range(count)]


def with_tags(count: int) -> Table:
    return [{**row, "tags": "|".join("012"[: i % 4])} for i, row in enumerate(pictures(count))]


def numbers(count: int) -> Table:
    draw = np.random.default_rng(0).normal(size=(count, 4)).tolist()
    return [{"a": a, "b": b, "y": y, "who": f"p{i % 3}"} for i, (a, b, y, _) in enumerate(draw)]


def vectors(count: int) -> Table:
    draw = np.random.default_rng(0).normal(size=(count, 11)).tolist()
    return [{"x": row[:10], "y": row[10:]} for row in draw]


def rated(count: int) -> Table:
    return [{**row, "score": len(row["text"]) / 10} for row in reviews(count)]


def line(config: Any, task: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1))


def convolutions(config: Any, task: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(144, 3)
    )


ADAPTED = {"r": 2, "lora_alpha": 4, "target_modules": "all-linear", "lora_dropout": 0.3}
NORMALISED = {"loss_type": "ipo", "beta": 0.5}
OF_PICTURES = {"image": "image", "label": "label", "labels": ["0", "1", "2"], "image_shape": [8, 8, 1]}
KINDS: dict[str, list[tuple[Callable[[int], Table], str, dict[str, Any]]]] = {
    "sequence-classification": [
        (reviews, "bert", {"text": "text", "label": "label", "labels": ["neg", "pos"], "max_length": 32}),
        (opinions, "bert", {"text": "text", **LABELLED["columns"], "max_length": 32}),
    ],
    "sequence-regression": [(rated, "bert", {"text": "text", "target": "score", "max_length": 32})],
    "question-answering": [(asked, "bert", ASKED)],
    "token-classification": [(tagged, "bert", {**TAGGED, "scheme": "IOB2", "labels": CLASSES})],
    "causal-lm": [(questions, "llama", {"prompt": "question", "response": "answer", "max_length": 80})],
    "multiple-choice": [
        (questions, "llama", {"prompt": "question", "choices": "choices", "answer": "answer", "max_length": 80})
    ],
    "preference": [(preferred, "llama", {"max_length": 60}), (preferred, "llama", {"max_length": 60, **NORMALISED})],
    "reward": [(preferred, "llama", {"max_length": 60})],
    "seq2seq-lm": [(requests, "T5", {"prompt": "request", "response": "answer"})],
    "image-classification": [
        (pictures, name, {**OF_PICTURES, "augment": augment})
        for name in ("builtin:mlp", "test_law_of_one_row:convolutions")
        for augment in ("none", "crop-flip")
    ]
    + [
        (
            with_tags,
            "test_law_of_one_row:convolutions",
            {**OF_PICTURES, "label": "tags", "label_separator": "|", "augment": "crop-flip"},
        )
    ],
    "embedding": [
        (triplets, "bert", {**EMBEDDED, "negative": "not"}),
        (likened, "bert", {**EMBEDDED, "score": "like"}),
    ],
    "regression": [(numbers, "test_law_of_one_row:line", {"features": ["a", "b"], "target": "y"})],
    "linear": [(vectors, "builtin:linear", {})],
}


@pytest.fixture(scope="module")
def models(sources: Path) -> dict[str, str]:
    """Where the models of a name are."""
    made = {
        "bert": sources / "bert",
        "llama": save_tiny_llama(sources / "llama"),
        "T5": save_tiny("T5", sources / "T5"),
    }
    return {name: str(folder) for name, folder in made.items()}


def test_every_kind_of_task_is_tried() -> None:
    assert set(KINDS) == set(tasks.TABLE)


@pytest.mark.parametrize(
    ("kind", "setting"), [pytest.param(k, s, id=f"{k}-{s[1]}-{n}") for k in KINDS for n, s in enumerate(KINDS[k])]
)
def test_kinds_of_tasks(
    kind: str, setting: tuple[Callable[[int], Table], str, dict[str, Any]], models: dict[str, str], sums: Sums
) -> None:
    make, name, keys = setting
    raw: dict[str, Any] = {
        "rounds": 1,
        "model": {"name": models.get(name, name)},
        "task": {"kind": kind, **keys},
        "algorithm": {"name": "fedit" if name in models else "fedavg"},
        "data": {"validation_fraction": 0.2},
    }
    raw |= {"adapter": ADAPTED} if name in models else {"train": {"what": "all"}}
    rows = sorted(make(13), key=lambda row: len(str(row)))
    assert_law(sums, of_rows(raw), rows[:-1], [(rows[-1], ("front", "end"))])


@pytest.mark.parametrize("group", [None, "who"])
@pytest.mark.parametrize("kind", ["question-answering", "token-classification"])
def test_windows_of_a_row_are_not_told(kind: str, group: str | None, models: dict[str, str]) -> None:
    """Only the number of rows is public: with that of windows anybody who knows the other rows knew a row's length."""
    ((make, name, keys),) = KINDS[kind]
    rows = [{**row, "who": f"p{i % 5}"} for i, row in enumerate(make(12))]
    raw = {"rounds": 1, "model": {"name": models[name]}, "task": {"kind": kind, **keys}, "adapter": ADAPTED}
    settings = of_rows({**raw, "algorithm": {"name": "fedit"}}, task={"max_length": 32}, privacy={"group": group})
    population = assemble(load(settings), "cpu", given=Given(clients={"ann": rows})).population
    (member,) = population.members.values()
    assert len(member.train) > len(rows)
    assert (member.client.num_examples, Units.rows_of(member.trained())) == (12, 12)
    assert population.report["clients"]["ann"]["train"] == 12


# --- what is refused ------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Adds noise of torch's own stream in its forward, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.1 * torch.randn(x.shape))  # type: ignore[no-any-return]


def noisy(config: Any, task: Any) -> nn.Module:
    return Noisy()


def test_network_that_draws_from_a_shared_stream_is_refused(sums: Sums) -> None:
    raw = {
        "rounds": 1,
        "model": {"name": "test_law_of_one_row:noisy"},
        "task": {"kind": "regression", "features": ["a", "b"], "target": "y"},
        "algorithm": {"name": "fedavg"},
        "train": {"what": "all"},
    }
    with pytest.raises(ConfigError, match=r"model\.name: the network draws from a stream of random numbers that all"):
        sums(of_rows(raw), numbers(12))
    without = {**of_rows(raw), "privacy": {}}
    assert assemble(load(without), "cpu", given=Given(clients={"ann": numbers(12)})).model.network.draws


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"max_train_rows": 10}}, r"data\.max_train_rows: a client's row would decide which of its others"),
        ({"task": {"image_shape": None}}, r"task\.image_shape: \[8, 8, 1\] would follow from a client's rows"),
        ({"task": {"label": "tags"}}, r"task\.multi_label: True would follow from a client's rows"),
        ({"task": {"labels": None}}, r"task\.labels: the classes would be those of the clients' rows"),
        ({"train": {"packing": True}}, r"train\.packing: rows of a step are drawn one by one"),
        ({"train": {"length_grouping": True}}, r"train\.length_grouping: rows of a step are drawn one by one"),
        (
            {"data": {"validation_fraction": 0.999999}},
            r"data\.validation_fraction: it holds back all rows of 1 clients",
        ),
    ],
)
def test_rows_that_would_decide_about_others_are_refused(sections: Any, message: str, sums: Sums) -> None:
    raw = {
        "rounds": 1,
        "model": {"name": "builtin:mlp"},
        "task": {"kind": "image-classification", **OF_PICTURES},
        "algorithm": {"name": "fedavg"},
    }
    with pytest.raises(ConfigError, match=message):
        sums(of_rows(raw, **sections), [{**row, "tags": [row["label"]]} for row in pictures(12)])
