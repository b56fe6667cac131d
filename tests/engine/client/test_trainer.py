"""The training loop against hand-written loops, and its promises about streams, batches and failures."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import tiny
from rondo.algorithm import Client, ClientFailed, Fit, Loss, Round
from rondo.config import ClientsConfig, TrainConfig
from rondo.engine.client.plain_step import batches
from rondo.engine.client.trainer import CohortTrainer
from rondo.engine.faults import FailingTrainer
from rondo.models.kernels.precision import Kernels, apply
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.params import Params, add_client_axis, down, everything, head, up
from rondo.privacy.steps import Chance
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from rondo.tasks.task import Batch

LABELS = ("no", "yes", "maybe")


class Recorder(SequenceClassification):
    """The task, with a record of the batches that it collated."""

    def __init__(self) -> None:
        super().__init__(tiny.tokenizer(), ["text"], "label", LABELS, 32)
        self.seen: list[list[TextExample]] = []

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        self.seen.append(list(examples))
        return super().collate(examples)


def examples(count: int, seed: int = 0) -> tuple[TextExample, ...]:
    """Different sentences of 4 to 14 tokens with a learnable label: the first word's number modulo 3."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(count):
        body = torch.randint(4, tiny.VOCABULARY, (int(torch.randint(1, 12, (1,), generator=g)),), generator=g)
        first = 4 + i % 36
        rows.append(TextExample((2, first, *body.tolist(), 3), first % 3, (0,) * (len(body) + 3)))
    return tuple(rows)


class Setup:
    """A double-precision BERT with an adapter and a head, and its training loop."""

    def __init__(self, count: int = 10, *, dropout: float = 0.0, round: Round | None = None, **options: Any) -> None:
        self.module = tiny.bert().double()
        self.sites: tuple[Site, ...] = tiny.sites(self.module, ("query", "value"), dropout=dropout)
        network = AdaptedNetwork(copy.deepcopy(self.module), self.sites, tiny.head_names(self.module))
        self.task = Recorder()
        config = TrainConfig(**{"batch_size": 4, "max_grad_norm": None, **options})
        self.round = round or Round(2, 10, 7, 3)
        self.trainer = CohortTrainer(
            network, self.task, (Client("ann", count),), (examples(count),), self.round, config, ClientsConfig(), {}
        )
        self.start = tiny.factors(self.sites, 1) | {n: t.double() for n, t in tiny.head_of(network, 2).items()}
        self.params = add_client_axis(self.start)

    def loss(self, tensors: Mapping[str, Tensor], batch: Sequence[TextExample]) -> Tensor:
        """The loss on a batch with all changes written into the weights, through torch only."""
        weights = dict(self.module.named_parameters())
        for s in self.sites:
            change = s.scale * tensors[f"{s.path}.B"] @ tensors[f"{s.path}.A"]
            weights[f"{s.path}.weight"] = weights[f"{s.path}.weight"] + change
        weights |= {n.removeprefix("head:"): t for n, t in tensors.items() if n.startswith("head:")}
        inputs, targets = SequenceClassification.collate(self.task, batch)
        logits = functional_call(self.module, weights, (), dict(inputs)).logits
        sums, counts = SequenceClassification.loss(self.task, logits, targets)
        return sums.sum() / counts.sum()

    def by_hand(self, select: Any, optimizer: Any, clip: float | None = None) -> dict[str, Tensor]:
        """The loop that the trainer must equal, on the batches that it has just used."""
        tensors = {n: t.detach().clone() for n, t in self.start.items()}
        trained = [t.requires_grad_() for n, t in tensors.items() if select(n)]
        stepper = optimizer(trained)
        for batch in self.task.seen:
            stepper.zero_grad()
            self.loss(tensors, batch).backward()
            if clip is not None:
                size = math.sqrt(sum(float(t.grad.square().sum()) for t in trained))
                for t in trained:
                    t.grad *= min(1.0, clip / size)
            stepper.step()
        return tensors


def assert_close(fit: Fit, expected: Mapping[str, Tensor]) -> None:
    assert fit.params.keys() == expected.keys()
    for name, tensor in fit.params.items():
        assert tensor.shape[0] == 1
        torch.testing.assert_close(tensor[0], expected[name].detach(), rtol=0, atol=1e-7)


def moved(fit: Fit, start: Params) -> set[str]:
    return {n for n, t in fit.params.items() if not t.equal(start[n])}


@pytest.mark.parametrize("select", [everything, up | head, down], ids=["all", "up-and-head", "down"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_hand_written_loop(select: Any, momentum: float) -> None:
    setup = Setup(optimizer="sgd", lr=0.05, momentum=momentum, weight_decay=0.01, local_epochs=2)
    fit = setup.trainer.fit(setup.params, train=select)
    assert [int(x) for x in (fit.steps, fit.examples)] == [6, 20]
    assert len(setup.task.seen) == 6
    expected = setup.by_hand(select, lambda ts: torch.optim.SGD(ts, lr=0.05, momentum=momentum, weight_decay=0.01))
    assert_close(fit, expected)
    assert moved(fit, setup.params) == {n for n in setup.params if select(n)}


def test_adamw_equals_hand_written_loop() -> None:
    setup = Setup(optimizer="adamw", lr=3e-3, weight_decay=0.1, local_epochs=2)
    fit = setup.trainer.fit(setup.params)
    assert_close(fit, setup.by_hand(everything, lambda ts: torch.optim.AdamW(ts, lr=3e-3, weight_decay=0.1)))
    assert moved(fit, setup.params) == set(setup.params)


def test_gradients_are_clipped_by_their_common_norm() -> None:
    def sgd(tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(tensors, lr=0.5)

    setup = Setup(optimizer="sgd", lr=0.5, max_grad_norm=0.05)
    fit = setup.trainer.fit(setup.params)
    assert_close(fit, setup.by_hand(everything, sgd, clip=0.05))
    one = Setup(optimizer="sgd", lr=0.5, max_grad_norm=0.05, local_steps=1)
    change = [t - one.params[n] for n, t in one.trainer.fit(one.params).params.items()]
    assert math.sqrt(sum(float(c.square().sum()) for c in change)) == pytest.approx(0.5 * 0.05, rel=1e-4)
    unclipped = Setup(optimizer="sgd", lr=0.5)
    free = unclipped.trainer.fit(unclipped.params).params
    assert not free["head:classifier.bias"].equal(fit.params["head:classifier.bias"])


def test_gradients_below_the_limit_keep_their_bits() -> None:
    """A limit bounds gradients; it never scales them up to itself."""
    free, limited = (Setup(optimizer="sgd", lr=0.5, max_grad_norm=limit) for limit in (0.0, 1e3))
    expected = free.trainer.fit(free.params).params
    torch.testing.assert_close(limited.trainer.fit(limited.params).params, expected, rtol=0, atol=0)


def test_reported_loss_is_the_mean_over_steps() -> None:
    setup = Setup(optimizer="sgd", lr=1e-9, local_epochs=1)
    fit = setup.trainer.fit(setup.params)
    with torch.no_grad():
        losses = [float(setup.loss(setup.start, batch)) for batch in setup.task.seen]
    (table,) = setup.trainer.losses
    assert table.shape == (3, 1)
    assert table[:, 0].tolist() == pytest.approx(losses, abs=1e-5)
    assert setup.trainer.mean_loss(0) == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert fit.loss.tolist() == pytest.approx([sum(losses) / len(losses)], abs=1e-5)


def test_loss_is_the_mean_over_all_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the mean of the rows' means: of two rows, that with more targets counts more."""

    def loss(logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        return 0.0 * logits.sum(1) + torch.tensor([6.0, 1.0, 1.0, 0.0]), torch.tensor([3, 1, 2, 0])

    setup = Setup(4, lr=1e-9)
    monkeypatch.setattr(setup.task, "loss", loss)
    assert setup.trainer.fit(setup.params, train=up).loss.tolist() == [8 / 6]


def test_mean_loss_is_over_a_clients_own_steps() -> None:
    setup = Setup(lr=1e-9)
    setup.trainer.clients = (Client("ann", 10), Client("bob", 3))
    setup.trainer.examples = (examples(10), examples(3, seed=1))
    fit = setup.trainer.fit(add_client_axis(setup.start, 2))
    (table,) = setup.trainer.losses
    expected = [float(table[:, 0].mean()), float(table[0, 1])]
    assert fit.steps.tolist() == [3, 1]
    assert fit.loss.tolist() == pytest.approx(expected, rel=1e-12)
    assert [setup.trainer.mean_loss(k) for k in (0, 1)] == pytest.approx(expected, rel=1e-12)


def test_training_lowers_the_loss() -> None:
    setup = Setup(36, lr=2e-2, local_epochs=8, batch_size=12)
    setup.trainer.fit(setup.params)
    losses = setup.trainer.losses[0][:, 0].tolist()
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])


def test_untrained_tensors_stay_the_same_objects() -> None:
    """The arguments are not changed either."""
    setup = Setup(lr=0.1)
    before = {n: t.clone() for n, t in setup.params.items()}
    fit = setup.trainer.fit(setup.params, train=up)
    for name, tensor in fit.params.items():
        assert (tensor is setup.params[name]) == (not up(name))
        assert not tensor.requires_grad
        assert setup.params[name].equal(before[name])
        assert not setup.params[name].requires_grad


def test_frozen_module_does_not_change() -> None:
    setup = Setup(lr=0.1)
    setup.trainer.fit(setup.params)
    trained, original = setup.trainer.network.module.state_dict(), setup.module.state_dict()
    assert len(trained) > 30
    torch.testing.assert_close(trained, {n: original[n] for n in trained}, rtol=0, atol=0)


# Optimizers and streams


def test_every_fit_has_a_fresh_optimizer_and_the_next_stream() -> None:
    """Two fits equal two trainers with one fit each, the second with its stream advanced: no momentum carries over."""
    setup = Setup(optimizer="sgd", lr=0.1, momentum=0.9)
    first = setup.trainer.fit(setup.params)
    second = setup.trainer.fit(first.params)
    other = Setup(optimizer="sgd", lr=0.1, momentum=0.9)
    other.trainer._fits = 1
    alone = other.trainer.fit(first.params)
    torch.testing.assert_close(second.params, alone.params, rtol=0, atol=0)
    assert setup.task.seen[:3] != setup.task.seen[3:]
    for half in (setup.task.seen[:3], setup.task.seen[3:]):
        assert {e for batch in half for e in batch} == set(setup.trainer.examples[0])


def _order(round: Round, client: str = "ann", fits: int = 0) -> list[list[TextExample]]:
    setup = Setup(20, round=round, lr=1e-6)
    setup.trainer.clients = (Client(client, 20),)
    setup.trainer._fits = fits
    setup.trainer.fit(setup.params, train=up)
    return setup.task.seen


def test_stream_depends_on_seed_round_client_and_fit() -> None:
    base = _order(Round(2, 10, 7, 3))
    assert _order(Round(2, 10, 7, 3)) == base
    assert _order(Round(2, 99, 7, 50)) == base  # but not on the run's length or the population
    assert _order(Round(3, 10, 7, 3)) != base
    assert _order(Round(2, 10, 8, 3)) != base
    assert _order(Round(2, 10, 7, 3), client="bob") != base
    assert _order(Round(2, 10, 7, 3), fits=1) != base


def test_training_ignores_and_keeps_the_global_random_state() -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        setup = Setup(dropout=0.3)
        results.append(setup.trainer.fit(setup.params).params)
        assert torch.random.get_rng_state().equal(before)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_adapter_dropout_is_on_and_differs_by_fit() -> None:
    """At a learning rate near zero only the masks make the losses of two fits on one batch differ."""
    with_dropout, without = (Setup(4, dropout=d, lr=1e-12) for d in (0.5, 0.0))
    for setup in (with_dropout, without):
        setup.trainer.fit(setup.params)
        setup.trainer.fit(setup.params)
    (first, second), (dropped, other) = ([float(t) for t in s.trainer.losses] for s in (without, with_dropout))
    assert first == pytest.approx(second, abs=1e-6)
    assert abs(dropped - other) > 1e-4
    again = Setup(4, dropout=0.5, lr=1e-12)
    again.trainer.fit(again.params)
    assert float(again.trainer.losses[0]) == dropped


@pytest.mark.parametrize(
    ("config", "call", "steps", "seen"),
    [
        ({}, {}, 3, 10),
        ({"local_epochs": 2}, {}, 6, 20),
        ({"local_steps": 2}, {}, 2, None),
        ({"local_steps": 5}, {}, 5, None),
        ({"local_epochs": 2}, {"steps": 1}, 1, None),
        ({"local_steps": 5}, {"epochs": 1}, 3, 10),
        ({"local_epochs": 3}, {"epochs": 2}, 6, 20),
        ({}, {"steps": 0}, 0, 0),
        ({}, {"epochs": 0}, 0, 0),
    ],
)
def test_local_steps_and_epochs(config: Any, call: Any, steps: int, seen: int | None) -> None:
    setup = Setup(**config)
    fit = setup.trainer.fit(setup.params, train=up, **call)
    assert len(setup.task.seen) == int(fit.steps) == steps
    assert int(fit.examples) == sum(map(len, setup.task.seen))
    assert seen is None or int(fit.examples) == seen
    if steps == 0:
        torch.testing.assert_close(fit.params, setup.params, rtol=0, atol=0)


def test_steps_beyond_an_epoch_take_a_new_order() -> None:
    setup = Setup(8, local_steps=4, lr=1e-9)
    setup.trainer.fit(setup.params, train=up)
    first, second = setup.task.seen[:2], setup.task.seen[2:]
    for half in (first, second):
        assert {e for batch in half for e in batch} == set(setup.trainer.examples[0])
    assert first != second


# The learning rate


def _rates(**options: Any) -> list[float]:
    config = TrainConfig(lr=0.5, **options)
    return [config.rate(t, 6) for t in range(6)]


def test_learning_rate_schedules() -> None:
    assert _rates() == [0.5] * 6
    assert _rates(schedule="linear") == pytest.approx([0.5 * (6 - t) / 6 for t in range(6)])
    assert _rates(schedule="cosine") == pytest.approx([0.25 * (1 + math.cos(math.pi * t / 6)) for t in range(6)])
    assert _rates(warmup_rounds=2) == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.5, 0.5, 0.5])
    warm = _rates(warmup_rounds=2, schedule="linear")
    assert warm == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.375, 0.25, 0.125])
    rates = {kind: _rates(schedule=kind) for kind in ("constant", "linear", "cosine")}
    assert [(kind, rate) for kind, of_kind in rates.items() for rate in of_kind if not 0 < rate <= 0.5] == []


@pytest.mark.parametrize("given", [None, 0.03])
def test_fit_uses_the_rounds_rate_unless_given_one(given: float | None) -> None:
    setup = Setup(optimizer="sgd", lr=0.08, schedule="linear", local_steps=1, round=Round(5, 10, 7, 3))
    fit = setup.trainer.fit(setup.params, lr=given)
    expected = setup.by_hand(everything, lambda ts: torch.optim.SGD(ts, lr=0.04 if given is None else given))
    assert_close(fit, expected)
    assert setup.trainer.lr == pytest.approx(0.04)


# Objectives


def test_fit_minimises_the_objective() -> None:
    def proximal(params: Params, loss: Loss) -> Tensor:
        return loss(params) + 3.0 * params["head:classifier.bias"].square().flatten(1).sum(1)

    def by_hand(tensors: Mapping[str, Tensor], batch: Sequence[TextExample]) -> Tensor:
        return Setup.loss(setup, tensors, batch) + 3.0 * tensors["head:classifier.bias"].square().sum()

    setup = Setup(optimizer="sgd", lr=0.05)
    fit = setup.trainer.fit(setup.params, objective=proximal)
    setup.loss = by_hand  # type: ignore[method-assign]
    assert_close(fit, setup.by_hand(everything, lambda ts: torch.optim.SGD(ts, lr=0.05)))


def test_constraint_holds_after_every_step() -> None:
    setup, heads = Setup(10, optimizer="sgd", lr=0.5), list[Tensor]()

    def watched(trained: Params, loss: Loss) -> Tensor:
        heads.append(trained["head:classifier.bias"].detach().clone())
        return loss(trained)

    def within(trained: Params) -> Params:
        return {n: t.clamp(-0.01, 0.01) for n, t in trained.items() if head(n)}

    fit = setup.trainer.fit(setup.params, objective=watched, project=within)
    assert len(heads) == 3
    later = [*heads[1:], fit.params["head:classifier.bias"]]
    assert [float(t.abs().max()) for t in later] == pytest.approx([0.01] * 3), "the bound was never reached"
    free = moved(fit, setup.params) - {n for n in setup.params if head(n)}
    assert free == {n for n in setup.params if not head(n)}


def test_step_is_freed_before_the_next_one() -> None:
    """So that two steps never take memory at once."""
    setup, values = Setup(local_steps=3), []

    def objective(seen: Params, loss: Loss) -> Tensor:
        assert [value for value in values if value() is not None] == []  # its graph is gone with it
        assert {n: t for n, t in seen.items() if t.grad is not None} == {}
        value = loss(seen)
        values.append(weakref.ref(value))
        return value

    setup.trainer.fit(setup.params, objective=objective)
    assert len(values) == 3


def test_objective_maps_trained_tensors_to_the_networks() -> None:
    """Trained tensors need not be the network's: the network's B is half of the trained one here."""

    def halved(params: Params, loss: Loss) -> Tensor:
        return loss({n: t / 2 if up(n) else t for n, t in params.items()})

    setup = Setup(optimizer="sgd", lr=0.05)
    doubled = {n: 2 * t if up(n) else t for n, t in setup.params.items()}
    fit = setup.trainer.fit(doubled, train=up, objective=halved)
    plain = Setup(optimizer="sgd", lr=0.0125)  # the gradient is halved, and so is the effect of a step
    expected = plain.trainer.fit(plain.params, train=up)
    for name, tensor in expected.params.items():
        torch.testing.assert_close(fit.params[name] / (2 if up(name) else 1), tensor, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("share", "sizes"), [(0.5, (2, 2)), (0.75, (3, 1))])
def test_parts_of_a_batch_have_losses_of_their_own(share: float, sizes: tuple[int, int]) -> None:
    setup = Setup(local_steps=1, optimizer="sgd")

    def objective(params: Params, loss: Loss) -> Tensor:
        (batch,) = setup.task.seen
        first, second = loss.split(share)
        parts = setup.task.seen[1:]
        assert tuple(map(len, parts)) == sizes
        assert sorted((*parts[0], *parts[1]), key=batch.index) == batch
        for part, rows in zip((first, second), parts, strict=True):
            torch.testing.assert_close(part(params)[0], setup.loss(setup.start, rows), rtol=0, atol=1e-7)
        return first(params) + 2 * second(params)

    fit = setup.trainer.fit(setup.params, objective=objective)
    by_hand = {n: t.detach().clone().requires_grad_() for n, t in setup.start.items()}
    value = setup.loss(by_hand, setup.task.seen[1]) + 2 * setup.loss(by_hand, setup.task.seen[2])
    grads = torch.autograd.grad(value, list(by_hand.values()))
    assert_close(fit, {n: t - setup.trainer.lr * g for (n, t), g in zip(by_hand.items(), grads, strict=True)})


def test_parts_of_a_cohorts_batch_keep_clients_apart() -> None:
    """Clients with 4, 1 and no rows left: each part's loss is the client's own."""
    setup = Setup(optimizer="sgd")
    trainer, rows = setup.trainer, examples(5)
    trainer.clients = (Client("ann", 4), Client("bob", 1), Client("cid", 1))
    chances = [Chance(*[Round(0, 1, 0, 3).generator(c.id) for _ in range(2)]) for c in trainer.clients]
    params = add_client_axis(setup.start, 3)
    first, second = trainer._loss([list(rows[:4]), [rows[4]], []], chances).split(0.5)
    for part, expected in ((first, [rows[0], rows[2]]), (second, [rows[1], rows[3]])):
        losses = part(params)
        torch.testing.assert_close(losses[0], setup.loss(setup.start, expected), rtol=0, atol=1e-7)
        torch.testing.assert_close(losses[1], setup.loss(setup.start, [rows[4]]), rtol=0, atol=1e-7)
        assert losses[2] == 0


# Failures


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_loss_fails_the_client(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    plain, calls = setup.task.loss, 0

    def loss(logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        sums, counts = plain(logits, targets)
        return sums * (value if calls == 2 else 1.0), counts

    monkeypatch.setattr(setup.task, "loss", loss)
    with pytest.raises(ClientFailed) as caught:
        setup.trainer.fit(setup.params)
    assert (caught.value.client, caught.value.reason) == ("ann", "nonfinite_loss")
    assert "step 1" in caught.value.detail
    assert setup.trainer.failed.keys() == {"ann"}
    assert setup.trainer.upload(setup.params) == ()


def test_nonfinite_parameters_fail_the_client() -> None:
    """Damage by the last step shows in no loss."""

    def objective(params: Params, loss: Loss) -> Tensor:
        # finite, but its gradient is not
        return loss(params) + torch.sqrt(0.0 * params["head:classifier.bias"].square().flatten(1).sum(1))

    setup = Setup(local_steps=1, optimizer="sgd")
    with pytest.raises(ClientFailed) as caught:
        setup.trainer.fit(setup.params, objective=objective)
    assert caught.value.reason == "nonfinite_parameters"


@pytest.mark.timeout(5)
@pytest.mark.parametrize("config", [{"local_epochs": 1}, {"local_steps": 3}], ids=["epochs", "steps"])
def test_client_without_examples_fails_without_hanging(config: Any) -> None:
    setup = Setup(**config)
    setup.trainer.examples = ((),)
    with pytest.raises(ClientFailed) as caught:
        setup.trainer.fit(setup.params)
    assert caught.value.reason == "no_targets"


# Batches


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("count", "size"), [(1, 4), (4, 4), (10, 4), (230, 4), (7, 1)])
def test_epoch_has_every_example_once(count: int, size: int, grouped: bool) -> None:
    rows = examples(count)
    epoch = list(batches(rows, size, torch.Generator().manual_seed(1), group_by_length=grouped))
    assert sorted(map(len, epoch)) == sorted([size] * (count // size) + [count % size] * (count % size > 0))
    ids = [id(e) for batch in epoch for e in batch]
    assert sorted(ids) == sorted(map(id, rows))
    again = list(batches(rows, size, torch.Generator().manual_seed(1), group_by_length=grouped))
    assert epoch == again
    if count > 8:
        assert epoch != list(batches(rows, size, torch.Generator().manual_seed(2), group_by_length=grouped))


def test_length_grouping_saves_padding_in_random_order() -> None:
    rows = examples(400)

    def padded(grouped: bool, seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        drawn = batches(rows, 8, generator, group_by_length=grouped)
        return sum(max(e.cost for e in batch) * len(batch) for batch in drawn)

    real = sum(e.cost for e in rows)
    assert padded(True, 1) < 1.1 * real < 1.4 * real < padded(False, 1)
    costs = [b[0].cost for b in batches(rows, 8, torch.Generator().manual_seed(1), group_by_length=True)]
    assert costs != sorted(costs, reverse=True)
    assert {tuple(b) for b in batches(rows, 8, torch.Generator().manual_seed(1), group_by_length=True)} != {
        tuple(b) for b in batches(rows, 8, torch.Generator().manual_seed(2), group_by_length=True)
    }


@pytest.mark.parametrize("grouped", [True, False])
def test_length_grouping_follows_the_configuration(grouped: bool) -> None:
    setup = Setup(count=200, length_grouping=grouped, local_epochs=1)
    setup.trainer.fit(setup.params)
    rows = [e for batch in setup.task.seen for e in batch]
    assert sorted(e.ids for e in rows) == sorted(e.ids for e in examples(200))
    padded = sum(max(e.cost for e in batch) * len(batch) for batch in setup.task.seen)
    assert (padded < 1.15 * sum(e.cost for e in rows)) == grouped


# Precision, uploads


def test_bfloat16_training_is_close_to_float32() -> None:
    """The trained tensors stay in float32."""

    def trained(dtype: torch.dtype) -> dict[str, Tensor]:
        setup = Setup(optimizer="sgd", lr=0.02)
        setup.trainer.network = AdaptedNetwork(tiny.bert(), setup.sites, tiny.head_names(setup.module))
        apply(setup.trainer.network.module, Kernels(dtype, "torch", "torch"))
        start = {n: t.float() for n, t in setup.params.items()}
        fit = setup.trainer.fit(start)
        return {n: t - start[n] for n, t in fit.params.items()}

    exact, rough = trained(torch.float32), trained(torch.bfloat16)
    assert {t.dtype for t in rough.values()} == {torch.float32}
    flat = [torch.cat([t.flatten() for t in changes.values()]) for changes in (exact, rough)]
    difference = float((flat[0] - flat[1]).norm() / flat[0].norm())
    assert 1e-5 < difference < 0.1  # zero would mean no rounding


@pytest.mark.parametrize(("weighting", "expected"), [("examples", 10.0), ("uniform", 1.0)])
def test_uploads_carry_the_configured_or_given_weight(weighting: Any, expected: float) -> None:
    setup = Setup()
    setup.trainer.weighting = ClientsConfig(weighting=weighting)
    (upload,) = setup.trainer.upload(setup.params)
    assert upload.weight == expected
    assert upload.client == Client("ann", 10)
    torch.testing.assert_close(upload.params, setup.start, rtol=0, atol=0)
    (upload,) = setup.trainer.upload(setup.params, torch.tensor([2.5]))
    assert upload.weight == 2.5


def of_two(setup: Setup) -> Params:
    """Let ann, who has six rows, and bob, who has three, train together; their tensors."""
    setup.trainer.clients = (Client("ann", 6), Client("bob", 3))
    setup.trainer.examples = (examples(6), examples(3))
    return {n: torch.cat([t, t]) for n, t in setup.params.items()}


def test_clients_and_fits_have_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """For dropout and augmentation. A client that is done has no rows, and its generators stay in their places."""
    setup, augmented, dropped = Setup(6, length_grouping=False), [], []
    params = of_two(setup)
    call = AdaptedNetwork.__call__

    def augment(inputs: Batch, rows_per_client: Sequence[int], generators: Sequence[torch.Generator]) -> Batch:
        augmented.append((list(rows_per_client), [g.initial_seed() for g in generators]))
        return inputs

    def forward(self: Any, seen: Any, base: Any, inputs: Any, dropout: Any, rows: Any) -> Any:
        dropped.append([g.initial_seed() for g in dropout])
        return call(self, seen, base, inputs, dropout, rows)

    monkeypatch.setattr(setup.task, "augment", augment)
    monkeypatch.setattr(AdaptedNetwork, "__call__", forward)
    for fit in range(2):
        setup.trainer.fit(params)
        seeds = {
            kind: [setup.round.attempt_generator(kind, name, fit).initial_seed() for name in ("ann", "bob")]
            for kind in ("augment", "dropout")
        }
        assert augmented[2 * fit :] == [([4, 3], seeds["augment"]), ([2, 0], seeds["augment"])]
        assert dropped[2 * fit :] == [seeds["dropout"]] * 2
    assert len({*dropped[0], *dropped[2], *augmented[0][1], *augmented[2][1]}) == 8


def test_client_stops_at_its_first_loss_that_is_not_finite() -> None:
    """Later losses, finite again, do not move it; the other client goes on."""
    setup, factors = Setup(6), iter([1.0, math.nan, 1.0, 1.0])
    params = of_two(setup)
    after: list[Params] = []

    def objective(seen: Params, loss: Loss) -> Tensor:
        after.append({n: t.detach().clone() for n, t in seen.items()})
        return loss(seen) * torch.tensor([next(factors), 1.0])

    fit = setup.trainer.fit(params, objective=objective, steps=4)
    assert {n: f.reason for n, f in setup.trainer.failed.items()} == {"ann": "nonfinite_loss"}
    assert moved(fit, after[1])
    for name, tensor in fit.params.items():
        assert tensor[0].equal(after[1][name][0])  # as the first step left it


def test_rehearsed_loss_that_is_not_finite_costs_its_client() -> None:
    setup = Setup(6)
    params = of_two(setup)
    FailingTrainer(setup.trainer, (None, "nonfinite_loss")).fit(params)
    assert {n: f.reason for n, f in setup.trainer.failed.items()} == {"bob": "nonfinite_loss"}
    assert [u.client.id for u in setup.trainer.upload(params)] == ["ann"]


def test_client_without_rows_is_told() -> None:
    setup = Setup(6)
    params = of_two(setup)
    setup.trainer.examples = (examples(6), ())
    with pytest.raises(ClientFailed) as error:
        setup.trainer.fit(params)
    failure = error.value
    expected = ("bob", "no_targets", "the client has nothing to train on")
    assert (failure.client, failure.reason, failure.detail) == expected


def test_gradients_are_clipped_per_client() -> None:
    """To the norm of the client's own gradient; the other's, a thousand times as long, counts for nothing."""
    setup = Setup(6, max_grad_norm=1e-3, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=1.0)
    params = of_two(setup)

    def objective(seen: Params, loss: Loss) -> Tensor:
        return loss(seen) * torch.tensor([1.0, 1000.0])

    fit = setup.trainer.fit(params, objective=objective, steps=1)
    steps = torch.stack([(t - params[n]).flatten(1).norm(dim=1) for n, t in fit.params.items()]).norm(dim=0)
    torch.testing.assert_close(steps, torch.full((2,), 1e-3, dtype=torch.float64), rtol=1e-3, atol=0)


def test_client_of_one_row_trains() -> None:
    setup = Setup(6)
    params = of_two(setup)
    setup.trainer.examples = (examples(6), examples(1))
    fit = setup.trainer.fit(params)
    assert (fit.steps.tolist(), fit.examples.tolist()) == ([2, 1], [6, 1])
    assert {n: t for n, t in fit.params.items() if n.endswith(".A") and t[1].equal(params[n][1])} == {}
