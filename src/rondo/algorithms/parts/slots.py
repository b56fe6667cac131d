"""Uploads of some slots of the factors: a slot is a row of A and the same column of B. Their numbers are beside them as
``<module>.I``."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rondo.algorithm import Trainer, UnreadableUpload, Upload
from rondo.params import Params, Role, adapted_modules, module_of, role, up


def drawn(params: Params, trainer: Trainer, rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """``params`` (client axis K) with ``rank`` slots of each module, drawn at random for each client and round, and the
    slots' numbers, ``<module>.I`` (K, ``rank``), in ascending order."""
    own, slots = dict(params), {}
    for path in adapted_modules(params):
        a, b = params[f"{path}.A"], params[f"{path}.B"]
        streams = (trainer.round.generator("slots", c.id, path) for c in trainer.clients)
        kept = torch.stack([torch.randperm(a.shape[-2], generator=g)[:rank].sort().values for g in streams]).to(
            a.device
        )
        own[f"{path}.A"] = a.take_along_dim(kept[:, :, None], -2)
        own[f"{path}.B"] = b.take_along_dim(kept[:, None, :], -1)
        slots[f"{path}.I"] = kept.int()
    return own, slots


def placed(own: Params, slots: Params, full: Params) -> dict[str, Tensor]:
    """``own`` with whole factors: those of ``full``, in which its slots stand. A client axis leads, or one of rows in
    ``own`` alone. Differentiable."""
    seen = dict(own)
    for path, kept in ((module_of(n), t.long()) for n, t in slots.items()):
        a, b = full[f"{path}.A"], full[f"{path}.B"]
        places = torch.nn.functional.one_hot(kept, a.shape[-2]).to(a)  # (K, r_k, r)
        rest = 1 - places.sum(-2, keepdim=True)
        seen[f"{path}.A"] = rest.mT * a + places.mT @ own[f"{path}.A"]
        seen[f"{path}.B"] = rest * b + own[f"{path}.B"] @ places
    return seen


def filled(params: Params, upload: Upload) -> Upload:
    """``upload`` with whole factors: the slots that it lacks are those of ``params``, the server's. Raises
    :class:`UnreadableUpload` for slots that the server does not have, or that do not fit the values."""
    full = dict(upload.params)
    for path in (module_of(n) for n in upload.params if role(n) is Role.INDEX):
        slots = full.pop(f"{path}.I").long()
        for name in (n for n in (f"{path}.A", f"{path}.B") if n in full):
            _check(slots.tolist(), full[name], params[name], name)
            full[name] = params[name].index_copy(1 if up(name) else 0, slots, full[name].to(params[name].dtype))
    return replace(upload, params=full)


def _check(slots: list[int], values: Tensor, server: Tensor, name: str) -> None:
    """Raises :class:`UnreadableUpload` unless the slots differ, lie within the ``server``'s factor and are as many as
    there are ``values``."""
    axis = 1 if up(name) else 0
    if values.shape[axis] != len(slots) or values.shape[1 - axis] != server.shape[1 - axis]:
        detail = f"{name} is {tuple(values.shape)} for {len(slots)} slots of {tuple(server.shape)}"
        raise UnreadableUpload("wrong_shape", detail)
    total = server.shape[axis]
    if len(slots) != len(set(slots)) or not all(0 <= slot < total for slot in slots):
        raise UnreadableUpload("bad_slots", f"{name}: slots must differ and lie between 0 and {total - 1}")
