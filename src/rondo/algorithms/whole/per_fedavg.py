from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

from torch import Tensor

from rondo.algorithm import Algorithm, Loss, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import TRAINED, gradient, mean_gradient
from rondo.params import Params, buffer, inner, pick
from rondo.traits import Traits

Variant = Literal["fo", "hf"]


@final
@dataclass(frozen=True)
class PerFedAvg(Algorithm[ServerState]):
    """FedAvg of a model that is good after one step of each client (MAML), not as it is.

    Update, with a = ``inner_lr`` and every batch divided into D, ``support`` of its rows, and D', the others::

        each local step:  w' = w - a grad f(w; D)
                          v  = grad f(w'; D')
            "fo":         the meta-gradient is v
            "hf":         it is v - a (grad f(w + delta v; D) - grad f(w - delta v; D)) / (2 delta)
                          w <- the run's optimizer's step along it
        server:           w <- sum_k p_k w_k,  with p_k the participants' weights, summing to 1
        client's model:   w - a grad f_k(w)

    Symbols: the paper's alpha is ``inner_lr``, its beta the run's learning rate.
    Fields:
    - ``variant``: "fo" leaves the Hessian out; "hf" takes its product with v as a difference of gradients, at twice the
      cost: four gradients per step, each on a part of the batch.
    - ``inner_lr``: a above. 0 is FedAvg on the rows D'.
    - ``support``: the share of D. FedRep's comparison has 8 of 10 rows, and ``inner_lr`` 1e-4.
    - ``delta``: half the width of the difference.
    Uploads: w_k, as FedAvg; r (in + out) numbers per module for factors. Down: w, the same.
    Exact: yes, on whole tensors: the mean of the w_k.
    Linear: yes.
    Personal: no. Clients keep nothing. Scores are of the model after its step with the gradient of one epoch (the mean
    over its rows); the exported model is w.
    Head in the source: a part of the model, averaged; here shared by default. A local head takes no inner step.
    Deviations: the paper draws a third batch for the Hessian; here it is on D, as the inner step is. A batch of one row
    is both D and D'. Every gradient is a forward pass that updates statistics (batch normalisation).
    Reference: Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach, NeurIPS 2020, algorithm 1 and section 5.
    """

    traits = Traits(exact=True, needs_factors=False, scored_after_adapting=True, row_steps=False)
    variant: Variant = "hf"
    inner_lr: float = 0.01
    support: float = 0.5
    delta: float = 1e-3

    def __post_init__(self) -> None:
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant is one of {', '.join(get_args(Variant))}; got {self.variant!r}")
        if not 0 <= self.inner_lr < float("inf"):
            raise ValueError(f"inner_lr must not be negative; got {self.inner_lr}")
        if not 0 < self.support < 1:
            raise ValueError(f"support is a share of the batch, between 0 and 1, without either; got {self.support}")
        if not 0 < self.delta < float("inf"):
            raise ValueError(f"delta must be positive; got {self.delta}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=TRAINED, objective=self._after_a_step)
        return trainer.upload(pick(fit.params, TRAINED)), local

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The clients' models: the shared one after one step on each client's rows."""
        w = pick(shared.params, TRAINED & ~buffer)
        return self._stepped(w, mean_gradient(shared.params, TRAINED, trainer))

    def _stepped(self, w: Params, grad: Params) -> dict[str, Tensor]:
        return {n: t - self.inner_lr * grad[n] for n, t in w.items()}

    def _after_a_step(self, params: Params, loss: Loss) -> Tensor:
        """The loss on D' at w', shape (K,), with the meta-gradient as its gradient in w."""
        first, second = loss.split(self.support)
        w = pick(params, TRAINED & ~buffer)
        _, grad = gradient(first, params, w)
        after = self._stepped(w, grad)  # its derivative in w is the identity, because ``grad`` is a constant
        if self.variant == "fo":
            return second({**params, **after})
        value, v = gradient(second, params, after, attached=True)
        _, ahead = gradient(first, params, {n: t + self.delta * v[n] for n, t in w.items()})
        _, behind = gradient(first, params, {n: t - self.delta * v[n] for n, t in w.items()})
        meta = {n: v[n] - self.inner_lr * (ahead[n] - behind[n]) / (2 * self.delta) for n in v}
        along = inner(meta, w)
        return value + along - along.detach()
