"""Fed-PLoRA against its paper in the paper's symbols: rank-one modules B_(j) A_(j), of which a client folds in
those that it does not train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import UnreadableUpload, Upload
from rondo.testing import TwoLayers
from rondo.testing.run import Run

R, RANKS, H_OF, LR = 4, (1, 2, 3), "head:out.weight", 0.1  # the rate of the laws' trainer


def problem(seed: int = 0, ranks: tuple[int | None, ...] = RANKS) -> TwoLayers:
    made = TwoLayers.make(seed, rank=R)
    return replace(made, clients=tuple(replace(c, rank=r) for c, r in zip(made.clients, ranks, strict=True)))


def adapted(run: Run, seed: int = 3) -> Run:
    """The run from an adapter: where B is zero there is nothing to fold."""
    draw = torch.Generator().manual_seed(seed)
    start = {n: torch.randn(t.shape, generator=draw, dtype=t.dtype) / 3 for n, t in run.state.params.items()}
    run.state = replace(run.state, params=start)
    return run


def trained(run: Run, upload: Upload) -> dict[str, Any]:
    """One client's training on its set K_i of modules, which its upload names: the modules (B_(j), A_(j)) by layer and
    j, and the head."""
    state = run.state.params
    chosen = {path: upload.params[f"{path}.I"].tolist() for path in run.problem.weights}
    free = {("head", 0): state[H_OF].clone().requires_grad_()}
    folded = {}
    for path, weight in run.problem.weights.items():
        b, a = state[f"{path}.B"], state[f"{path}.A"]
        rest = [torch.outer(b[:, j], a[j]) for j in range(R) if j not in chosen[path]]
        folded[path] = weight.matrix() + weight.scale * torch.stack(rest).sum(0)  # W_i^t
        for j in chosen[path]:
            free[f"B {path}", j] = b[:, j].clone().requires_grad_()
            free[f"A {path}", j] = a[j].clone().requires_grad_()
    x, y = run.problem.data[upload.client.id]
    for _ in range(run.steps):
        hidden = x
        for path, weight in run.problem.weights.items():
            own = [torch.outer(free[f"B {path}", j], free[f"A {path}", j]) for j in chosen[path]]
            hidden = torch.tanh(hidden @ (folded[path] + weight.scale * torch.stack(own).sum(0)).T)
        loss = 0.5 * (hidden @ free["head", 0].T - y).square().sum(-1).mean()
        grads = torch.autograd.grad(loss, list(free.values()))
        with torch.no_grad():
            for tensor, grad in zip(free.values(), grads, strict=True):
                tensor -= LR * grad
    return {key: tensor.detach() for key, tensor in free.items()}


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_are_those_of_the_paper(seed: int) -> None:
    run, worst, drawn = adapted(Run(algorithms.get("fed-plora"), seed, problem(seed))), 0.0, set()
    for index in range(6):
        # Every third round has one client, so some modules are nobody's.
        uploads = [run.train([c], index)[0].upload for c in (run.clients if index % 3 else run.clients[:1])]
        wanted = {u.client.id: trained(run, u) for u in uploads}
        for upload in uploads:
            for path in run.problem.weights:
                slots = upload.params[f"{path}.I"].tolist()
                assert len(slots) == upload.client.rank
                drawn.add((upload.client.id, tuple(slots)))
                for i, j in enumerate(slots):
                    b, a = (wanted[upload.client.id][f"{letter} {path}", j] for letter in "BA")
                    worst = max(worst, gap(upload.params[f"{path}.B"][:, i], b), gap(upload.params[f"{path}.A"][i], a))
        before = dict(run.state.params)
        run.state = run.algorithm.aggregate(run.state, uploads, run.round(index))
        n = {u.client.id: u.weight for u in uploads}
        for path in run.problem.weights:
            for j in range(R):
                q_j = [c for c in n if (f"B {path}", j) in wanted[c]]  # those that trained module j
                for letter, axis in (("B", 1), ("A", 0)):
                    mean: Any = before[f"{path}.{letter}"].select(axis, j)
                    if q_j:
                        mean = sum(n[c] * wanted[c][f"{letter} {path}", j] for c in q_j) / sum(n[c] for c in q_j)
                    worst = max(worst, gap(run.state.params[f"{path}.{letter}"].select(axis, j), mean))
    assert worst < 1e-12
    assert len(drawn) > 10


def test_modules_that_nobody_drew_stay_bit_for_bit() -> None:
    run = adapted(Run(algorithms.get("fed-plora"), 0, problem()))
    before, (upload,) = dict(run.state.params), [run.train(run.clients[:1], 0)[0].upload]
    after = run.algorithm.aggregate(run.state, [upload], run.round(0)).params
    for path in run.problem.weights:
        others = [j for j in range(R) if j not in upload.params[f"{path}.I"].tolist()]
        assert torch.equal(after[f"{path}.A"][others], before[f"{path}.A"][others])
        assert torch.equal(after[f"{path}.B"][:, others], before[f"{path}.B"][:, others])


@pytest.mark.parametrize("ranks", [(None, None, None), (R, R, R)], ids=["no ranks", "all of the run's"])
def test_clients_that_train_all_modules_make_it_fedit(ranks: tuple[int | None, ...]) -> None:
    runs = [Run(algorithms.get(name), 0, problem(ranks=ranks)) for name in ("fed-plora", "fedit")]
    for index in range(3):
        for run in runs:
            run.step(index)
        for name, tensor in runs[0].state.params.items():
            torch.testing.assert_close(tensor, runs[1].state.params[name], rtol=0, atol=1e-12)


def test_upload_of_modules_that_the_server_has_not_is_refused() -> None:
    run = Run(algorithms.get("fed-plora"), 0, problem())
    upload = run.train(run.clients[:1], 0)[0].upload
    wrong = replace(upload, params={**upload.params, "first.I": torch.tensor([R], dtype=torch.int32)})
    with pytest.raises(UnreadableUpload, match="slots must differ and lie between 0 and 3"):
        run.algorithm.expand(run.state, wrong)
