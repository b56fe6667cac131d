"""FedASK's two sketches by its paper's Algorithm 1 in NumPy, beside FedSVD whose split is "both": with A frozen, as
FedASK has it under privacy, they are the same method."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Upload
from rondo.testing import check_algorithm
from rondo.testing.run import Run

Matrix = npt.NDArray[np.float64]


def algorithm_1(uploads: list[Upload], a: Matrix, layer: str, omega: Matrix, r: int) -> tuple[Matrix, Matrix]:
    """B^t (d, r) and A^t (r, k) from clients that trained B_k and had A^(t-1) = ``a``; ``omega``: (k, r + p)."""
    n = sum(u.weight for u in uploads)
    b_k = [(u.weight / n, u.params[f"{layer}.B"].numpy()) for u in uploads]
    y = np.sum([p * b @ (a @ omega) for p, b in b_k], axis=0)  # the first upload of a client is B_k (A Omega)
    q, _ = np.linalg.qr(y)
    y_tilde = np.sum([p * a.T @ (b.T @ q) for p, b in b_k], axis=0)  # the second is A^T (B_k^T Q)
    u, sigma, v_t = np.linalg.svd(y_tilde.T, full_matrices=False)
    root = np.sqrt(sigma[:r])
    return q @ (u[:, :r] * root), root[:, None] * v_t[:r]


@pytest.mark.parametrize("oversketch", [0, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_fedsvd_split_in_both_is_fedask_with_a_frozen(oversketch: int, seed: int) -> None:
    run, draw, worst = Run(algorithms.get("fedsvd", split="both"), seed), np.random.default_rng(seed), 0.0
    rank = run.problem.rank
    for index in range(6):
        before, uploads = dict(run.state.params), [o.upload for o in run.step(index)]
        for path, weight in run.problem.weights.items():
            omega = draw.standard_normal((weight.shape[1], rank + oversketch))
            b, a = algorithm_1(uploads, before[f"{path}.A"].numpy(), path, omega, rank)
            ours_b, ours_a = (run.state.params[f"{path}.{factor}"].numpy() for factor in "BA")
            signs = np.sign(np.sum(a * ours_a, axis=1))  # an SVD leaves them open
            worst = max(worst, np.abs(ours_b - b * signs).max(), np.abs(ours_a - a * signs[:, None]).max())
    assert worst < 1e-10


@pytest.mark.slow
def test_laws_hold_with_both() -> None:
    results = check_algorithm(algorithms.get("fedsvd", split="both"), seeds=(0, 1))
    assert [r for r in results if r.outcome == "failed"] == []


def test_a_round_that_learned_nothing_leaves_directions_to_train() -> None:
    """FedASK's roots alone would make both factors zero for good."""
    run = Run(algorithms.get("fedsvd", split="both"), 0, steps=0)
    run.step(0)
    for path in run.problem.weights:
        a, b = (run.state.params[f"{path}.{factor}"] for factor in "AB")
        assert not b.any()
        torch.testing.assert_close(a @ a.mT, torch.eye(len(a), dtype=a.dtype))


def test_split_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="split is one of up, both; got 'down'"):
        algorithms.get("fedsvd", split="down")
