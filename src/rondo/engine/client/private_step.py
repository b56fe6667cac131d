"""Steps with example-level differential privacy (DP-SGD, Abadi et al. 2016), of one client.

Every row is a client of its own: client code is batch-transparent, so an algorithm's objective gives one loss per row
unchanged, and one backward pass gives one gradient per row. Terms of the objective that depend on parameters only are
in each row's gradient and are clipped with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rondo.config.schema import PrivacyConfig
from rondo.params import Params
from rondo.privacy.secret import SecretStream

T = TypeVar("T")


class PrivateSteps:
    """The draws of rows and the noise of one local training of one client.

    ``privacy``: with ``clip``, ``noise`` and ``delta`` set.
    ``size``: expected rows of a step, of ``population`` rows in all; at most all of them.
    ``purpose``: one per client, attempt and local training, where a debug seed is set.
    """

    def __init__(self, privacy: PrivacyConfig, size: int, population: int, purpose: str) -> None:
        assert isinstance(privacy.clip, float)
        assert privacy.noise is not None
        self.clip, self.deviation = privacy.clip, privacy.noise * privacy.clip
        self.expected, self.population = min(size, population), population
        self._draws = SecretStream(privacy.debug_seed, f"{purpose}/rows")
        self._noise = SecretStream(privacy.debug_seed, f"{purpose}/noise")

    def batches(self, rows: Sequence[T], steps: int | None, epochs: int) -> Iterator[list[T]]:
        """Poisson draws of ``rows``, of which any may be empty: ``steps`` of them, or enough for ``epochs`` epochs in
        expectation, so their number tells nothing of what was drawn."""
        count = epochs * -(-self.population // self.expected) if steps is None else steps
        for _ in range(count):
            yield [rows[i] for i in self._draws.chosen(self.population, self.expected / self.population)]

    def gradient(self, trained: Params, parts: Iterable[tuple[int, Callable[[Params], Tensor]]]) -> dict[str, Tensor]:
        """The clipped and noised gradient of a step by tensor, float64, (1, ...); noise alone without parts.

        ``trained``: (1, ...).
        ``parts``: of each part of the batch the number of rows and the objective, as in :func:`row_gradients`. Only one
        part's gradients are in memory at a time.
        """
        sums = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in trained.items()}
        for rows, objective in parts:
            owner = torch.zeros(rows, dtype=torch.long)
            for name, total in clipped_sums(row_gradients(trained, owner, objective), owner, 1, self.clip).items():
                sums[name] += total
        return add_noise(sums, self.deviation, [self._noise], torch.tensor([self.expected]))


def row_gradients(trained: Params, owner: Tensor, objective: Callable[[Params], Tensor]) -> dict[str, Tensor]:
    """Gradient of each row's objective by tensor, (rows, ...).

    ``trained``: tensors with the client axis, (K, ...).
    ``owner``: the client of each row, (rows,).
    ``objective``: losses (rows,) of tensors (rows, ...), one set of tensors per row.
    """
    leaves = {n: t.detach()[owner.to(t.device)].requires_grad_() for n, t in trained.items()}
    value = objective(leaves)
    grads = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def clipped_sums(gradients: Params, owner: Tensor, clients: int, clip: float) -> dict[str, Tensor]:
    """Sum over each client's rows of their gradients, each scaled to an L2 norm of at most ``clip`` over all tensors:
    float64, (K, ...).

    ``gradients``: by tensor, (rows, ...).
    ``owner``: the client of each row, (rows,).

    Rows whose norm is not finite count as zero: one bad row must neither stop the step nor pass the clip.
    """
    norm = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64) for g in gradients.values()])
    norm = torch.linalg.vector_norm(norm, dim=0)
    scale = torch.where(norm > clip, clip / norm, torch.ones_like(norm))
    sums = {}
    for name, gradient in gradients.items():
        shape = (-1,) + (1,) * (gradient.dim() - 1)
        kept = torch.where(norm.isfinite().reshape(shape), gradient.double() * scale.reshape(shape), 0.0)
        sums[name] = kept.new_zeros((clients, *kept.shape[1:])).index_add_(0, owner.to(kept.device), kept)
    return sums


def add_noise(sums: Params, deviation: float, streams: Sequence[SecretStream], expected: Tensor) -> dict[str, Tensor]:
    """``(sums + N(0, deviation^2)) / expected``, float64, (K, ...). A client without rows gets its noise too.

    ``deviation``: noise multiplier times clip.
    ``streams``: each client's own, K of them.
    ``expected``: expected number of rows per step, (K,), known beforehand: the drawn number is a secret.
    """
    result = {}
    for name, total in sums.items():
        noise = torch.stack([s.normal(total[0].numel()) for s in streams]).reshape(total.shape).to(total.device)
        result[name] = (total + deviation * noise) / expected.to(total).reshape((-1,) + (1,) * (total.dim() - 1))
    return result
