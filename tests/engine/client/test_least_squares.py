"""Exact steps and second moments of gradients, against NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rondo.algorithm import Client, ClientFailed, Round
from rondo.config import ClientsConfig, TrainConfig
from rondo.engine.client.least_squares import _lstsq
from rondo.engine.client.trainer import CohortTrainer
from rondo.engine.faults import FailingTrainer
from rondo.errors import ConfigError
from rondo.models.networks.network import Network
from rondo.params import Select, body, down, head, up, whole
from rondo.tasks.task import Task

OUT, RANK, IN = 3, 2, 5


@dataclass(frozen=True)
class Point:
    x: Tensor
    y: Tensor
    cost: int = 1


class Regression(Task):
    primary, precision, least_squares = "loss", torch.float64, "y"

    @classmethod
    def of(cls, config: Any, tokenizer: Any, labels: Sequence[str]) -> Regression:
        return cls()

    encode = tally = None  # type: ignore[assignment]

    def collate(self, examples: Sequence[Point]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"x": torch.stack([e.x for e in examples])}, {"y": torch.stack([e.y for e in examples])}

    def loss(self, output: Tensor, targets: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return 0.5 * (output - targets["y"]).square().sum(-1), torch.ones(len(output))


class Curved(Regression):
    least_squares = None


class Layers(Network):
    """y = H (B A x + C x + c), with an offset c and an activation between."""

    def __init__(self, bend: Any = None) -> None:
        self.module, self.initial, self.bend = nn.Identity(), {}, bend

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        own = {n: t[rows.index] for n, t in params.items()}
        x = batch["x"].unsqueeze(-1)
        hidden = own["m.B"] @ (own["m.A"] @ x) + own["plain.weight"] @ x + 0.3
        hidden = hidden if self.bend is None else self.bend(hidden)
        return (own["head:h"] @ hidden).squeeze(-1)


def trainer(*counts: int, network: Network | None = None, task: Task | None = None) -> CohortTrainer:
    g = torch.Generator().manual_seed(3)

    def row() -> Point:
        x = torch.randn(IN, generator=g, dtype=torch.float64)
        return Point(x, torch.randn(OUT, generator=g, dtype=torch.float64))

    clients = tuple(Client(f"c{k}", n) for k, n in enumerate(counts))
    rows = tuple(tuple(row() for _ in range(n)) for n in counts)
    network, task = network or Layers(), task or Regression()
    return CohortTrainer(network, task, clients, rows, Round(0, 1, 0, 2), TrainConfig(), ClientsConfig(), {})


def start(clients: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(5)
    shapes = {"m.A": (RANK, IN), "m.B": (4, RANK), "plain.weight": (4, IN), "head:h": (OUT, 4)}
    return {n: torch.randn(clients, *s, generator=g, dtype=torch.float64) for n, s in shapes.items()}


def residuals(one: CohortTrainer, params: Mapping[str, Tensor], k: int) -> np.ndarray:
    a, b, c, h = (params[n][k].numpy() for n in ("m.A", "m.B", "plain.weight", "head:h"))
    x = np.stack([e.x.numpy() for e in one.examples[k]])
    y = np.stack([e.y.numpy() for e in one.examples[k]])
    return (x @ (b @ a + c).T + 0.3) @ h.T - y


@pytest.mark.parametrize("train", [up, down, head, body, up | body], ids=["up", "down", "head", "body", "up and body"])
def test_solve_finds_the_minimum(train: Select) -> None:
    """At a minimum the residuals are orthogonal to every column of the design matrix."""
    one, params = trainer(9, 6), start(2)
    fit = one.solve(params, train=train)
    for k in range(2):
        rest, x = residuals(one, fit.params, k), np.stack([e.x.numpy() for e in one.examples[k]])
        a, b, c, h = (fit.params[n][k].numpy() for n in ("m.A", "m.B", "plain.weight", "head:h"))
        slopes = {
            "m.B": h.T @ rest.T @ x @ a.T,
            "m.A": b.T @ h.T @ rest.T @ x,
            "plain.weight": h.T @ rest.T @ x,
            "head:h": rest.T @ (x @ (b @ a + c).T + 0.3),
        }
        for name, slope in slopes.items():
            if train(name):
                np.testing.assert_allclose(slope, 0, atol=1e-10)
            else:
                assert fit.params[name] is params[name]
        assert float(fit.loss[k]) == pytest.approx(0.5 * (rest**2).sum() / len(rest), rel=1e-12)
    assert fit.examples.tolist() == [9, 6]


def test_rehearsed_faults_reach_exact_steps() -> None:
    one, params = trainer(9, 6), start(2)
    FailingTrainer(one, ("nonfinite_loss", None)).solve(params, train=head)
    assert {name: failure.reason for name, failure in one.failed.items()} == {"c0": "nonfinite_loss"}
    with pytest.raises(MemoryError, match="a fault that was rehearsed"):
        FailingTrainer(one, ("out_of_memory", None)).solve(params, train=head)


def test_exact_step_counts_as_one() -> None:
    steps = trainer(9, 6).solve(start(2), train=head).steps
    assert (steps.tolist(), steps.dtype) == ([1, 1], torch.long)


def test_solved_head_is_numpys() -> None:
    one, params = trainer(9, 6), start(2)
    fit = one.solve(params, train=head)
    for k in range(2):
        x, y = (np.stack([getattr(e, n).numpy() for e in one.examples[k]]) for n in "xy")
        hidden = x @ (params["m.B"][k] @ params["m.A"][k] + params["plain.weight"][k]).numpy().T + 0.3
        expected = np.linalg.lstsq(hidden, y, rcond=None)[0].T
        np.testing.assert_allclose(fit.params["head:h"][k].numpy(), expected, atol=1e-12)


class Counted(Layers):
    """Counts its calls; each output has a factor of its own, if there are some."""

    def __init__(self, factors: Tensor | None = None) -> None:
        super().__init__()
        self.calls, self.factors = 0, factors

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        self.calls += 1
        output = super().__call__(*args, **options)
        return output if self.factors is None else output * self.factors


@pytest.mark.parametrize("factors", [None, [1.0, 2.0, -3.0]], ids=["one matrix", "a matrix per output"])
def test_columns_of_a_last_layer_serve_all_outputs(factors: list[float] | None) -> None:
    """Four calls for a head of 3 x 4 in place of twelve, beside one at zero and one to try them on, and as many times
    less memory."""
    network = Counted(None if factors is None else torch.tensor(factors, dtype=torch.float64))
    one, params = trainer(9, 6, network=network), start(2)
    solved = one.solve(params, train=head).params["head:h"]
    assert network.calls == 4 + 2 + 1  # the last for the loss
    expected = trainer(9, 6).solve(params, train=head).params["head:h"]
    if factors is not None:
        x, y = (np.stack([getattr(e, n).numpy() for e in one.examples[0]]) for n in "xy")
        hidden = x @ (params["m.B"][0] @ params["m.A"][0] + params["plain.weight"][0]).numpy().T + 0.3
        expected = torch.from_numpy(np.linalg.lstsq(hidden, y / np.array(factors), rcond=None)[0].T)
        solved = solved[0]
    torch.testing.assert_close(solved, expected, rtol=0, atol=1e-12)


def test_too_few_rows_give_the_smallest_minimiser() -> None:
    one = trainer(2)
    params = start(1)
    fit = one.solve(params, train=head)
    x, y = (np.stack([getattr(e, n).numpy() for e in one.examples[0]]) for n in "xy")
    hidden = x @ (params["m.B"][0] @ params["m.A"][0] + params["plain.weight"][0]).numpy().T + 0.3
    np.testing.assert_allclose(fit.params["head:h"][0].numpy(), (np.linalg.pinv(hidden) @ y).T, atol=1e-12)


def test_cohort_solves_as_each_client_alone() -> None:
    together = trainer(9, 6).solve(start(2), train=up).params["m.B"]
    both = trainer(9, 6)
    for k in range(2):
        alone = CohortTrainer(
            both.network, both.task, both.clients[k : k + 1], both.examples[k : k + 1], both.round, TrainConfig(),
            ClientsConfig(), {},
        )  # fmt: skip
        own = alone.solve({n: t[k : k + 1] for n, t in start(2).items()}, train=up).params["m.B"][0]
        torch.testing.assert_close(own, together[k], rtol=0, atol=1e-12)


def test_solve_refuses_an_output_that_is_not_linear() -> None:
    with pytest.raises(ConfigError, match=r"the output is not linear in m\.B"):
        trainer(9, 6, network=Layers(torch.tanh)).solve(start(2), train=up)
    with pytest.raises(ConfigError, match="the output is not linear in"):  # linear in each, not in both
        trainer(9, 6).solve(start(2), train=up | down)


def test_solve_refuses_another_loss() -> None:
    with pytest.raises(ConfigError, match="Curved has another loss"):
        trainer(9, task=Curved()).solve(start(1), train=up)


def test_client_without_rows_cannot_solve() -> None:
    with pytest.raises(ClientFailed, match="no_targets"):
        trainer(0).solve(start(1), train=up)


def test_client_with_infinite_rows_fails_alone() -> None:
    one = trainer(9, 6)
    broken = (*one.examples[0][:-1], Point(one.examples[0][0].x * torch.inf, one.examples[0][0].y))
    one.examples = (broken, one.examples[1])
    fit = one.solve(start(2), train=head)
    assert set(one.failed) == {"c0"}
    np.testing.assert_allclose(
        fit.params["head:h"][1], trainer(9, 6).solve(start(2), train=head).params["head:h"][1], atol=1e-12
    )


def test_second_moment_is_that_of_the_rows() -> None:
    one, params = trainer(9, 6), start(2)
    moment = one.second_moment(params, of=whole & ~head)
    for k in range(2):
        rest, h = residuals(one, params, k), params["head:h"][k].numpy()
        each = [np.outer(h.T @ r, e.x.numpy()).ravel() for r, e in zip(rest, one.examples[k], strict=True)]
        np.testing.assert_allclose(moment[k].numpy(), np.mean([np.outer(g, g) for g in each], 0), atol=1e-11)


@pytest.mark.parametrize("broken", ["matrix", "values"])
def test_system_that_is_not_finite_has_no_solution(broken: str) -> None:
    """Zeros would pass for one. The other systems of the batch keep theirs."""
    g = torch.Generator().manual_seed(0)
    matrices, values = (torch.randn(2, 5, n, generator=g, dtype=torch.float64) for n in (3, 1))
    (matrices if broken == "matrix" else values)[0, 2, 0] = torch.inf
    solved = _lstsq(matrices, values)
    assert bool(solved[0].isnan().all())
    expected = np.linalg.lstsq(matrices[1].numpy(), values[1].numpy(), rcond=None)[0]
    np.testing.assert_allclose(solved[1].numpy(), expected, atol=1e-12)
