"""A linear problem with a known truth: the data of RoLoRA's section 4.1 and of FedRep's section 4."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Round
from rondo.config.section import ProblemConfig


@dataclass(frozen=True)
class LinearProblem:
    """The truth of a problem and the start of its network, all in float64.

    ``down``: A (k, d), or the representation B^T; its rows are orthonormal.
    ``up``: one matrix per client, B (out, k), or the head w_i (1, k): shape (n, out, k). Factors have a mean of norm 1
    over the clients. Heads are an orthonormal (n, k) times sqrt(n), so their norms are sqrt(k) in the mean, as FedRep's
    assumption 3 says. (Appendix A.1 prints sqrt(k) as the factor, but then heads would shrink with the number of
    clients.)
    ``start``: the network's first A, or representation; its rows are orthonormal.
    """

    config: ProblemConfig
    seed: int
    down: Tensor
    up: Tensor
    start: Tensor

    @staticmethod
    def draw(config: ProblemConfig, seed: int) -> LinearProblem:
        d, k, n = config.inputs, config.rank, config.clients
        down = _orthonormal(_normal(seed, (d, k), "down")).mT
        if config.kind == "heads":
            up = (_orthonormal(_normal(seed, (n, k), "up")) * n**0.5).unsqueeze(1)
        else:
            out = d if config.outputs is None else config.outputs
            mean = _normal(seed, (out, k), "up")
            apart = _normal(seed, (n, out, k), "own")
            apart = apart - apart.mean(0)
            size = apart.square().sum((1, 2)).mean().sqrt()
            apart = apart / size if n > 1 else torch.zeros_like(apart)  # one client is its own mean
            up = mean / mean.norm() + config.spread * apart
        start = _orthonormal(_normal(seed, (d, k), "start")).mT
        if config.start_distance is not None:
            across = start - start @ down.mT @ down
            across = across / across.norm() if k == 1 else _orthonormal(across.mT).mT
            delta = config.start_distance
            start = (1 - delta**2) ** 0.5 * down + delta * across
        return LinearProblem(config, seed, down.contiguous(), up, start.contiguous())

    def inputs(self, client: int) -> Tensor:
        """X of a client, (rows, d): independent rows N(0, I), or with X^T X = rows times I."""
        config = self.config
        x = _normal(self.seed, (config.rows, config.inputs), "x", client)
        return _orthonormal(x) * config.rows**0.5 if config.design == "isotropic" else x

    def noise(self, client: int) -> Tensor:
        return self.config.noise * _normal(self.seed, (self.config.rows, self.up.shape[1]), "noise", client)

    @cached_property
    def slopes(self) -> Tensor:
        """The true matrix of every client, y = slope^T x: (n, d, out)."""
        return (self.up @ self.down).mT

    def rows(self) -> list[dict[str, Any]]:
        digits = len(str(self.config.clients - 1))
        return [
            {"client": f"client-{k:0{digits}}", "x": a, "y": b}
            for k in range(self.config.clients)
            for x in [self.inputs(k)]
            for a, b in zip(x.tolist(), (x @ self.slopes[k] + self.noise(k)).tolist(), strict=True)
        ]

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Per client, X^T X, X^T E and the sum of E^2 for the noise E, over the number of rows: (n, d, d), (n, d, out)
        and (n,)."""
        pairs = ((self.inputs(k), self.noise(k)) for k in range(self.config.clients))
        sums = [(x.mT @ x, x.mT @ e, e.square().sum()) for x, e in pairs]
        xx, xe, ee = (torch.stack(part) / self.config.rows for part in zip(*sums, strict=True))
        return xx, xe, ee

    def losses(self, slopes: Tensor) -> Tensor:
        """Each client's squared error, the mean over its rows, with matrices ``slopes`` (d, out) or (n, d, out):
        shape (n,). It is a sum about the truth, so a small one keeps its digits."""
        xx, xe, ee = self.moments
        off = slopes - self.slopes
        return (off * (xx @ off)).sum((1, 2)) - 2 * (off * xe).sum((1, 2)) + ee

    def with_best_heads(self, rows: Tensor) -> Tensor:
        """The matrix of every client, (n, d, out), whose head is the best for the representation ``rows`` (k, d)."""
        xx, xe, _ = self.moments
        best = torch.linalg.lstsq(rows @ xx @ rows.mT, rows @ (xx @ self.slopes + xe), driver="gelsd").solution
        slopes: Tensor = rows.mT @ best
        return slopes

    @cached_property
    def newcomers(self) -> tuple[Tensor, Tensor, Tensor]:
        """A hundred clients that take no part, with heads N(0, I) of their own: inputs (100, 2k, d), outputs with
        noise (100, 2k, 1) and true matrices (100, d, 1)."""
        d, k, noise = self.config.inputs, self.config.rank, self.config.noise
        slopes = (_normal(self.seed, (100, 1, k), "newcomers") @ self.down).mT
        x = _normal(self.seed, (100, 2 * k, d), "newcomers", "x")
        return x, x @ slopes + noise * _normal(self.seed, (100, 2 * k, 1), "newcomers", "noise"), slopes

    def newcomer_error(self, rows: Tensor) -> float:
        """The squared error of a newcomer whose head is the best for the representation ``rows`` (k, d) on its 2k rows,
        expected over further inputs without noise; the median over the newcomers."""
        x, y, slopes = self.newcomers
        heads = torch.linalg.lstsq(x @ rows.mT, y, driver="gelsd").solution
        return float((rows.mT @ heads - slopes).square().sum((1, 2)).median())


def _normal(seed: int, shape: tuple[int, ...], *tags: str | int) -> Tensor:
    generator = Round(0, 1, seed, 0).generator("linear problem", *tags)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _orthonormal(matrix: Tensor) -> Tensor:
    """The Q of ``matrix`` (m, n) with m >= n: orthonormal columns."""
    q: Tensor = torch.linalg.qr(matrix).Q
    return q
