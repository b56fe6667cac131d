"""A client's copy of what its server sent, or counts on it to make."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from rondo.algorithm import Shared
from rondo.engine.wire.parcel import Parcel
from rondo.engine.wire.versions import held_versions, sum_version, version
from rondo.lowrank import GrowingSum


class Lacking(Exception):
    """A parcel counts on something that the client does not have, after a loss of its disk for example.

    ``names``: names of tensors, and module paths of base changes.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"not held: {', '.join(names)}")
        self.names = names


@dataclass
class Holdings:
    """Tensors and base changes, each as the client received it last, or made it at the start."""

    params: dict[str, Tensor] = field(default_factory=dict)
    base: dict[str, GrowingSum] = field(default_factory=dict)

    @staticmethod
    def made(start: Shared, parcel: Parcel) -> Holdings:
        """The part of ``start``, which the client made itself, that ``parcel`` counts on: tensors of its versions, and
        base changes of its digests. On another machine the last bit of some may differ; these are sent."""
        return Holdings(
            {name: t for name, t in start.params.items() if version(t) == parcel.versions.get(name)},
            {path: change for path, change in start.base.items() if sum_version(change) == parcel.made.get(path)},
        )

    @property
    def versions(self) -> dict[str, str]:
        """See :func:`~rondo.engine.wire.versions.held_versions`."""
        return held_versions(self.params, self.base)

    def take(self, parcel: Parcel) -> Shared:
        """The broadcast that ``parcel`` is a part of. Tensors and chunks inside are kept for later parcels.

        Raises :class:`Lacking`, and then keeps nothing, and drops base changes that another machine has rounded
        otherwise, which are sent whole; ValueError where a tensor inside has not the version that the
        parcel says.
        """
        for name, tensor in parcel.params.items():
            if version(tensor) != parcel.versions.get(name):
                raise ValueError(f"{name} does not have the version that the parcel says")
        params = {**self.params, **parcel.params}
        lacking = [n for n, v in parcel.versions.items() if n not in params or version(params[n]) != v]
        base = dict(self.base)
        for path, growth in parcel.base.items():
            try:
                base[path] = growth.onto(self.base.get(path))
            except ValueError:
                lacking.append(path)
        other = [p for p, digest in parcel.sums.items() if p in base and sum_version(base[p]) != digest]
        self.base = {path: change for path, change in self.base.items() if path not in other}
        if lacking or other:
            raise Lacking([*lacking, *other])
        self.params, self.base = params, base
        return Shared({n: params[n] for n in parcel.versions}, {path: base[path] for path in parcel.base})
