"""The section ``[track]``: the trackers that are told of a run's rounds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rondo.config.section import Section

Tracker = Literal["tensorboard", "trackio", "wandb", "mlflow"]

PACKAGES: dict[Tracker, str] = {
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
"""The package that each needs, by the name that Python imports."""


def _once(trackers: list[Tracker]) -> list[Tracker]:
    if len(set(trackers)) < len(trackers):
        raise ValueError("each tracker once")
    return trackers


class TrackConfig(Section):
    """Trackers that follow the run, in one thread (``docs/how-to/trackers.md``). No bit of the run depends on them."""

    to: Annotated[list[Tracker], AfterValidator(_once)] = Field(default_factory=list)
    """``"tensorboard"``, ``"trackio"``, ``"wandb"``, ``"mlflow"``, several or none."""
    project: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w .-]+$")] = "rondo"
    """The name of the project (MLflow's experiment) that the run is put into. TensorBoard has none."""
