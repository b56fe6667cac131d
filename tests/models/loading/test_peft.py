"""Adapters mean the same as in PEFT: its placement, ranks and scales, and files that it reads unaided."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import tiny
from outcomes import told
from rondo.algorithm import Round
from rondo.algorithms.factors.florg import FLoRG
from rondo.config import AdapterConfig, ConfigError, load
from rondo.config.rules.peft_keys import NOT_TAKEN, not_taken
from rondo.lowrank import GrowingSum, LowRank
from rondo.models.loading.lent import _by_name, merge_adapter
from rondo.models.loading.peft import AdapterPlan, plan, read_tensors, stock_model, write_adapter
from rondo.models.loading.pretrained import fingerprint
from rondo.models.loading.result_factors import adapter_factors
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.params import add_client_axis, fresh_factors, magnitude, pick


def structure(module: nn.Module) -> list[tuple[str, type]]:
    return [(n, type(m)) for n, m in module.named_modules()]


def chosen_by_peft(module: nn.Module, task: str, **options: Any) -> dict[str, tuple[int, float]]:
    """Rank and scale by path, from a copy that PEFT wraps, without the head."""
    model = peft.get_peft_model(copy.deepcopy(module), peft.LoraConfig(task_type=task, **options))
    heads = {n.rpartition(".")[0] for n in tiny.head_names(module)} if task == "SEQ_CLS" else set()
    return {
        path: (layer.r["default"], layer.scaling["default"])
        for path, layer in model.base_model.model.named_modules()
        if isinstance(layer, LoraLayer) and path not in heads
    }


MODELS: dict[str, tuple[Callable[..., Any], str]] = {
    "bert": (tiny.bert, "SEQ_CLS"),
    "roberta": (tiny.roberta, "SEQ_CLS"),
    "distilbert": (tiny.distilbert, "SEQ_CLS"),
    "gpt2": (tiny.gpt2, "SEQ_CLS"),
    "gpt2-lm": (tiny.gpt2_lm, "CAUSAL_LM"),
    "llama-lm": (tiny.llama_lm, "CAUSAL_LM"),
}


def head_of(module: nn.Module, task: str) -> tuple[str, ...]:
    return tiny.head_names(module) if task == "SEQ_CLS" else ()


OPTIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    # name: (model, options, number of layers)
    "names": ("bert", {"target_modules": ["query", "value"]}, 4),
    "regex": ("bert", {"target_modules": r".*layer\.[01]\.(attention\.self\.key|output\.dense)"}, 4),
    "all-linear": ("bert", {"target_modules": "all-linear"}, 12),
    "all-linear-roberta": ("roberta", {"target_modules": "all-linear"}, 12),
    "all-linear-gpt2": ("gpt2", {"target_modules": "all-linear"}, 8),
    "all-linear-gpt2-lm": ("gpt2-lm", {"target_modules": "all-linear"}, 8),
    "all-linear-llama": ("llama-lm", {"target_modules": "all-linear"}, 14),
    "excluded": ("bert", {"target_modules": "all-linear", "exclude_modules": ["dense"]}, 6),
    "one-layer": ("bert", {"target_modules": ["query", "value"], "layers_to_transform": [1]}, 2),
    "one-layer-number": ("llama-lm", {"target_modules": ["q_proj"], "layers_to_transform": 0}, 1),
    "layers-pattern": ("gpt2", {"target_modules": ["c_attn"], "layers_to_transform": [0], "layers_pattern": "h"}, 1),
    "ranks": ("bert", {"target_modules": ["query", "value"], "rank_pattern": {"query": 2, "layer.1.*value": 7}}, 4),
    "alphas": ("bert", {"target_modules": ["query", "value"], "alpha_pattern": {"layer.0.*query": 5.0}}, 4),
    "rslora": ("bert", {"target_modules": ["query", "key"], "use_rslora": True, "rank_pattern": {"key": 9}}, 4),
    "everything": (
        "llama-lm",
        {
            "target_modules": "all-linear",
            "use_rslora": True,
            "rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\.up_proj": 6},
            "alpha_pattern": {"down_proj": 2.5, "q_proj": 11.0},
        },
        14,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_layers_ranks_and_scales_equal_pefts(name: str) -> None:
    kind, options, count = OPTIONS[name]
    make, task = MODELS[kind]
    options = {"r": 4, "lora_alpha": 6, **options}
    module = make()
    expected = chosen_by_peft(module, task, **options)
    head = head_of(module, task)
    before, classes = fingerprint(module), structure(module)
    planned = plan(module, AdapterConfig(**options), task, head, 0)  # type: ignore[arg-type]
    assert {s.path: (s.rank, s.scale) for s in planned.sites} == expected
    assert len(planned.sites) == count
    assert structure(module) == classes
    assert fingerprint(module) == before
    for s in planned.sites:
        a, b = planned.params[f"{s.path}.A"], planned.params[f"{s.path}.B"]
        assert a.shape == (s.rank, s.shape[1])
        assert b.shape == (s.shape[0], s.rank)
        assert a.dtype == b.dtype == torch.float32
        assert bool(a.any())
        assert not bool(b.any())
    assert len(planned.params) == 2 * count


@pytest.mark.parametrize("init", [True, "gaussian", "orthogonal"])
def test_initial_factors_equal_pefts_for_the_seed(init: Any) -> None:
    config = AdapterConfig(r=4, target_modules=["query"], init_lora_weights=init)
    module = tiny.bert()
    before = torch.random.get_rng_state()
    one, again, other = (plan(module, config, "SEQ_CLS", tiny.head_names(module), s) for s in (1, 1, 2))
    assert torch.random.get_rng_state().equal(before)
    torch.testing.assert_close(one.params, again.params, rtol=0, atol=0)
    assert [n for n in one.params if n.endswith(".A") and one.params[n].equal(other.params[n])] == []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        lora = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], init_lora_weights=init)
        theirs = peft.LoraModel(tiny.bert(), lora, "default")
    for s in one.sites:
        layer = theirs.model.get_submodule(s.path)
        assert one.params[f"{s.path}.A"].equal(layer.lora_A["default"].weight)
        assert one.params[f"{s.path}.B"].equal(layer.lora_B["default"].weight)


@pytest.mark.parametrize("start", [True, "gaussian", "orthogonal"])
def test_fresh_factors_are_distributed_as_pefts(start: Any) -> None:
    """Equal moments of all entries, equal bounds, and a product of zero."""
    out, inp, rank, draws = 40, 60, 8, 60
    generator, pairs = torch.Generator().manual_seed(0), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(draws):
            lora = peft.LoraConfig(r=rank, target_modules=["0"], init_lora_weights=start)
            layer = peft.LoraModel(nn.Sequential(nn.Linear(inp, out)), lora, "default").model[0]
            theirs = (layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach())
            pairs.append((theirs, fresh_factors((out, inp), rank, start, generator)))
    for part in (0, 1):
        theirs, ours = (torch.stack([pair[who][part].double() for pair in pairs]) for who in (0, 1))
        assert ours.shape == theirs.shape
        std = float(theirs.std())
        assert float(ours.mean()) == pytest.approx(float(theirs.mean()), abs=6 * std * ours.numel() ** -0.5)
        for power in (2, 4):
            expected = float((theirs**power).mean())
            assert float((ours**power).mean()) == pytest.approx(expected, rel=0.1)
    for _, (a, b) in pairs:
        assert float((b @ a).abs().max()) < 1e-12


def test_convolutions_become_matrices() -> None:
    module = tiny.convolutions()
    planned = plan(module, AdapterConfig(r=2, target_modules=["first", "second"]), "SEQ_CLS", (), 0)
    assert [(s.kind, s.shape) for s in planned.sites] == [("conv2d", (6, 27)), ("conv2d", (8, 36))]
    assert planned.params["body.first.A"].shape == (2, 27)


@pytest.mark.parametrize("target", ["all-linear", ["query", "dense", "classifier"], ".*(dense|classifier)"])
def test_head_is_never_adapted(target: Any) -> None:
    module = tiny.bert()
    head = tiny.head_names(module)
    planned = plan(module, AdapterConfig(r=2, target_modules=target), "SEQ_CLS", head, 0)
    assert planned.sites
    assert [s for s in planned.sites if ".layer." not in s.path] == []
    assert set(dict(module.named_parameters())) >= set(head)


def test_head_of_several_layers_is_never_adapted() -> None:
    module = tiny.roberta()
    config = AdapterConfig(r=2, target_modules=["query", "dense", "out_proj"])
    planned = plan(module, config, "SEQ_CLS", tiny.head_names(module), 0)
    assert not [s.path for s in planned.sites if s.path.startswith("classifier")]


# Errors


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ".*nothing"},
        {"target_modules": ["query"], "exclude_modules": ["query"]},
    ],
)
def test_no_match_is_an_error_that_names_the_layers(options: dict[str, Any]) -> None:
    module = tiny.bert()
    before = structure(module)
    head = tiny.head_names(module)
    ((path, message),) = told(lambda: plan(module, AdapterConfig(**options), "SEQ_CLS", head, 0))
    assert path == "adapter.target_modules"
    assert "query, key, value, dense" in message
    assert "classifier" not in message
    assert structure(module) == before


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        (
            {"target_modules": ["query", "vlaue"]},
            "target_modules",
            "'vlaue' is the name of no layer; did you mean 'value'?",
        ),
        (
            {"target_modules": "query"},
            "target_modules",
            "the name of a layer stands in a list: ['query'], which takes ",
        ),
        ({"exclude_modules": ["cls"]}, "exclude_modules", "'cls' is the name of no layer; there are: query, key"),
        ({"exclude_modules": "decoder.*"}, "exclude_modules", "no path matches; there are: query, key"),
        ({"layers_to_transform": [0, 7]}, "layers_to_transform", "there is no layer 7: they are 0 to 1"),
        ({"layers_to_transform": 2}, "layers_to_transform", "there is no layer 2: they are 0 to 1"),
        (
            {"layers_to_transform": 0, "layers_pattern": "blocks"},
            "layers_to_transform",
            "there is no layer 0: no layer to adapt has a number there",
        ),
        ({"rank_pattern": {"quer": 1}}, "rank_pattern", "'quer' fits no adapted layer; did you mean 'query'?"),
        ({"alpha_pattern": {"key": 1.0}}, "alpha_pattern", "'key' fits no adapted layer; there are: query"),
        ({"rank_pattern": {r"layer\.[5].*query": 1}}, "rank_pattern", "fits no adapted layer"),
    ],
)
def test_pattern_that_fits_no_layer_is_refused(options: dict[str, Any], key: str, message: str) -> None:
    module, config = tiny.bert(), AdapterConfig(**{"target_modules": ["query"], **options})
    ((path, said),) = told(lambda: plan(module, config, "SEQ_CLS", tiny.head_names(module), 0))
    assert path == f"adapter.{key}"
    assert message in said


@pytest.mark.parametrize(
    "options",
    [
        {"rank_pattern": {"self.query": 2}, "alpha_pattern": {r"layer\.1\..*": 3.0}},
        {"exclude_modules": ["layer.0.attention.self.query"]},
        {"exclude_modules": r".*layer\.0.*"},
        {"layers_to_transform": [1], "layers_pattern": "layer"},
        {"target_modules": r".*\.(query|value)"},
        {"target_modules": ["bert.encoder.layer.0.attention.self.query"]},
    ],
)
@pytest.mark.filterwarnings("error")
def test_patterns_that_fit_are_taken(options: dict[str, Any]) -> None:
    module = tiny.bert()
    config = AdapterConfig(**{"target_modules": ["query"], **options})
    assert plan(module, config, "SEQ_CLS", tiny.head_names(module), 0).sites


@pytest.mark.parametrize(
    ("layers", "remedy"),
    [
        ([nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)], "name layers that can be adapted here: 0"),
        (
            [nn.Flatten(), nn.Linear(9, 2)],
            "none can be adapted here: train whole tensors (train.what), or name another",
        ),
    ],
)
def test_network_without_a_linear_layer_below_the_head(layers: list[nn.Module], remedy: str) -> None:
    module = nn.Sequential(*layers)
    head = [f"{len(layers) - 1}.weight", f"{len(layers) - 1}.bias"]
    ((_, said),) = told(lambda: plan(module, AdapterConfig(target_modules="all-linear"), None, head, seed=0))
    assert said.startswith(f"'all-linear' finds no linear layer below the head: {remedy}")


def test_target_matching_only_the_head_is_an_error() -> None:
    module = tiny.bert()
    with pytest.raises(ConfigError, match="only the task head"):
        plan(module, AdapterConfig(target_modules=["classifier"]), "SEQ_CLS", tiny.head_names(module), 0)
    assert structure(module) == structure(tiny.bert())


def test_invalid_regular_expression_is_an_error() -> None:
    module = tiny.bert()
    with pytest.raises(ConfigError):
        plan(module, AdapterConfig(target_modules=".*(query"), "SEQ_CLS", tiny.head_names(module), 0)


def test_rank_above_a_layers_size_is_an_error() -> None:
    """The message names the smallest layer."""
    config = AdapterConfig(r=4, target_modules=["k_proj", "q_proj"], rank_pattern={"k_proj": 17})
    ((path, said),) = told(lambda: plan(tiny.llama_lm(), config, "CAUSAL_LM", (), 0))
    message = "rank 17 exceeds model.layers.0.self_attn.k_proj, which is 16 x 32, and 1 other layer: lower it to 16"
    assert (path, message in said) == ("adapter.r", True), said


@pytest.mark.parametrize("target", [["word_embeddings"], ["second"], ["query", "LayerNorm"]])
def test_unsupported_layers_are_a_config_error(target: list[str]) -> None:
    module = tiny.convolutions(groups=2) if target == ["second"] else tiny.bert()
    before = structure(module)
    with pytest.raises(ConfigError) as caught:
        plan(module, AdapterConfig(r=2, target_modules=target), "SEQ_CLS", tiny.head_names(module), 0)
    assert [p for p in caught.value.problems if p.path != "adapter.target_modules"] == []
    assert target[-1] in str(caught.value)
    assert structure(module) == before


# Files


@dataclass
class Written:
    """A network with random factors, its plan, and its base model, untouched."""

    base: Any
    network: AdaptedNetwork
    planned: AdapterPlan
    seen: dict[str, Tensor]
    head: tuple[str, ...]

    def write(self, folder: Path, changes: Mapping[str, GrowingSum] | None = None, **options: Any) -> None:
        lora = self.planned.lora
        write_adapter(folder, self.network, lora, self.seen, changes or {}, model_name="a/model", **options)

    @torch.no_grad()
    def logits(self, batch: Mapping[str, Tensor], changes: Mapping[str, GrowingSum] | None = None) -> Tensor:
        output: Tensor = self.network(add_client_axis(self.seen), changes or {}, batch)
        return output


def made(kind: str, *, with_head: bool = True, **options: Any) -> Written:
    make, task = MODELS[kind]
    base = make().double()  # so that a difference is not rounding
    module = copy.deepcopy(base)
    head = head_of(module, task)
    planned = plan(module, AdapterConfig(**{"r": 3, "lora_alpha": 5, **options}), task, head, 0)  # type: ignore[arg-type]
    network = AdaptedNetwork(module, planned.sites, head)
    seen = tiny.factors(planned.sites, 1, dtype=torch.float32)
    if with_head:
        seen |= tiny.head_of(network, 2)
    return Written(base, network, planned, seen, head)


@torch.no_grad()
def stock_logits(base: Any, folder: Path, batch: Mapping[str, Tensor], kind: str) -> Tensor:
    """Logits of stock PEFT on the base model with another head, if it has one."""
    fresh = tiny.redraw_head(base, 99) if MODELS[kind][1] == "SEQ_CLS" else copy.deepcopy(base)
    logits: Tensor = stock_model(fresh, folder)(**batch).logits
    return logits


def assert_same_logits(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-6 * max(1.0, float(theirs.abs().max()))


RELOADED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"target_modules": ["query", "value"]}),
    "bert-all-linear": ("bert", {}),
    "roberta": ("roberta", {"target_modules": ["query", "value"]}),
    "distilbert": ("distilbert", {"target_modules": ["q_lin", "ffn.lin2"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn"]}),
    "gpt2-all-linear": ("gpt2", {}),
    "gpt2-lm": ("gpt2-lm", {"target_modules": ["c_attn", "c_fc"]}),
    "llama-lm": ("llama-lm", {"target_modules": ["q_proj", "v_proj"]}),
    "one-layer": ("bert", {"target_modules": ["query", "dense"], "layers_to_transform": [1]}),
    "excluded": ("bert", {"exclude_modules": ["dense"]}),
    "ranks": ("bert", {"target_modules": ["query", "value"], "rank_pattern": {"query": 2, "layer.1.*value": 7}}),
    "alphas": ("bert", {"target_modules": ["query", "value"], "alpha_pattern": {"layer.0.*query": 5.5}}),
    "rslora": ("gpt2", {"use_rslora": True, "rank_pattern": {"c_fc": 9}, "alpha_pattern": {"c_attn": 7.0}}),
    "rslora-lm": ("llama-lm", {"use_rslora": True, "rank_pattern": {"q_proj": 7}}),
    "dora": ("bert", {"use_dora": True}),
    "dora-conv1d": ("gpt2", {"use_dora": True, "rank_pattern": {"c_fc": 9}}),
    "dora-lm": ("llama-lm", {"use_dora": True, "use_rslora": True}),
}


@pytest.mark.parametrize("changed", [False, True], ids=["plain", "base-changed"])
@pytest.mark.parametrize("name", RELOADED)
def test_stock_peft_gives_the_networks_logits(name: str, changed: bool, tmp_path: Path) -> None:
    kind, options = RELOADED[name]
    run = made(kind, **options)
    changes = tiny.chunks(run.planned.sites, 5, torch.float32) if changed else {}
    batch = tiny.text_batch(rows=1) if kind == "gpt2" else tiny.text_batch()
    run.write(tmp_path, changes)
    ours = run.logits(batch, changes)
    assert_same_logits(ours, stock_logits(run.base, tmp_path, batch, kind))
    with torch.no_grad():
        assert (ours - run.base(**batch).logits).abs().max() > 1e-2
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(s.path for s in run.planned.sites)
    assert [key for key in ("exclude_modules", "layers_to_transform", "layers_pattern") if config[key]] == []
    modules = config["modules_to_save"]
    assert modules == (sorted(modules) if run.head else None)
    for name in run.head:
        assert sum(name.startswith(m + ".") for m in modules) == 1
    assert config["base_model_name_or_path"] == "a/model"
    assert config["task_type"] == MODELS[kind][1]
    for s in run.planned.sites:
        change = changes.get(s.path)
        grown = s.rank if change is None else min(s.shape) if change.dense is not None else s.rank + change.recent.rank
        assert read_tensors(tmp_path)[f"{s.path}.A"].shape == (grown, s.shape[1])


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_merged_plain_model_gives_the_networks_logits(kind: str, use_dora: bool, tmp_path: Path) -> None:
    run = made(kind, use_dora=use_dora)
    run.write(tmp_path)
    batch = tiny.text_batch()
    fresh = tiny.redraw_head(run.base, 99) if run.head else copy.deepcopy(run.base)
    plain = merge_adapter(fresh, tmp_path)
    assert not [n for n, _ in plain.named_parameters() if "lora" in n or "modules_to_save" in n]
    with torch.no_grad():
        difference = (run.logits(batch) - plain(**batch).logits).abs().max()
    assert difference < 1e-6


@pytest.mark.parametrize("kind", ["bert", "gpt2-lm", "llama-lm"])
def test_magnitudes_start_and_have_gradients_as_in_peft(kind: str) -> None:
    """In float64: DoRA's loss, and its gradients in A, B and magnitude."""
    run, batch = made(kind, with_head=False, use_dora=True), tiny.text_batch(rows=1)
    theirs = peft.get_peft_model(copy.deepcopy(run.base), run.planned.lora, autocast_adapter_dtype=False)
    theirs.eval()
    found = {n: p for n, p in _by_name(theirs).items() if n in run.planned.params}
    assert sorted(found) == sorted(run.planned.params)
    for name, start in pick(run.planned.params, magnitude).items():
        torch.testing.assert_close(found[name].detach().float(), start, rtol=1e-6, atol=0)
    seen = tiny.factors(run.planned.sites, 1)
    with torch.no_grad():
        for name, parameter in found.items():
            parameter.data = seen[name].clone()
    theirs(**batch).logits.square().mean().backward()
    leaves = {n: t[None].requires_grad_() for n, t in seen.items()}
    run.network(leaves, {}, batch).square().mean().backward()
    allowed = 1e-6 if kind == "llama-lm" else 1e-12  # it normalises in float32
    for name, parameter in found.items():
        assert parameter.grad is not None
        assert leaves[name].grad is not None
        torch.testing.assert_close(leaves[name].grad[0], parameter.grad, rtol=0, atol=allowed, msg=name)


def test_ranks_and_scales_are_written_for_one_layer_each(tmp_path: Path) -> None:
    """A pattern holds for a layer's whole path, though PEFT would take its end for a match."""

    def model() -> nn.Module:
        inner = nn.ModuleDict({"dense": nn.Linear(6, 6), "denser": nn.Linear(6, 6)})
        return nn.ModuleDict({"dense": nn.Linear(6, 6), "inner": inner})

    paths = {"dense": (2, 0.5), "inner.dense": (3, 1.5), "inner.denser": (3, 1.5)}
    sites = tuple(Site(path, "linear", (6, 6), rank, scale, 0.0) for path, (rank, scale) in paths.items())
    network, factors = AdaptedNetwork(model(), sites, ()), tiny.factors(sites, 1, dtype=torch.float32)
    write_adapter(tmp_path, network, peft.LoraConfig(), factors, {}, model_name="a/model")
    loaded = stock_model(model(), tmp_path)
    layers = {path: loaded.get_submodule(f"base_model.model.{path}") for path in paths}
    assert {p: (layer.r["default"], layer.scaling["default"]) for p, layer in layers.items()} == paths


def test_adapter_of_no_change_has_rank_one(tmp_path: Path) -> None:
    """Rows of zeros are left out beside a base change, but PEFT reads no adapter of rank 0."""
    run = made("bert", with_head=False, target_modules=["query"])
    path = run.planned.sites[0].path
    run.seen |= {f"{path}.B": torch.zeros_like(run.seen[f"{path}.B"])}
    nothing = GrowingSum.of(LowRank(torch.zeros(32, 2), torch.zeros(2, 32)))
    run.write(tmp_path, {path: nothing})
    assert read_tensors(tmp_path)[f"{path}.A"].shape == (1, 32)
    assert_same_logits(run.logits(tiny.text_batch()), stock_logits(run.base, tmp_path, tiny.text_batch(), "bert"))


def test_frozen_head_is_written_unchanged(tmp_path: Path) -> None:
    run = made("bert", with_head=False, target_modules=["query"])
    run.write(tmp_path)
    assert_same_logits(run.logits(tiny.text_batch()), stock_logits(run.base, tmp_path, tiny.text_batch(), "bert"))


def test_stock_peft_reads_convolutions(tmp_path: Path) -> None:
    base = tiny.convolutions().double()
    module = copy.deepcopy(base)
    config = AdapterConfig(r=2, target_modules=["first", "second"], rank_pattern={"second": 4})
    planned = plan(module, config, "SEQ_CLS", tiny.head_names(module), 0)
    planned.lora.task_type = None  # images: PEFT's plain model
    network = AdaptedNetwork(module, planned.sites, tiny.head_names(base))
    seen = tiny.factors(planned.sites, 1, dtype=torch.float32) | tiny.head_of(network, 2)
    changes, batch = tiny.chunks(planned.sites, 3, torch.float32), tiny.image_batch()
    write_adapter(tmp_path, network, planned.lora, seen, changes, model_name="a/model")
    with torch.no_grad():
        ours = network(add_client_axis(seen), changes, batch)
        theirs = stock_model(tiny.redraw_head(base, 99), tmp_path)(**batch).logits
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("kind", ["bert", "gpt2-lm"])
def test_stock_peft_reads_florgs_view(kind: str, offset: bool, tmp_path: Path) -> None:
    run = made(kind, rank_pattern={"bert": {"value": 2}, "gpt2-lm": {"c_fc": 2}}[kind])
    algorithm = FLoRG(gram_std=0.3, offset=offset)
    head = pick(run.seen, lambda n: n.startswith("head:"))
    round = Round(0, 2, 0, 3)
    state = algorithm.init({**run.planned.params, **head}, run.network.weights(), round)
    moved = {n: t + 0.2 * torch.randn(t.shape, generator=round.generator(n)) for n, t in state.params.items()}
    shared = algorithm.broadcast(type(state)(moved, state.base), None, round)  # type: ignore[arg-type]
    run.seen = dict(algorithm.view(shared, {}))
    run.write(tmp_path, shared.base)
    batch = tiny.text_batch()
    assert_same_logits(run.logits(batch, shared.base), stock_logits(run.base, tmp_path, batch, kind))
    for s in run.planned.sites:
        rank = read_tensors(tmp_path)[f"{s.path}.A"].shape[0]
        assert rank == s.rank * (2 if offset else 1)


def test_florgs_offset_keeps_the_first_model() -> None:
    run = made("bert")
    algorithm, round = FLoRG(gram_std=0.3, offset=True), Round(0, 2, 0, 3)
    head = pick(run.seen, lambda n: n.startswith("head:"))
    state = algorithm.init({**run.planned.params, **head}, run.network.weights(), round)
    shared = algorithm.broadcast(state, None, round)  # type: ignore[arg-type]
    run.seen = dict(algorithm.view(shared, {}))
    start = tiny.merged(run.base, (), head)
    with torch.no_grad():
        expected = start(**tiny.text_batch()).logits
    # Logits of about 7 in float32, from which a change and its opposite have been added.
    torch.testing.assert_close(run.logits(tiny.text_batch(), shared.base), expected, rtol=1e-5, atol=1e-5)


def test_writing_is_deterministic_and_has_tokenizer_and_labels(tmp_path: Path) -> None:
    run = made("bert")
    for name in ("one", "two"):
        run.write(tmp_path / name, tokenizer=tiny.tokenizer(), labels=("nein", "ja", "vielleicht ä"))
    for name in ("adapter_config.json", "adapter_model.safetensors", "labels.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert json.loads((tmp_path / "one" / "labels.json").read_text("utf-8")) == ["nein", "ja", "vielleicht ä"]
    assert (tmp_path / "one" / "tokenizer.json").is_file()


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    run = made("bert", rank_pattern={"query": 2})
    run.write(tmp_path)
    tensors = read_tensors(tmp_path)
    assert tensors.keys() == run.seen.keys()
    torch.testing.assert_close(tensors, run.seen, rtol=0, atol=0, check_dtype=False)


# Starting from an adapter


def trained_by_peft(kind: str, folder: Path, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, Tensor]:
    """Save an adapter with stock PEFT, its B and classifier moved; return the base model and the logits."""
    make, task = MODELS[kind]
    base = make().to(dtype)
    lora = peft.LoraConfig(task_type=task, **{"r": 3, "lora_alpha": 5, **options})
    model = peft.get_peft_model(copy.deepcopy(base), lora).eval()
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.requires_grad:
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=g))
        logits = model(**tiny.text_batch()).logits
    model.save_pretrained(folder)
    return base, logits


def started(base: Any, folder: Path, task: Any, head: tuple[str, ...]) -> tuple[AdapterPlan, Tensor]:
    """The plan from ``folder`` and the logits of the network that starts from it."""
    module = copy.deepcopy(base)
    planned = plan(module, AdapterConfig(start_from=str(folder)), task, head, 0)
    seen = {n: t.to(base.dtype) for n, t in add_client_axis(planned.params).items()}
    with torch.no_grad():
        return planned, AdaptedNetwork(module, planned.sites, head)(seen, {}, tiny.text_batch())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {"target_modules": ["query", "value"]}),
        ("bert", {"target_modules": ["query", "dense"], "exclude_modules": ["pooler.dense"], "use_rslora": True}),
        ("bert", {"target_modules": ["query", "value"], "rank_pattern": {"query": 2}, "alpha_pattern": {"value": 9}}),
        ("gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
        ("gpt2-lm", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
        ("llama-lm", {"target_modules": "all-linear"}),
    ],
)
def test_run_starts_from_an_adapter_of_stock_peft(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    base, expected = trained_by_peft(kind, tmp_path, **options)
    head = tuple(n for n in head_of(base, MODELS[kind][1]) if "pooler" not in n)  # PEFT trains the classifier only
    planned, ours = started(base, tmp_path, MODELS[kind][1], head)
    assert_same_logits(ours, expected)
    assert {n for n in planned.params if n.startswith("head:")} == {"head:" + n for n in head}
    assert planned.lora.inference_mode is False


@pytest.mark.parametrize("kind", MODELS)
def test_run_starts_from_an_adapter_of_a_run(kind: str, tmp_path: Path) -> None:
    ranks = {"gpt2": {"c_fc": 4}, "gpt2-lm": {"c_fc": 4}, "llama-lm": {"v_proj": 5}, "distilbert": {"v_lin": 2}}
    run = made(kind, rank_pattern=ranks.get(kind, {"value": 2}))
    changes = tiny.chunks(run.planned.sites, 5, torch.float32)
    run.write(tmp_path / "first", changes)
    planned, ours = started(run.base, tmp_path / "first", MODELS[kind][1], run.head)
    assert_same_logits(ours, run.logits(tiny.text_batch(), changes))
    module = copy.deepcopy(run.base)
    again = Written(run.base, AdaptedNetwork(module, planned.sites, run.head), planned, dict(planned.params), run.head)
    again.write(tmp_path / "second")
    batch = tiny.text_batch()
    assert_same_logits(ours, stock_logits(run.base, tmp_path / "second", batch, kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_factors_and_head_of_an_adapter_in_another_type_are_trained_in_float32(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """Steps smaller than a type's last bit would be lost, and float16 overflows."""
    base, _ = trained_by_peft("bert", tmp_path, target_modules=["query"])
    file = tmp_path / "adapter_model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    head = tuple(n for n in head_of(base, MODELS["bert"][1]) if "pooler" not in n)
    planned, _ = started(base, tmp_path, MODELS["bert"][1], head)
    assert {n: t.dtype for n, t in planned.params.items()} == dict.fromkeys(planned.params, torch.float32)
    assert len(planned.params) > len(head)


@pytest.mark.parametrize(("rank", "as_it_is"), [(4, True), (5, False)])
def test_factors_stay_up_to_the_shorter_side(rank: int, as_it_is: bool) -> None:
    """Beyond it, the whole change beside an identity is smaller, and the same."""
    site = Site("m", "linear", (4, 6), rank, 0.5, 0.0)
    seen = {"m.A": torch.randn(rank, 6), "m.B": torch.randn(4, rank)}
    a, b, scale = adapter_factors([site], seen, {})["m"]
    assert (a is seen["m.A"], b is seen["m.B"]) == (as_it_is, as_it_is)
    assert (a.shape, b.shape, scale) == ((4, 6), (4, 4), 0.5)
    torch.testing.assert_close(b @ a, seen["m.B"] @ seen["m.A"])


def _refused(folder: Path, module: Any, task: Any = "SEQ_CLS", head: tuple[str, ...] | None = None) -> ConfigError:
    head = tiny.head_names(module) if head is None else head
    with pytest.raises(ConfigError) as caught:
        plan(module, AdapterConfig(start_from=str(folder)), task, head, 0)
    assert [p for p in caught.value.problems if p.path != "adapter.start_from"] == []
    return caught.value


def test_adapter_of_another_architecture_is_refused(tmp_path: Path) -> None:
    trained_by_peft("llama-lm", tmp_path, target_modules=["q_proj"])
    _refused(tmp_path, tiny.bert())


def test_adapter_of_another_depth_is_refused(tmp_path: Path) -> None:
    made("bert", target_modules=["query"]).write(tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    written["target_modules"] = ["query", "key"]
    (tmp_path / "adapter_config.json").write_text(json.dumps(written))
    message = str(_refused(tmp_path, tiny.bert()))
    assert "layer.0.attention.self.key.A is missing in it and 3 x 32 in this model, and so 3 more tensors" in message


def test_adapter_of_another_width_is_refused(tmp_path: Path) -> None:
    import transformers

    trained_by_peft("bert", tmp_path, target_modules=["query"])
    wide = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    _refused(tmp_path, transformers.BertForSequenceClassification(wide))


def test_head_of_another_size_is_refused(tmp_path: Path) -> None:
    trained_by_peft("bert", tmp_path, target_modules=["query"])
    _refused(tmp_path, tiny.bert(labels=5))


def test_adapter_with_an_embedding_beside_its_factors_is_refused(tmp_path: Path) -> None:
    """PEFT saves an embedding that was resized for new tokens."""
    base, _ = trained_by_peft("bert", tmp_path, target_modules=["query"])
    file = tmp_path / "adapter_model.safetensors"
    name = "base_model.model.bert.embeddings.word_embeddings.weight"
    save_file({**load_file(file), name: torch.zeros(41, 32)}, file, {"format": "pt"})
    message = str(_refused(tmp_path, base))
    assert "has the tensor bert.embeddings.word_embeddings.weight whole beside its factors" in message
    assert "head:bert" not in message


def test_adapter_other_than_lora_is_refused(tmp_path: Path) -> None:
    config = peft.IA3Config(task_type="SEQ_CLS", target_modules=["key"], feedforward_modules=[])
    peft.get_peft_model(tiny.bert(), config).save_pretrained(tmp_path)
    assert "is not a LoRA adapter: name one that is" in str(_refused(tmp_path, tiny.bert()))
    (tmp_path / "adapter_config.json").write_text("[]")
    assert "is not a LoRA adapter: name one that is" in str(_refused(tmp_path, tiny.bert()))


@pytest.mark.parametrize("options", [{"bias": "lora_only"}, {"lora_bias": True}, {"trainable_token_indices": [5]}])
def test_adapter_that_does_more_than_lora_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    trained_by_peft("bert", tmp_path, target_modules=["query"], **options)
    _refused(tmp_path, tiny.bert())


def test_adapter_that_changed_the_base_is_refused_or_equal(tmp_path: Path) -> None:
    """PiSSA takes the start of A and B out of the base weights, so A and B alone are not the model."""
    options = {"target_modules": ["query"], "init_lora_weights": "pissa"}
    base, expected = trained_by_peft("bert", tmp_path, torch.float32, **options)
    head = tuple(n for n in tiny.head_names(base) if "pooler" not in n)
    try:
        planned, ours = started(base, tmp_path, "SEQ_CLS", head)
    except ConfigError:
        return
    assert_same_logits(ours, expected)
    module = copy.deepcopy(base)  # and stock PEFT must read the same model from the written adapter
    again = Written(base, AdaptedNetwork(module, planned.sites, head), planned, dict(planned.params), head)
    again.write(tmp_path / "second")
    assert_same_logits(ours, stock_logits(base, tmp_path / "second", tiny.text_batch(), "bert"))


def test_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    trained_by_peft("bert", tmp_path, target_modules=["query"])
    (tmp_path / "adapter_model.safetensors").unlink()
    _refused(tmp_path, tiny.bert())


@pytest.mark.filterwarnings("ignore:TorchaoLoraLinear")  # merging is not tried
def test_adapters_on_int8_weights() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module = tiny.bert()
    quantize_(module.bert.encoder, Int8WeightOnlyConfig())
    classes = structure(module)
    planned = plan(module, AdapterConfig(r=2), "SEQ_CLS", tiny.head_names(module), 0)
    assert len(planned.sites) == 12
    assert structure(module) == classes


# PEFT's keys that Rondo does not take


def test_every_key_of_pefts_is_taken_or_explained() -> None:
    taken = AdapterConfig.model_fields.keys() - {"start_from", "from_scratch"}
    assert {f.name for f in dataclasses.fields(peft.LoraConfig)} == taken | NOT_TAKEN.keys()
    assert not taken & NOT_TAKEN.keys()
    assert [key for key in NOT_TAKEN if not str(not_taken(key)).endswith("remove it")] == []
    assert not_taken("r") is None


def test_every_start_of_pefts_is_taken_or_explained() -> None:
    theirs = re.findall(r"'([a-z_]+)", str(peft.LoraConfig.__annotations__["init_lora_weights"]))
    assert {"pissa", "pissa_niter_", "olora", "eva"} <= set(theirs)
    for start in {*theirs, "lora_ga", False} - {"gaussian", "orthogonal", "pissa"}:
        with pytest.raises(ConfigError, match=r"init_lora_weights: should be .*; PEFT has it, Rondo does not"):
            load({"adapter": {"init_lora_weights": start}})


@pytest.mark.parametrize(
    ("key", "value"), [("use_bdlora", True), ("bias", "all"), ("alora_invocation_tokens", [1]), ("lora_bias", True)]
)
def test_adapter_with_what_rondo_lacks_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    trained_by_peft("bert", tmp_path, target_modules=["query"])
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    assert f"has {key}: PEFT has it, Rondo does not: " in str(_refused(tmp_path, tiny.bert()))


def test_start_from_an_adapter_with_the_frozen_output_layer_beside_its_factors(tmp_path: Path) -> None:
    """Stock PEFT saves the weight of an adapted lm_head too."""
    base, logits = trained_by_peft("llama-lm", tmp_path, target_modules=["q_proj", "lm_head"])
    assert "base_layer" in " ".join(peft.load_peft_weights(str(tmp_path), device="cpu"))
    _, found = started(base, tmp_path, "CAUSAL_LM", ())
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-9)
