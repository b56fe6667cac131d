from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from rondo.algorithm import (
    Algorithm,
    BaseState,
    Mean,
    Round,
    Shared,
    Trainer,
    Upload,
    Uploads,
    Weight,
    weighted_mean,
)
from rondo.algorithms.parts.product_mean import pairs, scaled
from rondo.algorithms.parts.sketch import check_sketch, rebuilt, relative_error, sketches
from rondo.algorithms.parts.training import TRAINED
from rondo.lowrank import LowRank, residual
from rondo.params import Params, adapted_modules, pick, sketch
from rondo.traits import Traits


@dataclass(frozen=True)
class SketchedBase(BaseState):
    """The server's tensors and its change of the base, and the measures of the last round's sketches."""

    measured: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class FedExLoRA(Algorithm[BaseState]):
    """FedIT whose server adds to the frozen base the part that averaging factors one by one loses.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k
                   W0 <- W0 + scale * (sum_k p_k B_k A_k - B A)

    The residual equals sum_k p_k (B_k - B)(A_k - A). It is sent as factors of rank <= (K - 1) r, K the number of
    uploads.
    Symbols: A (r x in) and B (out x r) are PEFT's.
    Fields: ``sketch`` s: beside A_k and B_k, clients send two sketches of B_k A_k, of s + 8 columns and of 2 s + 1
    rows, or of all its rows if there are fewer. The residual is rebuilt from their means (Tropp et al. 2017;
    ``parts.sketch``), exactly if s is at least its rank. The measure ``sketch_error`` estimates the error, relative to
    the mean product. The method is then linear, so it goes with secure aggregation and with differential privacy of
    clients. 0: the residual of the factors.
    Uploads: A and B, r (in + out) numbers per module; with a sketch (s + 8) out + (2 s + 1) in more.
    Down: A and B, r (in + out) numbers, the residual, (K - 1) r (in + out), with a sketch s (in + out), and the
    residuals of the rounds that the client missed; or instead of residuals the sum of them all, in * out numbers, where
    that is smaller.
    Exact: yes; with a sketch up to its error.
    Linear: no, the residual needs each client's pair of factors; with a sketch yes.
    Personal: no.
    Head in the source: trained and averaged; here shared by default.
    Deviations: the weights are the run's (uniform in the authors' code). The residual is added in the orientation of W
    (their code adds its transpose, which only GPT-2's Conv1D wants).
    Reference: Singhal, Ponkshe and Vepakomma, FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
    Foundation Models, 2024.
    """

    sketch: int = 0

    def __post_init__(self) -> None:
        check_sketch(self.sketch)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        plain = not self.sketch
        return Traits(exact=plain, server="mean" if plain else "other", readable=plain)

    @property
    def linear(self) -> bool:
        return self.sketch > 0

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BaseState:
        start = BaseState.start(params, weights)
        return SketchedBase(start.params, start.base, start.scale) if self.sketch else start

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = pick(trainer.fit(shared.params, train=TRAINED).params, TRAINED)
        beside = sketches(trained, self.sketch, trainer.round) if self.sketch else {}
        return trainer.upload({**trained, **beside}), local

    def finish(self, state: BaseState, mean: Mean, round: Round) -> BaseState:
        if not isinstance(state, SketchedBase):
            return super().finish(state, mean, round)
        # Off the sketches' means, since what is left has a lower rank than the mean product.
        averaged = {p: LowRank(mean.params[f"{p}.B"], mean.params[f"{p}.A"]) for p in adapted_modules(mean.params)}
        modules = rebuilt(mean.params, self.sketch, round, known=averaged)
        state = replace(state, measured=relative_error(modules))
        new = super().finish(state, replace(mean, params=pick(mean.params, ~sketch)), round)
        return new.with_chunks(scaled(((m.path, m.matrix) for m in modules), state.scale, state.params))

    def aggregate(self, state: BaseState, uploads: Iterable[Upload], round: Round) -> BaseState:
        if self.sketch:
            return super().aggregate(state, uploads, round)
        received = list(uploads)
        gaps = ((p, residual(*pairs(received, p))) for p in adapted_modules(state.params))
        new = self.finish(state, weighted_mean(received), round)
        return new.with_chunks(scaled(gaps, state.scale, state.params))

    def measures(self, state: BaseState) -> Mapping[str, float]:
        return state.measured if isinstance(state, SketchedBase) else {}
