from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Loss, Round, ServerState, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.parts.scales import module_scales
from rondo.algorithms.parts.training import TRAINED
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules, cut_rank, fixed, module_of, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class HetLoRA(Algorithm[ServerState]):
    """Clients of different ranks: truncated on the way down, zero-padded on the way up, weighted by norm.

    Update, with r_k the rank of client k::

        down:      the first r_k rows of A and columns of B
        client k:  (A_k, B_k) <- local training;   m_k = |scale * B_k A_k|, Frobenius, over all modules
        server:    A <- sum_k q_k pad(A_k)     B <- sum_k q_k pad(B_k)     q_k = m_k / sum_j m_j

    A client computes its own norm (by r x r Gram matrices) and sends it as the weight of its upload, so the server's
    sum stays linear. The server computes the norm again before it admits the upload. The norm is that of the change of
    the weights, so a module counts with its scale; with one scale for all modules the weights are the paper's,
    |B_k A_k|.
    Fields, where the tail is the part of the factors beyond the first ``keep`` of the ranks, measured by the sum over
    modules of scale * |B_tail| |A_tail|:
    - ``penalty`` adds penalty times the tail to the loss, so trailing ranks fade where they are not needed.
    - ``keep`` is the fraction of the ranks before the tail.
    - ``prune``: if the tail is smaller after local training than before, the client gives it up for good:
      r_k <- keep r_k. Off by default, as ``penalty`` is; the paper's self-pruning needs both.
    Uploads: r_k (in + out) numbers per module and one weight. Down: the same, without the weight (the modules' scales
    once).
    Exact: no.
    Linear: yes, where clients have no ranks of their own.
    Personal: no.
    Head in the source: none (causal LM); here shared by default, and averaged with the same weights.
    Deviations: the run's weighting is not used. Padding shrinks trailing ranks that few clients have. Ranks that a
    client gave up are zeros in its upload, so its bytes stay those of its first rank, and only the client knows how
    many ranks it has; a client that loses its own tensors starts with its first rank again. One scale for all ranks:
    the paper's model has none, and alpha / r_k for a client is a choice of later baselines.
    Reference: Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models, EMNLP 2024.
    """

    traits = Traits(exact=False, client_ranks=True, weighting="tensors")
    penalty: float = 0.0
    keep: float = 0.5
    prune: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.penalty < float("inf"):
            raise ValueError(f"penalty must not be negative; got {self.penalty}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is a fraction of the ranks, above 0 and at most 1; got {self.keep}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState({**params, **module_scales(params, weights)})

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(cut_rank(state.params, client.rank))

    def local_init(self, shared: Shared, client: Client) -> Params:
        if not self.prune:
            return {}
        ranks = {path: shared.params[f"{path}.A"].shape[0] for path in adapted_modules(shared.params)}
        return {f"{path}.I": torch.tensor([rank], dtype=torch.int32) for path, rank in ranks.items()}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        start, ranks = _first(shared.params, local), local
        fit = trainer.fit(
            start, train=TRAINED, objective=lambda p, loss: self._objective(_first(p, ranks), ranks, loss)
        )
        after = _first(fit.params, local)
        if self.prune:
            faded = self._tails(after, local) < self._tails(start, local)
            local = {n: torch.where(faded.unsqueeze(-1), self._kept(r), r) for n, r in local.items()}
            after = _first(after, local)
        return trainer.upload(pick(after, TRAINED), _norm(after)), local

    def weight_of(self, state: ServerState, upload: Upload) -> float:
        return float(_norm({**state.params, **upload.params}))

    def view(self, shared: Shared, local: Params) -> Params:
        return pick(_first(shared.params, local), ~fixed)

    def _objective(self, params: Params, local: Params, loss: Loss) -> Tensor:
        value = loss(pick(params, ~fixed))
        return value + self.penalty * self._tails(params, local) if self.penalty else value

    def _tails(self, params: Params, local: Params) -> Tensor:
        """The sum over modules of scale * |B_tail| |A_tail|, shape (K,)."""
        terms = []
        for path in adapted_modules(params):
            a, b = params[f"{path}.A"], params[f"{path}.B"]
            rank = local.get(f"{path}.I", torch.tensor([a.shape[-2]], dtype=torch.int32))
            tail = torch.arange(a.shape[-2], device=rank.device) >= self._kept(rank)
            terms.append(params[f"{path}.s"].flatten() * _where(tail.unsqueeze(-2), b).flatten(1).norm(dim=1))
            terms[-1] = terms[-1] * _where(tail.unsqueeze(-1), a).flatten(1).norm(dim=1)
        return torch.stack(terms).sum(0)

    def _kept(self, rank: Tensor) -> Tensor:
        """The ranks that are left when their tails are given up."""
        return (self.keep * rank).round().clamp_min(1).to(rank.dtype)


def _norm(params: Params) -> Tensor:
    """The norm of the change of all modules; a client axis may lead."""
    factors = [(params[f"{path}.s"] * params[f"{path}.B"], params[f"{path}.A"]) for path in adapted_modules(params)]
    changes = [LowRank(b, a).to(torch.float64) for b, a in factors]
    norm = torch.stack([m.inner(m) for m in changes]).sum(0).clamp_min(0).sqrt()
    # It is zero for all clients if none has learned anything, but a weight must be positive.
    return norm.clamp_min(1e-30)


def _first(params: Params, local: Params) -> dict[str, Tensor]:
    """``params`` with zeros beyond the clients' current ranks, which ``local`` holds. A client axis may lead."""
    result = dict(params)
    for name, rank in local.items():
        down_name, up_name = f"{module_of(name)}.A", f"{module_of(name)}.B"
        inside = torch.arange(params[down_name].shape[-2], device=rank.device) < rank
        result[down_name] = _where(inside.unsqueeze(-1), params[down_name])
        result[up_name] = _where(inside.unsqueeze(-2), params[up_name])
    return result


def _where(inside: Tensor, tensor: Tensor) -> Tensor:
    """``tensor`` where ``inside``, else zero."""
    return torch.where(inside.to(tensor.device), tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))
