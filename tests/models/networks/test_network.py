"""The network against dense references: merged weights, one client at a time, gradients, and frozen tensors."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from rondo.config.task_kinds import TABLE
from rondo.models.loading.pretrained import fingerprint, load_config, load_pretrained, load_structure, load_tokenizer
from rondo.models.networks import adapted_layer
from rondo.models.networks.adapted_layer import UnsupportedLayer, layer_kind
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows
from rondo.params import add_client_axis, client_row, magnitude, pick
from watched import noted

Case = tuple[Callable[[], Any], tuple[str, ...], Callable[..., dict[str, Tensor]]]
STRETCHED = " with magnitudes"

CASES: dict[str, Case] = {
    "linear": (tiny.bert, tiny.BERT_LAYERS, tiny.text_batch),
    "conv1d": (tiny.gpt2, ("c_attn", "c_proj", "c_fc"), tiny.text_batch),
    "conv1d-lm": (tiny.gpt2_lm, ("c_attn", "c_fc"), tiny.text_batch),
    "linear-lm": (tiny.llama_lm, ("q_proj", "v_proj", "down_proj"), tiny.text_batch),
    "conv2d": (tiny.convolutions, ("first", "second"), tiny.image_batch),
}
CASES |= {name + STRETCHED: CASES[name] for name in ("linear", "conv1d", "linear-lm")}

CLASSIFIER, LANGUAGE = TABLE["sequence-classification"], TABLE["causal-lm"]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Any, tuple[Any, ...], dict[str, Tensor]]:
    make, endings, batch = CASES[request.param]
    module = make().double()
    return module, tiny.sites(module, endings, magnitude=request.param.endswith(STRETCHED)), batch()


def test_network_without_weights_is_where_it_was_moved() -> None:
    module = tiny.bert()
    network = AdaptedNetwork(module, tiny.sites(module, tiny.BERT_LAYERS), ())
    network.module = nn.Identity()
    assert network.device.type == "cpu"
    network.move(torch.device("meta"))
    assert network.device.type == "meta"
    network.module = module
    assert network.device.type == "cpu"


@torch.no_grad()
def test_output_equals_merged_weights(case: Any) -> None:
    module, sites, batch = case
    network = AdaptedNetwork(copy.deepcopy(module), sites, ())
    for seed in (1, 2):  # the second call must not see the first one's tensors
        params = tiny.factors(sites, seed)
        ours = network(add_client_axis(params), {}, batch)
        torch.testing.assert_close(ours, tiny.merged(module, sites, params)(**batch).logits, rtol=0, atol=1e-10)
    assert (ours - module(**batch).logits).abs().max() > 1e-3


@torch.no_grad()
def test_base_chunks_add_to_the_weights_for_one_call(case: Any) -> None:
    module, sites, batch = case
    network = AdaptedNetwork(copy.deepcopy(module), sites, ())
    params, base = tiny.factors(sites, 1), tiny.chunks(sites, 2)
    ours = network(add_client_axis(params), base, batch)
    torch.testing.assert_close(ours, tiny.merged(module, sites, params, base)(**batch).logits, rtol=0, atol=1e-10)
    without = network(add_client_axis(params), {}, batch)
    torch.testing.assert_close(without, tiny.merged(module, sites, params)(**batch).logits, rtol=0, atol=1e-10)


@torch.no_grad()
def test_three_clients_in_one_call_equal_three_calls(case: Any) -> None:
    module, sites, batch = case
    network = AdaptedNetwork(module, sites, ())
    params, base = tiny.factors(sites, 1, clients=3), tiny.chunks(sites, 2)
    wide = {n: torch.cat([t, t.flip(0), t.roll(1, 0)]) for n, t in batch.items()}
    together = network(params, base, wide).chunk(3)
    for k in range(3):
        rows = {n: t.chunk(3)[k] for n, t in wide.items()}
        alone = network(add_client_axis(client_row(params, k)), base, rows)
        torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-10)


def test_cohort_gradients_equal_each_clients_own(case: Any) -> None:
    module, sites, batch = case
    network = AdaptedNetwork(module, sites, ())
    params = {n: t.requires_grad_() for n, t in tiny.factors(sites, 1, clients=2).items()}
    wide = {n: torch.cat([t, t.flip(0)]) for n, t in batch.items()}
    logits = network(params, {}, wide)
    together = torch.autograd.grad(logits.square().flatten(1).mean(1).sum(), list(params.values()))
    for k in range(2):
        client_params = {n: t.detach()[k : k + 1].requires_grad_() for n, t in params.items()}
        rows = {n: t.chunk(2)[k] for n, t in wide.items()}
        loss = network(client_params, {}, rows).square().flatten(1).mean(1).sum()
        for ours, theirs in zip(together, torch.autograd.grad(loss, list(client_params.values())), strict=True):
            torch.testing.assert_close(ours[k], theirs[0], rtol=1e-9, atol=1e-10)


def test_gradients_equal_those_of_merged_weights(case: Any) -> None:
    """d/dA of f(W + s B A) is s B^T (df/dW), and d/dB is s (df/dW) A^T. With magnitudes m, df/dW is that of m V / |V|
    by V, with |V| constant (DoRA, section 4.3), and df/dm is its product with the rows V / |V|."""
    module, sites, batch = case
    params = tiny.factors(sites, 1)
    dense = tiny.merged(module, sites, params).requires_grad_(True)
    whole = tiny.merged(module, sites, pick(params, ~magnitude))
    dense(**batch).logits.square().mean().backward()
    leaves = {n: t.unsqueeze(0).requires_grad_() for n, t in params.items()}
    AdaptedNetwork(module, sites, ())(leaves, {}, batch).square().mean().backward()
    for s in sites:
        grad = dense.get_submodule(s.path).weight.grad
        grad = grad.T if s.kind == "conv1d" else grad.reshape(s.shape)
        a, b = params[f"{s.path}.A"], params[f"{s.path}.B"]
        if s.magnitude:
            m, stretched = params[f"{s.path}.magnitude"], dense.get_submodule(s.path).weight.detach()
            direction = (stretched.T if s.kind == "conv1d" else stretched) / m[:, None]
            by_magnitude = (grad * direction).sum(1)
            torch.testing.assert_close(leaves[f"{s.path}.magnitude"].grad[0], by_magnitude, rtol=1e-8, atol=1e-10)
            weight = whole.get_submodule(s.path).weight
            grad = grad * (m / (weight.T if s.kind == "conv1d" else weight).norm(dim=1))[:, None]
        torch.testing.assert_close(leaves[f"{s.path}.A"].grad[0], s.scale * b.T @ grad, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(leaves[f"{s.path}.B"].grad[0], s.scale * grad @ a.T, rtol=1e-8, atol=1e-10)


def test_frozen_weights_get_no_gradient_and_no_change(case: Any) -> None:
    module, sites, batch = case
    network = AdaptedNetwork(module, sites, ())
    before = fingerprint(module)
    params = {n: t.requires_grad_() for n, t in tiny.factors(sites, 1, clients=1).items()}
    network(params, tiny.chunks(sites, 2), batch).square().mean().backward()
    assert [n for n, p in module.named_parameters() if p.grad is not None or p.requires_grad] == []
    assert [n for n, t in params.items() if t.grad is None or not t.grad.abs().max() > 0] == []
    assert fingerprint(module) == before


def test_no_gradient_reaches_below_the_lowest_adapted_layer() -> None:
    module = tiny.bert()
    sites = [s for s in tiny.sites(module, ("query", "intermediate.dense")) if ".layer.1." in s.path]
    network = AdaptedNetwork(module, sites, ())
    entering: dict[str, bool] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, args, name=name: entering.update({name: args[0].requires_grad}))
    params = {n: t.requires_grad_() for n, t in tiny.factors(sites, 1, clients=1).items()}
    network(params, {}, tiny.text_batch()).sum().backward()
    assert [name for name, needs in entering.items() if needs and ".layer.0." in name] == []
    assert not entering["bert.encoder.layer.1.attention.self.query"]
    assert entering["bert.encoder.layer.1.intermediate.dense"]


def test_untrained_factor_has_no_gradient() -> None:
    module = tiny.bert()
    sites = tiny.sites(module, ("query", "value"))
    params = tiny.factors(sites, 1, clients=1)
    for name, tensor in params.items():
        tensor.requires_grad_(name.endswith(".B"))
    AdaptedNetwork(module, sites, ())(params, {}, tiny.text_batch()).sum().backward()
    for name, tensor in params.items():
        assert (tensor.grad is not None) == name.endswith(".B")


# Activation checkpointing


def _checkpointed(module: Any) -> Any:
    module.activation_checkpointing_enable()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module.train()


def _gradients(network: AdaptedNetwork, params: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    leaves = {n: t.detach().clone().requires_grad_() for n, t in params.items()}
    network(leaves, {}, tiny.text_batch(), **options).square().mean().backward()
    return {n: t.grad for n, t in leaves.items() if t.grad is not None}


def _pair(dropout: float = 0.0) -> tuple[AdaptedNetwork, AdaptedNetwork, dict[str, Tensor], dict[str, Tensor]]:
    """The same network twice, the second one checkpointed, and the factors of two calls."""
    module = tiny.bert(attention_probs_dropout_prob=0.0).double()
    sites = tiny.sites(module, tiny.BERT_LAYERS, dropout=dropout)
    stored, recomputed = (AdaptedNetwork(copy.deepcopy(module), sites, ()) for _ in range(2))
    _checkpointed(recomputed.module)
    return stored, recomputed, tiny.factors(sites, 1, clients=1), tiny.factors(sites, 2, clients=1)


def test_checkpointing_recomputes_with_its_calls_tensors() -> None:
    stored, recomputed, first, second = _pair()
    runs = 0

    def count(*_: Any) -> None:
        nonlocal runs
        runs += 1

    recomputed.module.bert.encoder.layer[0].attention.self.query.register_forward_hook(count)
    for params in (first, second, first):
        ours, theirs = _gradients(recomputed, params), _gradients(stored, params)
        assert ours.keys() == theirs.keys() == params.keys()
        for name, grad in ours.items():
            torch.testing.assert_close(grad, theirs[name], rtol=1e-9, atol=1e-12)
    assert runs == 6  # otherwise nothing was checkpointed


def test_checkpointing_two_calls_before_one_backward() -> None:
    """Right, or refused: an objective may evaluate the loss twice (a personal and a global model) before one
    backward."""
    stored, recomputed, first, second = _pair()

    def grads(network: AdaptedNetwork) -> list[Tensor]:
        leaves = [{n: t.detach().clone().requires_grad_() for n, t in p.items()} for p in (first, second)]
        terms = [network(p, {}, tiny.text_batch()).square().mean() for p in leaves]
        sum(terms).backward()  # type: ignore[union-attr]
        return [t.grad for p in leaves for t in p.values()]  # type: ignore[misc]

    try:
        ours = grads(recomputed)
    except RuntimeError as error:
        if "one network call" not in str(error):
            raise
        return
    for a, b in zip(ours, grads(stored), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_checkpointing_after_a_call_without_backward() -> None:
    """A loss that is not finite is dropped before its backward; the next client must not suffer from it."""
    stored, recomputed, first, second = _pair()
    recomputed({n: t.clone().requires_grad_() for n, t in second.items()}, {}, tiny.text_batch())
    ours, theirs = _gradients(recomputed, first), _gradients(stored, first)
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-9, atol=1e-12)


def test_checkpointing_recomputes_with_the_same_dropout_masks() -> None:
    stored, recomputed, params, _ = _pair(dropout=0.5)

    def drawn() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(7)]

    ours, theirs = (_gradients(n, params, dropout=drawn()) for n in (recomputed, stored))
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-9, atol=1e-12)


# Adapter dropout


def test_adapter_dropout_follows_its_generators() -> None:
    module = tiny.bert().double()
    sites = tiny.sites(module, ("query", "value"), dropout=0.5)
    network = AdaptedNetwork(module, sites, ())
    params = tiny.factors(sites, 1, clients=2)
    batch = {n: torch.cat([t, t]) for n, t in tiny.text_batch().items()}

    @torch.no_grad()
    def logits(*seeds: int) -> tuple[Tensor, ...]:
        generators = [torch.Generator().manual_seed(s) for s in seeds] or None
        return network(params, {}, batch, generators).chunk(2)

    base, again, second_other = logits(1, 2), logits(1, 2), logits(1, 3)
    assert base[0].equal(again[0])
    assert base[1].equal(again[1])
    torch.testing.assert_close(base[0], second_other[0], rtol=0, atol=1e-12)  # masks are per client
    assert (base[1] - second_other[1]).abs().max() > 1e-3
    plain = AdaptedNetwork(tiny.bert().double(), tiny.sites(module, ("query", "value")), ())(params, {}, batch)
    torch.testing.assert_close(torch.cat(logits()), plain, rtol=0, atol=1e-12)


@torch.no_grad()
def test_adapter_dropout_keeps_the_mean_and_drops_the_share() -> None:
    """Seen through an identity adapter: a dropped entry is zero, a kept one is divided by the share kept."""
    module = nn.Module()
    module.layer = nn.Linear(40, 40, bias=False).double()
    module.forward = lambda x: module.layer(x)  # type: ignore[method-assign]
    site = tiny.sites(module, ("layer",), rank=40, dropout=0.25)[0]
    network = AdaptedNetwork(module, [site], ())
    eye = torch.eye(40, dtype=torch.float64).unsqueeze(0)
    x = torch.ones(500, 40, dtype=torch.float64)
    with_adapter = network({"layer.A": eye, "layer.B": eye}, {}, {"x": x}, [torch.Generator().manual_seed(0)])
    mask = (with_adapter - x @ module.layer.weight.T) / site.scale
    kept = mask.abs() > 1e-9
    torch.testing.assert_close(mask[kept], torch.full_like(mask[kept], 1 / 0.75), rtol=0, atol=1e-6)
    assert abs(kept.double().mean() - 0.75) < 0.02


# The frozen matrices, and the head


def test_weights_are_the_networks_matrices(case: Any) -> None:
    module, sites, _ = case
    original = copy.deepcopy(module)
    for path, weight in AdaptedNetwork(module, sites, ()).weights().items():
        site = next(s for s in sites if s.path == path)
        matrix = weight.matrix()
        assert (weight.shape, weight.scale, matrix.shape) == (site.shape, site.scale, site.shape)
        stored = original.get_submodule(path).weight.detach()
        expected = stored.T if site.kind == "conv1d" else stored.flatten(1)
        torch.testing.assert_close(matrix, expected, rtol=0, atol=0)


@torch.no_grad()
def test_weights_serve_an_svd_of_the_layer(case: Any) -> None:
    """Taking out the top singular directions through an adapter equals doing so in the layer."""
    module, sites, batch = case
    network = AdaptedNetwork(copy.deepcopy(module), sites, ())
    params = {}
    for path, weight in network.weights().items():
        u, s, vh = torch.linalg.svd(weight.matrix().double(), full_matrices=False)
        params[f"{path}.A"] = vh[:3]
        params[f"{path}.B"] = -(u[:, :3] * s[:3]) / weight.scale
    left = tiny.merged(module, sites, params)
    for s in sites:
        stored = [m.get_submodule(s.path).weight for m in (module, left)]
        before, after = (torch.linalg.svdvals(w.T if s.kind == "conv1d" else w.flatten(1)) for w in stored)
        torch.testing.assert_close(after[: len(before) - 3], before[3:], rtol=0, atol=1e-5)
    ours = network(add_client_axis(params), {}, batch)
    torch.testing.assert_close(ours, left(**batch).logits, rtol=0, atol=1e-10)


def test_head_is_trained_or_else_the_initial_one() -> None:
    module = tiny.bert().double()
    sites = tiny.sites(module, ("query",))
    network = AdaptedNetwork(copy.deepcopy(module), sites, tiny.head_names(module))
    assert set(network.initial_head) == {"head:" + n for n in tiny.head_names(module)}
    assert not {n for n, _ in network.module.named_parameters()} & set(tiny.head_names(module))
    params, head = tiny.factors(sites, 1), tiny.head_of(network, 2)
    batch = tiny.text_batch()
    leaves = {n: t.unsqueeze(0).clone().requires_grad_() for n, t in (params | head).items()}
    logits = network(leaves, {}, batch)
    torch.testing.assert_close(logits, tiny.merged(module, sites, params | head)(**batch).logits, rtol=0, atol=1e-10)
    logits.square().mean().backward()
    assert [n for n in head if leaves[n].grad is None] == []
    initial = network(add_client_axis(params), {}, batch)
    torch.testing.assert_close(initial, tiny.merged(module, sites, params)(**batch).logits, rtol=0, atol=1e-10)
    assert not initial.requires_grad


@pytest.mark.parametrize("counts", [(3, 3, 3), (4, 0, 5), (2, 7)], ids=["even", "uneven", "two"])
@pytest.mark.parametrize("make", [tiny.bert, tiny.roberta, tiny.distilbert], ids=["bert", "roberta", "distilbert"])
def test_clients_have_their_own_heads(make: Any, counts: tuple[int, ...]) -> None:
    """Each client's rows get the same logits, and its head and any magnitudes the same gradients, as alone."""
    module = make().double()
    sites = tiny.sites(module, ("query", "q_lin", "value"), magnitude=make is tiny.roberta)
    network = AdaptedNetwork(copy.deepcopy(module), sites, tiny.head_names(module))
    assert network.one_at_a_time is None
    client_params = [tiny.factors(sites, k) | tiny.head_of(network, 10 + k) for k in range(len(counts))]
    batch = tiny.text_batch(sum(counts))
    leaves = {n: torch.stack([params[n] for params in client_params]).requires_grad_() for n in client_params[0]}
    logits = network(leaves, {}, batch, rows=Rows(counts))
    logits.square().sum().backward()
    start = 0
    for k, count in enumerate(counts):
        part = {n: t[start : start + count] for n, t in batch.items()}
        client_logits, start = logits[start : start + count], start + count
        assert len(client_logits) == count
        if count == 0:
            assert [n for n, t in leaves.items() if t.grad[k].any()] == []  # type: ignore[index]
            continue
        expected = tiny.merged(module, sites, client_params[k])(**part).logits
        torch.testing.assert_close(client_logits, expected, rtol=0, atol=1e-10)
        alone = {n: t.unsqueeze(0).clone().requires_grad_() for n, t in client_params[k].items()}
        network(alone, {}, part).square().sum().backward()
        for n, t in alone.items():
            torch.testing.assert_close(leaves[n].grad[k], t.grad[0], rtol=1e-10, atol=1e-10)  # type: ignore[index]


@pytest.mark.parametrize("counts", [(4, 0, 8), (2, 7), (3, 3)])
def test_clients_whose_rows_are_single_vectors_are_as_alone(counts: tuple[int, ...]) -> None:
    """Without copies of their factors for each row, which would be many times as large as the rows."""
    module = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 40))
    sites = tiny.sites(module, ("0", "2"))
    network = AdaptedNetwork(module, sites, ())
    params = tiny.factors(sites, 1, len(counts), torch.float32)
    x = torch.randn(sum(counts), 60, generator=torch.Generator().manual_seed(0))
    with noted(adapted_layer, "add_low_rank") as calls:
        together = network(params, {}, {"input": x}, rows=Rows(counts))
    assert max(len(call.arguments[2]) for call in calls) <= len(counts)
    for k, (part, output) in enumerate(zip(x.split(counts), together.split(counts), strict=True)):
        one = {name: tensor[k : k + 1] for name, tensor in params.items()}
        alone = network(one, {}, {"input": part}, rows=Rows((len(part),)))
        assert torch.allclose(output, alone, rtol=1e-5, atol=1e-6)


class Normed(nn.Module):
    """A body of one layer, and a head of a normalisation and a linear layer."""

    base_model_prefix = "body"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"layer": nn.Linear(6, 5)})
        self.norm = nn.LayerNorm(5)
        self.classifier = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.classifier(self.norm(self.body["layer"](x))))


def test_head_with_a_layer_norm_trains_one_client_at_a_time() -> None:
    """So does every head with trained tensors outside linear layers."""
    g = torch.Generator().manual_seed(0)
    module = Normed().double()
    sites = tiny.sites(module, ("layer",))
    network = AdaptedNetwork(copy.deepcopy(module), sites, tiny.head_names(module))
    reason = network.one_at_a_time
    assert reason is not None
    assert "LayerNorm" in reason
    assert "Linear" not in reason
    params, head = tiny.factors(sites, 1), tiny.head_of(network, 2)
    batch = {"x": torch.randn(4, 6, generator=g, dtype=torch.float64)}
    logits = network(add_client_axis(params | head), {}, batch)
    torch.testing.assert_close(logits, tiny.merged(module, sites, params | head)(**batch).logits, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="2 clients"):
        network(add_client_axis(params | head, 2), {}, batch)


# Rows of clients


def test_row_sums_are_per_client() -> None:
    values = torch.arange(1.0, 7.0)
    assert Rows((2, 2, 2)).sum(values).tolist() == [3.0, 7.0, 11.0]
    assert Rows((6,)).sum(values).tolist() == [21.0]
    assert Rows((1, 0, 3, 2)).sum(values).tolist() == [1.0, 0.0, 9.0, 11.0]
    assert Rows((2, 2, 2)).even
    assert not Rows((1, 0, 3, 2)).even
    assert Rows((1, 0, 3, 2)).index.tolist() == [0, 2, 2, 2, 3, 3]
    assert Rows((1, 0, 3, 2)).to(torch.device("cpu")).index.tolist() == [0, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("counts", [(2, 2, 2), (1, 3, 2)])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_rows_affect_only_their_client(counts: tuple[int, ...], bad: float) -> None:
    values = torch.ones(6)
    values[counts[0]] = bad
    values.requires_grad_()
    sums = Rows(counts).sum(values)
    assert sums.isfinite().tolist() == [True, False, True]
    assert [float(sums[k]) for k in (0, 2)] == [counts[0], counts[2]]
    torch.where(sums.isfinite(), sums, 0.0).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0] * counts[0] + [0.0] * counts[1] + [1.0] * counts[2]


def test_missing_factor_is_an_error() -> None:
    module = tiny.bert()
    sites = tiny.sites(module, ("query",))
    params = tiny.factors(sites, 1, clients=1)
    params.pop(f"{sites[1].path}.B")
    with pytest.raises(KeyError):
        AdaptedNetwork(module, sites, ())(params, {}, tiny.text_batch())


def test_base_runs_in_eval_mode() -> None:
    module = tiny.bert(hidden_dropout_prob=0.5)
    sites = tiny.sites(module, ("query",))
    network = AdaptedNetwork(module.train(), sites, ())
    params = tiny.factors(sites, 1, clients=1)
    assert network(params, {}, tiny.text_batch()).equal(network(params, {}, tiny.text_batch()))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, dilation=2),  # PEFT's own adapter leaves out the dilation, so no export could be read
        nn.Conv1d(4, 4, 3),
        nn.Embedding(4, 4),
        nn.LayerNorm(4),
    ],
)
def test_unsupported_layers_are_refused(layer: nn.Module) -> None:
    with pytest.raises(UnsupportedLayer, match="cannot be adapted"):
        layer_kind(layer)


def test_convolution_padded_by_name_is_adapted() -> None:
    module = tiny.convolutions().double()
    module.body["first"] = nn.Conv2d(3, 6, 3, padding="same").double()
    sites = tiny.sites(module, ("first",))
    params, batch = tiny.factors(sites, 1), tiny.image_batch()
    expected = tiny.merged(module, sites, params)(**batch).logits
    ours = AdaptedNetwork(module, sites, ())(add_client_axis(params), {}, batch)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


# The fingerprint


def test_fingerprint_changes_with_the_weights_only() -> None:
    module = tiny.bert()
    before = fingerprint(module)
    assert fingerprint(copy.deepcopy(module)) == fingerprint(tiny.bert()) == before != fingerprint(tiny.bert(seed=1))
    weight = module.bert.encoder.layer[1].output.dense.weight
    with torch.no_grad():
        weight[3, 4] = torch.nextafter(weight[3, 4], torch.tensor(9.0))
    assert fingerprint(module) != before
    assert fingerprint(tiny.bert().bfloat16()) != before


# Loading from a folder


def test_loading_names_the_head_and_draws_it_from_the_seed(tmp_path: Any) -> None:
    folder = tiny.saved(tmp_path, tiny.bert().bert, tiny.tokenizer())  # a body without a classifier
    labels = ("no", "yes", "maybe")
    coder = load_tokenizer(folder)
    config = load_config(CLASSIFIER, folder, labels=labels)
    loaded = load_pretrained(CLASSIFIER, folder, config, coder, seed=1)
    one, head = loaded.module, loaded.head
    again, other = (load_pretrained(CLASSIFIER, folder, config, coder, seed=s).module for s in (1, 2))
    assert set(head) == {"classifier.weight", "classifier.bias"}
    assert fingerprint(one) == fingerprint(again) != fingerprint(other)
    assert fingerprint(one.bert) == fingerprint(other.bert)
    assert one.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert coder("w0 w1")["input_ids"] == [2, 4, 5, 3]


def test_loading_replaces_a_head_of_another_task(tmp_path: Any) -> None:
    """The head's names include the tensors that the file lacks."""
    module = tiny.bert(labels=5)
    del module.bert.pooler  # a checkpoint may lack the pooler
    folder = tiny.saved(tmp_path, module, tiny.tokenizer())
    coder = load_tokenizer(folder)
    config = load_config(CLASSIFIER, folder, labels=("no", "yes"))
    loaded = load_pretrained(CLASSIFIER, folder, config, coder, seed=1)
    assert set(loaded.head) == set(tiny.head_names(tiny.bert()))
    assert loaded.module.classifier.weight.shape == (2, 32)


def test_loading_language_model_gives_padding_and_no_head(tmp_path: Any) -> None:
    folder = tiny.saved(tmp_path, tiny.gpt2_lm(), tiny.tokenizer("gpt", pad=False))
    before = torch.random.get_rng_state()
    coder = load_tokenizer(folder)
    head = load_pretrained(LANGUAGE, folder, load_config(LANGUAGE, folder), coder, seed=1).head
    assert head == ()
    assert coder.pad_token_id == coder.eos_token_id == 3
    assert torch.random.get_rng_state().equal(before)


def test_one_configuration_serves_structure_and_weights(tmp_path: Any) -> None:
    folder = tiny.saved(tmp_path, tiny.bert(labels=2), tiny.tokenizer())
    config = load_config(CLASSIFIER, folder, labels=("no", "yes", "maybe"))
    before = config.to_dict()
    empty, _ = load_structure(CLASSIFIER, config)
    module = load_pretrained(CLASSIFIER, folder, config, load_tokenizer(folder), seed=1).module
    assert config.to_dict() == before
    shapes, loaded = ({n: t.shape for n, t in m.state_dict().items()} for m in (empty, module))
    assert shapes == loaded
    assert shapes["classifier.weight"] == (3, 32)
    assert module.config is not config is not empty.config


# Quantised weights


def _int8(module: nn.Module) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(module, Int8WeightOnlyConfig())
    return module


def _dequantised(module: nn.Module, quantised: nn.Module) -> nn.Module:
    module = copy.deepcopy(module)
    with torch.no_grad():
        for path, layer in module.named_modules():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(quantised.get_submodule(path).weight.dequantize())
    return module


def test_int8_gradients_are_close_to_the_dequantised_ones() -> None:
    module = tiny.bert()
    quantised = _int8(copy.deepcopy(module))
    plain = _dequantised(module, quantised)
    sites = tiny.sites(module, tiny.BERT_LAYERS)
    results = []
    for model in (quantised, plain):
        leaves = {n: t.requires_grad_() for n, t in tiny.factors(sites, 1, 1, torch.float32).items()}
        logits = AdaptedNetwork(model, sites, ())(leaves, {}, tiny.text_batch())
        logits.square().mean().backward()
        results.append([logits.detach(), *(t.grad for t in leaves.values())])
    assert [t for t in results[0] if not t.isfinite().all()] == []
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_int8_weights_are_the_dequantised_ones() -> None:
    module = tiny.bert()
    quantised = _int8(copy.deepcopy(module))
    plain = _dequantised(module, quantised)
    sites = tiny.sites(module, tiny.BERT_LAYERS)
    for path, weight in AdaptedNetwork(quantised, sites, ()).weights().items():
        assert weight.matrix().equal(plain.get_submodule(path).weight)
        assert not weight.matrix().equal(module.get_submodule(path).weight)


def test_int8_models_have_a_fingerprint() -> None:
    one, two = _int8(tiny.bert()), _int8(tiny.bert(seed=1))
    assert fingerprint(one) == fingerprint(_int8(tiny.bert())) != fingerprint(two)


def test_loading_in_int8_leaves_the_head_alone(tmp_path: Any) -> None:
    folder = tiny.saved(tmp_path, tiny.bert(labels=2), tiny.tokenizer())
    config = load_config(CLASSIFIER, folder, labels=("no", "yes"))
    loaded = load_pretrained(CLASSIFIER, folder, config, load_tokenizer(folder), seed=1, quantization="int8")
    module, head = loaded.module, loaded.head
    assert type(module.classifier.weight.data) is Tensor
    assert type(module.bert.encoder.layer[0].output.dense.weight.data) is not Tensor
    sites = tiny.sites(module, ("query", "value"))
    network = AdaptedNetwork(module, sites, head)
    params = tiny.factors(sites, 1, 1, torch.float32) | add_client_axis(network.initial_head)
    assert network(params, {}, tiny.text_batch()).shape == (4, 2)
