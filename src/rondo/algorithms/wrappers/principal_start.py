"""PiSSA's start around a method that averages factors (``adapter.init_lora_weights = "pissa"``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from rondo.algorithm import Client, Mean, Round, Shared, Upload, Weight
from rondo.algorithms.parts.principal import principal
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.errors import ConfigError
from rondo.lowrank import GrowingSum
from rondo.params import Params


@dataclass(frozen=True)
class PrincipalState:
    """The wrapped algorithm's state, and the change of the base by the start, in W's units."""

    inner: Any
    base: Mapping[str, GrowingSum]

    @property
    def params(self) -> Params:
        params: Params = self.inner.params
        return params


@final
@dataclass(frozen=True)
class PrincipalStart(Wrapper[PrincipalState]):
    """``algorithm`` from factors that are the leading singular directions of the weights, which lose them: the model
    starts unchanged. The change of the base never changes again, so linearity and exactness are the algorithm's."""

    @property
    def linear(self) -> bool:
        return self.algorithm.linear

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> PrincipalState:
        """Raises :class:`ConfigError` for a method that changes the base itself, or does not keep the factors that it
        is given, in their coordinates."""
        factors, chunks = principal(params, weights)
        inner = self.algorithm.init({**params, **factors}, weights, round)
        given = all(inner.params.get(n) is t for n, t in factors.items())
        if hasattr(inner, "base") or not (given and self.algorithm.traits.same_coordinates):
            message = "'pissa' is for methods that average A and B as they are, which this one does not: take true, or "
            raise ConfigError.at("adapter.init_lora_weights", f"{message}a method such as fedit")
        return PrincipalState(inner, {path: GrowingSum.of(chunk) for path, chunk in chunks.items()})

    def broadcast(self, state: PrincipalState, client: Client, round: Round) -> Shared:
        return replace(self.algorithm.broadcast(state.inner, client, round), base=state.base)

    def expand(self, state: PrincipalState, upload: Upload) -> Upload:
        return self.algorithm.expand(state.inner, upload)

    def weight_of(self, state: PrincipalState, upload: Upload) -> float:
        return self.algorithm.weight_of(state.inner, upload)

    def finish(self, state: PrincipalState, mean: Mean, round: Round) -> PrincipalState:
        return replace(state, inner=self.algorithm.finish(state.inner, mean, round))

    def aggregate(self, state: PrincipalState, uploads: Iterable[Upload], round: Round) -> PrincipalState:
        return replace(state, inner=self.algorithm.aggregate(state.inner, uploads, round))

    def measures(self, state: PrincipalState) -> Mapping[str, float]:
        return self.algorithm.measures(state.inner)
