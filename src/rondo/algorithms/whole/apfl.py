from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Loss, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import TRAINED
from rondo.params import (
    AUXILIARY_PREFIX,
    BUFFER_PREFIX,
    HEAD_PREFIX,
    Params,
    auxiliary,
    buffer,
    per_client,
    pick,
)
from rondo.traits import Traits

Mixing = Literal["during", "after"]
_ALPHA = f"{AUXILIARY_PREFIX}alpha"


@final
@dataclass(frozen=True)
class APFL(Algorithm[ServerState]):
    """FedAvg, and each client mixes the global model with one of its own.

    Update, with w the server's tensors, v_k client k's own, a = ``alpha`` and p_k the participants' weights, summing
    to 1::

        "during":  each local step, both on the same batch:
                   w_k <- w_k - eta grad f_k(w_k)
                   v_k <- v_k - eta a grad f_k(a v_k + (1 - a) w_k);      client k's model: a v_k + (1 - a) w
        "after":   w_k <- local training from w;   v_k <- local training from v_k;
                   v_k <- a v_k + (1 - a) w_k;                            client k's model: v_k
        server:    w <- sum_k p_k w_k

    v_k starts at the w that client k receives first.
    Symbols: the paper's alpha_i is ``alpha``.
    Fields:
    - ``mixing``: "during" is the paper's algorithm 1; "after" is the widespread code of PFLlib.
    - ``alpha``: 0 is FedAvg, 1 is local training.
    - ``adaptive``: a is each client's own. It starts at ``alpha`` and is trained beside v_k: its gradient is
      <v_k - w_k, grad f_k at the mix>, and every step ends within 0 and 1. Only with "during", which has that gradient.
    Uploads: w_k, as FedAvg; r (in + out) numbers per module for factors. Down: w, the same.
    Exact: no, the model is the personal one.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) starts from w.
    Head in the source: a part of both models; here shared by default. A local head serves both models.
    Deviations: the global model is FedAvg's, with two exceptions in "during", where one optimizer steps w_k and v_k:
    ``train.max_grad_norm`` limits the gradient of both together, and adapter dropout draws for both. The optimizer is
    the run's, for a too. The official code moves a in the first step of a round only, and adds 0.02 a to its gradient,
    which the paper does not have. PFLlib's code adapts a in every batch, from gradients at v_k and at w_k where the
    paper has that of the mix, and takes each batch's steps of w_k and v_k together; with "after" a stays as it is here,
    and v_k is trained after w_k. The mean loss of a round is the mix's. Statistics (batch normalisation) are never
    mixed: v_k has its own.
    Reference: Deng et al., Adaptive Personalized Federated Learning, 2020, algorithm 1 and section 4.2.
    """

    traits = Traits(exact=False, needs_factors=False, personal=True)
    mixing: Mixing = "during"
    alpha: float = 0.25
    adaptive: bool = False

    def __post_init__(self) -> None:
        if self.mixing not in get_args(Mixing):
            raise ValueError(f"mixing is one of {', '.join(get_args(Mixing))}; got {self.mixing!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is the share of the personal model, from 0 to 1; got {self.alpha}")
        if self.adaptive and self.mixing == "after":
            message = 'adaptive needs the gradient at the mix, which mixing = "after" never takes; '
            raise ValueError(message + 'set mixing = "during", or adaptive = false')

    def local_init(self, shared: Shared, client: Client) -> Params:
        if not self.adaptive:
            return shared.params
        like = next(iter(pick(shared.params, ~buffer).values()))
        return {**shared.params, _ALPHA: torch.full((1,), self.alpha, dtype=like.dtype, device=like.device)}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        if self.mixing == "after":
            fit = trainer.fit(shared.params, train=TRAINED)
            v = trainer.fit(local, train=TRAINED).params
            return trainer.upload(pick(fit.params, TRAINED)), self._mixed(v, fit.params)
        both = {**shared.params, **{_own(n): t for n, t in local.items()}}
        fit = trainer.fit(both, train=TRAINED | auxiliary, objective=self._both, project=_within)
        w, v = _parted(fit.params)
        return trainer.upload(pick(w, TRAINED)), v

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The clients' own tensors, fitted with the shared model as it is."""
        if self.mixing == "after":
            return self._mixed(trainer.fit(local, train=TRAINED).params, shared.params)
        return trainer.fit(
            local,
            train=TRAINED | auxiliary,
            objective=lambda v, loss: loss(self._mixed(v, shared.params)),
            project=_within,
        ).params

    def view(self, shared: Shared, local: Params) -> Params:
        w, _ = _parted(shared.params)
        return {**w, **local} if self.mixing == "after" else {**w, **self._mixed(local, w)}

    def _both(self, params: Params, loss: Loss) -> Tensor:
        """The loss of the mix, shape (K,), with the gradient of w's own loss in w."""
        w, v = _parted(params)
        at_w = loss(w)
        mix = loss(self._mixed(v, {n: t.detach() if not buffer(n) else t for n, t in w.items()}))
        return mix + at_w - at_w.detach()

    def _mixed(self, v: Params, w: Params) -> dict[str, Tensor]:
        """a v + (1 - a) w, but v's own statistics. A client axis may lead."""
        mixed = {}
        for name, tensor in pick(v, ~auxiliary).items():
            a: Tensor | float = self.alpha
            if _ALPHA in v:
                a = per_client(v[_ALPHA].squeeze(-1), tensor)
            mixed[name] = tensor if buffer(name) else a * tensor + (1 - a) * w[name]
        return mixed


def _within(trained: Params) -> Params:
    """Each client's share, between 0 and 1."""
    return {n: t.clamp(0, 1) for n, t in pick(trained, auxiliary).items()}


_MARK = "own:"


def _own(name: str) -> str:
    """The name of v's tensor beside w's in one fit. Its role is the same."""
    prefix, bare = _divided(name)
    return f"{prefix}{_MARK}{bare}"


def _parted(params: Params) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """w's tensors and v's, both under their own names."""
    w: dict[str, Tensor] = {}
    v: dict[str, Tensor] = {}
    for name, tensor in params.items():
        prefix, bare = _divided(name)
        owner = v if bare.startswith(_MARK) else w
        owner[prefix + bare.removeprefix(_MARK)] = tensor
    return w, v


def _divided(name: str) -> tuple[str, str]:
    """The prefix that says a tensor's role, or "", and the rest of its name."""
    prefix = next((p for p in (HEAD_PREFIX, BUFFER_PREFIX, AUXILIARY_PREFIX) if name.startswith(p)), "")
    return prefix, name.removeprefix(prefix)
