"""Exact minimisation of a least-squares loss, for every client of a cohort.

The design matrix comes from the network itself: the output at unit vectors, less the output at zero. One call gives a
column for all clients. The systems are solved in float64 on the CPU, by LAPACK's ``gelsd``, which gives the smallest of
several minimisers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rondo.errors import ConfigError
from rondo.models.networks.rows import Rows
from rondo.params import Params, pick
from rondo.tasks.task import Batch, Task

Output = Callable[[Params], Tensor]
"""The network's output on all rows of the cohort, given tensors with a client axis."""

_CLOSE = 0.75
"""A prediction is right to this share of the digits of the network's type."""


def minimiser(
    task: Task, output: Output, params: Params, names: Sequence[str], targets: Batch, rows: Rows
) -> dict[str, Tensor]:
    """The tensors called ``names`` of ``params`` (client axis K) at which each client's squared error is smallest.

    Raises :class:`ConfigError` where the task is not one of least squares, or the output not linear in these tensors.
    """
    if task.least_squares is None:
        message = f"it minimises a squared error exactly, and {type(task).__name__} has another loss"
        raise ConfigError.at("algorithm.name", f"{message}: take a task of least squares, as task.kind = 'linear'")
    system = _System(output, params, pick(params, names.__contains__), rows)
    values = targets[task.least_squares].reshape(sum(rows.counts), -1).double().cpu()
    if values.shape != system.origin.shape:
        message = f"the network has {system.origin.shape[1]} outputs and the rows {values.shape[1]} values"
        raise ConfigError.at("model.name", f"{message}: take a network that fits the data")
    return system.solution(values - system.origin)


class _System:
    """The linear systems of a cohort: output = origin + columns times unknowns."""

    def __init__(self, output: Output, params: Params, start: Params, rows: Rows) -> None:
        self.output, self.params, self.start, self.rows = output, params, start, rows
        self.index = rows.index.cpu()
        self.origin = self._at({n: torch.zeros_like(t) for n, t in start.items()})
        """The output at zero, (rows, outputs)."""

    def solution(self, rest: Tensor) -> dict[str, Tensor]:
        """The unknowns that bring the output nearest to ``rest`` (rows, outputs) above the origin. Raises
        :class:`ConfigError` where the output is not linear in them."""
        solution = self._by_output(rest)
        if solution is None:
            solution = self._together(rest)
        return {n: t.to(self.start[n].device, self.start[n].dtype) for n, t in solution.items()}

    def _by_output(self, rest: Tensor) -> dict[str, Tensor] | None:
        """The solution where the unknowns are one matrix (outputs, r) whose rows act on an output each, as a last
        layer's do: r columns then serve all outputs. None where it is not so."""
        if len(self.start) != 1:
            return None
        ((name, like),) = self.start.items()
        if like.dim() != 3 or like.shape[1] != rest.shape[1]:
            return None
        units = torch.eye(like.shape[2], dtype=like.dtype, device=like.device)
        columns = torch.stack([self._above({name: unit.expand_as(like)}) for unit in units], -1)
        probe = _probe(like)
        if not _close(self._above({name: probe}), (columns * probe.cpu()[self.index]).sum(-1), like.dtype):
            return None
        if bool((columns == columns[:, :1]).all()):  # one matrix for all outputs
            return {name: _lstsq(self._by_client(columns[:, 0]), self._by_client(rest)).mT}
        matrices = self._by_client(columns).transpose(1, 2)
        return {name: _lstsq(matrices, self._by_client(rest).mT.unsqueeze(-1)).squeeze(-1)}

    def _together(self, rest: Tensor) -> dict[str, Tensor]:
        """The solution of each client's system in all unknowns."""
        size = sum(t[0].numel() for t in self.start.values())
        units = torch.eye(size, dtype=torch.float64).unsqueeze(1).expand(-1, len(self.rows.counts), -1)
        columns = torch.stack([self._above(self._divided(unit)) for unit in units], -1)
        probe = {n: _probe(t) for n, t in self.start.items()}
        flat = torch.cat([t.flatten(1) for t in probe.values()], 1).cpu()
        dtype = next(iter(self.start.values())).dtype
        if not _close(self._above(probe), (columns * flat[self.index].unsqueeze(1)).sum(-1), dtype):
            message = f"the output is not linear in {', '.join(self.start)}, so there is no exact step"
            raise ConfigError.at("algorithm.name", f"{message}: take a method of gradient steps, or a linear network")
        matrices = self._by_client(columns).flatten(1, 2)
        return self._divided(_lstsq(matrices, self._by_client(rest).flatten(1).unsqueeze(-1)).squeeze(-1))

    def _at(self, unknowns: Params) -> Tensor:
        """The output at ``unknowns`` in float64 on the CPU, (rows, outputs)."""
        output = self.output({**self.params, **unknowns})
        return output.reshape(len(self.index), -1).double().cpu()

    def _above(self, unknowns: Params) -> Tensor:
        """The output at ``unknowns`` less the output at zero."""
        return self._at(unknowns) - self.origin

    def _divided(self, flat: Tensor) -> dict[str, Tensor]:
        """Numbers (K, n) as the unknown tensors."""
        parts = torch.split(flat, [t[0].numel() for t in self.start.values()], dim=1)
        pairs = zip(self.start.items(), parts, strict=True)
        return {n: part.reshape(t.shape).to(t.device, t.dtype) for (n, t), part in pairs}

    def _by_client(self, values: Tensor) -> Tensor:
        """Values (rows, ...) as (K, longest, ...). Rows that a client lacks are zero, which moves no minimiser."""
        counts = self.rows.counts
        if self.rows.even:
            return values.reshape(len(counts), -1, *values.shape[1:])
        padded = values.new_zeros(len(counts), max(counts), *values.shape[1:])
        for k, part in enumerate(torch.split(values, list(counts))):
            padded[k, : len(part)] = part
        return padded


def _probe(like: Tensor) -> Tensor:
    """Numbers of order 1 without a pattern, in the shape of ``like``."""
    return torch.arange(1.0, like.numel() + 1, dtype=torch.float64).mul(2**0.5).cos().reshape(like.shape).to(like)


def _close(actual: Tensor, predicted: Tensor, dtype: torch.dtype) -> bool:
    """Whether ``predicted`` equals ``actual`` up to the rounding of ``dtype``. Numbers that are not finite are left
    out: they fail their own client, and say nothing of the network."""
    finite = actual.isfinite() & predicted.isfinite()
    allowed = torch.finfo(dtype).eps ** _CLOSE * predicted[finite].abs().max() if finite.any() else torch.zeros(())
    return bool(((actual - predicted)[finite].abs() <= allowed).all())


def _lstsq(matrices: Tensor, values: Tensor) -> Tensor:
    """The least-squares solution of each system of a batch. One that is not finite becomes NaN: LAPACK would refuse the
    whole batch."""
    finite = matrices.isfinite().flatten(-2).all(-1) & values.isfinite().flatten(-2).all(-1)
    mask = finite[..., None, None]
    solved: Tensor = torch.linalg.lstsq(matrices.where(mask, 0.0), values.where(mask, 0.0), driver="gelsd").solution
    return solved.where(mask, torch.nan)
