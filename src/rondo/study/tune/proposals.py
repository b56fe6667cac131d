"""Points of a large grid, one after the other, by optuna's tree of Parzen estimators (TPE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.config.packages import missing
from rondo.errors import ConfigError
from rondo.study.tune.tuning import Point


class Proposals:
    """Proposes points of ``grid``. The same seed and the same losses give the same points, so a search that goes on
    asks anew for those that it has already tried. Raises :class:`ConfigError` where optuna is not installed."""

    def __init__(self, grid: Mapping[str, Sequence[Any]], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError.at("trials", missing("optuna"), "rondo tune") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._grid = grid
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32))
        # Places in the list of a key's values: numbers in order are near each other, other values are not.
        self._places: dict[str, Any] = {
            key: optuna.distributions.IntDistribution(0, len(values) - 1)
            if _in_order(values)
            else optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            for key, values in grid.items()
        }

    def ask(self) -> Point:
        """The next point. Its loss must be told before another is asked for."""
        self._asked = self._study.ask(self._places)
        return {key: values[self._asked.params[key]] for key, values in self._grid.items()}

    def tell(self, loss: float) -> None:
        """The loss of the last point; infinity for a trial that could not finish."""
        self._study.tell(self._asked, loss)


def _in_order(values: Sequence[Any]) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and list(values) in (sorted(values), sorted(values, reverse=True))
