"""The network of the whole golden files in torch, and a trainer that takes its batches in the order they fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.algorithm import Client, Fit, FitOptions, Loss, Round, Trainer, Upload, Uploads
from rondo.params import Params, buffer, client_row

H, HB = "head:out.weight", "head:out.bias"
MEAN, VAR = "buffer:norm.running_mean", "buffer:norm.running_var"
Rows = tuple[Tensor, Tensor]


@dataclass
class WholeNetwork:
    """The loss of one client's model. ``base``: frozen weights by layer, empty where whole tensors are trained."""

    base: Mapping[str, Tensor]
    scale: Mapping[str, float]

    def loss(self, t: Params, rows: Rows, *, training: bool = True) -> Tensor:
        """Half the squared error, summed over outputs, averaged over rows. A pass in training updates the statistics of
        ``t`` in place."""
        x, y = rows
        x = self._linear(t, "first", x)
        if MEAN in t:
            x = torch.nn.functional.batch_norm(
                x, t[MEAN], t[VAR], t["norm.weight"], t["norm.bias"], training=training, momentum=0.1
            )
        x = torch.tanh(self._linear(t, "second", torch.tanh(x)))
        return 0.5 * (x @ t[H].T + t[HB] - y).square().sum(-1).mean()

    def _linear(self, t: Params, m: str, x: Tensor) -> Tensor:
        if m in self.base:
            return x @ (self.base[m] + self.scale[m] * (t[f"{m}.B"] @ t[f"{m}.A"])).T
        return x @ t[f"{m}.weight"].T + t[f"{m}.bias"]


def pieces(rows: Rows, batch: int, *, epochs: int | None, steps: int | None) -> list[Rows]:
    """Consecutive rows, each epoch from the first row on; ``steps`` of them if it is given."""
    once = list(zip(*(torch.split(part, batch) for part in rows), strict=True))
    count = steps if steps is not None else len(once) * (epochs or 0)
    return [once[s % len(once)] for s in range(count)]


def divided(rows: Rows, share: float) -> tuple[Rows, Rows]:
    """The first ``share`` of the rows, and the others; a single row is both."""
    count = len(rows[0])
    if count == 1:
        return rows, rows
    size = min(max(round(share * count), 1), count - 1)
    return (rows[0][:size], rows[1][:size]), (rows[0][size:], rows[1][size:])


@dataclass
class BatchTrainer(Trainer):
    """A trainer of plain SGD for clients that differ in their number of batches."""

    clients: tuple[Client, ...]
    round: Round
    network: WholeNetwork
    rows: Mapping[str, Rows]
    lr: float
    epochs: int
    batch: int
    weights: Mapping[str, float]
    support: float | None = None
    fits: list[Params] = field(default_factory=list)

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.fit`. A client whose batches have run out stays as it is."""
        train, rate = options.train, self.lr if options.lr is None else options.lr
        epochs = self.epochs if options.epochs is None else options.epochs
        batches = [pieces(self.rows[c.id], self.batch, epochs=epochs, steps=options.steps) for c in self.clients]
        counts = torch.tensor([len(b) for b in batches])
        losses = torch.zeros(len(self.clients), dtype=torch.float64)
        result = {n: t.detach().clone() for n, t in params.items()}
        for step in range(int(counts.max())):
            active = step < counts
            trained = {n: t.clone().requires_grad_() for n, t in result.items() if train(n) and not buffer(n)}
            statistics = {n: t.clone() for n, t in result.items() if buffer(n)}
            now = [b[min(step, len(b) - 1)] for b in batches]  # of a client that has finished, any
            value = options.objective({**result, **trained, **statistics}, self._loss(now, active))
            grads = torch.autograd.grad(value[active].sum(), list(trained.values()), allow_unused=True)
            losses += torch.where(active, value.detach() / counts.clamp(min=1), 0.0)
            moved = {
                n: t.detach() - rate * g for (n, t), g in zip(trained.items(), grads, strict=True) if g is not None
            }
            moved |= {n: t for n, t in statistics.items() if train(n)}
            for n, t in moved.items():
                result[n] = torch.where(active.view(-1, *[1] * (t.dim() - 1)), t, result[n])
            result |= options.project({n: result[n] for n in trained})
        self.fits.append(result)
        return Fit(result, counts, torch.tensor([sum(len(x) for x, _ in b) for b in batches]), losses)

    def _loss(self, now: Sequence[Rows], active: Tensor) -> Loss:
        """The loss of each ``active`` client on its rows. ``support``: whether the first of them are divided from the
        others; without it, both parts are all."""

        def whole(seen: Params) -> Tensor:
            return torch.stack([self.network.loss(client_row(seen, k), rows) for k, rows in enumerate(now)])

        def parts(share: float) -> tuple[Loss, Loss]:
            if self.support is None:
                return self._loss(now, active), self._loss(now, active)
            assert share == self.support
            both = [divided(rows, share) for rows in now]
            return self._loss([one for one, _ in both], active), self._loss([other for _, other in both], active)

        counts = torch.tensor([len(rows[0]) for rows in now])
        return Loss(whole, parts, torch.where(active, counts, 0))

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`."""
        return tuple(
            Upload(c, client_row(params, k), self.weights[c.id] if weight is None else float(weight[k]))
            for k, c in enumerate(self.clients)
        )
