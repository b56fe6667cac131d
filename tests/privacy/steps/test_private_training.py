"""Private steps in the training loop: the gradient of each row in each kind of network, and the laws of draws, clip and
noise, which planted faults break."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from planted import STEPS_HALVED, STEPS_UNCLIPPED, Bug
from rondo.algorithm import Client, Loss, Round
from rondo.config import ClientsConfig, TrainConfig
from rondo.data.units import Units
from rondo.engine.client.trainer import CohortTrainer
from rondo.errors import ConfigError
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Network
from rondo.params import Params, add_client_axis, everything, up
from rondo.privacy import steps as private_step
from rondo.privacy.guarantee import Guarantee
from rondo.privacy.mechanism.noise import SecretStream
from rondo.privacy.steps import PrivateSteps, add_noise, clipped_sums
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.task import Task
from watched import planted

LABELS = ("no", "yes", "maybe")
IN, OUT = 5, 3


@dataclass(frozen=True)
class Point:
    x: Tensor
    y: Tensor
    cost: int = 1


class Regression(Task):
    primary, precision = "loss", torch.float64
    of = encode = tally = None  # type: ignore[assignment]

    def collate(self, examples: Sequence[Point]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"x": torch.stack([e.x for e in examples])}, {"y": torch.stack([e.y for e in examples])}

    def loss(self, output: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        return 0.5 * (output - targets["y"]).square().sum(-1), torch.ones(len(output))


class Layers(Network):
    """y = B A x + C x."""

    def __init__(self) -> None:
        self.module, self.initial = nn.Identity(), {}

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        a, b, c = (params[n][rows.index] for n in ("m.A", "m.B", "plain.weight"))
        x = batch["x"].unsqueeze(-1)
        return (b @ (a @ x) + c @ x).squeeze(-1)


@dataclass(frozen=True)
class Problem:
    network: Network
    task: Task
    rows: tuple[Any, ...]
    start: Params

    def trainer(self, privacy: Guarantee | None, rows: Sequence[Any] | None = None, **options: Any) -> CohortTrainer:
        rows = self.rows if rows is None else rows if isinstance(rows, Units) else tuple(rows)
        config = TrainConfig(
            **{"optimizer": "sgd", "lr": 1.0, "max_grad_norm": 0.0, "batch_size": len(rows), **options}
        )
        one = Client("ann", len(rows))
        return CohortTrainer(
            self.network, self.task, (one,), (rows,), Round(1, 3, 7, 2), config, ClientsConfig(), {}, promise=privacy
        )

    def gradient(self, trainer: CohortTrainer) -> dict[str, Tensor]:
        fit = trainer.fit(self.start, steps=1)
        return {n: t[0] - fit.params[n][0] for n, t in self.start.items()}


def linear(count: int = 7, *, solved: bool = False) -> Problem:
    """``solved``: at the start, no row has a gradient."""
    g = torch.Generator().manual_seed(3)
    shapes = {"m.A": (2, IN), "m.B": (OUT, 2), "plain.weight": (OUT, IN)}
    start = {n: torch.randn(1, *s, generator=g, dtype=torch.float64) for n, s in shapes.items()}
    a, b, c = (t[0] for t in start.values())
    rows = []
    for _ in range(count):
        x, far = (torch.randn(n, generator=g, dtype=torch.float64) for n in (IN, OUT))
        rows.append(Point(x, (b @ a + c) @ x + (0.0 if solved else 3.0) * far))
    return Problem(Layers(), Regression(), tuple(rows), start)


def of_text(module: Any, sites: Sequence[str], task: Task, texts: Sequence[dict[str, str]], heads: bool) -> Problem:
    module = module.double()
    chosen = tiny.sites(module, sites)
    network = AdaptedNetwork(copy.deepcopy(module), chosen, tiny.head_names(module) if heads else ())
    start = tiny.factors(chosen, 1)
    if heads:
        start |= {n: t.double() for n, t in tiny.head_of(network, 2).items()}
    return Problem(network, task, tuple(task.encode(texts)), add_client_axis(start))


TEXTS = [{"text": " ".join(f"w{3 * i + j}" for j in range(1 + i)), "label": LABELS[i % 3]} for i in range(7)]
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear": linear,
    "bert": lambda: of_text(
        tiny.bert(),
        ("query", "value"),
        SequenceClassification(tiny.tokenizer(), ["text"], "label", LABELS, 32),
        TEXTS,
        True,
    ),
    "gpt2": lambda: of_text(
        tiny.gpt2_lm(), ("c_attn",), CausalLM(tiny.tokenizer("gpt"), "text", (), None, 32), TEXTS[1:], False
    ),
}


def private(clip: float, noise: float = 0.0, debug_seed: int | None = 0) -> Guarantee:
    return Guarantee(adversary="server", unit="example", clip=clip, noise=noise, delta=1e-5, debug_seed=debug_seed)


def clipped_by_hand(problem: Problem) -> tuple[dict[str, Tensor], float]:
    """The mean of the rows' clipped gradients, each from a training of that row alone, and the clip, their median."""
    gradients = [problem.gradient(problem.trainer(None, [row])) for row in problem.rows]
    norms = torch.stack([torch.cat([t.flatten() for t in g.values()]).norm() for g in gradients])
    clip = float(norms.median())
    assert float(norms.min()) < clip < float(norms.max())
    scale = (clip / norms).clamp(max=1.0)
    sums = {n: sum(s * g[n] for s, g in zip(scale, gradients, strict=True)) for n in problem.start}
    return {n: t / len(gradients) for n, t in sums.items()}, clip


@pytest.mark.parametrize("size", [None, 3], ids=["whole", "in parts"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_step_is_the_mean_of_clipped_gradients_of_rows_alone(name: str, size: int | None) -> None:
    problem = PROBLEMS[name]()
    expected, clip = clipped_by_hand(problem)
    found = problem.gradient(problem.trainer(private(clip), micro_batch=size))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("size", [None, 1, 2, 3])
def test_persons_gradient_is_the_clipped_sum_of_their_rows(size: int | None) -> None:
    problem, persons = linear(), (0, 1, 0, 2, 2, 2, 1)
    alone = [problem.gradient(problem.trainer(None, [row])) for row in problem.rows]
    sums = [{n: sum(g[n] for g, p in zip(alone, persons, strict=True) if p == k) for n in alone[0]} for k in range(3)]
    norms = torch.stack([torch.cat([t.flatten() for t in g.values()]).norm() for g in sums])
    clip = float(norms.median())
    scale = (clip / norms).clamp(max=1.0)
    found = problem.gradient(problem.trainer(private(clip), Units(problem.rows, persons), micro_batch=size))
    for key in problem.start:
        expected = sum(s * g[key] for s, g in zip(scale, sums, strict=True)) / 7
        torch.testing.assert_close(found[key], expected, rtol=1e-6, atol=1e-12)


def test_all_rows_of_a_person_are_in_a_step_or_none() -> None:
    problem, seen = linear(12), []

    def noted(params: Params, loss: Loss) -> Tensor:
        seen.append(len(loss.rows))
        return loss(params)

    rows = Units(problem.rows, [k // 3 for k in range(12)])
    problem.trainer(private(1.0), rows, batch_size=6, local_steps=40).fit(problem.start, objective=noted)
    assert {3, 6} <= set(seen)  # six at once
    assert {n % 3 for n in seen} == {0}
    assert 0.3 < sum(seen) / (40 * 12) < 0.7


def test_micro_batch_bounds_the_rows_of_a_pass() -> None:
    problem = linear(40)
    counts: list[int] = []

    def counted(params: Params, loss: Loss) -> Tensor:
        counts.append(len(loss.rows))
        return loss(params)

    problem.trainer(private(1.0), batch_size=20, micro_batch=3).fit(problem.start, objective=counted, steps=4)
    assert max(counts) == 3
    counts.clear()
    problem.trainer(private(1.0), batch_size=20).fit(problem.start, objective=counted, steps=8)
    assert max(counts) == 20  # though some draws are of more rows
    assert len(counts) > 8


def test_row_that_is_not_finite_does_not_stop_the_client() -> None:
    problem = linear()
    bad = replace(problem.rows[0], y=torch.full((OUT,), float("nan"), dtype=torch.float64))
    trainer = problem.trainer(private(1.0), [bad, *problem.rows[1:]])
    without = problem.trainer(private(1.0), problem.rows[1:])
    assert not trainer.failed
    found, expected = problem.gradient(trainer), problem.gradient(without)
    for key, value in expected.items():
        torch.testing.assert_close(found[key] * 7, value * 6)


def test_losses_and_numbers_of_rows_are_not_told() -> None:
    problem = linear(20)
    trainer = problem.trainer(private(1.0), batch_size=5)
    fit = trainer.fit(problem.start, steps=3)
    assert trainer.mean_loss(0) is None
    assert (fit.steps.tolist(), fit.examples.tolist(), fit.loss.tolist()) == ([3], [15], [0.0])


def test_what_cannot_be_noised_is_refused() -> None:
    problem = linear()
    trainer = problem.trainer(private(1.0))
    halves: Any = lambda params, loss: loss.split(0.5)[0](params)  # noqa: E731
    for call in (
        lambda: trainer.solve(problem.start, train=up),
        lambda: trainer.second_moment(problem.start, of=up),
        lambda: trainer.fit(problem.start, objective=halves),
    ):
        with pytest.raises(ConfigError, match="no noise can be added"):
            call()
    with pytest.raises(ValueError, match="one client"):
        replace(trainer, clients=(Client("a", 1), Client("b", 1)))


# --- laws, and faults that break them ------------------------------------------------------------------------------


def gradients_of_steps(problem: Problem, privacy: Guarantee, **options: Any) -> Tensor:
    """The gradient of every step, (steps, numbers), at steps too small to change the model."""
    lr = 1e-9
    return steps_of(problem, problem.trainer(privacy, lr=lr, **options)) / lr


def steps_of(problem: Problem, trainer: CohortTrainer) -> Tensor:
    """What every step of a local training takes off the model, (steps, numbers)."""
    seen = [torch.cat([t.flatten() for t in problem.start.values()])]

    def noted(trained: Params) -> Params:
        seen.append(torch.cat([t.detach().flatten() for t in trained.values()]))
        return {}

    trainer.fit(problem.start, train=everything, project=noted)
    return -torch.stack(seen).diff(dim=0)


def law_of_noise() -> None:
    """Each step's noise is N(0, (z C)^2) over the expected rows, and a draw of its own."""
    noise = gradients_of_steps(linear(8, solved=True), private(0.5, 3.0), batch_size=2, local_steps=500)
    assert abs(float(noise.std()) / (3.0 * 0.5 / 2) - 1) < 0.03
    assert abs(float(noise.mean())) < 0.03
    assert abs(float((noise[1:] * noise[:-1]).mean() / noise.var())) < 0.03
    assert abs(float((noise[:, 1:] * noise[:, :-1]).mean() / noise.var())) < 0.03


@pytest.mark.parametrize("debug_seed", [0, None])
def test_no_noise_comes_twice(debug_seed: int | None) -> None:
    """Over steps and tensors, and in other local trainings, rounds and clients: who knows one could subtract it."""
    problem, lr = linear(8, solved=True), 1e-9
    first = problem.trainer(private(0.5, 3.0, debug_seed), lr=lr, batch_size=2, local_steps=40)
    bob = replace(first, clients=(Client("bob", 8),), _fits=0)
    later = replace(first, round=Round(1, 3, 7, 2, 9), _fits=0)
    moved = torch.cat([steps_of(problem, trainer) for trainer in (first, first, bob, later)]) / lr
    assert moved.shape == (160, 31)
    apart = torch.pdist(moved)  # of all pairs of steps: about 6 in the mean
    assert float(apart.min()) > 1.0
    of_tensors = torch.corrcoef(moved.mT) - torch.eye(31, dtype=torch.float64)
    assert float(of_tensors.abs().max()) < 5 / 160**0.5


def law_of_clip() -> None:
    problem = linear()
    expected, clip = clipped_by_hand(problem)
    found = problem.gradient(problem.trainer(private(clip)))
    assert [n for n, t in expected.items() if not torch.allclose(found[n], t, rtol=1e-6)] == []


def law_of_steps() -> None:
    """An epoch has a fixed number of steps, each with noise: a fifth of them draw no row."""
    moved = gradients_of_steps(linear(20, solved=True), private(1.0, 1.0), batch_size=1, local_epochs=3)
    assert len(moved) == 60
    assert (moved.abs().amax(1) > 1e-3).all()


def drawn(privacy: Guarantee) -> tuple[tuple[float, ...], ...]:
    problem, batches = linear(20), []

    def noted(params: Params, loss: Loss) -> Tensor:
        batches.append(tuple(loss(params).tolist()))
        return loss(params)

    problem.trainer(privacy, lr=1e-9, batch_size=4).fit(problem.start, objective=noted, epochs=40)
    return tuple(batches)


def law_of_draws() -> None:
    """Draws are not those of the run's seed, and each row is in a step with its probability."""
    first, second = drawn(private(1.0, debug_seed=None)), drawn(private(1.0, debug_seed=None))
    assert first != second
    assert abs(sum(map(len, first)) / (200 * 4) - 1) < 0.25
    assert len({len(batch) for batch in first}) > 2


LAWS = (law_of_noise, law_of_clip, law_of_steps, law_of_draws)


@pytest.mark.parametrize("law", LAWS)
def test_law(law: Callable[[], None]) -> None:
    law()


def _clipped_by_tensor(gradients: Params, *rest: Any) -> dict[str, Tensor]:
    return {n: clipped_sums({n: g}, *rest)[n] for n, g in gradients.items()}


BATCHES, GRADIENT = PrivateSteps.batches, PrivateSteps.gradient


def _no_empty_steps(self: PrivateSteps, *args: Any) -> Iterator[Any]:
    return (batch for batch in BATCHES(self, *args) if batch)


def _noiseless_empty_steps(self: PrivateSteps, trained: Params, parts: Any) -> dict[str, Tensor]:
    held = list(parts)
    return GRADIENT(self, trained, held) if held else {n: torch.zeros_like(t) for n, t in trained.items()}


def _fixed_size(self: SecretStream, population: int, probability: float) -> list[int]:
    return self.uniform(population).argsort()[: round(population * probability)].tolist()


@pytest.mark.parametrize(
    ("bug", "law"),
    [
        (STEPS_HALVED, law_of_noise),
        ((private_step, "add_noise", lambda s, d, _, e: add_noise(s, d, [SecretStream(5)], e)), law_of_noise),
        (STEPS_UNCLIPPED, law_of_clip),
        ((private_step, "clipped_sums", _clipped_by_tensor), law_of_clip),
        ((PrivateSteps, "batches", _no_empty_steps), law_of_steps),
        ((PrivateSteps, "gradient", _noiseless_empty_steps), law_of_steps),
        ((private_step, "SecretStream", lambda _, purpose: SecretStream(7, purpose)), law_of_draws),
        ((SecretStream, "chosen", _fixed_size), law_of_draws),
    ],
    ids=["halved", "reused", "unclipped", "by tensor", "no empty steps", "noiseless", "seeded draws", "fixed size"],
)
@pytest.mark.sweep(2)
def test_planted_fault_breaks_its_law(bug: Bug, law: Callable[[], None]) -> None:
    with planted(*bug), pytest.raises(AssertionError):
        law()
