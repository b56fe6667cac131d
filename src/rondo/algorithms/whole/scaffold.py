from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Fit, Loss, Mean, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.training import TRAINED, mean_gradient
from rondo.params import (
    AUXILIARY_PREFIX,
    Params,
    auxiliary,
    buffer,
    cast_like,
    inner,
    per_client,
    pick,
)
from rondo.traits import Traits

Option = Literal["I", "II"]


@final
@dataclass(frozen=True)
class Scaffold(Algorithm[ServerState]):
    """FedAvg whose clients correct their gradients by control variates, so that they drift apart less.

    Update, with x the server's tensors, c and c_k the server's and client k's control variates (one number for each
    number that is trained), eta the learning rate, K the local steps, S the participants and N the number of all
    clients::

        client k:  y_k <- x;   K times:  y_k <- y_k - eta (gradient at y_k - c_k + c)
        option I:  c_k+ = the mean gradient at x, over the client's rows
        option II: c_k+ = c_k - c + (x - y_k) / (K eta)
        server:    x <- x + server_lr * mean over S of (y_k - x)
                   c <- c + |S| / N * mean over S of (c_k+ - c_k);      then c_k <- c_k+ at each participant

    All control variates are zero at first, and c is then the mean of all clients' c_k in every round.
    Symbols: the paper's eta_l is the run's learning rate, its eta_g is ``server_lr``.
    Fields:
    - ``option`` "I" takes one more pass over the client's rows and goes with any optimizer. "II" needs no pass, but
      (x - y_k) / eta is the sum of the gradients for plain SGD only: a run with momentum, AdamW or a limit of the
      gradient's norm is refused.
    - ``server_lr``: the server's step. A run's ``[server] optimizer`` is refused: it would take the place of this step,
      and would step on control variates too.
    Uploads: y_k and c + (c_k+ - c_k), twice FedAvg's numbers: 2 r (in + out) per module for factors. Down: x and c, the
    same number.
    Exact: no. Each upload counts the same, whatever the run's weighting.
    Linear: yes, the mean and the number of uploads are all that the server needs.
    Personal: no. A client keeps c_k, which is no part of a model; a client that lost it starts again from zero.
    Head in the source: a part of the model, averaged; here shared by default. A local head has no control variates.
    Deviations: statistics (batch normalisation) have no control variates and are averaged without a step. Uploads are
    new values of what the client received, instead of differences: the same numbers, and limits of admission and robust
    rules then work on the differences.
    Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    algorithm 1.
    """

    option: Option = "I"
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if self.option not in get_args(Option):
            raise ValueError(f"option is one of {', '.join(get_args(Option))}; got {self.option!r}")
        if not 0 < self.server_lr < float("inf"):
            raise ValueError(f"server_lr must be positive; got {self.server_lr}")

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Option I takes the mean gradient from the loss; option II reads it off the movement."""
        plain = self.option == "II"
        return Traits(
            exact=False,
            needs_factors=False,
            weighting="equal",
            server="step",
            plain_sgd=plain,
            row_steps=plain,
        )

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        zeros = {_control(n): torch.zeros_like(t) for n, t in pick(params, ~buffer).items()}
        return ServerState({**params, **zeros})

    def local_init(self, shared: Shared, client: Client) -> Params:
        return {n: torch.zeros_like(t) for n, t in pick(shared.params, auxiliary).items()}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        x, c = pick(shared.params, ~auxiliary), pick(shared.params, auxiliary)
        correction = {n: c[_control(n)] - local[_control(n)] for n in pick(x, TRAINED & ~buffer)}
        at_x = mean_gradient(x, TRAINED, trainer) if self.option == "I" else None

        def corrected(trained: Params, loss: Loss) -> Tensor:
            along = inner(correction, trained)
            return loss(trained) + (along - along.detach())  # its gradient alone: its value is no loss

        fit = trainer.fit(x, train=TRAINED, objective=corrected)
        control = _movement(x, fit, correction, local, trainer.lr) if at_x is None else at_x
        kept = {_control(n): t for n, t in control.items()}
        new = {n: c[n] + (t - local[n]) for n, t in kept.items()}
        equal = torch.ones(len(trainer.clients))
        return trainer.upload({**pick(fit.params, TRAINED), **new}, equal), kept

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """``local`` as it is: the model has nothing that is a client's own."""
        return local

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        new = {}
        for name, value in mean.params.items():
            before = state.params[name].double()
            if auxiliary(name):
                value = before + mean.count / round.population * (value - before)
            elif self.server_lr != 1 and not buffer(name):
                value = before + self.server_lr * (value - before)
            new[name] = value
        return ServerState({**state.params, **cast_like(new, state.params)})

    def view(self, shared: Shared, local: Params) -> Params:
        return pick(shared.params, ~auxiliary)


def _control(name: str) -> str:
    """The name of a tensor's control variate."""
    return AUXILIARY_PREFIX + name


def _movement(x: Params, fit: Fit, correction: Params, local: Params, lr: float) -> dict[str, Tensor]:
    """Option II. A client that took no step keeps its control variates."""
    control = {}
    for name, c in correction.items():
        steps = per_client(fit.steps.to(c), c)
        gradient = (x[name] - fit.params[name]) / (steps.clamp_min(1) * lr) - c
        control[name] = torch.where(steps > 0, gradient, local[_control(name)])
    return control
