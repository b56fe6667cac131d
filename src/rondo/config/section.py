"""A section of the configuration, types that many keys have, and the sections that stand by themselves."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A section. The reference of all keys (:mod:`rondo.config.reference`) is made of fields and their docstrings."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CompressionConfig(Section):
    """Uploads of fewer bytes. What clients receive is not compressed."""

    kind: Literal["none", "rounding", "top-k"] = "none"
    """``"rounding"`` sends each number of a client's change in ``bits`` bits, rounded up or down by chance so that the
    mean stays; ``"top-k"`` sends the largest numbers of each tensor's change, and the client adds the rest to its next
    upload (error feedback)."""
    bits: Literal[4, 8] | None = None
    """Bits of a number, with ``"rounding"``; left out, 8."""
    keep: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of each tensor's numbers that is sent, with ``"top-k"``; left out, 0.1."""


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
    """The name of the project (MLflow's experiment) that the run is put into."""
