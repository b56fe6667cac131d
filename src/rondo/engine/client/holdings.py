"""A client's copy of what its server sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from rondo.algorithm import Shared
from rondo.engine.wire.parcel import Parcel
from rondo.engine.wire.versions import version
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
    """Tensors and base changes, each as the client received it last."""

    params: dict[str, Tensor] = field(default_factory=dict)
    base: dict[str, GrowingSum] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        """The version of every tensor by name, and the number of chunks by ``base:<path>``."""
        tensors = {name: version(tensor) for name, tensor in self.params.items()}
        return tensors | {f"base:{path}": str(change.count) for path, change in self.base.items()}

    def take(self, parcel: Parcel) -> Shared:
        """The broadcast that ``parcel`` is a part of. Tensors and chunks inside are kept for later parcels.

        Raises :class:`Lacking`, and then keeps nothing; ValueError where a tensor inside has not the version that the
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
        if lacking:
            raise Lacking(lacking)
        self.params, self.base = params, base
        return Shared({n: params[n] for n in parcel.versions}, {path: base[path] for path in parcel.base})
