"""Planted faults from public code: each breaks the law written for it, and no law breaks without a fault.

The correct FedEx-LoRA below passes every law, so the faults and not the harness make the others fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import (
    Algorithm,
    Client,
    Mean,
    Round,
    ServerState,
    Shared,
    Trainer,
    Traits,
    Upload,
    Uploads,
    Weight,
    weighted_mean,
)
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.lowrank import GrowingSum, LowRank, residual
from rondo.params import Params, Select, adapted_modules, down, head, pick, sub, up, whole
from rondo.testing import check_algorithm
from rondo.testing.laws import Formulas


def failures(algorithm: Algorithm[Any], formulas: Formulas | None = None) -> dict[str, str]:
    """The laws that ``algorithm`` breaks, each with its message."""
    return {r.law: r.detail for r in check_algorithm(algorithm, formulas=formulas, seeds=(0,)) if r.outcome == "failed"}


# --- an exact algorithm that moves the base: first correct, then with one fault each ------------------------------


@dataclass(frozen=True)
class FedExState:
    params: Params
    base: Mapping[str, GrowingSum]
    scale: Mapping[str, float]


@dataclass(frozen=True)
class FedEx(Algorithm[FedExState]):
    """FedEx-LoRA: factors are averaged, and the residual of the mean of products goes to the base."""

    traits = Traits(exact=True)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> FedExState:
        return FedExState(params, {}, {path: w.scale for path, w in weights.items()})

    def broadcast(self, state: FedExState, client: Client, round: Round) -> Shared:
        return Shared(state.params, state.base)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=down | up | whole)
        return trainer.upload(pick(fit.params, down | up | whole)), local

    def aggregate(self, state: FedExState, uploads: Iterable[Upload], round: Round) -> FedExState:
        received = list(uploads)
        base = dict(state.base)
        for path in adapted_modules(state.params):
            chunk = self.chunk(path, received, state.scale[path])
            base[path] = base[path] + chunk if path in base else GrowingSum.of(chunk)
        return replace(self.finish(state, weighted_mean(received), round), base=base)

    def chunk(self, path: str, received: list[Upload], scale: float) -> LowRank:
        return scale * gap(path, received, [u.weight for u in received])


def gap(path: str, received: list[Upload], weights: list[float]) -> LowRank:
    return residual([u.params[f"{path}.B"] for u in received], [u.params[f"{path}.A"] for u in received], weights)


class ScaleDropped(FedEx):
    """alpha / r never reaches the residual."""

    def chunk(self, path: str, received: list[Upload], scale: float) -> LowRank:
        return gap(path, received, [u.weight for u in received])


class ScaleTwice(FedEx):
    """alpha / r is applied to the residual twice."""

    def chunk(self, path: str, received: list[Upload], scale: float) -> LowRank:
        return scale**2 * super().chunk(path, received, 1.0)


class SquareResidualTransposed(FedEx):
    """The residual of a square layer is added transposed: shapes fit, so nothing else complains."""

    def chunk(self, path: str, received: list[Upload], scale: float) -> LowRank:
        right = super().chunk(path, received, scale)
        return LowRank(right.down.mT, right.up.mT) if right.shape[0] == right.shape[1] else right


class ResidualOfUniformWeights(FedEx):
    """The factors' means are weighted, the residual is that of uniform weights."""

    def chunk(self, path: str, received: list[Upload], scale: float) -> LowRank:
        return scale * gap(path, received, [1.0] * len(received))


class OnlyTheLastResidual(FedEx):
    """The base change is replaced every round instead of growing."""

    def aggregate(self, state: FedExState, uploads: Iterable[Upload], round: Round) -> FedExState:
        return super().aggregate(replace(state, base={}), uploads, round)


class NoResidual(FedEx):
    """FedIT that claims to be exact."""

    aggregate = Algorithm.aggregate


def test_correct_fedex_breaks_no_law() -> None:
    results = check_algorithm(FedEx(), seeds=(1,))
    # It is not linear, and no formula was given.
    assert {r.law: r.outcome for r in results if r.outcome != "passed"} == dict.fromkeys(
        ("raw sum", "bytes"), "not applicable"
    )


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "cls", [ScaleDropped, pytest.param(ScaleTwice, marks=pytest.mark.slow), SquareResidualTransposed, NoResidual]
)
def test_wrong_residual_breaks_only_exactness(cls: type[FedEx]) -> None:
    assert set(failures(cls())) == {"exactness"}


@pytest.mark.slow
def test_uniform_residual_breaks_exactness_and_weights_count() -> None:
    assert set(failures(ResidualOfUniformWeights())) == {"exactness", "weights count"}


def test_forgotten_residuals_break_exactness_and_zero_steps() -> None:
    assert {"exactness", "zero steps", "consensus"} == set(failures(OnlyTheLastResidual()))


@pytest.mark.slow
def test_base_change_counts_in_the_bytes_down() -> None:
    """Three clients' residual has 2 r (in + out) numbers, in * out at most; a formula that leaves them out is wrong."""

    def both(r: int, i: int, o: int, t: int, k: int) -> int:
        return r * (i + o)

    assert failures(FedEx(), (both, lambda r, i, o, t, k: r * (i + o) + min(2 * r * (i + o), i * o))) == {}
    assert set(failures(FedEx(), (both, both))) == {"bytes"}


# --- factors swapped ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain(Algorithm[ServerState]):
    """Averages what its clients train. Exact where they train one factor."""

    traits = Traits(exact=False)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def trained(self, round: Round) -> Select:
        return down | up

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = self.trained(trainer.round) | head
        fit = trainer.fit(shared.params, train=trained)
        return trainer.upload(pick(fit.params, trained)), local


class UpOnly(Plain):
    traits = Traits(exact=True)

    def trained(self, round: Round) -> Select:
        return up


class DownFirst(UpOnly):
    """RoLoRA that starts with A, whose gradient is zero while B is."""

    def trained(self, round: Round) -> Select:
        return down if round.index % 2 == 0 else up


class CountsSkippedAttempts(Plain):
    """Alternates by the number of attempts, so two halves of one factor follow each other after a skip."""

    def trained(self, round: Round) -> Select:
        return up if round.attempt % 2 == 0 else down


class InfiniteFromRoundFive(UpOnly):
    """From round 5 on the network sees factors that are not finite."""

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        factor = 1.0 if round.index < 5 else math.inf
        return Shared({n: factor * t for n, t in state.params.items()})


class FirstRoundStartsAnew(UpOnly):
    """The server draws B anew in round 0, whatever the clients learned or did not."""

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        new = super().finish(state, mean, round)
        drawn = {n: torch.ones_like(t) for n, t in pick(new.params, up).items() if round.index == 0}
        return ServerState({**new.params, **drawn})


class UploadsTheOther(UpOnly):
    """Trains B and uploads A."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=up | head)
        return trainer.upload(pick(fit.params, down | head)), local


class TrainsBothUploadsOne(UpOnly):
    """Trains both factors and uploads B alone."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=down | up | head)
        return trainer.upload(pick(fit.params, up | head)), local


class FactorsSwappedInView(UpOnly):
    """The network sees the factors in each other's place."""

    def view(self, shared: Shared, local: Params) -> Params:
        a, b = pick(shared.params, down), pick(shared.params, up)
        swapped = {n[:-1] + "B": t for n, t in a.items()} | {n[:-1] + "A": t for n, t in b.items()}
        return {**shared.params, **swapped}


UP_FORMULAS: Formulas = (lambda r, i, o, t, k: r * o, lambda r, i, o, t, k: r * o)


@pytest.mark.slow
def test_training_and_uploading_b_breaks_no_law() -> None:
    assert failures(UpOnly(), UP_FORMULAS) == {}


def test_starting_with_a_breaks_first_round_learns() -> None:
    """A cannot learn while B is zero."""
    assert set(failures(DownFirst())) == {"first round learns"}


@pytest.mark.slow
def test_late_uniform_weights_break_two_laws() -> None:
    assert {"weights count", "exactness"} <= set(failures(UniformFromRoundThree()))


def test_head_of_the_heaviest_client_breaks_whole_tensors() -> None:
    assert "whole tensors" in failures(HeaviestHead())


def test_expanding_uploads_breaks_raw_sum() -> None:
    assert set(failures(HalvesOnTheWay())) == {"raw sum"}


@pytest.mark.slow
def test_another_broadcast_for_one_client_breaks_the_raw_sum() -> None:
    assert "clients are sent different tensors" in failures(SendsOneMore())["raw sum"]


def test_counting_skipped_attempts_breaks_their_law() -> None:
    assert set(failures(CountsSkippedAttempts())) == {"skipped attempts"}


def test_uploading_the_untrained_factor_breaks_three_laws() -> None:
    broken = failures(UploadsTheOther(), UP_FORMULAS)
    assert set(broken) == {"bytes", "consensus", "exactness"}
    assert "numbers up" in broken["bytes"]


@pytest.mark.slow
def test_factor_left_out_of_uploads_breaks_two_laws() -> None:
    assert set(failures(TrainsBothUploadsOne(), UP_FORMULAS)) == {"consensus", "exactness"}


def test_swapped_factors_in_the_view_break_form() -> None:
    assert "form" in failures(FactorsSwappedInView())


@pytest.mark.slow
def test_late_infinite_factors_break_form() -> None:
    assert "form" in failures(InfiniteFromRoundFive())


@pytest.mark.slow
def test_result_of_the_first_round_counts_in_consensus_and_zero_steps() -> None:
    assert {"consensus", "zero steps"} <= set(failures(FirstRoundStartsAnew()))


# --- heads that leak, arguments that are written to ---------------------------------------------------------------


class PrivateHead(Plain):
    """Each client keeps its own head, as it should."""

    traits = Traits(exact=False, personal=True)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, head)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit({**shared.params, **local}, train=down | up | head)
        return trainer.upload(pick(fit.params, down | up)), pick(fit.params, head)


class HeadInAClassVariable(PrivateHead):
    """The model object is shared: each client continues with the head of the client before it."""

    last: ClassVar[dict[str, torch.Tensor]] = {}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        previous = {n: t.expand_as(local[n]) for n, t in self.last.items()}
        uploads, kept = super().client_update(shared, {**local, **previous}, trainer)
        self.last.update({n: t[-1:] for n, t in kept.items()})
        return uploads, kept


class WritesToShared(Plain):
    """The client writes what it trained into the tensors that it was given."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        uploads, kept = super().client_update(shared, local, trainer)
        for name, tensor in pick(shared.params, head).items():
            tensor.copy_(torch.stack([u.params[name] for u in uploads]))
        return uploads, kept


class WritesToLocal(PrivateHead):
    """The client writes what it trained into the tensors that it kept."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        uploads, kept = super().client_update(shared, local, trainer)
        for name, tensor in local.items():
            tensor.copy_(kept[name])
        return uploads, local


class WritesToStart(Plain):
    """The server draws the head anew, in the tensors that it was given."""

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        for tensor in pick(params, head).values():
            tensor.neg_()
        return ServerState(params)


class WritesToState(Plain):
    """The server averages in place."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        for name, mean in weighted_mean(uploads).params.items():
            state.params[name].copy_(mean)
        return state


class WritesToUploads(Plain):
    """The server scales the uploads in place before it adds them."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        received = list(uploads)
        mass = sum(u.weight for u in received)
        for upload in received:
            for tensor in upload.params.values():
                tensor.mul_(upload.weight / mass)
        new = {n: torch.stack([u.params[n] for u in received]).sum(0) for n in received[0].params}
        return ServerState({**state.params, **new})


@pytest.mark.slow
def test_private_head_breaks_no_law() -> None:
    assert failures(PrivateHead()) == {}


def test_leaked_head_breaks_no_leak() -> None:
    HeadInAClassVariable.last.clear()
    assert {"no leak", "cohort"} <= set(failures(HeadInAClassVariable()))


@pytest.mark.sweep(5)
@pytest.mark.parametrize("cls", [WritesToStart, WritesToShared, WritesToLocal, WritesToState, WritesToUploads])
def test_writing_into_an_argument_breaks_no_mutation(cls: type[Plain]) -> None:
    assert "no mutation" in failures(cls())


# --- weights that do not count ------------------------------------------------------------------------------------


class UniformMean(UpOnly):
    """Every upload counts the same, whatever its weight."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        return super().aggregate(state, [replace(u, weight=1.0) for u in uploads], round)


class UniformFromRoundThree(UpOnly):
    """Weights are ignored from round 3 on."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        counted = uploads if round.index < 3 else [replace(u, weight=1.0) for u in uploads]
        return super().aggregate(state, counted, round)


class HeaviestHead(UpOnly):
    """The new head is that of the client with the largest weight."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        received = list(uploads)
        new = super().aggregate(state, received, round)
        heaviest = max(received, key=lambda u: u.weight)
        return ServerState({**new.params, **pick(heaviest.params, head)})


class HalvesOnTheWay(UpOnly):
    """Uploads are expanded by the server, so their raw sum is of no use to it; the algorithm claims to be linear."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        uploads, kept = super().client_update(shared, local, trainer)
        return tuple(replace(u, params={n: t / 2 for n, t in u.params.items()}) for u in uploads), kept

    def expand(self, state: ServerState, upload: Upload) -> Upload:
        return replace(upload, params={n: 2 * t for n, t in upload.params.items()})


class SendsOneMore(UpOnly):
    """One client is sent a tensor that the others are not."""

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        more = {"first.A": state.params["first.A"] + 1} if client.id == "client-1" else {}
        return Shared({**state.params, **more})


class NotNormalised(UpOnly):
    """Weights are shares of the population, not renormalised over the participants."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        mean = weighted_mean(uploads)
        population = 21.0  # the examples of the harness's three clients: 4 + 7 + 10
        shrunk = {n: t * (mean.weight / population) for n, t in mean.params.items()}
        return self.finish(state, replace(mean, params=shrunk), round)


class OnlyTheFirst(UpOnly):
    """A loop that keeps the first upload (a misspelt variable)."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        return super().aggregate(state, list(uploads)[:1], round)


def test_ignored_weights_break_three_laws() -> None:
    assert set(failures(UniformMean(), UP_FORMULAS)) == {"weights count", "whole tensors", "exactness"}


@pytest.mark.slow
def test_ignored_weights_are_seen_without_claiming_exactness() -> None:
    class Modest(UniformMean):
        traits = Traits(exact=False)

    assert set(failures(Modest())) == {"weights count", "whole tensors"}


def test_unnormalised_weights_break_scale_and_exactness() -> None:
    assert {"weight scale", "exactness"} <= set(failures(NotNormalised()))


def test_keeping_one_upload_breaks_permutation_and_exactness() -> None:
    assert {"permutation", "exactness"} <= set(failures(OnlyTheFirst()))


# --- runs that cannot be repeated or saved ------------------------------------------------------------------------


class Unseeded(Plain):
    """The server adds noise from torch's global generator."""

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        new = super().aggregate(state, uploads, round)
        return ServerState({n: t + 1e-12 * torch.randn_like(t) for n, t in new.params.items()})


class ThawsWhatIsFrozen(UpOnly):
    """The server rounds a tensor that no client trains."""

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        new = super().finish(state, mean, round)
        return ServerState({**new.params, **{n: t.bfloat16().double() for n, t in pick(new.params, down).items()}})


class NeedsWhatItKept(PrivateHead):
    """After the first round a client relies on a memo that it should have kept."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        if trainer.round.index > 0:
            local["memo"]
        uploads, kept = super().client_update(shared, pick(local, head), trainer)
        return uploads, {**kept, "memo": torch.ones(len(trainer.clients), 1)}


class LooksAtTheFirstClient(Plain):
    """Code for one client that a cohort breaks: every client gets the first one's factors."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=down | up | head)
        first = {n: t[:1].expand_as(t) for n, t in fit.params.items()}
        return trainer.upload(first), local


class WeighsTheCohort(Plain):
    """Every client's weight is the number of examples of the whole cohort."""

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=down | up | head)
        examples = sum(c.num_examples for c in trainer.clients)
        return trainer.upload(fit.params, torch.full((len(trainer.clients),), float(examples))), local


class DividesByTheStep(UpOnly):
    """The server scales the step to its own length, which is 0 / 0 where no client moved."""

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        steps = sub(mean.params, state.params)
        scaled = {n: t.norm() * (t / t.norm()) for n, t in steps.items()}
        return super().finish(state, replace(mean, params={n: state.params[n] + t for n, t in scaled.items()}), round)


def test_unseeded_noise_breaks_same_seed() -> None:
    assert "same seed" in failures(Unseeded())


def test_changing_a_frozen_tensor_breaks_frozen_stay_frozen() -> None:
    assert "frozen stay frozen" in failures(ThawsWhatIsFrozen())


def test_needing_local_tensors_breaks_lost_local() -> None:
    assert set(failures(NeedsWhatItKept())) == {"lost local"}


def test_mixed_factors_of_a_cohort_break_cohort() -> None:
    assert set(failures(LooksAtTheFirstClient())) == {"cohort"}


@pytest.mark.slow
def test_mixed_weights_of_a_cohort_break_cohort() -> None:
    assert set(failures(WeighsTheCohort())) == {"cohort"}


@pytest.mark.slow
def test_nan_model_breaks_zero_steps() -> None:
    assert "zero steps" in failures(DividesByTheStep())


def test_raising_algorithm_fails_and_does_not_crash_the_check() -> None:
    class Raises(Plain):
        def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
            raise ZeroDivisionError("oops")

    broken = failures(Raises())
    assert "ZeroDivisionError: oops" in broken["form"]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("forgotten", [("aggregate", "linear"), ("finish",)], ids=["aggregate", "finish"])
def test_wrapper_that_forwards_less_breaks_wrapping(
    forgotten: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap that this law is for: FlexLoRA inside such a wrapper would be linear, and its model wrong."""
    for name in forgotten:
        monkeypatch.delattr(Wrapper, name)
    assert "wrapping" in failures(algorithms.get("flexlora" if "aggregate" in forgotten else "florg"))
