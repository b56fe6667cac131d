"""Uploads of some slots of the factors: a slot is a row of A and the same column of B. Their numbers are beside them as
``<module>.I``."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from rondo.algorithm import UnreadableUpload, Upload
from rondo.params import Params, Role, module_of, role, up


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
