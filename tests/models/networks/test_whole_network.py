"""Networks whose tensors are trained as they are, against the plain module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rondo.lowrank import GrowingSum, LowRank
from rondo.models.kernels.precision import products
from rondo.models.networks import whole_network
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows
from rondo.models.networks.whole_network import WholeNetwork
from rondo.params import add_client_axis, stack_clients
from watched import failing


def module(*, norm: bool = True, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, padding=1)]
    layers += [nn.BatchNorm2d(4)] if norm else []
    layers += [nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(4 * 25, 3)]
    return nn.Sequential(*layers).double()


def names(of: nn.Module) -> list[str]:
    return [n for n, _ in of.named_parameters()]


def head(of: nn.Sequential) -> list[str]:
    return [n for n in names(of) if n.startswith(f"{len(of) - 1}.")]


def images(rows: int, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(rows, 2, 5, 5, generator=generator, dtype=torch.float64)}


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(s) for s in seeds]


def test_names_give_body_head_and_statistics() -> None:
    plain = module()
    network = WholeNetwork(plain, names(plain), head(plain))
    assert list(network.initial) == [
        *("0.weight", "0.bias", "1.weight", "1.bias", "head:5.weight", "head:5.bias"),
        *("buffer:1.running_mean", "buffer:1.running_var"),
    ]
    assert network.initial["head:5.bias"].equal(plain[5].bias)


@pytest.mark.parametrize("training", [False, True])
def test_output_gradient_and_statistics_are_the_modules_own(training: bool) -> None:
    plain = module()
    network = WholeNetwork(copy.deepcopy(plain), names(plain), head(plain))
    leaves = {n: t.clone().requires_grad_("buffer" not in n) for n, t in add_client_axis(network.initial).items()}
    output = network(leaves, {}, images(6), generators(0) if training else None)
    plain.train(training)
    expected = plain(images(6)["pixel_values"])
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=0)
    output.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in plain.named_parameters():
        grad = leaves[f"head:{name}" if name in head(plain) else name].grad
        assert grad is not None
        torch.testing.assert_close(grad[0], parameter.grad, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(leaves["buffer:1.running_var"][0], plain[1].running_var, rtol=1e-12, atol=0)


class Viewed(nn.Module):
    """Flattens by ``view``, as FedRep's official network does, or by what ``flat`` names."""

    def __init__(self, flat: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out, self.flat = nn.Conv2d(2, 4, 3, padding=1).double(), nn.Linear(100, 3).double(), flat

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.out(x.view(-1, 100) if self.flat == "view" else x.reshape(-1, 100))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("flat", "layout"), [("view", "contiguous"), ("reshape", "channels last")])
def test_layout_of_images_is_one_that_the_module_runs_in(flat: str, layout: str) -> None:
    plain = Viewed(flat)
    network = WholeNetwork(plain, names(plain), names(plain)[-2:])
    assert network.layout is None
    params = add_client_axis(network.initial)
    for rows in (5, 1):
        expected = plain(images(rows)["pixel_values"])
        torch.testing.assert_close(network(params, {}, images(rows)), expected, rtol=1e-12, atol=1e-14)
        assert network.layout == layout


def test_lack_of_memory_is_no_reason_for_a_layout() -> None:
    plain = Viewed("reshape")
    network = WholeNetwork(plain, names(plain), names(plain)[-2:])
    full = failing(whole_network, "output_of", torch.OutOfMemoryError("full"))
    with full, pytest.raises(torch.OutOfMemoryError):
        network(add_client_axis(network.initial), {}, images(2))
    assert network.layout is None


def test_module_itself_is_never_changed() -> None:
    plain = module()
    network = WholeNetwork(plain, names(plain), head(plain))
    before = {n: t.clone() for n, t in plain.state_dict().items()}
    start = {n: t + 1 for n, t in add_client_axis(network.initial).items()}
    network(start, {}, images(4), generators(0))
    torch.testing.assert_close(plain.state_dict(), before, rtol=0, atol=0)


def test_frozen_statistics_stay_in_training() -> None:
    plain = module()
    network = WholeNetwork(plain, names(plain), head(plain), statistics=False)
    assert [n for n in network.initial if n.startswith("buffer:")] == []
    params = add_client_axis(network.initial)
    assert network(params, {}, images(4), generators(0)).equal(network(params, {}, images(4)))


def test_statistics_below_a_trained_head_stay() -> None:
    plain = module()
    network = WholeNetwork(plain, head(plain), head(plain))
    assert set(network.initial) == {"head:5.weight", "head:5.bias"}


@pytest.mark.parametrize("counts", [(2, 3, 1), (4, 0, 2)])
def test_cohort_equals_its_clients_alone(counts: tuple[int, ...]) -> None:
    plain = module(dropout=0.5)
    network = WholeNetwork(plain, names(plain), head(plain))
    own = [{n: t + 0.1 * k for n, t in network.initial.items()} for k in range(3)]
    together = stack_clients(own)
    batch = images(6)
    output = network(together, {}, batch, generators(0, 1, 2), Rows(counts))
    start = 0
    for k, count in enumerate(counts):
        rows = {"pixel_values": batch["pixel_values"][start : start + count]}
        alone = add_client_axis({n: t.clone() for n, t in own[k].items()})
        if count:
            assert output[start : start + count].equal(network(alone, {}, rows, generators(k)))
        assert {n: t for n, t in alone.items() if not t[0].equal(together[n][k])} == {}
        start += count


@pytest.mark.parametrize("base", [False, True])
def test_factors_act_as_in_an_adapted_network(base: bool) -> None:
    plain = module(norm=False)
    sites = (Site("0", "conv2d", (4, 18), 2, 1.5, 0.0),)
    g = torch.Generator().manual_seed(3)
    factors = {"0.A": torch.randn(2, 18, generator=g).double(), "0.B": torch.randn(4, 2, generator=g).double()}
    low = LowRank(torch.randn(4, 1, generator=g).double(), torch.randn(1, 18, generator=g).double())
    change = {"0": GrowingSum.of(low)} if base else {}
    adapted = AdaptedNetwork(copy.deepcopy(plain), sites, head(plain), factors)
    network = WholeNetwork(plain, head(plain), head(plain), sites=sites, factors=factors)
    assert network.initial.keys() == adapted.initial.keys()
    params = add_client_axis(network.initial)
    torch.testing.assert_close(
        network(params, change, images(4)), adapted(params, change, images(4)), rtol=1e-10, atol=1e-12
    )
    matrices = (network.weights()["0"].matrix(), adapted.weights()["0"].matrix())
    assert matrices[0].equal(matrices[1])


def test_threads_do_not_see_each_others_tensors() -> None:
    plain = module(dropout=0.3)
    network = WholeNetwork(plain, names(plain), head(plain))

    def work(k: int) -> Tensor:
        params = add_client_axis({n: t + k for n, t in network.initial.items()})
        return torch.stack([network(params, {}, images(3, seed=k), generators(i)) for i in range(20)])

    alone = [work(k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        torch.testing.assert_close(list(pool.map(work, range(4))), list(alone), rtol=0, atol=0)


def test_dropout_acts_in_training_alone_by_its_generator() -> None:
    plain = module(norm=False, dropout=0.5)
    network = WholeNetwork(plain, names(plain), head(plain))
    params = add_client_axis(network.initial)
    calls = [network(params, {}, images(3), generators(seed)) for seed in (0, 0, 1)]
    assert calls[0].equal(calls[1])
    assert not calls[0].equal(calls[2])
    still = network(params, {}, images(3))
    torch.testing.assert_close(still, functional_call(plain, {}, (images(3)["pixel_values"],)))
    many = torch.stack([network(params, {}, images(3), generators(s)) for s in range(2000)])
    torch.testing.assert_close(many.mean(0), still, rtol=0, atol=0.1)  # its mean is the output without dropout


def test_single_row_is_normalised_by_the_statistics() -> None:
    plain = module()
    network = WholeNetwork(plain, names(plain), head(plain))
    params = add_client_axis({n: t.clone() for n, t in network.initial.items()})
    assert network(params, {}, images(1), generators(0)).equal(network(params, {}, images(1)))
    assert params["buffer:1.running_mean"][0].equal(network.initial["buffer:1.running_mean"])


@pytest.mark.parametrize(
    ("layer", "precision", "expected"),
    [
        (nn.Conv2d(3, 8, 3), "fast", torch.bfloat16),
        (nn.Linear(384, 1536), "fast", torch.bfloat16),
        (nn.Linear(784, 200), "fast", torch.float32),
        (nn.LSTM(64, 128), "fast", torch.float32),
        (nn.Conv2d(3, 8, 3), "exact", torch.float32),
    ],
)
def test_products_in_bfloat16_where_they_gain(
    layer: nn.Module, precision: Any, expected: torch.dtype, bf16: Callable[[bool], None]
) -> None:
    bf16(True)
    assert products(precision, torch.device("cpu"), nn.Sequential(layer, nn.ReLU())) is expected


def test_no_products_in_bfloat16_without_the_hardware(bf16: Callable[[bool], None]) -> None:
    bf16(False)
    assert products("fast", torch.device("cpu"), nn.Sequential(nn.Conv2d(3, 8, 3))) is torch.float32


def test_bfloat16_products_leave_tensors_and_gradients_in_float32() -> None:
    plain = module().float()
    slopes, outputs = [], []
    for dtype in (torch.float32, torch.bfloat16):
        network = WholeNetwork(copy.deepcopy(plain), names(plain), head(plain), products=dtype)
        seen = {n: t.clone().requires_grad_("buffer" not in n) for n, t in add_client_axis(network.initial).items()}
        batch = {n: t.float() for n, t in images(8).items()}
        output = network(seen, {}, batch, generators(3))
        output.square().sum().backward()
        assert {output.dtype, *(t.dtype for t in seen.values())} == {torch.float32}
        slopes.append(torch.cat([t.grad.flatten() for t in seen.values() if t.grad is not None]))
        outputs.append(output.detach())
        assert not seen["buffer:1.running_mean"].eq(0).any()
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.03, atol=0.03)
    assert not outputs[1].equal(outputs[0])
    assert float(torch.cosine_similarity(*slopes, dim=0)) > 0.999
