from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Mean, Round, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.least_squares import leading_rows, least_squares, orthonormal_rows
from rondo.errors import ConfigError
from rondo.params import Params, body, head, pick
from rondo.traits import Traits

MOMENT = "aux:moment"
"""The name of a moment matrix, (d, d)."""


@dataclass(frozen=True)
class RepresentationState:
    """The representation with the head that new clients start from, and the moment (d, d) as far as it has come."""

    params: Params
    moment: Tensor


@final
@dataclass(frozen=True)
class FedRepLinear(Algorithm[RepresentationState]):
    """FedRep for linear regression: exact heads, one gradient step on the representation, QR.

    Update (Algorithm 2), with p_k the participants' weights, summing to 1, and f_k client k's mean of half the squared
    error on all of its rows; the first rounds are the start::

        start:     Z_k <- mean_j y_j^2 x_j x_j^T;            B^T <- the leading eigenvectors of sum_k p_k Z_k, as rows
        client k:  w_k <- argmin_w f_k(w, B);                B_k <- B - lr grad_B f_k(w_k, B)
        server:    B^T <- sum_k p_k B_k^T, rows orthonormal (QR)

    Symbols: the paper's B (d x k) is the body's matrix transposed, its w_i the head, its eta ``train.lr``.
    Fields: ``head_steps`` gradient steps from the client's last head replace the exact head (1 is the paper's GD-GD, 10
    its 10GD-GD; 0 is FedRep). ``start = "given"`` leaves out the moments: B starts from the network's own, made
    orthonormal. ``start_rounds`` is the number of rounds whose moments are averaged, for rounds with few clients.
    Needs: a task of least squares, a network of one matrix below a head, sgd without momentum, decay and clipping, and
    batches of all rows.
    Uploads: B, k d numbers, and in the rounds of the start Z, d d numbers. Down: B.
    Exact: no. The mean is exact, QR changes the basis that heads were made for.
    Linear: yes.
    Personal: yes. Heads stay with their clients.
    Head in the paper: local; here local by default.
    Deviations: all clients send Z in the paper, here the participants of the first ``start_rounds`` rounds. Z is the
    second moment of the rows' gradients where B is zero and w a unit vector, so it needs no access to rows. Batches are
    the same rows in every round, as in the paper's experiments (appendix A.1).
    Reference: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.
    """

    traits = Traits(
        exact=False,
        needs_factors=False,
        personal=True,
        keeps=head,
        default_head="local",
        least_squares=True,
        plain_sgd=True,
        server="other",
        readable=False,
    )
    head_steps: int = 0
    start: Literal["moments", "given"] = "moments"
    start_rounds: int = 1

    def __post_init__(self) -> None:
        if self.head_steps < 0:
            raise ValueError(f"head_steps is a number of steps, or 0 for the exact head; got {self.head_steps}")
        if self.start not in ("moments", "given"):
            raise ValueError(f"start is 'moments' or 'given', got {self.start!r}")
        if self.start_rounds < 1:
            raise ValueError(f"start_rounds is at least 1, got {self.start_rounds}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> RepresentationState:
        matrices, heads = pick(params, body), pick(params, head)
        shapes = [t.shape for t in matrices.values()]
        if len(heads) != 1 or len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] > shapes[0][1]:
            message = "fedrep-linear is for one matrix with more columns than rows below a head, and this network has"
            has = ", ".join(f"{n} {tuple(t.shape)}" for n, t in {**matrices, **heads}.items()) or "neither"
            raise ConfigError.at("algorithm.name", f"{message} {has}: take fedrep, or model.name = 'builtin:linear'")
        ((name, matrix),) = matrices.items()
        moment = torch.zeros(matrix.shape[1], matrix.shape[1], dtype=matrix.dtype)
        return RepresentationState({name: orthonormal_rows(matrix), **heads}, moment)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, head)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        params: Params = {**shared.params, **local}
        if self._starting(trainer.round):
            return trainer.upload({MOMENT: _moment(params, trainer)}), local
        if self.head_steps:
            params = trainer.fit(params, train=head, steps=self.head_steps).params
        else:
            params = least_squares(trainer).solve(params, train=head).params
        fit = trainer.fit(params, train=body, steps=1)
        return trainer.upload(pick(fit.params, body)), pick(fit.params, head)

    def finish(self, state: RepresentationState, mean: Mean, round: Round) -> RepresentationState:
        ((name, matrix),) = pick(state.params, body).items()
        if not self._starting(round):
            return replace(state, params={**state.params, name: orthonormal_rows(mean.params[name].to(matrix.dtype))})
        moment = state.moment + mean.params[MOMENT].to(matrix.dtype) / self.start_rounds
        if round.index + 1 < self.start_rounds:
            return replace(state, moment=moment)
        return RepresentationState({**state.params, name: leading_rows(moment, len(matrix))}, moment)

    def _starting(self, round: Round) -> bool:
        return self.start == "moments" and round.index < self.start_rounds


def _moment(params: Params, trainer: Trainer) -> Tensor:
    """mean_j y_j^2 x_j x_j^T of every client, (K, d, d): with B = 0 and w = (1, 0, ...), a row's gradient in the first
    row of B^T is -y x."""
    ((name, matrix),) = pick(params, body).items()
    ((top, weights),) = pick(params, head).items()
    unit = torch.zeros_like(weights)
    unit[..., 0, 0] = 1
    inputs = matrix.shape[-1]
    at = {name: torch.zeros_like(matrix), top: unit}
    return least_squares(trainer).second_moment(at, of=body)[:, :inputs, :inputs]
