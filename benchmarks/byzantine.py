"""Robust rules against dishonest clients: accuracy in per cent of plain averaging without an attack.

    python benchmarks/byzantine.py --seeds 0,1,2 --json byzantine.json

Twenty clients hold handwritten digits (scikit-learn's, 8 x 8; the ``dev`` extra installs it), with labels dealt by
Dirichlet(0.5). A frozen network of two random layers of 32 has factors of rank 8 on both layers, and a trained head. A
run has 40 rounds of five full-batch steps. Each upload is checked (``rondo.engine.server.admission``), except under the
defence ``nothing``; then the rule aggregates. Attackers know all honest uploads of their round. The task is small:
it shows which rule withstands which attack, not how a large model fares.

Attacks, with d the client's change:

- ``nan``: NaN in every entry
- ``sign-flip``: -10 d
- ``gaussian``: noise of 100 times the standard deviation of the honest changes
- ``scaling``: 1000 d
- ``ipm``: -5 times the honest mean
- ``alie``: the honest mean less 1.5 standard deviations
- ``label-flip``: honest training on labels 9 - y
- ``inflated``: honest training on labels 9 - y, with a claim of a million examples

The gate limits the examples that a client may claim to 1000. It does not bound norms.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from simulation import machine, versions
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Fit, Objective, Round, Upload, Uploads, Weight, plain
from rondo.algorithms.table import RULES
from rondo.algorithms.wrappers.robust import Robust
from rondo.config import AdmissionConfig
from rondo.engine.server.admission import Admission
from rondo.engine.wire.envelope import Identity, Rejected
from rondo.params import Params, Select, add_client_axis, client_row, everything, kaiming

CLIENTS, STEPS, RATE, WIDTH, RANK, SCALE = 20, 5, 0.5, 32, 8, 2.0
ATTACKS = ("nan", "sign-flip", "gaussian", "scaling", "ipm", "alie", "label-flip", "inflated")
ATTACKERS = (2, 4, 6, 8)
DEFENCES = ("nothing", "gate", *RULES)


@dataclass(frozen=True)
class Task:
    """Digits dealt to K clients."""

    x: Tensor
    """(K, rows, 64), padded."""
    y: Tensor
    """(K, rows), the labels."""
    mask: Tensor
    """(K, rows), 0 for padding."""
    test: tuple[Tensor, Tensor]
    """x (rows, 64) and y (rows,) of the test set."""
    weights: dict[str, Tensor]
    """The frozen matrices by module path."""
    clients: tuple[Client, ...]

    @staticmethod
    def make(seed: int) -> Task:
        draw = np.random.default_rng(seed)
        digits = load_digits()
        order = draw.permutation(len(digits.target))
        x = torch.from_numpy(digits.data[order] / 16).float()
        y = torch.from_numpy(digits.target[order])
        train, test = order[:1400], slice(1400, None)
        owner = np.empty(len(train), dtype=int)
        for label in range(10):
            labelled = np.flatnonzero(y[:1400].numpy() == label)
            owner[labelled] = draw.choice(CLIENTS, len(labelled), p=draw.dirichlet([0.5] * CLIENTS))
        rows = [np.flatnonzero(owner == k) for k in range(CLIENTS)]
        rows = [r if len(r) else np.array([k]) for k, r in enumerate(rows)]
        longest = max(map(len, rows))
        indices = torch.tensor([[*r, *[r[0]] * (longest - len(r))] for r in rows])
        mask = torch.tensor([[1.0] * len(r) + [0.0] * (longest - len(r)) for r in rows])
        rng = torch.Generator().manual_seed(seed)
        weights = {
            "first": torch.randn(WIDTH, 64, generator=rng) / 8,
            "second": torch.randn(WIDTH, WIDTH, generator=rng) / WIDTH**0.5,
        }
        clients = tuple(Client(f"c{k:02}", len(r)) for k, r in enumerate(rows))
        return Task(x[indices], y[indices], mask, (x[test], y[test]), weights, clients)

    def logits(self, seen: Params, x: Tensor) -> Tensor:
        """Logits (K, rows, 10) of x (K, rows, 64), with tensors that have a client axis."""
        for path, weight in self.weights.items():
            low_rank = x @ seen[f"{path}.A"].mT @ seen[f"{path}.B"].mT
            x = torch.tanh(x @ weight.T + SCALE * low_rank)
        return x @ seen["head:out.weight"].mT

    def initial(self, seed: int) -> dict[str, Tensor]:
        rng = torch.Generator().manual_seed(seed + 1)
        params = {"head:out.weight": torch.zeros(10, WIDTH)}
        for path, weight in self.weights.items():
            params[f"{path}.A"] = kaiming(RANK, weight.shape[1], rng).float()
            params[f"{path}.B"] = torch.zeros(weight.shape[0], RANK)
        return params


@dataclass(frozen=True)
class Batched:
    """A :class:`rondo.algorithm.Trainer` that takes full-batch steps of all clients at once."""

    task: Task
    labels: Tensor
    round: Round
    lr: float = RATE

    @property
    def clients(self) -> tuple[Client, ...]:
        return self.task.clients

    def fit(
        self,
        params: Params,
        *,
        train: Select = everything,
        objective: Objective = plain,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> Fit:
        trained = {n: t.detach().clone().requires_grad_() for n, t in params.items() if train(n)}

        def loss(seen: Params) -> Tensor:
            logits = self.task.logits(seen, self.task.x)
            losses = functional.cross_entropy(logits.flatten(0, 1), self.labels.flatten(), reduction="none")
            return (losses.view_as(self.task.mask) * self.task.mask).sum(1) / self.task.mask.sum(1)

        for _ in range(STEPS):
            value = objective({**params, **trained}, loss)
            grads = torch.autograd.grad(value.sum(), list(trained.values()))
            with torch.no_grad():
                for tensor, grad in zip(trained.values(), grads, strict=True):
                    tensor.sub_((self.lr if lr is None else lr) * grad)
        new = {n: trained[n].detach() if n in trained else t for n, t in params.items()}
        zeros = torch.zeros(len(self.clients))
        return Fit(new, zeros, zeros, zeros)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        return tuple(Upload(c, client_row(params, k), float(c.num_examples)) for k, c in enumerate(self.clients))


def attacked(
    attack: str, uploads: Sequence[Upload], flipped: Sequence[Upload], count: int, start: Params, seed: int
) -> list[Upload]:
    """``uploads`` with those of the first ``count`` clients forged. ``flipped``: uploads trained on flipped labels."""
    if attack == "label-flip":
        return [*flipped[:count], *uploads[count:]]
    if attack == "inflated":
        claimed = [replace(u, client=replace(u.client, num_examples=10**6), weight=1e6) for u in flipped[:count]]
        return [*claimed, *uploads[count:]]
    changes = {n: torch.stack([u.params[n] - start[n] for u in uploads[count:]]) for n in uploads[0].params}
    rng = torch.Generator().manual_seed(seed)

    def forged(upload: Upload, name: str) -> Tensor:
        honest, change = changes[name], upload.params[name] - start[name]
        deviation = honest.std(0, unbiased=False)
        return {
            "nan": lambda: torch.full_like(change, torch.nan),
            "sign-flip": lambda: -10 * change,
            "gaussian": lambda: 100 * honest.std() * torch.randn(change.shape, generator=rng),
            "scaling": lambda: 1000 * change,
            "ipm": lambda: -5 * honest.mean(0),
            "alie": lambda: honest.mean(0) - 1.5 * deviation,
        }[attack]()

    return [
        replace(u, params={n: start[n] + forged(u, n) for n in u.params}) if k < count else u
        for k, u in enumerate(uploads)
    ]


def run(name: str, defence: str, attack: str | None, attackers: int, seed: int, rounds: int) -> float:
    """Accuracy on the test rows after the last round."""
    task = Task.make(seed)
    algorithm: Algorithm[Any] = algorithms.get(name)
    if defence in RULES:
        algorithm = Robust(algorithm, defence, attackers)  # type: ignore[arg-type]
    matrices = {
        path: Weight((w.shape[0], w.shape[1]), SCALE, lambda w=w: w)  # type: ignore[misc]
        for path, w in task.weights.items()
    }
    first = Round(0, rounds, seed, CLIENTS)
    state = algorithm.init(task.initial(seed), matrices, first)
    for index in range(rounds):
        round = replace(first, index=index)
        shared = algorithm.broadcast(state, task.clients[0], round)
        received = replace(shared, params=add_client_axis(shared.params, CLIENTS))
        uploads, _ = algorithm.client_update(received, {}, Batched(task, task.y, round))
        if attack is not None:
            flipped: Uploads = ()
            if attack in ("label-flip", "inflated"):
                flipped, _ = algorithm.client_update(received, {}, Batched(task, 9 - task.y, round))
            uploads = tuple(attacked(attack, uploads, flipped, attackers, state.params, seed * 1000 + index))
        if defence != "nothing":
            limits = AdmissionConfig(max_examples=1000)
            gate = Admission(algorithm, state, round, task.clients, limits, Identity("", ""))
            uploads = tuple(u for u in uploads if _admitted(gate, u))
        state = algorithm.aggregate(state, uploads, round)
    seen = add_client_axis(algorithm.broadcast(state, task.clients[0], first).params)
    x, y = task.test
    return float((task.logits(seen, x.unsqueeze(0))[0].argmax(1) == y).double().mean())


def _admitted(gate: Admission, upload: Upload) -> bool:
    try:
        gate.check(upload)
    except Rejected:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", default="fedit,ffa-lora")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(s) for s in args.seeds.split(",")]
    rows: list[dict[str, Any]] = []
    for name in args.algorithms.split(","):
        clean = statistics.fmean(run(name, "nothing", None, 0, s, args.rounds) for s in seeds)
        print(f"\n{name}: {clean:.3f} with no attack and plain averaging; per cent of that")
        print(f"{'attack':12}{'of 20':>6} " + "".join(f"{d[:15]:>17}" for d in DEFENCES))
        for attack, attackers in [(None, 4), *((a, f) for a in ATTACKS for f in ATTACKERS)]:
            scores: Mapping[str, float] = {
                d: statistics.fmean(run(name, d, attack, attackers, s, args.rounds) for s in seeds) / clean
                for d in DEFENCES
            }
            label = attack or f"none (f = {attackers})"
            print(f"{label:12}{attackers:6} " + "".join(f"{100 * scores[d]:17.0f}" for d in DEFENCES), flush=True)
            rows.append({"algorithm": name, "attack": attack, "attackers": attackers, "clean": clean, **scores})
    if args.json is not None:
        content = {"seeds": seeds, "rows": rows, "machine": machine(), "versions": versions()}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
