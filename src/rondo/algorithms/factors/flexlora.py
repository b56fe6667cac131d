from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from rondo.algorithm import Algorithm, Client, Mean, Round, ServerState, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.parts.product_mean import Split, check_split, truncated, truncated_mean
from rondo.algorithms.parts.scales import ClientScale, check_client_scale, in_runs_scale, sent_to
from rondo.algorithms.parts.sketch import check_sketch, rebuilt, relative_error, sketches
from rondo.algorithms.parts.training import TRAINED
from rondo.params import Params, pick, whole
from rondo.traits import Traits


@dataclass(frozen=True)
class SketchedState(ServerState):
    """The server's tensors, and the measures of the last round's sketches."""

    measured: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class FlexLoRA(Algorithm[ServerState]):
    """The mean of the clients' products, truncated by SVD to each client's rank.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of its factors, of rank r_k
        server:    D = sum_k p_k B_k A_k = U S V^T
        down:      the first r_k rows of A = V^T and columns of B = U S       (split = "up")
                   A = sqrt(S) V^T and B = U sqrt(S)                          (split = "both")

    D is never formed: the stacked factors, by QR or their Gram matrices, leave a small core to decompose. One
    factorisation serves every rank, because truncations are nested.
    Symbols: A (r x in) and B (out x r) are PEFT's. The run's scale is not part of D, and uploads are in that scale.
    Fields, of which the first two change how a client trains from the model that it gets, and not this model:
    - ``split`` says which factor carries the singular values.
    - ``client_scale`` "rank": a client of rank r_k trains B at its own scale s_k = scale * r / r_k, which is
      alpha / r_k (the source's D = sum_k p_k s_k B_k A_k and B = U S / s_k). "run": at the run's scale, as clients of
      rank r do, so B's steps are smaller by r_k / r with Adam and by its square with SGD.
    - ``sketch`` s: in place of the factors, clients send two sketches of B_k A_k, of s + 8 columns and of 2 s + 1 rows,
      or of all its rows if there are fewer. D is rebuilt from their means (Tropp et al. 2017; ``parts.sketch``),
      exactly if s is at least its rank. The measure ``sketch_error`` estimates the relative error. The method is then
      linear, so it goes with secure aggregation and with differential privacy of clients. Take s above r: with less,
      directions are lost even where all clients agree. 0: D of the factors.
    Uploads: r_k (in + out) numbers per module; with a sketch (s + 8) out + (2 s + 1) in. Down: r_k (in + out).
    Exact: no. The broadcast model is the best of its rank (Eckart-Young), and the error is the part that the SVD drops.
    The global model, and so its scores and its export, is the one of rank r, without that part.
    Linear: no; with a sketch yes.
    Personal: no.
    Head in the source: none (causal LM); here shared by default.
    Deviations: the server keeps the first r singular directions, r the run's rank, because no client asks for more. If
    there are fewer, the last rows of A stay and their columns of B are zero.
    Reference: Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
    Resources, NeurIPS 2024.
    """

    split: Split = "up"
    client_scale: ClientScale = "run"
    sketch: int = 0

    def __post_init__(self) -> None:
        check_split(self.split)
        check_client_scale(self.client_scale)
        check_sketch(self.sketch)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return Traits(exact=False, client_ranks=True, server="other", readable=not self.sketch)

    @property
    def linear(self) -> bool:
        return self.sketch > 0

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return SketchedState(params) if self.sketch else ServerState(params)

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(sent_to(client, state.params, self.client_scale))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=TRAINED, objective=lambda p, loss: loss(in_runs_scale(p)))
        trained = pick(in_runs_scale(fit.params), TRAINED)
        if self.sketch:
            trained = {**sketches(trained, self.sketch, trainer.round), **pick(trained, whole)}
        return trainer.upload(trained), local

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        if not isinstance(state, SketchedState):
            return super().finish(state, mean, round)
        modules = rebuilt(mean.params, self.sketch, round)
        factors = truncated(((m.path, m.matrix) for m in modules), state.params, balanced=self.split == "both")
        mean = replace(mean, params={**pick(mean.params, whole), **factors})
        return super().finish(replace(state, measured=relative_error(modules)), mean, round)

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        if self.sketch:
            return super().aggregate(state, uploads, round)
        mean = truncated_mean(state.params, list(uploads), balanced=self.split == "both")
        return self.finish(state, mean, round)

    def measures(self, state: ServerState) -> Mapping[str, float]:
        return state.measured if isinstance(state, SketchedState) else {}

    def view(self, shared: Shared, local: Params) -> Params:
        return in_runs_scale(shared.params)
