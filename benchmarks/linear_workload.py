"""RoLoRA's linear problem, with which the contestants of ``simulation.py`` compare the cost of a round with almost no
training in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class LinearWorkload:
    """A linear problem in float64 of RoLoRA's section 4.1. All clients take part in every round.

    A round is half an iteration of RoLoRA's Algorithm 2: it minimises B, or takes a gradient step of A.
    """

    name: str = "W8"
    clients: int = 100
    samples: int = 100
    """Rows per client."""
    inputs: int = 20
    """Number of inputs, and of outputs."""
    start_distance: float = 0.9
    """Angle distance of the start from the truth."""
    lr: float = 0.5
    seed: int = 0

    @property
    def samples_per_round(self) -> int:
        """Rows of all clients."""
        return self.clients * self.samples


_W8 = LinearWorkload()
LINEAR_WORKLOADS = {w.name: w for w in (_W8, replace(_W8, name="W8-smallest", clients=2))}


def write_problem(workload: LinearWorkload, file: Path) -> None:
    """Write Rondo's problem of this seed as npz: ``x`` (clients, rows, d), ``y`` (clients, rows, out) and the ``start``
    of A (1, d)."""
    import numpy as np

    from rondo.config.section import ProblemConfig
    from rondo.tasks.numbers.linear_problem import LinearProblem

    problem = LinearProblem.draw(ProblemConfig.model_validate(problem_config(workload)), workload.seed)
    x = [problem.inputs(k) for k in range(workload.clients)]
    y = [own @ slope for own, slope in zip(x, problem.slopes, strict=True)]
    np.savez(file, x=np.stack(x), y=np.stack(y), start=problem.start.numpy())


def problem_config(workload: LinearWorkload) -> dict[str, object]:
    """The section ``[problem]`` of a run's configuration."""
    return {
        "kind": "factors",
        "clients": workload.clients,
        "rows": workload.samples,
        "inputs": workload.inputs,
        "start_distance": workload.start_distance,
    }
