"""Modules that would train wrongly are refused or told of; those that only look odd train as they are."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from rondo.config.load import load
from rondo.errors import ConfigError
from rondo.models.forms.module import state_of, trained_names
from rondo.models.networks.adapted_layer import Site, UnsupportedLayer, layer_kind
from rondo.models.networks.checks import check_module, check_training_mode
from rondo.models.networks.whole_network import WholeNetwork
from rondo.params import add_client_axis
from rondo.process import seeded

INPUTS = {"pixel_values": torch.linspace(-1, 1, 64).reshape(4, 1, 4, 4)}


class Counting(nn.Module):
    """Writes to a buffer of its own in every call."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)
        self.again = again
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        if self.again:
            self.seen = self.seen + rows.mean(0)
        else:
            self.seen.add_(rows.mean(0))
        return self.out(rows)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.dropout(x.flatten(1), 0.5, training=self.training))


class Tied(nn.Module):
    """One weight under two names, and one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 3, bias=False), nn.Linear(16, 3)
        self.second.weight = self.first.weight
        self.inner = nn.Linear(3, 3)
        self.again = self.inner

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        return self.again(self.inner(self.first(rows) + self.second(rows)))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (torch.nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "1.weight has no shape before the first batch"),
        (nn.Flatten(), "it has no parameters"),
        (nn.Sequential(nn.Linear(4, 3, dtype=torch.cfloat)), "0.weight is complex"),
        (nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout(0.2)), "1 is of AlphaDropout"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, momentum=None)), "1 averages over all batches"),
    ],
)
def test_module_that_cannot_train_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_module(module)


def test_compiled_module_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(nn.Linear(4, 3))
    with pytest.raises(ConfigError, match="TorchScript"):
        check_module(script)


def spectral() -> nn.Module:
    """With weights for which its power iteration has not come to rest."""
    with seeded(0):
        return nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(16, 12)))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Counting(again=False), "seen"),
        (Counting(again=True), "seen"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten()),
            "running_mean",
        ),
        (spectral(), "_u"),
    ],
)
def test_module_that_writes_to_a_buffer_is_refused(module: nn.Module, name: str) -> None:
    before = {n: t.clone() for n, t in module.named_buffers()}
    with pytest.raises(ConfigError, match=f"changes the buffer .*{name}"):
        check_training_mode(module.eval(), INPUTS)
    assert [n for n, t in module.named_buffers() if not t.equal(before[n])] == [], "the trial changed the module itself"


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(16, 3)), nn.Dropout(0.5)),
        Tied(),
    ],
)
def test_known_layers_train_without_a_word(module: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_module(module)
        check_training_mode(module.eval(), INPUTS)


def test_training_mode_of_ones_own_is_told_of() -> None:
    with pytest.warns(UserWarning, match="computes otherwise in training mode"):
        check_training_mode(Dropping().eval(), INPUTS)


@pytest.mark.parametrize("wrapped", [weight_norm, spectral_norm])
def test_computed_weight_cannot_be_adapted(wrapped: Any) -> None:
    with pytest.raises(UnsupportedLayer, match="computed from others"):
        layer_kind(wrapped(nn.Linear(4, 3)))


def test_result_has_a_tied_weight_under_each_name() -> None:
    module = Tied()
    network = WholeNetwork(module, [n for n, _ in module.named_parameters()])
    seen = {n: t + 1 for n, t in network.initial.items()}
    state = state_of(network, seen, {})
    assert state["second.weight"].equal(state["first.weight"])
    assert state["again.bias"].equal(state["inner.bias"])
    loaded = Tied()
    loaded.load_state_dict(state)
    expected = network(add_client_axis(seen), {}, INPUTS)
    torch.testing.assert_close(loaded(INPUTS["pixel_values"]), expected)


def test_dropout_that_occurs_twice_drops_at_both_places() -> None:
    drop = nn.Dropout(0.5)
    module = nn.Sequential(nn.Flatten(), drop, nn.Linear(16, 200), drop)
    network = WholeNetwork(module, ["2.weight", "2.bias"])
    output = network(add_client_axis(network.initial), {}, INPUTS, [torch.Generator().manual_seed(0)])
    assert 0.3 < float((output == 0).float().mean()) < 0.7


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("second.weight", "is the same tensor as 'first.weight': name that"),
        ("inner.weight", "is the weight of an adapted layer, whose factors are trained"),
        ("first.wieght", "did you mean first.weight"),
        ("zzz", "there are: first.weight, second.bias, inner.bias"),
    ],
)
def test_refusal_of_a_parameter_says_why(name: str, reason: str) -> None:
    config = load({"algorithm": {"name": "fedit"}, "adapter": {"r": 2}, "train": {"what": [name]}})
    site = Site("inner", "linear", (16, 16), 2, 1.0, 0.0)
    with pytest.raises(ConfigError, match=re.escape(reason)):
        trained_names(config, Tied(), [], [site])
