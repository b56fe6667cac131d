"""FLoRIST against its paper's Algorithm 1 in NumPy, by the paper's symbols, and its ranks in bytes and saved states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from rondo import algorithms
from rondo.algorithm import Upload
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.testing.run import Run

Matrix = npt.NDArray[np.float64]
LAYERS, TAUS = ("first", "second"), (0.6, 0.9, 0.99)


def algorithm_1(uploads: list[Upload], layer: str, tau: float) -> tuple[Matrix, Matrix]:
    """B_g (m, p) and A_g (p, n) of one layer."""
    n_k = np.array([u.weight for u in uploads])
    b_k, a_k = ([u.params[f"{layer}.{factor}"].numpy() for u in uploads] for factor in "BA")
    b_stack = np.concatenate(b_k, axis=1)
    a_stack = np.concatenate([n / n_k.sum() * a for n, a in zip(n_k, a_k, strict=True)], axis=0)
    u_b, s_b, v_b = np.linalg.svd(b_stack, full_matrices=False)
    u_a, s_a, v_a = np.linalg.svd(a_stack, full_matrices=False)
    q = v_b @ u_a
    u_p, s_p, v_p = np.linalg.svd(np.diag(s_b) @ q @ np.diag(s_a), full_matrices=False)
    share = [np.sum(s_p[:p] ** 2) / np.sum(s_p**2) for p in range(1, len(s_p) + 1)]
    p = next(i for i, kept in enumerate(share, 1) if kept >= tau)
    assert min(abs(kept - tau) for kept in share) > 1e-6  # rounding does not choose p
    return (u_b @ u_p)[:, :p] @ np.diag(s_p[:p]), (v_p @ v_a)[:p]


def paths(run: Run) -> tuple[str, ...]:
    return tuple(run.problem.weights)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_round_adds_the_product_and_the_rank_of_algorithm_1(tau: float, seed: int) -> None:
    run, worst = Run(algorithms.get("florist", tau=tau), seed), 0.0
    for index in range(5):
        before, uploads = run.state.base, [o.upload for o in run.step(index)]
        for path in paths(run):
            b_g, a_g = algorithm_1(uploads, path, tau)
            first = before[path].count if path in before else 0
            tensors = run.state.base[path].growth(first).tensors
            old = before[path].factors().dense() if path in before else 0.0
            moved = (run.state.base[path].factors().dense() - old).numpy()
            worst = max(worst, float(np.abs(moved - run.problem.weights[path].scale * b_g @ a_g).max()))
            if len(tensors) == 2:
                assert tensors[0].shape == b_g.shape
                assert tensors[1].shape == a_g.shape
    assert worst < 1e-12


def growths(run: Run, rounds: int = 8) -> list[dict[str, int]]:
    """The numbers that a client that took part in every round lacks of each layer's base, by round, as a ledger counts
    them, beside the sizes by Algorithm 1."""
    ledger, found, wanted = Ledger(), [], 0
    client = run.clients[0]
    for index in range(rounds):
        shared = replace(run.shared(client, index), params={})
        received, _ = ledger.send(client.id, shared)
        found.append({"sent": received // 8, "wanted": wanted})
        uploads = [o.upload for o in run.step(index)]
        wanted = 0
        for path in paths(run):
            b_g, a_g = algorithm_1(uploads, path, run.algorithm.tau)
            wanted += min(b_g.size + a_g.size, b_g.shape[0] * a_g.shape[1])
    return found


def test_a_client_is_sent_the_numbers_of_the_ranks_that_were_kept() -> None:
    counted = growths(Run(algorithms.get("florist", tau=0.9), 0))
    assert [c["sent"] for c in counted] == [c["wanted"] for c in counted]
    assert len({c["sent"] for c in counted}) > 2  # ranks differ by round


def test_ranks_differ_by_layer_and_round_and_a_saved_state_goes_on_bit_for_bit() -> None:
    run, other = (Run(algorithms.get("florist", tau=0.9), 0) for _ in range(2))
    ranks = set()
    for index in range(6):
        other.state = serialization.unpack(serialization.pack(run.state), run.state)
        for one in (run, other):
            one.step(index)
        assert serialization.same(run.state, other.state)
        ranks.add(tuple(run.state.base[path].ranks[-1:] for path in paths(run)))
    assert len(ranks) > 1
    assert [by_layer for by_layer in ranks if len(set(by_layer)) > 1] != []


def test_tau_of_1_is_flora() -> None:
    florist, flora = (Run(algorithms.get(n, **fields), 0) for n, fields in (("florist", {"tau": 1.0}), ("flora", {})))
    for index in range(4):
        for run in (florist, flora):
            run.step(index)
        assert florist.gap(florist.state, flora.state, index + 1) < 1e-12


@pytest.mark.parametrize("tau", [0.0, -0.5, 1.5, float("nan")])
def test_tau_is_a_share(tau: float) -> None:
    with pytest.raises(
        ValueError, match=r"tau is a share of the sum of squared singular values, above 0 and at most 1"
    ):
        algorithms.get("florist", tau=tau)
