"""A section of the configuration, types that many keys have, and the sections that stand by themselves."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Threshold: TypeAlias = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A section. The reference of all keys (:mod:`rondo.config.reference`) is made of fields and their docstrings."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CompressionConfig(Section):
    """Uploads of fewer bytes. What clients receive is not compressed."""

    kind: Literal["none", "rounding", "top-k"] = "none"
    """``"rounding"`` sends each number of a client's change in ``bits`` bits, rounded by chance so that the mean stays;
    ``"top-k"`` sends the largest numbers of each tensor's change, and the client adds the rest to its next upload."""
    bits: Literal[4, 8] | None = None
    """Bits of a number, with ``"rounding"``; left out, 8."""
    keep: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of each tensor's numbers that is sent, with ``"top-k"``; left out, 0.1."""


class ProblemConfig(Section):
    """The linear problem of ``data.source = "builtin:linear"``, drawn from ``seed``: inputs x ~ N(0, I), and a truth
    that the clients' outputs y follow."""

    kind: Literal["factors", "heads"] = "factors"
    """``"factors"``: y = B A x, for a network of the two factors (RoLoRA, section 4.1). ``"heads"``: y = w_i B^T x, for
    a common representation B^T below a head w_i of each client (FedRep, section 4)."""
    clients: Positive = 10
    """Number of clients."""
    rows: Positive = 50
    """Rows of each client."""
    inputs: Positive = 10
    """Numbers in x."""
    outputs: Positive | None = None
    """Numbers in y, for factors; left out, as many as in x. A head has one."""
    rank: Positive = 1
    """Rows of A, or of the representation."""
    spread: Annotated[float, Field(ge=0)] = 0.0
    """For factors: distance of each client's B from their mean, over the norm of the mean, as a root mean square."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the noise in y."""
    design: Literal["gaussian", "isotropic"] = "gaussian"
    """``"isotropic"`` gives every client's inputs the second moment I exactly. It needs as many rows as inputs."""
    start_distance: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Distance between the start of A, or of the representation, and the truth: the sine of every principal angle. Left
    out, the start is random."""


Tracker = Literal["tensorboard", "trackio", "wandb", "mlflow"]

"""A tracker, by the name of its package."""


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
