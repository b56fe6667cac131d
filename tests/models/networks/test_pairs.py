"""Layers with several pairs of factors, against modules whose layers weigh each pair of one client token by token."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tiny
from rondo.models.networks.adapted_layer import Site, merged_weight
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.pairs import is_one_pair, one_pair
from rondo.models.networks.rows import Rows
from rondo.models.shortcuts.choose import lay_end_to_end
from rondo.params import add_client_axis, client_row
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.text import TextExample

CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "linear": (tiny.bert, tiny.BERT_LAYERS),
    "conv1d": (tiny.gpt2, ("c_attn", "c_proj", "c_fc")),
    "linear-lm": (tiny.llama_lm, ("q_proj", "v_proj", "down_proj")),
}
PAIRS = 3


class Weighing(nn.Module):
    """The source's layer, a loop over pairs: W x + b + sum_i g_i s B_i A_i x, g = softmax of the router at x."""

    def __init__(self, layer: nn.Module, site: Site, seen: dict[str, Tensor]) -> None:
        super().__init__()
        self.layer, self.site, self.seen = layer, site, seen

    def forward(self, x: Tensor) -> Tensor:
        a, b, router = (self.seen[f"{self.site.path}.{n}"] for n in ("A", "B", "router"))
        result, r = self.layer(x), self.site.rank
        exponents = (x @ router.T).exp()
        for i in range(PAIRS):
            pair = slice(i * r, (i + 1) * r)
            gate = exponents[..., i : i + 1] / exponents.sum(-1, keepdim=True)
            result = result + gate * self.site.scale * functional.linear(x, b[:, pair] @ a[pair])
        return result


def reference(module: Any, sites: tuple[Site, ...], seen: dict[str, Tensor]) -> Any:
    own = copy.deepcopy(module)
    for site in sites:
        own.set_submodule(site.path, Weighing(own.get_submodule(site.path), site, seen))
    return own


def pairs(sites: tuple[Site, ...], seed: int, clients: int) -> dict[str, Tensor]:
    """Factors of all pairs and routers of every site, with a client axis."""
    draw, params = torch.Generator().manual_seed(seed), {}
    for s in sites:
        shapes = {"A": (PAIRS * s.rank, s.shape[1]), "B": (s.shape[0], PAIRS * s.rank), "router": (PAIRS, s.shape[1])}
        for name, shape in shapes.items():
            params[f"{s.path}.{name}"] = 0.3 * torch.randn(clients, *shape, generator=draw, dtype=torch.float64)
    return params


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Any, tuple[Site, ...]]:
    make, endings = CASES[request.param]
    module = make().double()
    return module, tiny.sites(module, endings)


@pytest.mark.parametrize("counts", [(4,), (2, 2, 2), (1, 4, 3)], ids=["one", "even", "uneven"])
def test_clients_have_the_outputs_and_gradients_of_the_source(case: Any, counts: tuple[int, ...]) -> None:
    module, sites = case
    batch = tiny.text_batch(sum(counts))
    params = {n: t.requires_grad_() for n, t in pairs(sites, 1, len(counts)).items()}
    output = AdaptedNetwork(copy.deepcopy(module), sites, ())(params, {}, batch, rows=Rows(counts))
    grads = dict(zip(params, torch.autograd.grad(output.square().sum(), list(params.values())), strict=True))
    start = 0
    for k, count in enumerate(counts):
        seen = {n: t.detach()[k].clone().requires_grad_() for n, t in params.items()}
        rows = {n: t[start : start + count] for n, t in batch.items()}
        wanted = reference(module, sites, seen)(**rows).logits
        torch.testing.assert_close(output[start : start + count], wanted, rtol=0, atol=1e-10)
        own = torch.autograd.grad(wanted.square().sum(), list(seen.values()))
        for name, grad in zip(seen, own, strict=True):
            torch.testing.assert_close(grads[name][k], grad, rtol=1e-8, atol=1e-9, msg=name)
        start += count


def test_the_router_sees_its_input_before_dropout() -> None:
    """A mean over masks of a linear layer is the layer without dropout, if the weights do not depend on the masks."""
    layer = nn.Sequential(nn.Linear(6, 5)).double()
    (site,) = tiny.sites(layer, ("0",), dropout=0.5)
    params = pairs((site,), 2, 1)
    network, batch = AdaptedNetwork(layer, (site,), ()), {"input": torch.randn(1, 6).double()}
    streams = [torch.Generator().manual_seed(0)]
    mean = torch.stack([network(params, {}, batch, dropout=streams) for _ in range(20_000)]).mean(0)
    assert not torch.equal(network(params, {}, batch, dropout=streams), network(params, {}, batch))
    torch.testing.assert_close(mean, network(params, {}, batch), rtol=0, atol=0.03)


def test_rows_laid_end_to_end_are_as_padded_ones() -> None:
    module = tiny.llama_lm().double()
    sites = tiny.sites(module, ("q_proj", "down_proj"))
    task = CausalLM(tiny.tokenizer("llama"), "text", (), None, 48)
    groups = [[_text(9, 1), _text(4, 2)], [_text(7, 3)]]
    networks = [AdaptedNetwork(copy.deepcopy(module), sites, ()) for _ in range(2)]
    params = pairs(sites, 4, 2)
    lay_end_to_end(networks[1], task, client_row(params, 0), groups[0])
    assert networks[1].packs
    inputs, targets = task.collate([row for group in groups for row in group])
    rows = Rows.of(groups, task)
    one, other = (task.loss(network(params, {}, inputs, rows=rows), targets)[0] for network in networks)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def _text(length: int, seed: int) -> TextExample:
    ids = tuple(4 + (7 * seed + 3 * i) % (tiny.VOCABULARY - 4) for i in range(length))
    return TextExample(ids, ids)


def test_layers_that_run_again_have_the_same_gradients() -> None:
    networks, sites = [], ()
    for again in (False, True):
        module = tiny.bert().double()
        sites = tiny.sites(module, tiny.BERT_LAYERS)
        networks.append(AdaptedNetwork(copy.deepcopy(module), sites, ()))
        if again:
            networks[-1].recompute_layers()
    params = {n: t.requires_grad_() for n, t in pairs(sites, 5, 2).items()}
    outputs = (network(params, {}, tiny.text_batch()).square().sum() for network in networks)
    one, other = (torch.autograd.grad(output, list(params.values())) for output in outputs)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_stay_near_float64(dtype: torch.dtype) -> None:
    module = tiny.bert().double()
    sites = tiny.sites(module, tiny.BERT_LAYERS)
    params = pairs(sites, 6, 2)
    wide = AdaptedNetwork(copy.deepcopy(module), sites, ())(params, {}, tiny.text_batch())
    narrow = AdaptedNetwork(copy.deepcopy(module).to(dtype), sites, ())
    found = narrow({n: t.float() for n, t in params.items()}, {}, tiny.text_batch())
    assert float((found - wide).abs().max()) < 30 * torch.finfo(dtype).eps * float(wide.abs().max())


def test_equal_pairs_are_one_matrix_and_others_are_none(case: Any) -> None:
    module, sites = case
    seen = client_row(pairs(sites, 7, 1), 0)
    same = dict(seen)
    for s in sites:
        same[f"{s.path}.A"] = seen[f"{s.path}.A"][: s.rank].repeat(PAIRS, 1)
        same[f"{s.path}.B"] = seen[f"{s.path}.B"][:, : s.rank].repeat(1, PAIRS)
    single = {f"{s.path}.{n}": t for s in sites for n, t in zip("AB", one_pair(same, s.path), strict=True)}
    network, batch = AdaptedNetwork(copy.deepcopy(module), sites, ()), tiny.text_batch()
    found = network(add_client_axis(same), {}, batch)
    torch.testing.assert_close(found, tiny.merged(module, sites, single)(**batch).logits, rtol=0, atol=1e-10)
    path = sites[0].path
    assert [is_one_pair(of, path) for of in (same, single, seen)] == [True, True, False]
    with pytest.raises(ValueError, match="no matrix is the layer's change"):
        merged_weight(module.get_submodule(path), sites[0], seen, {})
