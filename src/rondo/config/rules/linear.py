"""Checks of a linear problem (``builtin:linear``). Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from rondo import own_code
from rondo.config.inputs import LINEAR, ProblemConfig
from rondo.config.schema import RunConfig
from rondo.errors import Problem


def linear_checks(config: RunConfig, source: str | None) -> Iterator[Problem]:
    """Yield the faults of a linear problem: of its section, and of data, task and network that do not go together.

    ``source``: the data of the run.
    """
    problem, data, model = config.problem, source == LINEAR, config.model.name == LINEAR
    if model and config.task.kind != "linear":
        yield Problem("model.name", f"{LINEAR!r} is a network for task.kind = 'linear': set it, or name another")
    if config.task.kind == "linear" and not model and not own_code.is_name(config.model.name):
        message = f"kind = 'linear' needs {LINEAR!r}, or a network of one's own as package.module:factory: name one"
        yield Problem("model.name", message)
    if not (data or model) and problem != ProblemConfig():
        yield Problem("problem", f"only data.source = {LINEAR!r} uses this section: set it, or remove the section")
    if problem.kind == "heads":
        for key in ("outputs", "spread"):
            if getattr(problem, key):
                yield Problem(f"problem.{key}", "only kind = 'factors' uses it: remove it")
    outputs = problem.inputs if problem.outputs is None else problem.outputs
    largest = problem.inputs if problem.kind == "heads" else min(problem.inputs, outputs)
    if problem.rank > largest:
        yield Problem("problem.rank", f"above {largest}, the most that these sizes allow: lower it")
    if problem.kind == "heads" and problem.clients < problem.rank:
        yield Problem("problem.clients", f"fewer than rank = {problem.rank}, so the heads cannot differ: raise it")
    if problem.design == "isotropic" and problem.rows < problem.inputs:
        message = f"isotropic inputs need as many rows as inputs, {problem.inputs}: raise it, or take gaussian ones"
        yield Problem("problem.rows", message)
    if problem.start_distance is not None and problem.inputs < 2 * problem.rank:
        message = f"{problem.inputs} inputs have no room for rank = {problem.rank} rows at a distance of as many others"
        yield Problem("problem.start_distance", f"{message}: raise problem.inputs, or remove it")
