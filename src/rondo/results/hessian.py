"""The Hessian of the loss at a run's model: stable rank and spectral density, without ever forming the matrix.

FedLoRU (section 3.1, Figure 1) compares srank(H) = |H|_F^2 / |H|_2^2 of a client's loss, on its few rows, with that of
the server's, on all rows. H is reached through products H v alone, each a gradient of a gradient
(:func:`lanczos`; Ghorbani et al., An Investigation into Neural Net Optimization via Hessian Eigenvalue Density, ICML
2019, as in PyHessian, which the paper uses).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rondo.errors import ConfigError, headed
from rondo.models.networks.network import Base, Network
from rondo.models.networks.rows import Rows
from rondo.params import Params, add_client_axis, buffer, on_device, pick
from rondo.results.reopen import reopen
from rondo.tasks.task import Example, Task

_SOURCE = "rondo.hessian"


@dataclass(frozen=True)
class HessianSpectrum:
    """The result of :func:`hessian`.

    >>> spectrum = rondo.hessian("runs/digits", rows=50, probes=1, steps=5)
    >>> len(spectrum.eigenvalues), spectrum.stable_rank > 1
    (5, True)
    """

    size: int
    """Numbers that the network trains: H is (size, size)."""
    rows: int
    """Rows behind the loss."""
    spectral: float
    """|H|_2, the largest absolute eigenvalue found; from below."""
    frobenius: float
    """|H|_F, estimated: size times the mean of |H v|^2 over random unit vectors v, and the root of that."""
    stable_rank: float
    """srank(H) = frobenius^2 / spectral^2 (FedLoRU, section 3.1)."""
    error: float | None
    """Standard error of ``stable_rank`` over the random vectors; None for one."""
    eigenvalues: tuple[float, ...]
    """Points of the spectral density, of all random vectors, ascending."""
    weights: tuple[float, ...]
    """The share of the spectrum at each point; they sum to 1."""


@headed(_SOURCE)
def hessian(
    run_dir: str | Path,
    *,
    client: str | None = None,
    rows: int | None = None,
    probes: int = 4,
    steps: int = 40,
    seed: int = 0,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
) -> HessianSpectrum:
    """The Hessian's spectrum of the mean loss on training rows, at the model that a run's server sends a newcomer, in
    all tensors that the network trains. For small networks: H v takes two passes over the rows, and ``steps`` vectors
    of the size of the model are kept in float64.

    The paper's own estimate (equation 87) weights squares by a smoothed density and divides by the density at the
    largest value, which depends on the smoothing; this is the stable rank itself. ``eigenvalues`` and ``weights`` are
    the density.

    ``client``: the rows are this client's; left out, those of all clients.
    ``rows``: so many of them, drawn by ``seed``; left out, all.
    ``probes``: random vectors. With more, ``frobenius`` is closer.
    ``steps``: products H v per vector. With more, ``spectral`` is closer; 40 suffice where one eigenvalue is apart.
    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: go on even if the base model, the rows, the settings or that code are not those of the run.

    Raises :class:`ConfigError`, also for a network whose loss cannot be differentiated twice: low-rank factors in a
    model of transformers.

    >>> spectrum = rondo.hessian("runs/digits", rows=50, probes=1, steps=5)
    >>> spectrum.size
    15010
    """
    for name, value in (("rows", rows), ("probes", probes), ("steps", steps)):
        if value is not None and value < 1:
            raise ConfigError.at(name, f"must be at least 1, got {value}")
    opened = reopen(
        run_dir,
        device,
        source=_SOURCE,
        rows=("examples_sha256", "clients_sha256"),
        exact=True,
        allow_code=allow_code,
        allow_changed=allow_changed,
    )
    assembly = opened.assembly
    members = assembly.population.members
    if client is not None and client not in members:
        raise ConfigError.at("client", f"no client {client!r}; there are: {', '.join(list(members)[:10])}")
    chosen = [e for name, member in members.items() if client in (None, name) for e in member.train]
    generator = torch.Generator().manual_seed(seed)
    if rows is not None:
        if rows > len(chosen):
            raise ConfigError.at("rows", f"there are {len(chosen)}: lower it")
        chosen = [chosen[i] for i in torch.randperm(len(chosen), generator=generator)[:rows].tolist()]
    seen, base = opened.model(None)
    network, size = assembly.model.network, assembly.config.evaluation.batch_size
    curvature = Curvature(network, assembly.task, seen, base, chosen, size)
    return spectrum(curvature.product, curvature.size, len(chosen), probes, steps, generator)


def spectrum(
    product: Callable[[Tensor], Tensor], size: int, rows: int, probes: int, steps: int, generator: torch.Generator
) -> HessianSpectrum:
    """The spectrum of a symmetric (size, size) matrix H. ``product`` gives H v for v (size,) in float64."""
    densities = []
    for _ in range(probes):
        signs = torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1
        densities.append(lanczos(product, signs / size**0.5, steps))
    squares = [size * float(weights @ values.square()) for values, weights in densities]
    spectral = max(float(values.abs().max()) for values, _ in densities)
    if not 0 < spectral < float("inf"):
        message = f"the Hessian is {spectral}: the loss has no curvature here, or is not finite"
        raise ConfigError.at("RUN_DIR", message)
    points = sorted((v, w / probes) for density in densities for v, w in zip(*map(Tensor.tolist, density), strict=True))
    mean = statistics.fmean(squares)
    error = statistics.stdev(squares) / probes**0.5 / spectral**2 if probes > 1 else None
    values, weights = zip(*points, strict=True)
    return HessianSpectrum(size, rows, spectral, mean**0.5, mean / spectral**2, error, values, weights)


def lanczos(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Points and weights of the spectral density of a symmetric H as the unit vector ``start`` v sees it: their sum
    ``weights @ f(points)`` is v^T f(H) v, for every polynomial f of degree below 2 ``steps``. The outer points are
    close to H's outer eigenvalues. Every vector is made orthogonal to all before it, twice."""
    basis = [start]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(steps, len(start))):
        after = product(basis[-1])
        diagonal.append(float(after @ basis[-1]))
        before = torch.stack(basis)
        for _ in range(2):
            after = after - before.mT @ (before @ after)
        norm = float(after.norm())
        if not norm > 1e-10 * max(map(abs, (*diagonal, *beside))):  # the space is closed under H
            break
        beside.append(norm)
        basis.append(after / norm)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    between = torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64)
    matrix += torch.diag(between, 1) + torch.diag(between, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors[0].square()


class Curvature:
    """Products with the Hessian of the mean loss on ``examples``, at the model ``seen`` (no client axis)."""

    def __init__(
        self, network: Network, task: Task, seen: Params, base: Base, examples: Sequence[Example], batch_size: int
    ) -> None:
        self.network, self.task, self.base = network, task, network.on_device(base)
        self.params = add_client_axis(on_device(seen, network.device))
        self.names = [n for n in pick(self.params, ~buffer) if n in network.initial]
        self.size = sum(self.params[name].numel() for name in self.names)
        self._batches = [examples[i : i + batch_size] for i in range(0, len(examples), batch_size)]
        with torch.no_grad():
            self.targets = sum(float(self._loss(self.params, rows)[1]) for rows in self._batches)

    def product(self, vector: Tensor) -> Tensor:
        """H v for ``vector`` (size,) in float64, on the CPU. Raises :class:`ConfigError` where the loss has no second
        derivative."""
        total = torch.zeros_like(vector)
        for rows in self._batches:
            leaves = [self.params[name].detach().requires_grad_() for name in self.names]
            parts = torch.split(vector, [leaf.numel() for leaf in leaves])
            along = [v.to(leaf).reshape(leaf.shape) for v, leaf in zip(parts, leaves, strict=True)]
            loss, _ = self._loss({**self.params, **dict(zip(self.names, leaves, strict=True))}, rows)
            gradient = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
            slope = torch.stack([(g * v).sum() for g, v in zip(gradient, along, strict=True)]).sum()
            try:
                # Not autograd.grad: it would pass over the layers that have no second derivative, and their part of H.
                slope.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                if "once_differentiable" not in str(error):
                    raise
                message = "its loss can be differentiated once only: name a run of a network that is trained whole"
                raise ConfigError.at("RUN_DIR", f"{message}, without low-rank factors") from None
            second = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
            total += torch.cat([part.flatten().double().cpu() for part in second])
        return total / self.targets

    def _loss(self, params: Params, rows: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """The sum of the losses of ``rows`` and the number of their targets."""
        inputs, targets = (on_device(part, self.network.device) for part in self.task.collate(rows))
        of_call = Rows.of([rows], self.task).to(self.network.device)
        sums, counts = self.task.loss(self.network(params, self.base, inputs, None, of_call), targets)
        return sums.sum(), counts.sum()
