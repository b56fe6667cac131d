"""The interface of a tracker, and the trackers by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from rondo.config.section import Tracker as Name

Ending: TypeAlias = Literal["finished", "stopped"]


@dataclass(frozen=True)
class About:
    """A run as its trackers know it.

    - ``id``: made once for the run, and for no other.
    - ``name``: the name of its folder.
    - ``settings``: its configuration by key path.
    - ``secret_turnout``: whether nobody may learn how many clients take part in a round.
    """

    folder: Path
    id: str
    name: str
    project: str
    settings: Mapping[str, Any]
    secret_turnout: bool = False


class Tracker(Protocol):
    """One run at one tracker, used by one thread. Every method may raise anything."""

    def begin(self, about: About) -> int:
        """Begin, or go on with the run of the same id. Returns the number of rounds that it has already: the rounds
        after these are given to :meth:`round`, each once, in their order."""

    def round(self, done: int, values: Mapping[str, float]) -> None:
        """Note a round, the ``done``-th. Once it returns, the round is not given again."""

    def close(self, ending: Ending) -> None:
        """Write what is not written yet."""


def made(name: Name) -> Tracker:
    """The tracker of this name. Its package is imported by :meth:`Tracker.begin`."""
    if name == "tensorboard":
        from rondo.runs.tracking.trackers.tensorboard import TensorBoard

        return TensorBoard()
    if name == "mlflow":
        from rondo.runs.tracking.trackers.mlflow import MLflow

        return MLflow()
    from rondo.runs.tracking.trackers.trackio_wandb import Trackio, Wandb

    return Trackio() if name == "trackio" else Wandb()
